"""RMS norms that keep their input alone for the backward pass.

transformers computes a norm in five or six operations, and autograd keeps up to two fp32 tensors of them. Here the
module's own forward runs without autograd, so values are the same to the last bit. The backward pass follows the
formula, in fp32.

Shape letters: E the size of a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

_ROWS: Final = 4
_NEAR: Final = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Largest distance of the two gradients, relative to their length: that of rounding."""


class _Norm(NamedTuple):
    """x / sqrt(mean(x^2) + eps) * (offset + weight)."""

    forward: Callable[[Tensor], Tensor]
    """The module's own."""
    eps: float
    offset: float


def recompute_norms(model: PreTrainedModel, *, checked: bool = True) -> int:
    """Replace the backward pass of every RMS norm of `model`; returns how many there are.

    A norm whose own gradient is another on fixed rows stays as it is.

    Args:
        checked: compare the gradients. Tensors without values cannot be compared.
    """
    offsets: dict[type[nn.Module], float | None] = {}
    number = 0
    for module in model.modules():
        kind, eps = type(module), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = getattr(module, "weight", None)
        if not kind.__name__.endswith("RMSNorm") or eps is None or weight is None:
            continue
        if kind not in offsets:
            offsets[kind] = _offset(module, eps) if checked else 0.0
        if (offset := offsets[kind]) is not None:
            module.forward = partial(_forward, module, _Norm(module.forward, eps, offset))
            number += 1
    return number


def _forward(module: nn.Module, norm: _Norm, hidden: Tensor) -> Tensor:
    normed: Tensor = _RmsNorm.apply(hidden, module.weight, norm)  # type: ignore[no-untyped-call]
    return normed


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight_E: Tensor, norm: _Norm) -> Tensor:
        ctx.save_for_backward(hidden, weight_E)
        ctx.norm = norm
        return norm.forward(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, weight_E = ctx.saved_tensors
        return *_gradients(hidden, weight_E, gradient, ctx.norm.eps, ctx.norm.offset), None


def _gradients(hidden: Tensor, weight_E: Tensor, gradient: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """The gradients of the input and the weight."""
    normed = hidden.float()
    scale = torch.rsqrt(normed.pow(2).mean(-1, keepdim=True).add_(eps))
    normed = normed * scale
    of_normed = gradient.float()
    of_weight_E = (of_normed * normed).flatten(0, -2).sum(0)
    of_normed = of_normed * (weight_E.float() + offset)
    along = (of_normed * normed).mean(-1, keepdim=True)
    of_hidden = of_normed.sub_(normed.mul_(along)).mul_(scale)
    return of_hidden.to(hidden.dtype), of_weight_E.to(weight_E.dtype)


def _offset(module: nn.Module, eps: float) -> float | None:
    """What the module adds to its weight, 0 or 1; None if its gradient is another."""
    weight: Any = module.weight
    if len(signature(module.forward).parameters) != 1:
        return None
    size = getattr(weight, "ds_shape", weight.shape)[-1]  # under ZeRO-3 the weight is elsewhere
    numbers = torch.arange(_ROWS * size, device=weight.device, dtype=torch.float32).view(_ROWS, size)
    # Weights far from 0 and 1. The fourth number of a row is large, so that eps matters in the others as well.
    given_E, hidden, gradient = (
        each.to(weight.dtype)
        for each in (0.5 + numbers[0].sin() / 4, (7 * numbers).sin() * numbers.remainder(5), (3 * numbers).cos())
    )
    given_E.requires_grad_()
    hidden.requires_grad_()
    try:
        normed = functional_call(module, {"weight": given_E}, (hidden,))
        own = torch.autograd.grad(normed, (hidden, given_E), gradient)
    except RuntimeError:
        return None  # its weight has another shape than its input
    near = _NEAR.get(weight.dtype, 0.0)
    for offset in (0.0, 1.0):
        found = _gradients(hidden.detach(), given_E.detach(), gradient, eps, offset)
        if all((a - b).float().norm() <= near * b.float().norm() for a, b in zip(found, own, strict=True)):
            return offset
    return None
