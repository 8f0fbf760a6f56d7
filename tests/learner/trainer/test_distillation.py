"""The trainer with advantages of teachers against plain PyTorch, on several layouts of rows and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.learner.ranks_process import with_teacher
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


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Any], Results], tiny_models: dict[str, str]) -> Results:
    base = {
        "kind": "gradient",
        "model": {"path": tiny_models["olmo3"], "dtype": "float32"},
        "learner": {"zero_stage": 2} | NO_CLIPPING,
        "objective": {"rho_kind": "truncate"},
        "temperature": TEMPERATURE,
        "row_tokens": 64,
        "one_prompt": True,
        "teacher": True,
    }
    eager = base["learner"] | {"attention": "eager"}
    alone = {
        "one row": base | {"learner": eager, "row_tokens": ONE_ROW},
        "rows": base | {"learner": eager},
        "shared prompts": base,
        "without": base | {"teacher": False},
    }
    pair = {
        "two ranks": base | {"learner": eager | {"zero_stage": 3}},
        "shared rows": base | {"learner": base["learner"] | {"sequence_parallel": 2}},
    }
    return run_ranks(1, alone) | run_ranks(2, pair)


def plain_gradient(folder: str, groups: list[list[Any]]) -> Gradients:
    """Sample by sample, with the formula written out: w * ratio * (A + 0.7 * (log teacher - log engine))."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    samples = [with_teacher(sample) for group in groups for sample in group]
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    for sample in samples:
        logprobs = sample_logprobs(model, sample, TEMPERATURE)
        weight = (logprobs.detach() - torch.tensor(sample.behaviour_logprobs)).exp().clamp(max=2.0)
        gain = (
            weight * (logprobs - logprobs.detach()).exp() * (sample.advantage + torch.tensor(sample.token_advantages))
        )
        (-gain[torch.tensor(sample.loss_mask)].sum() / num_tokens).backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_is_that_of_plain_pytorch(results: Results, tiny_models: dict[str, str], layout: str) -> None:
    for rank in results[layout]:
        assert distance(rank["gradients"], plain_gradient(tiny_models["olmo3"], rank["groups"][1])) <= 1e-5


def test_the_layouts_differ_and_the_teacher_matters(results: Results) -> None:
    assert len(results["one row"][0]["rows"]) == 1 < len(results["rows"][0]["rows"])
    assert distance(results["without"][0]["gradients"], results["rows"][0]["gradients"]) > 0.1
