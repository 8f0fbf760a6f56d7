"""`--preflight` with much that is wrong: one look tells all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import recipes

NO_REDIS = """
[queue]
url = "redis://127.0.0.1:1/0"
connect_deadline_s = 0.5
"""
ALWAYS = ("reward functions", "redis", "clock", "run directory", "ports")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def marks(table: str) -> dict[str, str]:
    """The mark of each check in the table."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]
    return {row[0]: row[2] for row in rows if row[0]}


def test_one_table_has_every_problem_with_its_fix(tmp_path: Path) -> None:
    run = recipes.real(tmp_path, tmp_path / "nothing-here", NO_REDIS)
    run.start("--preflight", "--data.train", '["missing.jsonl"]')
    assert run.wait() == 2
    said = run.output()
    found = marks(said)
    assert {check for check, mark in found.items() if mark == "FAILED"} == {
        *("data", "model", "tokenizer", "redis", "disk", "shared memory", "log-probabilities")
    }
    assert {check for check, mark in found.items() if mark == "ok"} == {
        *("memory", "reward functions", "clock", "run directory", "ports", "verifiers")
    }
    assert "7 of 13 checks failed" in said and "Traceback" not in said


def test_a_run_without_a_model_is_looked_at_too(simulate: Callable[[str], Any]) -> None:
    run = simulate("")
    run.start("--preflight")
    assert run.wait() == 0, run.output()
    assert marks(run.output()) == dict.fromkeys(ALWAYS, "ok")
    assert run.lines() == []
