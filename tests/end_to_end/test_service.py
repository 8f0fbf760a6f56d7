"""Real vLLM, DeepSpeed, Ray and Redis with two ranks and two engines; killed and stopped on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.learner.storage import rollout_log
from tests.end_to_end.leftovers import until_clean, unused

STEPS = 6
MAX_LAG = 2
SIZES = """
[sampling]
group_size = 4
max_tokens = 96
[schedule]
steps = {steps}
prompts_per_step = 4
max_lag = {max_lag}
[learner]
ranks_per_node = 2
zero_stage = {zero}
learning_rate = 1e-3
[actors]
engines_per_node = 2
max_running = 4
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 2
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]


def sizes(zero: int) -> str:
    return SIZES.format(steps=STEPS, max_lag=MAX_LAG, zero=zero)


def check_rollouts(run_dir: Path) -> None:
    paths = sorted((run_dir / "rollouts").glob("*.zst"))
    completions = [
        completion for path in paths for group in rollout_log.read(path) for completion in group["completions"]
    ]
    assert completions
    for completion in completions:
        spans = completion["versions"]
        assert spans[0][1] == 0 and spans[-1][2] == len(completion["token_ids"]) == len(completion["logprobs"])
        assert all(before[2] == after[1] for before, after in pairwise(spans))
    assert any(len(completion["versions"]) > 1 for completion in completions), "no update met a running answer"


def test_killed_without_warning_and_resumed(
    launch: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = launch(sizes(zero=2))
    run.start()
    run.until_step(3)
    run.signal(signal.SIGKILL)
    run.wait()
    run.until_gone()
    run.start("--resume")
    assert run.wait() == 0, run.output()
    run.until_gone()
    check_history(run, STEPS, MAX_LAG)
    check_rollouts(run.run_dir)
    assert {line["incarnation"] for line in run.lines()} == {1, 2}
    assert "Failed to load weights" not in (run.run_dir / "logs" / "actor-0.log").read_text()


def test_asked_to_stop_and_resumed(
    launch: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    before = unused()
    run = launch(sizes(zero=3))
    run.start()
    run.until_step(2)
    run.signal(signal.SIGINT)
    assert run.wait() == 0, run.output()
    run.until_gone()
    until_clean(run, before)
    done = len(run.lines())
    assert done < STEPS
    assert config.load(run.run_dir / "config.toml").schedule.steps == STEPS
    assert (run.run_dir / "checkpoints" / f"step_{done}").is_dir(), "a stop leaves a checkpoint of the last step"
    run.start("--resume")
    assert run.wait() == 0, run.output()
    until_clean(run, before)
    check_history(run, STEPS, MAX_LAG)
