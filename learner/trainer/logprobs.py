"""Log-probabilities of given tokens, in chunks, so that the matrix of all logits never exists.

Shape letters: T tokens, C tokens of one chunk, H hidden size, V vocabulary. Hidden state t predicts
target t. Logits are converted to fp32 (fp64 stays fp64) before the softmax, for every dtype of the matrix product.
With `fp32_logits` the matrix product itself gives fp32: its sums are not rounded to the model's dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def token_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    chunk: int,
    temperature: float = 1.0,
    with_entropy: bool = False,
    fp32_logits: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(hidden) / temperature)[target] for each token, from the head's own weight.

    The backward pass recomputes the logits chunk by chunk with the explicit gradient, and sums the weight's gradient in
    fp32. The result equals the unchunked computation. The weight must be complete in forward and backward: under
    ZeRO-3, call this inside the forward of the module that owns it.

    Returns:
        logprobs_T with a gradient, and entropy_T (nats, no gradient) if asked for.
    """
    logprobs_T, entropy_T = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # torch has no stub for it
        hidden_TH, weight_VH, bias_V, targets_T, chunk, temperature, with_entropy, fp32_logits
    )
    return logprobs_T, entropy_T if with_entropy else None


def _logits(
    hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, temperature: float, fp32_logits: bool
) -> Tensor:
    hidden_CH = hidden_CH.to(weight_VH.dtype)
    if fp32_logits and weight_VH.dtype.itemsize < torch.float32.itemsize:
        logits_CV = _fp32_product(hidden_CH, weight_VH)
        if bias_V is not None:
            logits_CV += bias_V
    else:
        logits_CV = functional.linear(hidden_CH, weight_VH, bias_V)
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)


def _fp32_product(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
    """hidden @ weight.T in fp32. A GPU writes its fp32 sums as they are; a CPU needs fp32 copies of the operands."""
    if hidden_CH.is_cuda:
        return torch.mm(hidden_CH, weight_VH.T, out_dtype=torch.float32)
    return functional.linear(hidden_CH.float(), weight_VH.float())


def _forward_chunk(logits_CV: Tensor, targets_C: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the target, log of the softmax's denominator, and entropy (empty if not asked for).

    Computes one exponential for all three and overwrites the logits: with a large vocabulary they take most of the
    memory and time of a small model.
    """
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
    ) -> tuple[Tensor, Tensor]:
        chunks = [
            _forward_chunk(_logits(hidden_CH, weight_VH, bias_V, temperature, fp32_logits), targets_C, with_entropy)
            for hidden_CH, targets_C in zip(torch.split(hidden_TH, chunk), torch.split(targets_T, chunk), strict=True)
        ]
        logprobs_T, normalisers_T, entropy_T = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, normalisers_T)
        ctx.chunk, ctx.temperature, ctx.fp32_logits = chunk, temperature, fp32_logits
        ctx.mark_non_differentiable(entropy_T)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, normalisers_T = ctx.saved_tensors
        full = normalisers_T.dtype
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden_TH = torch.empty_like(hidden_TH) if needs_hidden else None
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=full) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=full) if needs_bias else None
        for start in range(0, len(targets_T), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits_CV = _logits(hidden_TH[part], weight_VH, bias_V, ctx.temperature, ctx.fp32_logits)
            grad_C1 = (grads[0][part] / ctx.temperature)[:, None]
            # d logprob / d logits = onehot(target) - softmax, built in place of the logits.
            grad_logits_CV = logits_CV.sub_(normalisers_T[part, None]).exp_().mul_(-grad_C1)
            grad_logits_CV.scatter_add_(1, targets_T[part, None], grad_C1)
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
            None,
            None,
            None,
            None,
            None,
        )
