"""Answers that share a prompt: loss, log-probabilities, entropies and gradients equal those with a prompt for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.algorithm.objective import LossInputs, policy_loss
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow, policy_row, refuse_sharing
from olmorl.messages import Sample

CPU = torch.device("cpu")
CLOSE = 1e-6
SHAPES = ((1, (5, 1, 9)), (9, (17, 3, 8, 12)), (4, (1,)), (13, (2, 300)))
"""Prompt and answers of each group: shorter and longer than the window of 6, and an answer of several query blocks."""


def make_row(shapes: Sequence[tuple[int, Sequence[int]]] = SHAPES) -> list[Sample]:
    rng = np.random.default_rng(0)
    row = []
    for draw, (prompt, answers) in enumerate(shapes):
        prompt_ids = rng.integers(0, 40, prompt).astype(np.int32)
        for length in answers:
            row.append(
                Sample(
                    draw_id=draw,
                    prompt_ids=prompt_ids,
                    completion_ids=rng.integers(0, 40, length).astype(np.int32),
                    behaviour_logprobs=rng.normal(-3.7, 0.5, length).astype(np.float32),
                    loss_mask=rng.random(length) > 0.2 if length > 1 else np.ones(1, np.bool_),
                    lags=np.zeros(length, np.int32),
                    advantage=float(rng.normal()),
                )
            )
    return row


def load(folder: str, dtype: str = "float32", checkpointing: bool = False, attention: str = "sdpa") -> PackedPolicy:
    model = models.load(config.Model(path=folder, dtype=dtype), attention, CPU)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return PackedPolicy(model, temperature=0.7, chunk=16)


def trained(policy: PackedPolicy, row: list[Sample], share_prompts: bool, preset: str = "olmorl") -> dict[str, Tensor]:
    """The loss, the values of the predicted tokens in the order of the samples, and the gradients."""
    arrays = row_arrays(row, share_prompts=share_prompts)
    given = policy_row(arrays, CPU)
    logprobs_T, entropy_T = policy(given, with_entropy=True)

    def batch(values: Any) -> Tensor:
        return torch.as_tensor(values)[None]

    inputs = LossInputs(
        logprobs_BT=logprobs_T[None],
        old_logprobs_BT=logprobs_T.detach()[None] + 0.1,
        behaviour_logprobs_BT=batch(arrays.behaviour_logprobs_T),
        advantages_BT=batch(arrays.advantages_T),
        loss_mask_BT=batch(arrays.loss_mask_T),
        sequence_ids_BT=batch(arrays.sequence_ids_T),
        lags_BT=batch(arrays.lags_T),
        loss_tokens=float(sum(sample.loss_mask.sum() for sample in row)),
        num_sequences=len(row),
    )
    loss, stats_S = policy_loss(inputs, resolve(config.Objective(preset=preset, kl_beta=0.0), max_tokens=512))
    policy.zero_grad()
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    predicted = given.predicted_P
    values = {"logprobs": logprobs_T[predicted].detach(), "entropy": entropy_T[predicted], "stats": stats_S}
    return found | values | {"loss": loss.detach()}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_a_shared_prompt_changes_no_loss_and_no_gradient(
    tiny_models: dict[str, str], name: str, checkpointing: bool
) -> None:
    policy, row = load(tiny_models[name], checkpointing=checkpointing), make_row()
    wanted, got = trained(policy, row, False), trained(policy, row, True)
    assert wanted.keys() == got.keys() and len(wanted) > 10
    for key, value in wanted.items():
        assert (got[key] - value).abs().max() <= CLOSE * max(1.0, value.abs().max().item()), key


@pytest.mark.parametrize("preset", ["gspo", "grpo"])
def test_objectives_of_whole_sequences_agree(tiny_models: dict[str, str], preset: str) -> None:
    policy, row = load(tiny_models["llama"]), make_row()
    wanted, got = trained(policy, row, False, preset), trained(policy, row, True, preset)
    for key, value in wanted.items():
        assert (got[key] - value).abs().max() <= CLOSE * max(1.0, value.abs().max().item()), key


def test_the_policy_computes_a_prompt_once() -> None:
    arrays = row_arrays(make_row(), share_prompts=True)
    row = policy_row(arrays, CPU)
    assert len(row.token_ids_T) == sum(prompt + sum(answers) for prompt, answers in SHAPES)
    assert row.lengths == (6, 1, 9, 26, 3, 8, 12, 5, 15, 300)
    assert row.prefixes == (0, 1, 1, 0, 9, 9, 9, 0, 0, 13)


def test_first_tokens_of_answers_are_predicted_from_the_end_of_the_prompt() -> None:
    row = PolicyRow(torch.zeros(12), (5, 2, 3, 2), torch.arange(2, 12), (0, 2, 2, 0))
    assert row.before().tolist() == [1, 2, 3, 1, 5, 1, 7, 8, 9, 10]


def test_sound_attention_passes_the_probe(tiny_models: dict[str, str]) -> None:
    for dtype in ("float32", "bfloat16"):
        policy = load(tiny_models["olmo3"], dtype)
        refuse_sharing(policy, policy.model, CPU)


def without_prompt(row: PolicyRow) -> PolicyRow:
    return row._replace(prefixes=())


def in_one_sequence(row: PolicyRow) -> PolicyRow:
    return row._replace(prefixes=(), lengths=(len(row.token_ids_T),))


@pytest.mark.parametrize("wrong", [without_prompt, in_one_sequence])
def test_answers_that_do_not_see_the_prompt_or_see_each_other_are_refused(
    tiny_models: dict[str, str], wrong: Callable[[PolicyRow], PolicyRow]
) -> None:
    policy = load(tiny_models["olmo3"])
    with pytest.raises(ModelError, match=r'cannot share a prompt .* set learner\.attention = "eager"'):
        refuse_sharing(lambda row: policy(wrong(row)), policy.model, CPU)
