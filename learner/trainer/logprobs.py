"""Log-probabilities of given tokens, in chunks, so that the matrix of all logits never exists.

Shape letters: T tokens, C tokens of one chunk, H hidden size, V vocabulary. Hidden state t predicts
target t. Logits are converted to fp32 (fp64 stays fp64) before the softmax, for every dtype of the matrix product.
With `fp32_logits` the matrix product itself gives fp32: its sums are not rounded to the model's dtype.

The logits take most of the memory and time of a small model. So they are read once: log-probability, normaliser and
entropy come from one pass over them, and their gradient from a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TILE: Final = 2**18
"""Logits that a CPU holds in its cache while it computes on them."""
BLOCK: Final = 1024
"""Logits of a token that a compiled kernel holds in registers."""

Read = tuple[Tensor, Tensor, Tensor]
"""For each token: the log-probability of its target, the log of the softmax's denominator, and the entropy."""


class HeadPasses(NamedTuple):
    """The two passes over a chunk of logits. Both may overwrite them."""

    read: Callable[[Tensor, Tensor, float, bool], Read]
    """Of logits, targets, the temperature and whether the entropy is asked for."""
    gradient: Callable[[Tensor, Tensor, Tensor, Tensor, float, torch.dtype], Tensor]
    """The gradient of the logits in a dtype, from logits, targets, denominators, gradients of the log-probabilities and
    the temperature."""


def _logits(hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, fp32_logits: bool) -> Tensor:
    hidden_CH = hidden_CH.to(weight_VH.dtype)
    if fp32_logits and weight_VH.dtype.itemsize < torch.float32.itemsize:
        logits_CV = _fp32_product(hidden_CH, weight_VH)
        if bias_V is not None:
            logits_CV += bias_V
    else:
        logits_CV = functional.linear(hidden_CH, weight_VH, bias_V)
    return logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))


def _fp32_product(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
    """hidden @ weight.T in fp32. A GPU writes its fp32 sums as they are; a CPU needs fp32 copies of the operands."""
    if hidden_CH.is_cuda:
        return torch.mm(hidden_CH, weight_VH.T, out_dtype=torch.float32)
    return functional.linear(hidden_CH.float(), weight_VH.float())


# --- the plain passes


def _read_in_tiles(logits_CV: Tensor, targets_C: Tensor, temperature: float, with_entropy: bool) -> Read:
    """The tokens of a chunk, as many at a time as a cache holds. A GPU has threads for all at once."""
    rows = len(logits_CV) if logits_CV.is_cuda else max(1, TILE // logits_CV.shape[1])
    tiles = zip(torch.split(logits_CV, rows), torch.split(targets_C, rows), strict=True)
    read = [_read_tile(*tile, temperature, with_entropy) for tile in tiles]
    logprobs_C, log_sums_C, entropy_C = (torch.cat(parts) for parts in zip(*read, strict=True))
    return logprobs_C, log_sums_C, entropy_C


def _read_tile(logits_CV: Tensor, targets_C: Tensor, temperature: float, with_entropy: bool) -> Read:
    """Computes one exponential for all three results, and overwrites the logits."""
    if temperature != 1.0:
        logits_CV.div_(temperature)
    top_C1 = logits_CV.amax(-1, keepdim=True)
    shifted_CV = logits_CV.sub_(top_C1)
    picked_C = shifted_CV.gather(1, targets_C[:, None]).squeeze(1)
    exp_CV = shifted_CV.exp()
    sum_C = exp_CV.sum(-1)
    log_sum_C = sum_C.log()
    entropy_C = picked_C.new_empty(0)
    if with_entropy:
        # Heads mask vocabulary with logits of -inf, and 0 * -inf is not 0.
        shifted_CV.clamp_(min=torch.finfo(shifted_CV.dtype).min)
        entropy_C = log_sum_C - torch.linalg.vecdot(exp_CV, shifted_CV) / sum_C
    return picked_C - log_sum_C, log_sum_C + top_C1.squeeze(1), entropy_C


def _gradient(
    logits_CV: Tensor, targets_C: Tensor, log_sums_C: Tensor, grads_C: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """onehot(target) - softmax, times the gradient, in place of the logits."""
    if temperature != 1.0:
        logits_CV.div_(temperature)
    grads_C1 = (grads_C / temperature)[:, None]
    grad_logits_CV = logits_CV.sub_(log_sums_C[:, None]).exp_().mul_(-grads_C1)
    return grad_logits_CV.scatter_add_(1, targets_C[:, None], grads_C1).to(dtype)


PLAIN: Final = HeadPasses(_read_in_tiles, _gradient)
AT_ONCE: Final = HeadPasses(_read_tile, _gradient)
"""Those of a GPU: the memory plan has no tiles, which would be many operations."""


# --- the same, written for the compiler, which makes one kernel of each


@lru_cache
def compiled_passes() -> HeadPasses:
    """The passes as kernels for this device, which are compiled at their first call."""
    return HeadPasses(torch.compile(_read_blocks, dynamic=True), torch.compile(_gradient_at_once, dynamic=True))


def _read_blocks(logits_CV: Tensor, targets_C: Tensor, temperature: float, with_entropy: bool) -> Read:
    """Each block of logits gives its largest value and two sums. So a kernel needs the logits only once.

    The entropy costs nothing more, and is always there.
    """
    vocabulary = logits_CV.shape[1]
    whole = vocabulary - vocabulary % BLOCK
    blocks = [torch.unflatten(logits_CV[:, :whole], 1, (-1, BLOCK))] if whole else []
    blocks += [logits_CV[:, None, whole:]] if whole < vocabulary else []
    tops_CB, sums_CB, moments_CB = (
        torch.cat(parts, 1) for parts in zip(*(_of_block(each / temperature) for each in blocks), strict=True)
    )
    top_C1 = tops_CB.amax(-1, keepdim=True)
    below_CB = (tops_CB - top_C1).clamp(min=torch.finfo(tops_CB.dtype).min)
    scales_CB = below_CB.exp()
    sum_C = (scales_CB * sums_CB).sum(-1)
    log_sum_C = sum_C.log()
    mean_C = (scales_CB * (moments_CB + below_CB * sums_CB)).sum(-1) / sum_C
    picked_C = (logits_CV.gather(1, targets_C[:, None]) / temperature - top_C1).squeeze(1)
    return picked_C - log_sum_C, log_sum_C + top_C1.squeeze(1), log_sum_C - mean_C


def _of_block(logits_CbB: Tensor) -> Read:
    """The largest logit, the sum of exp(logit - largest), and that of its product with logit - largest."""
    least = torch.finfo(logits_CbB.dtype).min
    top_Cb = logits_CbB.amax(-1)
    shifted_CbB = (logits_CbB - top_Cb.clamp(min=least)[..., None]).clamp(min=least)
    exp_CbB = shifted_CbB.exp()
    return top_Cb, exp_CbB.sum(-1), (exp_CbB * shifted_CbB).sum(-1)


def _gradient_at_once(
    logits_CV: Tensor, targets_C: Tensor, log_sums_C: Tensor, grads_C: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    is_target_CV = torch.arange(logits_CV.shape[1], device=logits_CV.device) == targets_C[:, None]
    softmax_CV = (logits_CV / temperature - log_sums_C[:, None]).exp()
    return ((is_target_CV.to(softmax_CV.dtype) - softmax_CV) * (grads_C / temperature)[:, None]).to(dtype)


def token_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    chunk: int,
    temperature: float = 1.0,
    with_entropy: bool = False,
    fp32_logits: bool = False,
    passes: HeadPasses = PLAIN,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(hidden) / temperature)[target] for each token, from the head's own weight.

    The backward pass recomputes the logits chunk by chunk with the explicit gradient, and sums the weight's gradient in
    fp32. The result equals the unchunked computation. The weight must be complete in forward and backward: under
    ZeRO-3, call this inside the forward of the module that owns it.

    Returns:
        logprobs_T with a gradient, and entropy_T (nats, no gradient) if asked for.
    """
    logprobs_T, entropy_T = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # torch has no stub for it
        hidden_TH, weight_VH, bias_V, targets_T, chunk, temperature, with_entropy, fp32_logits, passes
    )
    return logprobs_T, entropy_T if with_entropy else None


class _TokenLogprobs(torch.autograd.Function):
    """Saves the hidden states and one number for each token. Holds at most one chunk of logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        chunk: int,
        temperature: float,
        with_entropy: bool,
        fp32_logits: bool,
        passes: HeadPasses,
    ) -> tuple[Tensor, Tensor]:
        chunks = [
            passes.read(_logits(hidden_CH, weight_VH, bias_V, fp32_logits), targets_C, temperature, with_entropy)
            for hidden_CH, targets_C in zip(torch.split(hidden_TH, chunk), torch.split(targets_T, chunk), strict=True)
        ]
        logprobs_T, log_sums_T, entropy_T = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, log_sums_T)
        ctx.chunk, ctx.temperature, ctx.fp32_logits, ctx.gradient = chunk, temperature, fp32_logits, passes.gradient
        ctx.mark_non_differentiable(entropy_T)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, log_sums_T = ctx.saved_tensors
        full = log_sums_T.dtype
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden_TH = torch.empty_like(hidden_TH) if needs_hidden else None
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=full) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=full) if needs_bias else None
        for start in range(0, len(targets_T), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            grad_logits_CV = ctx.gradient(
                _logits(hidden_TH[part], weight_VH, bias_V, ctx.fp32_logits),
                targets_T[part],
                log_sums_T[part],
                grads[0][part],
                ctx.temperature,
                full if needs_bias else weight_VH.dtype,
            )
            if grad_bias_V is not None:
                grad_bias_V += grad_logits_CV.sum(0)
                grad_logits_CV = grad_logits_CV.to(weight_VH.dtype)
            if grad_hidden_TH is not None:
                grad_hidden_TH[part] = grad_logits_CV @ weight_VH
            if grad_weight_VH is not None:
                grad_weight_VH += grad_logits_CV.T @ hidden_TH[part].to(weight_VH.dtype)
        return (
            grad_hidden_TH,
            None if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            *[None] * 6,
        )
