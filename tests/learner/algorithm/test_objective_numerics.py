"""The objective with infinities, NaN, empty input and low precision."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from olmorl.config import Objective, Preset
from olmorl.learner.algorithm.objective import NUM_STATS, LossInputs, policy_loss, step_metrics
from olmorl.learner.algorithm.presets import Switches, resolve

PRESETS = get_args(Preset)


def switches_of(preset: str, **explicit: Any) -> Switches:
    return resolve(Objective.model_validate({"preset": preset} | explicit), max_tokens=8)


def row(
    logprobs: list[float],
    old: list[float],
    behaviour: list[float],
    advantages: list[float],
    mask: list[bool] | None = None,
    dtype: torch.dtype = torch.float32,
) -> LossInputs:
    size = len(logprobs)

    def tensor(values: list[float]) -> Tensor:
        return torch.tensor([values], dtype=dtype)

    mask_BT = torch.tensor([mask or [True] * size])
    return LossInputs(
        logprobs_BT=tensor(logprobs).requires_grad_(),
        old_logprobs_BT=tensor(old),
        behaviour_logprobs_BT=tensor(behaviour),
        advantages_BT=tensor(advantages),
        loss_mask_BT=mask_BT,
        sequence_ids_BT=torch.zeros(1, size, dtype=torch.int32),
        lags_BT=torch.zeros(1, size, dtype=torch.int32),
        loss_tokens=float(mask_BT.sum()),
        num_sequences=1,
        ref_logprobs_BT=tensor(old),
    )


def loss_and_gradient(inputs: LossInputs, switches: Switches) -> tuple[Tensor, Tensor, Tensor]:
    loss, stats_S = policy_loss(inputs, switches)
    (grad_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    return loss, grad_BT, stats_S


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("garbage", [-inf, inf, nan])
def test_masked_tokens_contribute_nothing(preset: str, garbage: float) -> None:
    mask = [False, True, True, False]
    clean = row([0, -1.0, -2.0, 0], [0, -1.1, -1.8, 0], [0, -1.2, -1.9, 0], [0, 1.0, 1.0, 0], mask)
    dirty = row(
        *([garbage, *values, garbage] for values in ([-1.0, -2.0], [-1.1, -1.8], [-1.2, -1.9], [1.0, 1.0])), mask
    )
    for wanted, found in zip(
        loss_and_gradient(clean, switches_of(preset)), loss_and_gradient(dirty, switches_of(preset)), strict=True
    ):
        assert torch.equal(found, wanted)


def test_no_gradient_of_a_masked_token_reaches_the_model() -> None:
    # The log-probability of a token that the model calls impossible is -inf, and 0 * inf would be NaN on the way back.
    logits_TV = torch.tensor([[0.0, -inf], [0.5, 0.1]], requires_grad=True)
    logprobs_BT = torch.log_softmax(logits_TV, -1)[:, 1][None]
    inputs = row([0, 0], [0, -0.9], [0, -0.9], [0, 1.0], [False, True])._replace(logprobs_BT=logprobs_BT)
    policy_loss(inputs, switches_of("olmorl"))[0].backward()
    assert logits_TV.grad is not None
    assert not logits_TV.grad[0].any()
    assert logits_TV.grad[1].isfinite().all()


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset != "cispo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_stay_finite(preset: str, advantage: float) -> None:
    inputs = row([-inf, -1.0, -1e4, -1.0], [-1.0, -inf, -1.0, -1e4], [-1.0, -1.0, -1e4, -1.0], [advantage] * 4)
    for values in loss_and_gradient(inputs, switches_of(preset)):
        assert values.isfinite().all()


def test_cispo_says_so_when_a_trained_token_is_impossible() -> None:
    loss, _ = policy_loss(row([-inf], [-1.0], [-1.0], [1.0]), switches_of("cispo"))
    assert not loss.isfinite()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_nan_that_counts_reaches_the_loss(preset: str) -> None:
    loss, _ = policy_loss(row([-1.0, nan], [-1.0, -1.0], [-1.0, -1.0], [1.0, -1.0]), switches_of(preset))
    assert isnan(loss.item())


def test_a_nearly_impossible_token_takes_its_answer_out() -> None:
    # The learner nearly excludes a stale token that the engine sampled: the other token of the answer gets weight 0.
    inputs = row([-1.0, -1e4], [-1.0, -1e4], [-1.0, -1.0], [1.0, 1.0])
    inputs = inputs._replace(lags_BT=torch.ones(1, 2, dtype=torch.int32), outlier_threshold=0.5)
    loss, grad_BT, stats_S = loss_and_gradient(inputs, switches_of("olmorl"))
    assert abs(loss.item()) < 1e-6
    assert grad_BT.abs().max() < 1e-6
    assert stats_S.isfinite().all()


@pytest.mark.parametrize("lag", [0, 1])
def test_a_nan_is_no_outlier_that_disappears(lag: int) -> None:
    inputs = row([-1.0, nan], [-1.0, nan], [-1.0, -1.0], [1.0, -1.0])
    inputs = inputs._replace(lags_BT=torch.full((1, 2), lag), outlier_threshold=0.5)
    assert isnan(policy_loss(inputs, switches_of("olmorl"))[0].item())


def test_a_nan_of_the_engine_reaches_the_statistics_without_a_weight() -> None:
    _, stats_S = policy_loss(row([-1.0], [-1.0], [nan], [1.0]), switches_of("grpo"))
    assert isnan(step_metrics(stats_S, 1)["kl_engine_learner"])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_row_without_loss_tokens_is_exactly_zero(preset: str) -> None:
    # Ranks with fewer rows run such rows, so that every rank makes as many collective calls.
    inputs = row([-1.0, nan], [-1.0, nan], [-1.0, nan], [1.0, nan], [False, False])._replace(loss_tokens=100.0)
    loss, grad_BT, stats_S = loss_and_gradient(inputs, switches_of(preset))
    assert loss.item() == 0
    assert not grad_BT.any()
    assert torch.equal(stats_S, torch.zeros(NUM_STATS, dtype=torch.float64))
    assert set(step_metrics(stats_S, 1).values()) == {0.0}


def test_low_precision_is_computed_in_single() -> None:
    inputs = row([-1.0, -2.0], [-1.0, -2.0], [-1.5, -2.5], [1.0, -1.0], dtype=torch.bfloat16)
    loss, stats_S = policy_loss(inputs, switches_of("olmorl"))
    assert loss.dtype == torch.float32
    assert stats_S.dtype == torch.float64


def test_only_the_current_policy_has_a_gradient() -> None:
    inputs = row([-1.0, -2.0], [-1.1, -2.2], [-1.3, -2.1], [1.0, -1.0])
    leaves = [inputs.old_logprobs_BT, inputs.behaviour_logprobs_BT, inputs.advantages_BT, inputs.ref_logprobs_BT]
    for leaf in leaves:
        assert leaf is not None
        leaf.requires_grad_()
    loss, stats_S = policy_loss(inputs, switches_of("grpo"))
    loss.backward()
    assert all(leaf is not None and leaf.grad is None for leaf in leaves)
    assert not stats_S.requires_grad


def test_a_kl_term_without_a_reference_is_a_programming_error() -> None:
    inputs = row([-1.0], [-1.0], [-1.0], [1.0])._replace(ref_logprobs_BT=None)
    with pytest.raises(AssertionError, match="reference"):
        policy_loss(inputs, switches_of("grpo"))
