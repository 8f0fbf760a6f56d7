"""Metric lines reach the launcher once each, also when an answer is lost."""

from __future__ import annotations

from typing import Any

from olmorl.deploy.processes.orchestrator_process import NumberedLines


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
