"""Norms that keep their input alone: the values and gradients of each variant, and what is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM

from olmorl.learner.trainer.rms_norm import recompute_norms
from tests.models.families import FAMILIES, build

TOKENS = 48


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[str, torch.dtype], Any]:
    """A random model of a family, whose norms are not all ones."""

    def made(name: str, dtype: torch.dtype) -> Any:
        build(FAMILIES[name], tmp_path)
        return AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager")

    return made


def values_and_gradients(model: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    model.zero_grad()
    ids_1T = torch.arange(TOKENS)[None] * 7 % model.config.vocab_size
    logprobs_T = model(ids_1T).logits[0, :-1].float().log_softmax(-1).gather(1, ids_1T[0, 1:, None])
    logprobs_T.sum().backward()
    return logprobs_T.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def distances(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, float]:
    """Of each gradient, relative to its length."""
    return {name: float((found[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted}


def norms_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]


@pytest.mark.parametrize("name", FAMILIES)
def test_values_are_the_same_and_gradients_up_to_rounding(tiny: Callable[[str, torch.dtype], Any], name: str) -> None:
    model = tiny(name, torch.float32)
    values, gradients = values_and_gradients(model)
    assert recompute_norms(model) == len(norms_of(model)) >= 9
    again, found = values_and_gradients(model)
    assert torch.equal(again, values)
    assert max(distances(found, gradients).values()) < 5e-6


@pytest.mark.parametrize("name", ["Olmo 3", "Llama 3", "Gemma 3"])  # round after, before and after a weight of 1 + w
def test_in_bfloat16_gradients_are_as_near_to_those_in_fp32(tiny: Callable[[str, torch.dtype], Any], name: str) -> None:
    model = tiny(name, torch.bfloat16)
    values, gradients = values_and_gradients(model)
    _, exact = values_and_gradients(tiny(name, torch.bfloat16).float())
    recompute_norms(model)
    again, found = values_and_gradients(model)
    assert torch.equal(again, values)
    before, after = (distances({n: g.float() for n, g in each.items()}, exact) for each in (gradients, found))
    assert sum(after.values()) < 1.05 * sum(before.values())


def test_with_gradient_checkpointing(tiny: Callable[[str, torch.dtype], Any]) -> None:
    """The last operation of a layer of Olmo that keeps something is its norm: recomputation stops inside of it."""
    model = tiny("Olmo 3", torch.float32).train()
    values, gradients = values_and_gradients(model)
    recompute_norms(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again, found = values_and_gradients(model)
    assert torch.equal(again, values)
    assert max(distances(found, gradients).values()) < 5e-6


def kept_bytes(run: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that autograd keeps of a computation."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        kept = run()
    assert kept.requires_grad
    return sum(storages.values())


def test_a_norm_keeps_its_input_and_its_weight(tiny: Callable[[str, torch.dtype], Any]) -> None:
    model = tiny("Olmo 3", torch.bfloat16)
    norm = model.model.norm
    hidden = torch.randn(1, 1000, 128, dtype=torch.bfloat16, requires_grad=True)
    before = kept_bytes(lambda: norm(hidden))
    recompute_norms(model)
    assert kept_bytes(lambda: norm(hidden)) == hidden.nbytes + norm.weight.nbytes
    assert before > 4 * hidden.nbytes


class ShiftedRMSNorm(nn.Module):
    """Looks like the others, and computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight.pow(2)


class GatedRMSNorm(ShiftedRMSNorm):
    def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return normed if gate is None else normed * gate


class WithoutEpsRMSNorm(ShiftedRMSNorm):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 0.1) * self.weight


@pytest.mark.parametrize("kind", [ShiftedRMSNorm, GatedRMSNorm, WithoutEpsRMSNorm])
def test_a_norm_that_computes_something_else_stays_as_it_is(kind: type[nn.Module]) -> None:
    model: Any = nn.Sequential(kind())
    assert recompute_norms(model) == 0
    assert "forward" not in vars(model[0])


def test_the_state_of_random_numbers_does_not_move(tiny: Callable[[str, torch.dtype], Any]) -> None:
    model = tiny("Llama 3", torch.float32)
    before = torch.get_rng_state()
    recompute_norms(model)
    assert torch.equal(torch.get_rng_state(), before)
