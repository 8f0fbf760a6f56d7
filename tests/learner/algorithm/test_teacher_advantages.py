"""The advantages of teachers: by hand, and as the gradient of the exact reverse KL in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from olmorl.config import Objective
from olmorl.learner.algorithm.advantage import teacher_advantages
from olmorl.learner.algorithm.objective import LossInputs, policy_loss
from olmorl.learner.algorithm.presets import resolve

VOCABULARY, POSITIONS, COEFFICIENT = 7, 3, 1.5


def test_by_hand() -> None:
    found = teacher_advantages(np.float32([-1.0, -20.0, -0.5]), np.float32([-3.0, -0.5, -np.inf]), 2.0)
    assert found.tolist() == [4.0, -39.0, 0.0] and found.dtype == np.float64


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rho_kind", ["auto", "truncate"])
def test_the_expected_gradient_is_that_of_the_reverse_kl(seed: int, rho_kind: str) -> None:
    """Every token of the vocabulary is sampled as often as the student does."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(POSITIONS, VOCABULARY, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(POSITIONS, VOCABULARY, generator=generator, dtype=torch.float64).log_softmax(-1)
    student = logits.log_softmax(-1)
    kl = (student.exp() * (student - teacher)).sum()
    (expected,) = torch.autograd.grad(COEFFICIENT * kl / POSITIONS, logits)
    switches = resolve(Objective(rho_kind=rho_kind), max_tokens=POSITIONS)
    total = torch.zeros((), dtype=torch.float64)
    for token in range(VOCABULARY):
        logprobs_BT = logits.log_softmax(-1)[None, :, token]
        engine_BT = logprobs_BT.detach()
        for place in range(POSITIONS):
            mask_BT = torch.arange(POSITIONS)[None] == place
            advantages = teacher_advantages(teacher[:, token].numpy(), engine_BT[0].numpy(), COEFFICIENT)
            loss, _ = policy_loss(
                LossInputs(
                    logprobs_BT=logprobs_BT,
                    old_logprobs_BT=engine_BT,
                    behaviour_logprobs_BT=engine_BT,
                    advantages_BT=torch.from_numpy(advantages)[None],
                    loss_mask_BT=mask_BT,
                    sequence_ids_BT=torch.zeros(1, POSITIONS, dtype=torch.long),
                    lags_BT=torch.zeros(1, POSITIONS, dtype=torch.long),
                    loss_tokens=POSITIONS,
                    num_sequences=1,
                ),
                switches,
            )
            total = total + engine_BT[0, place].exp() * loss
    (found,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("old_weight", [0.5, 1.4])
def test_tokens_of_an_older_engine_are_weighed_by_what_the_learner_has_changed(old_weight: float) -> None:
    # One token: the engine gave log q, the learner gives log q + log w, the teacher -1: w * (-1 - log q) * d log pi.
    engine = torch.tensor([[-2.0]], dtype=torch.float64)
    logprobs = (engine + np.log(old_weight)).requires_grad_()
    advantages = teacher_advantages(np.array([-1.0]), engine[0].numpy(), COEFFICIENT)
    loss, _ = policy_loss(
        LossInputs(
            logprobs_BT=logprobs,
            old_logprobs_BT=logprobs.detach(),
            behaviour_logprobs_BT=engine,
            advantages_BT=torch.from_numpy(advantages)[None],
            loss_mask_BT=torch.ones(1, 1, dtype=torch.bool),
            sequence_ids_BT=torch.zeros(1, 1, dtype=torch.long),
            lags_BT=torch.ones(1, 1, dtype=torch.long),
            loss_tokens=1,
            num_sequences=1,
        ),
        resolve(Objective(), max_tokens=1),
    )
    loss.backward()
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(-old_weight * COEFFICIENT * 1.0)
