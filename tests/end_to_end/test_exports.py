"""Exports and the best checkpoint of a run with real engines, whose orchestrator is killed during an export."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from olmorl.learner.storage import best_checkpoint, checkpoint_dir, ledger
from olmorl.run_dir import RunFiles

SIZES = """
[sampling]
group_size = 4
max_tokens = 32
[schedule]
steps = 6
prompts_per_step = 4
[learner]
learning_rate = 1e-3
[actors]
max_running = 8
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 3
keep = 1
export_every = 2
best = "eval_held_reward_mean"
[evaluation]
data = ["held={folder}/data.jsonl"]
every = 3
limit = 4
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]


def test_every_export_and_the_best_checkpoint_survive_a_kill(launch: Callable[[str], Any]) -> None:
    run = launch("")
    run.recipe.write_text(run.recipe.read_text() + SIZES.replace("{folder}", str(run.folder)))
    files = RunFiles(run.run_dir)
    run.start()
    run.until(lambda: list(files.exports.glob(".step_2.*.partial")), 240)
    os.kill(run.roster()["orchestrator"]["pid"], signal.SIGKILL)
    assert run.wait(400) == 0, run.output()
    assert sorted(path.name for path in files.exports.iterdir()) == ["step_2", "step_4", "step_6"], run.output()
    for step in (2, 4, 6):
        assert AutoModelForCausalLM.from_pretrained(files.export_of(step)).num_parameters() > 0
    best = best_checkpoint.best_step(files.checkpoints)
    assert best in (3, 6) and {best, 6} == set(checkpoint_dir.steps(files.checkpoints))
    values = {line["eval_held_version"]: line["eval_held_reward_mean"] for line in run.lines() if _is_evaluated(line)}
    assert values[best] == max(value for version, value in values.items() if version in (3, 6))
    assert ledger.incarnations(files.ledger) == [1, 2], "the kill was noticed"


def _is_evaluated(line: dict[str, Any]) -> bool:
    return line.get("eval_held_reward_mean") is not None
