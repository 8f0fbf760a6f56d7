"""Metric lines reach the launcher once each, also when an answer is lost. The end of the run ends its tracking."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.actors.vllm_engine import reaper
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes import run_process
from olmorl.deploy.processes.orchestrator_process import NumberedLines, OpenRun, OrchestratorProcess
from olmorl.errors import NothingToLearn, OlmoRLError, ProcessLost, Superseded


def steps(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines]


def test_lines_are_kept_until_they_are_acknowledged() -> None:
    lines = NumberedLines()
    for step in (3, 4):
        lines.add({"step": step})
    assert steps(lines.after(0)) == [3, 4]
    assert steps(lines.after(0)) == [3, 4], "the first answer was lost"
    lines.acknowledge(lines.newest)
    lines.add({"step": 5})
    lines.acknowledge(2)
    assert steps(lines.after(2)) == steps(lines.after(0)) == [5]
    assert lines.after(lines.newest) == []


def test_what_is_added_to_a_line_is_no_line_of_its_own() -> None:
    lines = NumberedLines()
    for fields in ({"step": 3, "reward_mean": 0.5}, {"eval_held_accuracy": 0.25}):
        lines.add(fields)
    assert (steps(lines.after(0)), lines.newest) == ([3], 1)


class EndingOrchestrator:
    def __init__(self, error: OlmoRLError | None) -> None:
        self._error = error

    async def run(self) -> str:
        if self._error is not None:
            raise self._error
        return "all steps are done"


class LastPoints:
    """Tracking whose last points do not leave."""

    num_dropped = 0

    def close(self) -> None:
        self.num_dropped += 3


def process_of(folder: Path, monkeypatch: pytest.MonkeyPatch, orchestrator: Any, queue: Any = None) -> Any:
    """A process whose run is open, with `LastPoints`."""
    for done_to_this_process in ("log_to", "leave_stop_to_launcher"):
        monkeypatch.setattr(run_process, done_to_this_process, lambda *_: None)
    monkeypatch.setattr(reaper, "unlink_own_semaphores", lambda: None)  # this process has those of other tests
    recipe = config.build({"run": {"directory": folder, "mode": "simulated"}})
    process = OrchestratorProcess(recipe.model_dump(mode="json"), QueueAccess("redis://here", {}), {})
    process._tracking = LastPoints()  # type: ignore[assignment]
    process._run = OpenRun(orchestrator, queue)
    return process


def dropped_by(process: Any) -> float:
    labels = {"process": "orchestrator", "run": process.settings.run.name}
    return process.telemetry.registry.get_sample_value("olmorl_tracking_dropped_total", labels) or 0


@pytest.mark.parametrize(
    ("error", "dropped"), [(None, 3), (NothingToLearn("all solved"), 3), (ProcessLost("another start may help"), 0)]
)
async def test_the_last_points_leave_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OlmoRLError | None, dropped: int
) -> None:
    process = process_of(tmp_path, monkeypatch, EndingOrchestrator(error))
    try:
        assert await process.run() == "all steps are done" and error is None
    except OlmoRLError as raised:
        assert raised is error
    assert dropped_by(process) == dropped
    process.telemetry.close()


class WaitingOrchestrator:
    async def run(self) -> str:
        await asyncio.Event().wait()
        return "never"

    async def next(self, rank: int, step: int) -> str:
        return await self.run()


class OpenQueue:
    async def close(self) -> None: ...


async def test_tracking_goes_on_when_the_run_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of(tmp_path, monkeypatch, WaitingOrchestrator(), OpenQueue())
    running = asyncio.create_task(process.run())
    asking = asyncio.create_task(process._run.next_step(0, 1))
    await asyncio.sleep(0.01)
    await process._run.close()
    assert await running == "opened again"
    assert dropped_by(process) == 0, "the next opening sends its lines too"
    with pytest.raises(Superseded):
        await asking
    process.telemetry.close()
