"""Every preset's loss and gradient against numbers worked by hand.

Two groups of two answers, six completion tokens:

    sequence   reward   mean   mean_std      token   log pi   pi / pi_old   pi_old / pi_engine   pi_ref / pi
    a          1        +0.5   +1            a1      -1       1.5           1                    2
                                             a2      -2       0.9           3                    1
    b          0        -0.5   -1            b1      -1       0.5           0.5                  1
    c          3        +1     +1            c1      -2       1.1           1.25                 1
    d          1        -1     -1            d1      -1       2             1                    1
                                             d2      -2       0.9           4                    0.5

packed as [prompt a1 a2 prompt b1] and [prompt c1 prompt d1 d2]. What the tensors hold at the prompts is NaN.
"""

from __future__ import annotations

from math import exp, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from olmorl.config import Objective
from olmorl.learner.algorithm.advantage import advantages, over_batch
from olmorl.learner.algorithm.objective import LossInputs, policy_loss, step_metrics
from olmorl.learner.algorithm.presets import Switches, resolve

MAX_TOKENS = 5
LOGPROBS = [-1.0, -2.0, -1.0, -2.0, -1.0, -2.0]
RATIOS = [1.5, 0.9, 0.5, 1.1, 2.0, 0.9]
WEIGHTS = [1.0, 3.0, 0.5, 1.25, 1.0, 4.0]
REF_RATIOS = [2.0, 1.0, 1.0, 1.0, 1.0, 0.5]
PLACES = ([0, 0, 0, 1, 1, 1], [1, 2, 4, 1, 3, 4])


def switches_of(preset: str, **explicit: Any) -> Switches:
    return resolve(Objective.model_validate({"preset": preset} | explicit), MAX_TOKENS)


def placed(values: list[float]) -> Tensor:
    tensor_BT = torch.full((2, 5), nan, dtype=torch.float64)
    tensor_BT[PLACES] = torch.tensor(values, dtype=torch.float64)
    return tensor_BT


def example(switches: Switches) -> LossInputs:
    kind, floor = switches.advantage, switches.std_floor
    grouped = [advantages(rewards, kind, std_floor=floor) for rewards in ([1, 0], [3, 1])]
    a, b, c, d = over_batch(np.concatenate(grouped), np.array([2.0, 1.0, 1.0, 2.0]), kind, floor)
    old = [logprob - log(ratio) for logprob, ratio in zip(LOGPROBS, RATIOS, strict=True)]
    mask_BT = torch.zeros(2, 5, dtype=torch.bool)
    mask_BT[PLACES] = True
    return LossInputs(
        logprobs_BT=placed(LOGPROBS).requires_grad_(),
        old_logprobs_BT=placed(old),
        behaviour_logprobs_BT=placed([o - log(weight) for o, weight in zip(old, WEIGHTS, strict=True)]),
        advantages_BT=placed([a, a, b, c, d, d]),
        loss_mask_BT=mask_BT,
        sequence_ids_BT=torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]),
        lags_BT=torch.tensor([[0, 0, 0, 0, 1], [0, 1, 0, 1, 1]]),
        loss_tokens=6.0,
        num_sequences=4,
        ref_logprobs_BT=placed([p + log(ratio) for p, ratio in zip(LOGPROBS, REF_RATIOS, strict=True)]),
        entropy_BT=placed([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    )


def expect(switches: Switches, loss: float, gradient: list[float]) -> None:
    inputs = example(switches)
    value, _ = policy_loss(inputs, switches)
    value.backward()
    grad_BT = inputs.logprobs_BT.grad
    assert grad_BT is not None
    # The standard deviation has 1e-6 added to it.
    assert value.item() == pytest.approx(loss, rel=1e-5)
    assert grad_BT[PLACES].tolist() == pytest.approx(gradient, rel=1e-5, abs=1e-12)
    assert not grad_BT[~inputs.loss_mask_BT].any()


def test_olmorl() -> None:
    # A is +-0.5 and +-1, the range [0.8, 1.272], rho 2, each token counts 1/6.
    #   a1  1 * min(1.5, 1.272) * 0.5 =  0.636   clipped: no gradient
    #   a2  2 * 0.9 * 0.5             =  0.9     weight 3 capped at 2
    #   b1  0.5 * min(-0.25, -0.4)    = -0.2     clipped
    #   c1  1.25 * 1.1 * 1            =  1.375
    #   d1  1 * min(-2, -1.272)       = -2       the minimum is the unclipped one
    #   d2  2 * -0.9                  = -1.8     weight 4 capped at 2
    # sum -1.089. The derivative of each unclipped term by its log-probability is the term itself.
    expect(switches_of("olmorl"), 1.089 / 6, [0, -0.9 / 6, 0, -1.375 / 6, 2 / 6, 1.8 / 6])


def test_olmorl_with_the_importance_weight_off() -> None:
    # As above with w = 1: 0.636 + 0.45 - 0.4 + 1.1 - 2 - 0.9 = -1.114.
    expect(switches_of("olmorl", rho="off"), 1.114 / 6, [0, -0.45 / 6, 0, -1.1 / 6, 2 / 6, 0.9 / 6])


def test_grpo() -> None:
    # A is +-1, the range [0.8, 1.2], mean per sequence, then over 4.
    #   a (1.2 + 0.9) / 2 = 1.05;  b -0.8;  c 1.1;  d (-2 - 0.9) / 2 = -1.45;  their mean -0.025
    # k3 with r = pi_ref / pi is r - 1 - ln r: a1 1 - ln 2, d2 ln 2 - 0.5, each in a sequence of two:
    #   0.04 * (0.5 / 2) / 4 = 0.0025.   Derivative of k3: 1 - r, so -1 at a1 and 0.5 at d2, times 0.04 / 8.
    gradient = [-0.005, -0.9 / 8, 0, -1.1 / 4, 2 / 8, 0.9 / 8 + 0.0025]
    expect(switches_of("grpo"), 0.025 + 0.0025, gradient)


def test_a_kl_reward_is_no_part_of_the_loss() -> None:
    # As above without the last term: the divergence is in the advantages, and is still reported.
    expect(switches_of("grpo", kl_in="reward"), 0.025, [0, -0.9 / 8, 0, -1.1 / 4, 2 / 8, 0.9 / 8])
    switches = switches_of("grpo", kl_in="reward", kl_estimator="k3")
    _, stats_S = policy_loss(example(switches), switches)
    assert step_metrics(stats_S, 1)["kl_ref_mean"] == pytest.approx(0.5 / 6)


def test_dr_grpo() -> None:
    # A is +-0.5 and +-1, the range [0.8, 1.2], each token counts 1 / (4 sequences * length 5).
    # 0.6 + 0.45 - 0.4 + 1.1 - 2 - 0.9 = -1.15
    expect(switches_of("dr_grpo"), 1.15 / 20, [0, -0.45 / 20, 0, -1.1 / 20, 2 / 20, 0.9 / 20])


def test_dapo() -> None:
    # A is +-1, the range [0.8, 1.28], each token counts 1/6: 1.28 + 0.9 - 0.8 + 1.1 - 2 - 0.9 = -0.42
    expect(switches_of("dapo"), 0.07, [0, -0.9 / 6, 0, -1.1 / 6, 2 / 6, 0.9 / 6])


def test_gspo() -> None:
    # A is +-1, the range [0.9997, 1.0004]. Ratios of the sequences, the geometric means of their tokens':
    #   a sqrt(1.5 * 0.9) -> 1.0004   b 0.5 -> -0.9997   c 1.1 -> 1.0004   d sqrt(2 * 0.9) stays: A is negative
    # The gradient of d's ratio is shared by its two tokens.
    s = sqrt(1.8)
    expect(switches_of("gspo"), -(1.0004 - 0.9997 + 1.0004 - s) / 4, [0, 0, 0, 0, s / 8, s / 8])


def test_rloo() -> None:
    # The mean of the others is the other reward: A is +-1 and +-2. 1.2 + 0.9 - 0.8 + 2.2 - 4 - 1.8 = -2.3
    expect(switches_of("rloo"), 2.3 / 6, [0, -0.9 / 6, 0, -2.2 / 6, 4 / 6, 1.8 / 6])


def test_reinforce_pp() -> None:
    # Over the six tokens the rewards 1, 1, 0, 3, 1, 1 have the mean 7/6 and, over 5, the variance 29/30. So A is -1/6,
    # -7/6, 11/6 and -1/6, over s. Of a and d, which are negative now, no ratio is below 0.8:
    # -(1.5 + 0.9 + 2 + 0.9) / 6 - 0.8 * 7 / 6 + 1.1 * 11 / 6 = 0.2
    s = sqrt(29 / 30)
    gradient = [1.5 / 36, 0.9 / 36, 0, -12.1 / 36, 2 / 36, 0.9 / 36]
    expect(switches_of("reinforce_pp"), -0.2 / (6 * s), [each / s for each in gradient])


def test_reinforce_pp_baseline() -> None:
    # Rewards minus the mean of their group: 0.5, 0.5, -0.5, 1, -1, -1 for the tokens, with the mean -1/12 and, over 5,
    # the variance 89/120. So A is 7, -5, 13 and -11, over 12 s.
    # 7 * (1.2 + 0.9) - 5 * 0.8 + 13 * 1.1 - 11 * 2.9 = -6.9
    s = sqrt(89 / 120)
    gradient = [0, -6.3 / 72, 0, -14.3 / 72, 22 / 72, 9.9 / 72]
    expect(switches_of("reinforce_pp_baseline"), 6.9 / (72 * s), [each / s for each in gradient])


def test_verl() -> None:
    # The deviations of samples are sqrt(1/2) and sqrt(2), so A is +-sqrt(1/2). No ratio is over 3, dual clip's bound.
    # 1.2 + 0.9 - 0.8 + 1.1 - 2 - 0.9 = -0.5
    k = sqrt(0.5)
    expect(switches_of("verl"), 0.5 * k / 6, [0, -0.9 * k / 6, 0, -1.1 * k / 6, 2 * k / 6, 0.9 * k / 6])


def test_dual_clip_bounds_the_loss_of_a_token_with_a_negative_advantage() -> None:
    # Ratios of 4 at b1 (A = -1/2) and d1 (A = -1): 3 A instead of 4 A, and no gradient.
    switches = switches_of("verl", advantage="mean")
    inputs = example(switches)
    old_BT = inputs.logprobs_BT.detach() - torch.tensor(4.0).log()
    loss, _ = policy_loss(inputs._replace(old_logprobs_BT=old_BT), switches)
    loss.backward()
    assert inputs.logprobs_BT.grad is not None
    assert not inputs.logprobs_BT.grad[PLACES].any()
    # a 2 * 1.2 / 2 + b -1.5 + c 1.2 + d 2 * -3
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 1.2 - 6) / 6)


def test_trl() -> None:
    # As verl, with 1e-4 added to the deviations. The products of the weights are 3, 0.5, 1.25 and, for d, 4: masked.
    # 3 * (1.2 + 0.9) - 0.5 * 0.8 = 5.9 and 1.25 * 1.1 = 1.375
    k, m = 0.5 / (sqrt(0.5) + 1e-4), 1 / (sqrt(2) + 1e-4)
    gradient = [0, -2.7 * k / 6, 0, -1.375 * m / 6, 0, 0]
    expect(switches_of("trl", rho=3.5), -(5.9 * k + 1.375 * m) / 6, gradient)
    assert switches_of("trl").rho == 3.0


def test_cispo() -> None:
    # A is +-1; no ratio is over 5. Terms are ratio * A * log pi, the ratio without gradient:
    # -1.5 - 1.8 + 0.5 - 2.2 + 2 + 1.8 = -1.2; the gradient is ratio * A.
    expect(switches_of("cispo"), 0.2, [-1.5 / 6, -0.9 / 6, 0.5 / 6, -1.1 / 6, 2 / 6, 0.9 / 6])


def test_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    # With the range [0.6, 1.4]: a1 1.4, b1 0.6, d1 1.4, so -1.4 - 1.8 + 0.6 - 2.2 + 1.4 + 1.8 = -1.6.
    gradient = [-1.4 / 6, -0.9 / 6, 0.6 / 6, -1.1 / 6, 1.4 / 6, 0.9 / 6]
    expect(switches_of("cispo", eps_low=0.4, eps_high=0.4), 1.6 / 6, gradient)


def test_ppo_decoupled() -> None:
    # A is +-1, the range [0.8, 1.2], weights uncapped: 1.2 + 2.7 - 0.4 + 1.375 - 2 - 3.6 = -0.725
    expect(switches_of("ppo_decoupled"), 0.725 / 6, [0, -2.7 / 6, 0, -1.375 / 6, 2 / 6, 3.6 / 6])


def test_masked_importance_weights() -> None:
    # Kept within [0.4, 2.5]: the weights 3 of a2 and 4 of d2 become 0, and both still count in the six.
    # 0.636 - 0.2 + 1.375 - 2 = -0.189
    switches = switches_of("olmorl", rho=2.5, rho_kind="mask")
    expect(switches, 0.189 / 6, [0, 0, 0, -1.375 / 6, 2 / 6, 0])


def test_importance_weights_of_whole_sequences() -> None:
    # a 1 * 3 -> 2, b 0.5, c 1.25, d 1 * 4 -> 2:  2 * 0.636 + 0.9 - 0.2 + 1.375 - 4 - 1.8 = -2.453
    switches = switches_of("olmorl", rho_kind="sequence")
    expect(switches, 2.453 / 6, [0, -0.9 / 6, 0, -1.375 / 6, 4 / 6, 1.8 / 6])


def test_auto_weights_see_the_outliers_of_the_other_stale_tokens() -> None:
    # All tokens are stale, c is ln 2.4. Twice what is beyond it: 2 ln(3 / 2.4) = ln 1.5625 of a2, ln 2.78 of d2.
    # Weights: a1 1 * 1.5625, a2 3 -> 2, b1 0.5, c1 1.25, d1 1 * 2.78 -> 2, d2 4 -> 2.
    # 1.5625 * 0.636 + 0.9 - 0.2 + 1.375 - 2 * 2 - 1.8 = -2.73125
    switches = switches_of("olmorl")
    inputs = example(switches)._replace(outlier_threshold=log(2.4), lags_BT=torch.ones(2, 5, dtype=torch.int64))
    value, stats_S = policy_loss(inputs, switches)
    value.backward()
    assert inputs.logprobs_BT.grad is not None
    assert value.item() == pytest.approx(2.73125 / 6)
    gradient = [0, -0.9 / 6, 0, -1.375 / 6, 4 / 6, 1.8 / 6]
    assert inputs.logprobs_BT.grad[PLACES].tolist() == pytest.approx(gradient)
    metrics = step_metrics(stats_S, 1)
    assert metrics["outlier_tokens_mean"] == pytest.approx(2 / 4)  # a2 and d2
    assert metrics["tis_clip_fraction_answers"] == pytest.approx((1 / 2 + 0 + 0 + 2 / 2) / 4)
    mean_weights = [1.78125, 0.5, 1.25, 2]
    assert metrics["importance_ess_fraction_answers"] == pytest.approx(
        5.53125**2 / (4 * sum(w * w for w in mean_weights))
    )


def test_outliers_of_fresh_tokens_count_for_no_other_token() -> None:
    # d2 and a2 are fresh: the weights are those of `truncate`, with any threshold.
    switches = switches_of("olmorl")
    inputs = example(switches)._replace(outlier_threshold=0.0, lags_BT=torch.zeros(2, 5, dtype=torch.int64))
    assert policy_loss(inputs, switches)[0].item() == pytest.approx(1.089 / 6)


def test_a_fresh_token_has_the_weight_of_the_older_ones_before_it() -> None:
    # a1 is of an older version: with c = 0 and d = ln 0.5 it halves the weight of a2, 3 -> 1.5. a2 does not change a1.
    switches = switches_of("olmorl")
    lags_BT = torch.zeros(2, 5, dtype=torch.int64)
    lags_BT[0, 1] = 2
    inputs = example(switches)._replace(outlier_threshold=0.0, lags_BT=lags_BT)
    behaviour_BT = inputs.behaviour_logprobs_BT.clone()
    behaviour_BT[0, 1] += log(2)
    inputs = inputs._replace(behaviour_logprobs_BT=behaviour_BT)
    # 0.5 * 0.636 + 1.5 * 0.45 - 0.2 + 1.375 - 2 - 1.8 = -1.632
    assert policy_loss(inputs, switches)[0].item() == pytest.approx(1.632 / 6)


def test_behaviour_policy_as_the_proximal_one() -> None:
    # The ratio is pi / pi_engine: 1.5, 2.7, 0.25, 1.375, 2, 3.6, and the weight is 1.
    # 0.636 + 0.636 - 0.4 + 1.272 - 2 - 3.6 = -3.456
    switches = switches_of("olmorl", proximal="behaviour")
    expect(switches, 3.456 / 6, [0, 0, 0, 0, 2 / 6, 3.6 / 6])


@pytest.mark.parametrize(
    ("estimator", "value", "gradient_a1", "gradient_d2"),
    [
        # d = log pi - log pi_ref is -ln 2 at a1 and ln 2 at d2.
        ("k1", -log(2) + log(2), -log(2), log(2)),
        ("k2", log(2) ** 2 / 2 + log(2) ** 2 / 2, -log(2), log(2)),
        ("k3", 0.5, -1.0, 0.5),
    ],
)
def test_kl_estimators(estimator: str, value: float, gradient_a1: float, gradient_d2: float) -> None:
    # On top of olmorl's 1.089 / 6, with beta 0.6: each token's KL counts 0.1.
    switches = switches_of("olmorl", kl_beta=0.6, kl_estimator=estimator)
    gradient = [0.1 * gradient_a1, -0.9 / 6, 0, -1.375 / 6, 2 / 6, 1.8 / 6 + 0.1 * gradient_d2]
    expect(switches, 1.089 / 6 + 0.1 * value, gradient)


def test_statistics() -> None:
    switches = switches_of("olmorl", kl_beta=0.6)
    value, stats_S = policy_loss(example(switches), switches)
    metrics = step_metrics(stats_S, num_updates=1)
    assert metrics == pytest.approx(
        {
            "loss": value.item(),
            "clip_fraction_low": 1 / 6,  # b1
            "clip_fraction_high": 1 / 6,  # a1; d1 is outside the range, but the minimum is the unclipped term
            "tis_clip_fraction": 2 / 6,  # a2, d2
            "importance_ess_fraction": 7.75**2 / (11.8125 * 6),  # of 1, 2, 0.5, 1.25, 1 and 2
            "tis_clip_fraction_answers": (1 / 2 + 1 / 2) / 4,  # a and d
            "importance_ess_fraction_answers": 4.75**2 / (6.3125 * 4),  # of 1.5, 0.5, 1.25 and 1.5
            "outlier_tokens_mean": 0.0,
            "kl_engine_learner_answers": (10.75 - 6 - log(7.5)) / 4,
            "logprob_diff_mean": log(3 * 0.5 * 1.25 * 4) / 6,
            "logprob_diff_mean_fresh": log(3) / 2,  # a1 and a2 have lag 0
            "kl_engine_learner": (10.75 - 6 - log(7.5)) / 6,  # w - 1 - ln w
            "kl_engine_learner_fresh": (4 - 2 - log(3)) / 2,
            "entropy_mean": 2.1 / 6,
            "kl_ref_mean": 0.5 / 6,
        }
    )


def test_the_effective_sample_size_is_that_of_all_rows() -> None:
    # Weights 1, 3, 0.5 in the first row and 1.25, 1, 4 in the second: 10.75^2 / (28.8125 * 6). Of each row alone it is
    # 4.5^2 / (10.25 * 3) and 6.25^2 / (18.5625 * 3); their mean is another number.
    switches = switches_of("olmorl", rho="uncapped")
    inputs = example(switches)
    both_S = policy_loss(inputs, switches)[1]
    rows = [
        policy_loss(inputs._replace(**{name: values[b : b + 1] for name, values in tensors(inputs)}), switches)[1]
        for b in (0, 1)
    ]
    wanted = [4.5**2 / (10.25 * 3), 6.25**2 / (18.5625 * 3), 10.75**2 / (28.8125 * 6), 10.75**2 / (28.8125 * 6), 0]
    sums = [*rows, both_S, rows[0] + rows[1], torch.zeros_like(both_S)]
    assert [step_metrics(stats_S, 1)["importance_ess_fraction"] for stats_S in sums] == pytest.approx(wanted)


def tensors(inputs: LossInputs) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in inputs._asdict().items() if isinstance(value, Tensor)]


def test_clip_fractions_count_where_the_clip_acts() -> None:
    # Advantages turned round: of a1 (1.5), b1 (0.5) and d1 (2) outside the range, the minimum is the clipped term at d1
    # alone. CISPO clips for both signs.
    inputs = example(switches_of("olmorl"))
    inputs = inputs._replace(advantages_BT=-inputs.advantages_BT)
    for switches, low, high in ((switches_of("olmorl"), 0, 1), (switches_of("olmorl", clip="cispo"), 1, 2)):
        metrics = step_metrics(policy_loss(inputs, switches)[1], 1)
        assert metrics["clip_fraction_low"] == pytest.approx(low / 6)
        assert metrics["clip_fraction_high"] == pytest.approx(high / 6)


def test_a_fresh_policy_with_one_minibatch_is_plain_policy_gradient() -> None:
    # ratio 1, w 1: the loss is minus the mean advantage, the gradient -A / 6.
    switches = switches_of("olmorl")
    inputs = example(switches)
    same_BT = inputs.logprobs_BT.detach()
    inputs = inputs._replace(old_logprobs_BT=same_BT, behaviour_logprobs_BT=same_BT)
    value, stats_S = policy_loss(inputs, switches)
    (grad_BT,) = torch.autograd.grad(value, inputs.logprobs_BT)
    assert value.item() == pytest.approx(0.5 / 6)
    assert grad_BT[PLACES].tolist() == pytest.approx([-0.5 / 6, -0.5 / 6, 0.5 / 6, -1 / 6, 1 / 6, 1 / 6])
    assert step_metrics(stats_S, 1)["kl_engine_learner"] == 0


def test_loss_of_several_updates_is_their_mean() -> None:
    switches = switches_of("olmorl")
    value, stats_S = policy_loss(example(switches), switches)
    assert step_metrics(3 * stats_S, num_updates=3)["loss"] == pytest.approx(value.item())
    assert exp(step_metrics(3 * stats_S, num_updates=3)["logprob_diff_mean"] * 6) == pytest.approx(7.5)
