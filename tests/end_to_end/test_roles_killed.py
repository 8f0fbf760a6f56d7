"""A run with a critic and a KL reward, and one with adapters and a reference, killed without warning and resumed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

STEPS, MAX_LAG = 12, 1
SIZES = f"""
[sampling]
group_size = 4
max_tokens = 48
[schedule]
steps = {STEPS}
prompts_per_step = 4
max_lag = {MAX_LAG}
[learner]
learning_rate = 1e-3
[actors]
max_running = 16
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 2
"""
CRITIC = """
[objective]
preset = "ppo"
kl_beta = 0.01
kl_in = "reward"
kl_target = 10.0
rho = 2.0
"""
ADAPTERS = """
[model.lora]
rank = 4
[objective]
kl_beta = 0.01
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("more", "name"), [(CRITIC, "value_explained_fraction"), (ADAPTERS, "kl_ref_mean")], ids=["critic", "adapters"]
)
def test_killed_without_warning_and_resumed(
    launch: Callable[[str], Any], check_history: Callable[[Any, int, int], None], more: str, name: str
) -> None:
    run = launch(SIZES + more)
    run.start()
    run.until_step(2)
    run.signal(signal.SIGKILL)
    run.wait()
    run.until_gone()
    before = {line["step"]: line for line in run.lines()}
    run.start("--resume")
    assert run.wait() == 0, run.output()
    run.until_gone()
    check_history(run, STEPS, MAX_LAG)
    lines = {line["step"]: line for line in run.lines()}
    assert {line["incarnation"] for line in lines.values()} == {1, 2}
    for step, line in before.items():
        if lines[step]["incarnation"] == 1:
            assert lines[step] == line, "what a checkpoint holds stays"
        else:
            assert lines[step]["reward_mean"] == line["reward_mean"], "a step after it trains the same answers again"
            assert lines[step]["kl_ref_mean"] == pytest.approx(line["kl_ref_mean"], abs=1e-3)
    assert all(name in line for line in lines.values())
    # The divergence is far below its target, so the weight falls by 20% of 16 / 10,000 a step, over the kill too.
    falls = 1 - 0.2 * 16 / 10_000 if more == CRITIC else 1.0
    assert [lines[step]["kl_beta"] for step in lines] == pytest.approx(
        [0.01 * falls**n for n in range(STEPS)], rel=1e-9
    )
