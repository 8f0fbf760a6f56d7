"""The switches against stale answers, in real steps: on one rank and two, packed and alone, with shared prompts.

The reference sees each sample alone, and writes the formula out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]
Gradients = dict[str, torch.Tensor]

ONE_ROW, SINGLES = 10_000, 1
TEMPERATURE = 0.7
BOUND = 4.0
"""Rejects some of the 13 samples: the test asserts that."""
RATE, CLIP = 1e-4, 0.5


def job(model: str, row_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "gradient",
        "model": {"path": model, "dtype": "float32"},
        "learner": {"zero_stage": 2, "max_grad_norm": 1e9},
        "row_tokens": row_tokens,
        "temperature": TEMPERATURE,
        "objective": {"reject_beyond": BOUND},
    } | more


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    model = tiny_models["olmo3"]
    alone = {
        "one-row": job(model, ONE_ROW),
        "singles": job(model, SINGLES),
        "own-prompts": job(model, 64, one_prompt=True, learner={"share_prompts": False, "max_grad_norm": 1e9}),
        "shared-prompts": job(model, 64, one_prompt=True),
    }
    pair = {
        "two-ranks": job(model, SINGLES),
        "shared-prompts-on-two": job(model, 64, one_prompt=True),
        "shared-rows-on-two": job(
            model, ONE_ROW, learner={"zero_stage": 2, "max_grad_norm": 1e9, "sequence_parallel": 2}
        ),
    }
    return run_ranks(1, alone) | run_ranks(2, pair)


@pytest.fixture(scope="module")
def scaled(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """Three steps of two minibatches, with steps scaled by their weights."""
    base = job(tiny_models["olmo3"], 64, kind="steps", objective={"rho": "uncapped", "ess_scaling": True})
    learner = {"zero_stage": 2, "learning_rate": RATE, "max_grad_norm": CLIP, "minibatches": 2}
    alone, in_parts = base | {"learner": learner}, learner | {"sequence_parallel": 2}
    off = alone | {"objective": {"rho": "uncapped"}}
    pair = {"two-ranks": alone, "stage-3": base | {"learner": learner | {"zero_stage": 3}}}
    pair["shared-rows"] = base | {"learner": in_parts}
    return run_ranks(1, {"alone": alone, "off": off}) | run_ranks(2, pair)


def distance(got: Gradients, wanted: Gradients) -> float:
    """Relative difference of the whole gradient."""
    assert got.keys() == wanted.keys()
    error = sum((got[name].double() - wanted[name].double()).square().sum() for name in wanted)
    return float((error / sum(wanted[name].double().square().sum() for name in wanted)) ** 0.5)


def logprobs_of(model: Any, sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the loss tokens of a sample: by the model, and by the engine."""
    tokens, first = torch.tensor([*sample.prompt_ids, *sample.completion_ids]).long(), len(sample.prompt_ids)
    logits = model(tokens[None]).logits[0, first - 1 : -1].float() / TEMPERATURE
    mask = torch.tensor(sample.loss_mask)
    logprobs = log_softmax(logits, dim=-1).gather(1, tokens[first:, None])[:, 0]
    return logprobs[mask], torch.tensor(sample.behaviour_logprobs)[mask]


def reference(folder: str, groups: list[list[Any]]) -> tuple[Gradients, float]:
    """The gradient of the default objective over the samples that are not rejected, and the rejected share."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    samples = [sample for group in groups for sample in group]
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    counted = [sample for sample in samples if sample.loss_mask.any()]
    rejected = 0
    for sample in counted:
        logprobs, behaviour = logprobs_of(model, sample)
        drift = logprobs.detach() - behaviour
        if abs(float(drift.mean())) > log(BOUND):
            rejected += 1
        else:
            weight = drift.exp().clamp(max=2.0)
            (-(weight * (logprobs - logprobs.detach()).exp() * sample.advantage).sum() / num_tokens).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return gradients, rejected / len(counted)


@pytest.mark.parametrize(
    ("names", "of"),
    [
        (("one-row", "singles", "two-ranks", "shared-rows-on-two"), "one-row"),
        (("own-prompts", "shared-prompts", "shared-prompts-on-two"), "own-prompts"),
    ],
)
def test_rejected_answers_are_the_same_on_every_layout(
    results: Results, tiny_models: dict[str, str], names: tuple[str, ...], of: str
) -> None:
    gradients, share = reference(tiny_models["olmo3"], results[of][0]["groups"][1])
    assert 0.2 < share < 0.8
    for name in names:
        for rank in results[name]:
            assert rank["values"]["rejected_fraction"] == pytest.approx(share), name
            assert distance(rank["gradients"], gradients) <= 1e-5, name


def plain_loop(folder: str, groups: dict[int, list[list[Any]]], scales: bool) -> tuple[Gradients, list[float]]:
    """The weights after three steps, and the mean factor of each step."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    factors = []
    for step in (1, 2, 3):
        batches = [[sample for group in groups[step][first::2] for sample in group] for first in (0, 1)]
        with torch.no_grad():
            old = [[logprobs_of(model, sample)[0] for sample in batch] for batch in batches]
        shares = []
        for batch, old_logprobs in zip(batches, old, strict=True):
            optimizer.zero_grad()
            weights = []
            num_tokens = sum(int(sample.loss_mask.sum()) for sample in batch)
            for sample, before in zip(batch, old_logprobs, strict=True):
                logprobs, behaviour = logprobs_of(model, sample)
                weights.append((before - behaviour).exp())
                ratio, advantage = (logprobs - before).exp(), sample.advantage
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.272) * advantage)
                (-(weights[-1] * surrogate).sum() / num_tokens).backward()
            w = torch.cat(weights).double()
            assert len(w) == num_tokens
            shares.append(float(w.sum() ** 2 / (num_tokens * (w * w).sum())))
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.param_groups[0]["lr"] = RATE * (shares[-1] if scales else 1.0)
            optimizer.step()
        factors.append(sum(shares) / len(shares) if scales else 1.0)
    return {name: weight.detach() for name, weight in model.named_parameters()}, factors


@pytest.mark.parametrize("name", ["alone", "off", "two-ranks", "stage-3", "shared-rows"])
def test_steps_scaled_by_the_effective_sample_size_are_those_of_a_plain_loop(
    scaled: Results, tiny_models: dict[str, str], name: str
) -> None:
    wanted, factors = plain_loop(tiny_models["olmo3"], scaled[name][0]["groups"], scales=name != "off")
    assert name == "off" or all(0 < factor < 0.9 for factor in factors)
    for rank in scaled[name]:
        assert [values["lr_factor_mean"] for values in rank["values"]] == pytest.approx(factors, rel=1e-4)
        assert {values["lr"] for values in rank["values"]} == {RATE}
        assert max((rank["weights"][key] - wanted[key]).abs().max().item() for key in wanted) <= 2e-6
