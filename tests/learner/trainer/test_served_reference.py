"""The KL term to a reference that a server has scored, against plain PyTorch in fp64, on several layouts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.learner.ranks_process import with_reference
from tests.learner.trainer.test_deepspeed_trainer import (
    NO_CLIPPING,
    ONE_ROW,
    TEMPERATURE,
    Gradients,
    Results,
    distance,
    sample_logprobs,
)

LAYOUTS = ["one row", "rows", "shared prompts", "two ranks", "shared rows"]
BETA = 0.3
PLACES = ["loss", "reward"]


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Any], Results], tiny_models: dict[str, str]) -> Results:
    base = {
        "kind": "gradient",
        "model": {"path": tiny_models["olmo3"], "dtype": "float32"},
        "learner": {"zero_stage": 2} | NO_CLIPPING,
        "temperature": TEMPERATURE,
        "row_tokens": 64,
        "one_prompt": True,
        "reference": True,
    }
    eager = base["learner"] | {"attention": "eager"}
    alone = {
        "one row": base | {"learner": eager, "row_tokens": ONE_ROW},
        "rows": base | {"learner": eager},
        "shared prompts": base,
    }
    pair = {
        "two ranks": base | {"learner": eager | {"zero_stage": 3}},
        "shared rows": base | {"learner": base["learner"] | {"sequence_parallel": 2}},
    }

    def jobs(layouts: dict[str, Any]) -> dict[str, Any]:
        made = {
            f"{name}, {place}": job | {"objective": objective(place)}
            for name, job in layouts.items()
            for place in PLACES
        }
        return made | {f"{name}, plain": job | {"objective": {"rho_kind": "truncate"}} for name, job in layouts.items()}

    return run_ranks(1, jobs(alone)) | run_ranks(2, jobs(pair))


def objective(place: str) -> dict[str, Any]:
    return {"rho_kind": "truncate", "kl_beta": BETA, "kl_in": place, "kl_reference": {"url": "http://reference:8000"}}


def plain_gradient(folder: str, groups: list[list[Any]], place: str) -> Gradients:
    """Sample by sample, with the formulas written out."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    samples = [with_reference(sample) for group in groups for sample in group]
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    for sample in samples:
        mask = torch.tensor(sample.loss_mask)
        logprobs = sample_logprobs(model, sample, TEMPERATURE)
        difference = logprobs - torch.tensor(sample.reference_logprobs, dtype=torch.float64)
        advantage, penalty = torch.full_like(logprobs, sample.advantage), (-difference).exp() - 1 + difference
        if place == "reward":
            cost = BETA * torch.where(mask, difference.detach(), 0.0)
            advantage, penalty = advantage - cost.flip(0).cumsum(0).flip(0), torch.zeros_like(logprobs)
        weight = (logprobs.detach() - torch.tensor(sample.behaviour_logprobs)).exp().clamp(max=2.0)
        gain = weight * (logprobs - logprobs.detach()).exp() * advantage - BETA * penalty
        (-gain[mask].sum() / num_tokens).backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(("layout", "place"), [*product(LAYOUTS, PLACES)])
def test_the_gradient_is_that_of_plain_pytorch(
    results: Results, tiny_models: dict[str, str], layout: str, place: str
) -> None:
    for rank in results[f"{layout}, {place}"]:
        assert distance(rank["gradients"], plain_gradient(tiny_models["olmo3"], rank["groups"][1], place)) <= 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_learner_computes_no_reference(results: Results, layout: str) -> None:
    """Its work is that without a KL term; a KL reward needs one more pass, of the policy itself."""
    plain, loss, reward = (results[f"{layout}, {kind}"][0]["values"] for kind in ("plain", *PLACES))
    assert loss["learner_flops"] == plain["learner_flops"]
    assert reward["learner_flops"] == pytest.approx(plain["learner_flops"] * 4 / 3)
    assert loss["kl_ref_mean"] > 0 and "kl_ref_mean" not in plain
