"""A lost learner restarts as a new incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import pytest

from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes.orchestrator_process import Opened
from olmorl.deploy.supervision import learner_supervisor, policies
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.view.live_view import Status
from olmorl.errors import DeadlinePassed, Diverged, NothingToLearn, ProcessLost, RunEnded, StartError
from olmorl.messages import ActorStatus, Owner, Version, Wait
from tests.waiting import HANG_S

Keeping = Callable[..., AbstractAsyncContextManager[LearnerSupervisor]]
GROUP = ["orchestrator", "learner-0", "learner-1"]
RANKS = GROUP[1:]


@pytest.fixture
def keeping(until: Any) -> Keeping:
    """Keeps a learner of two ranks while a block runs; an error that ended it is raised at the end of the block.

    With `ends` the block waits for that error.
    """

    @asynccontextmanager
    async def keep(context: Any, ends: bool = False) -> AsyncIterator[LearnerSupervisor]:
        incarnations = count(1)
        opens = {"open": lambda resume, from_step: Opened(next(incarnations), [])}
        context.cluster.answers = {
            "orchestrator": {**context.cluster.answers.get("orchestrator", {}), **opens},
            "learner": {"meeting_point": "here:1"},
        }
        learner = LearnerSupervisor(context, [object(), object()], QueueAccess("redis://here", {}))  # type: ignore[list-item]
        await learner.open(resume=False, from_step=7)
        keeper = asyncio.create_task(learner.supervise())
        await until(lambda: began(context, 1))
        yield learner
        await asyncio.wait([keeper], timeout=HANG_S if ends else 0)
        keeper.cancel()
        await asyncio.wait([keeper])
        if not keeper.cancelled() and (error := keeper.exception()):
            raise error

    return keep


def began(context: Any, incarnation: int) -> bool:
    """Whether both newest ranks train for an incarnation."""
    if not set(RANKS) <= set(context.cluster.names):
        return False
    runs = [call for name in RANKS for call in context.cluster.newest(name).calls if call[0] == "run"]
    return [call[-1] for call in runs] == [incarnation] * len(RANKS)


async def test_a_lost_rank_is_a_new_start_of_all_ranks_and_the_data_is_not_read_again(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made = context()
    async with keeping(made):
        made.cluster.newest("learner-1").end(ProcessLost("learner-1 died: its host is gone"))
        await until(lambda: made.cluster.names == [*GROUP, *RANKS] and began(made, 2))
        orchestrator, first, second = made.cluster.started[:3]
        assert first.killed and second.killed and not orchestrator.killed
        assert [call for call in orchestrator.calls if call[0] == "open"] == [("open", False, 7), ("open", True, None)]
        assert made.said == [
            "learner-1 died: its host is gone: the learner starts again from its last checkpoint; actors go on"
        ]


async def test_a_lost_orchestrator_is_replaced_with_its_ranks(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made) as learner:
        made.cluster.newest("orchestrator").end(ProcessLost("orchestrator died"))
        await until(lambda: made.cluster.names == [*GROUP, *GROUP] and began(made, 2))
        assert ("open", True, None) in made.cluster.newest("orchestrator").calls
        assert all(process.killed for process in made.cluster.started[:3])
        assert learner.num_restarts == 1


async def test_an_orchestrator_that_gives_no_answer_counts_as_lost(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made):
        made.cluster.newest("orchestrator").answers["identity"] = DeadlinePassed("no answer")
        made.cluster.newest("orchestrator").end(ProcessLost("orchestrator gave no sign of life"))
        await until(lambda: made.cluster.names == [*GROUP, *GROUP])


async def test_an_orchestrator_that_hangs_as_it_opens_is_replaced(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made):
        first = made.cluster.newest("orchestrator")

        def hang(resume: bool, from_step: None) -> asyncio.Future[Opened]:
            first.answers["identity"] = first.answers["loading"] = DeadlinePassed("no answer")
            return asyncio.get_running_loop().create_future()

        first.answers["open"] = hang
        made.cluster.newest("learner-1").end(ProcessLost("learner-1 died"))
        await until(lambda: made.cluster.names == [*GROUP, *GROUP] and began(made, 2))
        assert first.killed
        assert made.said[-1].startswith("orchestrator gave no sign of life for 120 s: the learner starts again")


async def test_a_wait_for_the_data_reports_its_progress(
    context: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_supervisor, "_SAY_AGAIN_S", 0.0)
    monkeypatch.setattr(policies, "POLL_S", 0.01)
    made, loaded, numbers = context(), asyncio.Event(), count(512, 512)
    made.cluster.answers["orchestrator"] = {
        "open": lambda resume, from_step: _opened_when(loaded),
        "loading": lambda: f"reading the data: {min(next(numbers), 1536):,} rows",
    }
    learner = LearnerSupervisor(made, [object()], QueueAccess("redis://here", {}))
    opening = asyncio.create_task(learner.open(resume=False, from_step=None))
    await until(lambda: made.cluster.started and made.cluster.newest("orchestrator").calls.count(("loading",)) > 5)
    loaded.set()
    await opening
    assert made.said == [f"reading the data: {number} rows" for number in ("512", "1,024", "1,536")]


async def test_an_orchestrator_that_opens_too_late_is_replaced(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made):
        first = made.cluster.newest("orchestrator")
        first.answers["open"] = DeadlinePassed("waited 3600 s for the answer of orchestrator to 'open'")
        made.cluster.newest("learner-1").end(ProcessLost("learner-1 died"))
        await until(lambda: made.cluster.names == [*GROUP, *GROUP] and began(made, 2))
        assert first.killed


async def test_a_rank_that_names_no_meeting_point_is_lost(context: Any, keeping: Keeping, until: Any) -> None:
    made, starts = context(), count(1)

    def name_it_the_second_time() -> str:
        if next(starts) == 1:
            raise DeadlinePassed("waited 120 s for the answer of learner-0 to 'meeting_point'")
        return "here:1"

    async with keeping(made) as learner:
        made.cluster.answers["learner"]["meeting_point"] = name_it_the_second_time
        made.cluster.newest("learner-1").end(ProcessLost("learner-1 died"))
        await until(lambda: began(made, 3))
        assert learner.num_restarts == 2
        assert made.said[-1].startswith(
            "waited 120 s for the answer of learner-0 to 'meeting_point': the learner starts"
        )


async def test_an_error_with_a_name_ends_the_run(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    with pytest.raises(NothingToLearn, match="all solved"):
        async with keeping(made, ends=True):
            made.cluster.newest("orchestrator").end(NothingToLearn("all solved"))
    assert made.cluster.names == GROUP


async def test_a_run_that_ends_with_an_error_of_a_rank_sends_its_last_points(context: Any, keeping: Keeping) -> None:
    made = context()
    with pytest.raises(Diverged, match="not finite"):
        async with keeping(made, ends=True):
            made.cluster.newest("learner-1").end(ProcessLost("learner-1 died"))
            await asyncio.sleep(0.05)
            assert ("close_tracking",) not in made.cluster.newest("orchestrator").calls
            made.cluster.newest("learner-0").end(Diverged("the gradient is not finite"))
    assert made.cluster.newest("orchestrator").calls[-1] == ("close_tracking",)


async def test_a_policy_that_cannot_be_built_ends_the_run(context: Any, keeping: Keeping) -> None:
    made = context(restarts=5)
    with pytest.raises(StartError, match="half a header"):
        async with keeping(made, ends=True):
            made.cluster.newest("learner-1").end(StartError("SafetensorError: half a header"))
    assert made.cluster.names == GROUP


async def test_a_learner_that_fails_at_two_starts_with_one_error_is_not_started_a_third_time(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made = context(restarts=50)
    with pytest.raises(RunEnded, match="failed twice in a row with the same error: learner-0 failed: RuntimeError"):
        async with keeping(made, ends=True):
            for incarnation in (1, 2):
                await until(lambda incarnation=incarnation: began(made, incarnation))
                made.cluster.newest("learner-0").end(ProcessLost("learner-0 failed: RuntimeError('no such kernel')"))
    assert made.cluster.names == [*GROUP, *RANKS]


async def test_a_learner_that_is_lost_after_a_stop_is_not_started_again(context: Any, keeping: Keeping) -> None:
    made = context(restarts=5)
    with pytest.raises(RunEnded, match="learner-0 died; a stop was asked for, so it does not start again: --resume"):
        async with keeping(made, ends=True) as learner:
            await learner.stop()
            made.cluster.newest("learner-0").end(ProcessLost("learner-0 died"))
    assert made.cluster.names == GROUP


async def test_before_its_first_step_a_start_has_nothing_to_save(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made) as learner:
        assert learner.is_fresh
        learner.note_status(Status(step=7, steps=9), 0.0)
        assert learner.is_fresh, "those steps were taken by an earlier start"
        learner.note_status(Status(step=8, steps=9), 1.0)
        assert not learner.is_fresh
        made.cluster.newest("learner-0").end(ProcessLost("learner-0 died"))
        await until(lambda: began(made, 2))
        assert learner.is_fresh


async def test_a_learner_that_takes_no_step_between_its_losses_ends_the_run(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made = context(restarts=2)
    with pytest.raises(RunEnded, match="started 2 times in a row without taking a step, and lost again: out of memory"):
        async with keeping(made, ends=True) as learner:
            for incarnation in (1, 2):
                await until(lambda incarnation=incarnation: began(made, incarnation))
                learner.note_status(Status(step=incarnation, steps=9), 0.0)
                made.cluster.newest("learner-0").end(ProcessLost("out of memory"))
            for incarnation in (3, 4):
                await until(lambda incarnation=incarnation: began(made, incarnation))
                made.cluster.newest("learner-0").end(ProcessLost("out of memory"))


async def test_a_silent_rank_and_a_step_that_never_ends_are_losses(context: Any, keeping: Keeping, until: Any) -> None:
    made = context(answer_s=5, step_s=60)
    async with keeping(made) as learner:
        for second in range(7):
            learner.note_status(Status(step=1, steps=9, pulses={"learner-0": second}), float(second))
        await until(lambda: began(made, 2))
        late = Status(step=2, steps=9, waits=[Wait("the report of step 3", Owner.LEARNER, 61.0, 60.0)])
        learner.note_status(late, 7.0)
        await asyncio.sleep(0.05)
        assert began(made, 2), "the ranks have just begun"
        learner._training_since -= 61.0
        learner.note_status(late, 8.0)
        await until(lambda: began(made, 3))
        assert [said.partition(":")[0] for said in made.said] == [
            "learner-1 gave no sign of life for 5 s",
            "learner-0 and its group hang",
        ]


async def test_weights_that_cannot_be_fetched_are_published_again(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()

    def say(*damaged: Version | None) -> Status:
        actors = [ActorStatus(name=f"actor-{i}", at=0.0, damaged=version) for i, version in enumerate(damaged)]
        return Status(step=1, steps=9, actors=actors)

    async with keeping(made) as learner:
        learner.note_status(say(Version(1, 4), None), 1.0)
        learner.note_status(say(Version(1, 4), Version(1, 5)), 2.0)
        await asyncio.sleep(0.05)
        assert learner.num_restarts == 0, "one of them is the trouble of one host"
        learner.note_status(say(Version(1, 4), Version(1, 4)), 3.0)
        await until(lambda: began(made, 2))
        learner.note_status(say(Version(1, 4), Version(1, 4)), 4.0)
        await asyncio.sleep(0.05)
        assert learner.num_restarts == 1, "the next start has not published yet"
        assert made.said[0].startswith("learner-0 published weights 1.4, which are damaged at their source: ")


async def test_ranks_that_start_are_not_silent(context: Any, keeping: Keeping, until: Any) -> None:
    made = context(answer_s=5)

    def start_slowly() -> str:
        for second in range(10, 30, 2):
            learner.note_status(Status(step=1, steps=9), float(second))
        return "here:1"

    async with keeping(made) as learner:
        learner.note_status(Status(step=1, steps=9), 0.0)
        made.cluster.answers["learner"]["meeting_point"] = start_slowly
        made.cluster.newest("learner-1").end(ProcessLost("learner-1 died"))
        await until(lambda: began(made, 2))
        learner.note_status(Status(step=1, steps=9), 30.0)
        await asyncio.sleep(0.05)
        assert learner.num_restarts == 1


async def test_who_asks_before_it_is_there_waits_no_longer_than_it_says(context: Any, keeping: Keeping) -> None:
    async with keeping(context()) as learner:
        assert learner.waits() == []
    learner = LearnerSupervisor(context(), [], QueueAccess("redis://here", {}))
    (wait,) = learner.waits()
    assert (wait.what, wait.owner, wait.deadline_s) == ("the ledger and the data", Owner.ORCHESTRATOR, 3600.0)
    with pytest.raises(DeadlinePassed, match="the orchestrator, which starts"):
        await learner.call("status", timeout_s=0.05)


async def test_a_start_under_way_hears_of_a_pause_and_of_a_stop(context: Any, keeping: Keeping, until: Any) -> None:
    made = context()
    async with keeping(made) as learner:
        await learner.pause()
        made.cluster.newest("orchestrator").end(ProcessLost("orchestrator died"))
        await until(lambda: len(made.cluster.started) > len(GROUP))
        await learner.stop()
        await until(lambda: began(made, 2))
        orders = [call[0] for call in made.cluster.newest("orchestrator").calls if call[0] in ("pause", "stop")]
        assert orders[:2] == ["pause", "stop"]


async def test_a_stop_while_a_start_is_told_of_a_pause_is_told_too(
    context: Any, keeping: Keeping, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_supervisor, "_ORDER_DEADLINE_S", 0.1)
    made = context()
    async with keeping(made) as learner:
        back = asyncio.Event()
        made.cluster.answers["orchestrator"]["resume"] = lambda: back.wait()
        made.cluster.newest("orchestrator").end(ProcessLost("orchestrator died"))
        await until(lambda: len(made.cluster.started) > len(GROUP))
        await until(lambda: ("resume",) in made.cluster.newest("orchestrator").calls)
        await learner.stop()
        back.set()
        await until(lambda: began(made, 2))
        orders = [call[0] for call in made.cluster.newest("orchestrator").calls if call[0] in ("resume", "stop")]
        assert orders == ["resume", "resume", "stop"]


async def test_a_start_that_takes_long_is_no_reason_to_refuse_a_stop(
    context: Any, keeping: Keeping, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_supervisor, "_ORDER_DEADLINE_S", 0.1)
    made, loaded = context(), asyncio.Event()
    async with keeping(made) as learner:
        made.cluster.answers["orchestrator"]["open"] = lambda resume, from_step: _opened_when(loaded)
        made.cluster.newest("orchestrator").end(ProcessLost("orchestrator died"))
        await until(lambda: len(made.cluster.started) > len(GROUP))
        await learner.pause()
        await learner.stop()
        loaded.set()
        await until(lambda: began(made, 2))
        orders = [call[0] for call in made.cluster.newest("orchestrator").calls if call[0] in ("pause", "stop")]
        assert orders == ["pause", "stop"]


async def test_a_resume_that_nobody_heard_is_said_to_the_next_orchestrator(
    context: Any, keeping: Keeping, until: Any
) -> None:
    made = context()
    async with keeping(made) as learner:
        await learner.pause()
        lost = made.cluster.newest("orchestrator")
        lost.answers["resume"] = ProcessLost("orchestrator died")
        await learner.resume()
        lost.end(ProcessLost("orchestrator died"))
        await until(lambda: began(made, 2))
        orders = [call[0] for call in made.cluster.newest("orchestrator").calls if call[0] in ("pause", "resume")]
        assert (learner.state, orders) == ("running", ["resume"]), "the queue still holds the pause"


async def _opened_when(loaded: asyncio.Event) -> Opened:
    await loaded.wait()
    return Opened(2, [])
