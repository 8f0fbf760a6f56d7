"""The published production shape of Olmo 3 32B Think gives its learner wait.

Inputs, all published: 8 learner and 20 actor nodes of 8 GPUs, 128 prompts of 8 completions, at most 8 versions of lag,
answers of 14,628 tokens on average and 32,768 at most, 125 s of training a step.

Input by inference, because no speed of a 32B engine is published: one actor node of 8 GPUs made 2,949 trained tokens/s
with a model of 7.6e9 parameters and groups of two. A third of such groups can train (3x oversampling), so it generated
three times as many. Tokens per second are inverse to parameters: 2,949 x 3 x 7.6 / 32.2 = 2,088. The default spread of
the prompts' difficulty gives that third.

Predictions: the share of groups of eight that can train, the step time, the lag, and the learner's wait. The wait is
published as 75%.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from olmorl.deploy.plan.cli import main
from olmorl.simulation import Simulation

RECIPE = Path(__file__).parents[3] / "deploy" / "recipes" / "olmo3-32b-think.toml"
ENGINE_TOKENS_PER_S = 2949 * 3 * 7.6 / 32.2


def test_a_third_of_the_groups_of_two_can_train_with_the_default_spread() -> None:
    log_odds = np.random.default_rng(0).normal(0.0, Simulation().prompt_spread, 200_000)
    solved = 1 / (1 + np.exp(-log_odds))
    assert float((2 * solved * (1 - solved)).mean()) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_learner_of_the_production_shape_waits_for_three_quarters_of_the_time(tmp_path: Path) -> None:
    code = main(
        [
            *(str(RECIPE), "--learner-nodes", "8", "--actor-nodes", "20", "--no-sweep", "--steps", "8"),
            *("--mean-tokens", "14628", "--train-s", "125", "--engine-tokens-per-s", f"{ENGINE_TOKENS_PER_S}"),
            *("--simulation.learned_per_version", "0", "--json", str(tmp_path / "plan.json")),
        ]
    )
    (found,) = json.loads((tmp_path / "plan.json").read_text())["predictions"]
    assert code == 0
    assert found["wait"] == pytest.approx(0.75, abs=0.05)
    assert found["train_s"] == pytest.approx(125, rel=0.1)
    assert 0 < found["lag"] < found["lag_max"] <= 8
