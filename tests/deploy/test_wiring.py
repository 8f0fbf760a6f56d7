"""What the recipe decides about the parts of an actor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.deploy import wiring
from olmorl.errors import ResourceError
from olmorl.messages import Prompt, Version

Parts = Callable[..., dict[str, Any]]
PROMPT = Prompt(
    draw_id=5,
    row="data.jsonl:1",
    messages="?",
    token_ids=np.arange(3, dtype=np.int32),
    datasets=("math",),
    ground_truths=("1",),
    group_size=4,
    min_version=Version(1, 0),
)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parts:
    """The parts that an actor of a recipe is made of."""
    monkeypatch.setattr("olmorl.actors.loop.Actor", lambda **given: given)
    run = {"directory": tmp_path, "name": "run", "seed": 7}

    def build(name: str, mode: str, max_lag: int) -> dict[str, Any]:
        tree = {"run": {**run, "mode": mode}, "model": {"path": "none"}, "schedule": {"max_lag": max_lag}}
        made: Any = wiring.actor(config.build(tree), name, None, None, "")  # type: ignore[arg-type]
        found: dict[str, Any] = made
        return found

    return build


@pytest.mark.parametrize(("mode", "max_lag", "seeded"), [("real", 0, True), ("real", 4, False), ("simulated", 4, True)])
def test_answers_have_seeds_only_where_a_run_could_repeat_them(
    parts: Parts, mode: str, max_lag: int, seeded: bool
) -> None:
    sampling = parts("actor-0", mode, max_lag)["sample"](PROMPT, 0)
    assert (sampling.seed is not None) == seeded


@pytest.mark.parametrize("fault", [None, ResourceError("the disk is full")])
async def test_a_rank_that_failed_does_not_wait_for_the_others_to_leave_the_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Exception | None
) -> None:
    class Policy:
        closed = False

        def close(self) -> None:
            self.closed = True

    async def run(*_: Any) -> str:
        if fault:
            raise fault
        return "stop"

    policy = Policy()
    monkeypatch.setattr(wiring, "trainer", lambda *_: policy)
    monkeypatch.setattr("olmorl.learner.loop.run", run)
    settings = config.build({"run": {"directory": tmp_path, "name": "run"}, "model": {"path": "none"}})
    learning = wiring.learn(settings, 0, "127.0.0.1:1", None)  # type: ignore[arg-type]
    if fault:
        with pytest.raises(ResourceError):
            await learning
    else:
        assert await learning == "stop"
    assert policy.closed == (fault is None)


def test_engines_sample_apart(parts: Parts) -> None:
    found = {parts(name, "real", 4)["engine"]._start.seed for name in ("actor-0", "actor-0.2", "actor-1")}
    assert len(found) == 3
