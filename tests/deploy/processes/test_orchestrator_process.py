"""Metric lines reach the launcher once each, also when an answer is lost. The end of the run ends its tracking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes import run_process, semaphores
from olmorl.deploy.processes.orchestrator_process import NumberedLines, OpenRun, OrchestratorProcess
from olmorl.errors import NothingToLearn, OlmoRLError, ProcessLost


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


@pytest.mark.parametrize(
    ("error", "dropped"), [(None, 3), (NothingToLearn("all solved"), 3), (ProcessLost("another start may help"), 0)]
)
async def test_the_last_points_leave_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OlmoRLError | None, dropped: int
) -> None:
    monkeypatch.setattr(run_process, "log_to", lambda *_: None)
    monkeypatch.setattr(semaphores, "unlink_own", lambda: None)  # this process has those of other tests
    recipe = config.build({"run": {"directory": tmp_path, "mode": "simulated"}})
    process = OrchestratorProcess(recipe.model_dump(mode="json"), QueueAccess("redis://here", {}), {})
    process._tracking = LastPoints()  # type: ignore[assignment]
    process._run = OpenRun(EndingOrchestrator(error), queue=None)  # type: ignore[arg-type]
    try:
        assert await process.run() == "all steps are done" and error is None
    except OlmoRLError as raised:
        assert raised is error
    labels = {"process": "orchestrator", "run": recipe.run.name}
    assert (process.telemetry.registry.get_sample_value("olmorl_tracking_dropped_total", labels) or 0) == dropped
    process.telemetry.close()
