"""Every loss of a process raises one of our errors, so that its supervisor restarts it."""

from __future__ import annotations

import pickle

import pytest
import ray
from ray import exceptions
from ray.exceptions import RayError, RayTaskError

from olmorl.deploy.cluster.remote_process import RemoteProcess, cause_of
from olmorl.errors import EngineDied, OlmoRLError, ProcessLost, QueueUnavailable, Unscorable


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.ActorDiedError(), "actor-0 died: "),
        (
            exceptions.OutOfMemoryError("Task was killed due\nto the node running low"),
            "OutOfMemoryError: Task was killed",
        ),
        (exceptions.RuntimeEnvSetupError("no space left"), "RuntimeEnvSetupError: "),
        (exceptions.ActorPlacementGroupRemoved(), "actor-0 is lost: ActorPlacementGroupRemoved: "),
        (exceptions.RaySystemError("the GCS is away"), "actor-0 is lost: RaySystemError: "),
    ],
)
def test_the_news_of_a_death_names_process_and_cause(error: RayError, said: str) -> None:
    found = cause_of(error, "actor-0")
    assert isinstance(found, ProcessLost)
    assert str(found).startswith("actor-0 ") and said in str(found)
    assert "\n" not in str(found) and len(str(found)) < 400


def test_what_a_process_raised_is_raised_here(caplog: pytest.LogCaptureFixture) -> None:
    cause = QueueUnavailable("Redis is away")
    assert cause_of(RayTaskError("call", "", cause), "actor-0") is cause
    raised = RayTaskError("call", "  File 'a.py', line 3", KeyError("x"))
    for error in (raised, raised.as_instanceof_cause()):  # a caller gets the second
        caplog.clear()
        other = cause_of(error, "actor-0")
        assert isinstance(other, ProcessLost) and "KeyError('x')" in str(other)
        assert "actor-0 failed:\n" in caplog.text and "File 'a.py', line 3" in caplog.text


class Handle:
    """A process whose one call ends with an error."""

    def __init__(self, error: RayError) -> None:
        self._error = error
        self.run = self

    async def remote(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.ActorDiedError(), "actor-0 has had no heartbeat for 8 s"),
        (RayTaskError("run", "", EngineDied("weights 1.4 were loaded in part")), "weights 1.4 were loaded in part"),
    ],
)
async def test_a_killed_process_that_has_said_why_it_ends_is_believed(
    error: RayError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)
    process = RemoteProcess("actor-0", Handle(error))
    process.begin("run")
    process.kill("has had no heartbeat for 8 s")
    with pytest.raises(OlmoRLError) as caught:
        await process.ended()
    assert str(caught.value) == said


def test_an_error_that_travels_is_the_same_at_the_other_end() -> None:
    found = pickle.loads(pickle.dumps(Unscorable("self_test", "the sandbox is open")))
    assert (type(found), found.error_kind, str(found)) == (Unscorable, "self_test", "self_test: the sandbox is open")
