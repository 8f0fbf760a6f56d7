"""The KL reward: by hand, and in the trainer against plain PyTorch on every layout of rows and ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from olmorl.config import Objective
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import RowArrays
from olmorl.learner.trainer.kl_reward import kl_to_go, next_beta, with_kl_reward
from tests.learner.trainer.test_deepspeed_trainer import TEMPERATURE, sample_logprobs

Results = dict[str, list[dict[str, Any]]]
BETA, TARGET = 200.0, 1e-6
LEARNER = {"zero_stage": 2, "learning_rate": 1e-4, "max_grad_norm": 0.5, "minibatches": 2}
OBJECTIVE = {"preset": "reinforce_pp", "kl_beta": BETA, "kl_in": "reward", "kl_target": TARGET}


def row(ids: list[int], mask: list[int], advantages: list[float]) -> RowArrays:
    size = len(ids)
    return RowArrays(
        token_ids_T=np.zeros(size, np.int32),
        position_ids_T=np.zeros(size, np.int32),
        sequence_ids_T=np.array(ids, np.int32),
        loss_mask_T=np.array(mask, bool),
        behaviour_logprobs_T=np.zeros(size, np.float32),
        advantages_T=np.array(advantages, np.float32),
        lags_T=np.zeros(size, np.int32),
    )


def summed(values: Any) -> list[float]:
    return [float(value) for value in values]


def test_a_token_answers_for_its_divergence_and_that_of_the_later_tokens_of_its_answer() -> None:
    kl_T = np.array([0.0, 1.0, 2.0, 0.0, 4.0, 8.0, 0.0])
    assert kl_to_go(kl_T, np.array([0, 0, 0, 1, 1, 1, -1])).tolist() == [3, 3, 2, 12, 12, 8, 0]
    assert kl_to_go(kl_T, np.zeros(7, np.int32)).tolist() == [15, 15, 14, 12, 12, 8, 0]


@pytest.mark.parametrize(("kl", "expected"), [(0.1, 0.5), (0.11, 0.5 * 1.01), (9.0, 0.5 * 1.02), (0.0, 0.5 * 0.98)])
def test_the_weight_rises_with_the_divergence_by_at_most_a_fifth_of_the_horizon(kl: float, expected: float) -> None:
    assert next_beta(0.5, kl, target=0.1, answers=1000) == pytest.approx(expected)


def test_advantages_and_weight_by_hand() -> None:
    # Answers of two tokens and of one. Of the first, beta 0.5 times (3, 2); of the second 0.5 times 4.
    rows = [row([0, 0, 0, 1, 1], [0, 1, 1, 0, 1], [0, 1, 1, 0, -1])]
    kl = [np.array([0.0, 1.0, 2.0, 0.0, 4.0])]
    plain = resolve(Objective(kl_beta=0.5, kl_in="reward"), max_tokens=9)
    (made,), beta = with_kl_reward(rows, kl, 0.5, plain, summed)
    assert made.advantages_T[made.loss_mask_T].tolist() == [-0.5, 0.0, -3.0]
    assert beta == 0.5
    adaptive = resolve(Objective(kl_beta=0.5, kl_in="reward", kl_target=2.5, advantage="whiten"), max_tokens=9)
    (made,), beta = with_kl_reward(rows, kl, 0.5, adaptive, summed)
    # The mean is -7/6 and the variance (4^2 + 7^2 + 11^2) / 36 / 2. The answers' means are 1.5 and 4: 10% above 2.5.
    spread = (186 / 72) ** 0.5
    assert made.advantages_T[made.loss_mask_T].tolist() == pytest.approx([each / 6 / spread for each in (4, 7, -11)])
    assert beta == pytest.approx(0.5 * (1 + 0.1 * 2 / 10_000))


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Any], Results], tiny_models: dict[str, str]) -> Results:
    base = {
        "kind": "steps",
        "model": {"path": tiny_models["olmo3"], "dtype": "float32"},
        "temperature": TEMPERATURE,
        "objective": OBJECTIVE,
    }
    alone = {
        "alone": base | {"learner": LEARNER},
        "fixed": base | {"learner": LEARNER, "objective": OBJECTIVE | {"kl_target": None}},
        "resumed": base | {"learner": LEARNER, "kind": "resume"},
    }
    pair = {
        "zero-3": base | {"learner": LEARNER | {"zero_stage": 3}},
        "shared rows": base | {"learner": LEARNER | {"sequence_parallel": 2}},
    }
    return run_ranks(1, alone) | run_ranks(2, pair)


def plain_loop(
    folder: str, groups: dict[int, list[list[Any]]], beta: float
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The steps of REINFORCE++ with a KL reward, sample by sample; returns the weights and the weight of each step."""
    model, reference = (AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager") for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    betas = []
    for step in (1, 2, 3):
        betas.append(beta)
        batches = [[*chain.from_iterable(groups[step][m::2])] for m in range(2)]
        olds, of_tokens, kls = {}, {}, []
        for one in chain.from_iterable(batches):
            with torch.no_grad():
                old, ref = (sample_logprobs(each, one, TEMPERATURE) for each in (model, reference))
            kl = [float(a - b) if kept else 0.0 for a, b, kept in zip(old, ref, one.loss_mask, strict=True)]
            olds[id(one)] = old
            of_tokens[id(one)] = [one.advantage - beta * sum(kl[t:]) for t in range(len(kl))]
            if one.loss_mask.any():
                kls.append(sum(kl) / int(one.loss_mask.sum()))
        every = [
            credit
            for one in chain.from_iterable(batches)
            for credit, kept in zip(of_tokens[id(one)], one.loss_mask, strict=True)
            if kept
        ]
        spread = (variance(every) + 1e-8) ** 0.5
        error = min(max(fmean(kls) / TARGET - 1, -0.2), 0.2)
        beta *= 1 + error * len(kls) / 10_000
        for batch in batches:
            optimizer.zero_grad()
            num_tokens = sum(int(one.loss_mask.sum()) for one in batch)
            for one in batch:
                ratio = (sample_logprobs(model, one, TEMPERATURE) - olds[id(one)]).exp()
                advantage = torch.tensor([(credit - fmean(every)) / spread for credit in of_tokens[id(one)]])
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                (-gain[torch.tensor(one.loss_mask)].sum() / num_tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return dict(model.named_parameters()), betas


def largest_difference(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return max((some[key] - weight).abs().max().item() for key, weight in others.items())


@pytest.mark.parametrize("name", ["alone", "zero-3", "shared rows"])
def test_steps_equal_a_plain_loop(results: Results, tiny_models: dict[str, str], name: str) -> None:
    expected, betas = plain_loop(tiny_models["olmo3"], results["alone"][0]["groups"], BETA)
    assert betas[0] == BETA and betas[2] != betas[1]
    for rank in results[name]:
        assert [values["kl_beta"] for values in rank["values"]] == pytest.approx(betas, rel=1e-9)
    without, _ = plain_loop(tiny_models["olmo3"], results["alone"][0]["groups"], 0.0)
    assert largest_difference(results[name][0]["weights"], expected) <= 3e-6
    assert largest_difference(results[name][0]["weights"], without) > 3e-5
    fixed = results["fixed"][0]
    assert [values["kl_beta"] for values in fixed["values"]] == [BETA] * 3


def test_a_checkpoint_keeps_the_weight(results: Results) -> None:
    straight, resumed = results["resumed"][0]["values"]
    assert straight[0]["kl_beta"] != BETA
    assert [values["kl_beta"] for values in resumed] == [values["kl_beta"] for values in straight]
