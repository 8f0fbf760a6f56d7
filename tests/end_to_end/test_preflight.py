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
outage_deadline_s = 0.5
"""
SHARDED = """
[sampling]
max_tokens = 64

[learner]
ranks_per_node = 2
zero_stage = 3

[learner.deepspeed.zero_optimization]
stage3_param_persistence_threshold = 0

[actors]
max_running = 8
kv_cache_gib = 0.25
enforce_eager = true

[actors.vllm]
max_logprobs = 10
"""
ALWAYS = ("reward functions", "redis", "clock", "run directory", "ports")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def marks(table: str) -> dict[str, str]:
    """The mark of each check in the table."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]
    return {row[0]: row[2] for row in rows if row[0]}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engine_and_ranks_are_placed_and_sharded_as_in_the_run(launch: Callable[[str], Any]) -> None:
    """Two ranks share the policy; ZeRO-3 gathers it while they score what the engine said."""
    run = launch(SHARDED)
    run.start("--preflight")
    assert run.wait(500) == 0, run.output()
    said, found = run.output(), marks(run.output())
    assert "hardware: CPU; Ray reports no GPU" in said
    assert found["all-gather"] == found["log-probabilities"] == "ok" and set(found.values()) == {"ok"}
    assert "GB/s into each rank" in " ".join(said.split()) and "32 tokens" in said
    run.until_gone()
