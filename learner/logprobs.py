"""Log-probabilities of given tokens, in chunks, so that the matrix of all logits never exists.

Shape letters: T tokens, C tokens of one chunk, H hidden size, V vocabulary. Hidden state t is the one that predicts
target t. Logits are taken to fp32 (fp64 stays fp64) before the softmax, whatever the dtype of the matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    chunk: int,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(hidden) / temperature)[target] for each token, from the head's own weight.

    The backward pass recomputes the logits chunk by chunk with the explicit gradient, and adds up the weight's
    gradient in fp32. Exact to the unchunked computation. The weight must be whole in forward and in backward: under
    ZeRO-3, call this inside the forward of the module that owns it.

    Returns:
        logprobs_T with a gradient, and entropy_T (nats, no gradient) if asked for.
    """
    logprobs_T, entropy_T = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # torch has no stub for it
        hidden_TH, weight_VH, bias_V, targets_T, chunk, temperature, with_entropy
    )
    return logprobs_T, entropy_T if with_entropy else None


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_TH: Tensor,
    targets_T: Tensor,
    chunk: int,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `token_logprobs`, for any `head` that maps hidden_CH to logits_CV: a module, a soft cap, a scaled head.

    Each chunk is checkpointed, so `head` is called twice for each, ceil(T / chunk) chunks in all. Where the call is
    collective (a ZeRO-3 module), all ranks need the same number of chunks.
    """

    def one(hidden_CH: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = _full_precision(head(hidden_CH)) / temperature
        logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
        picked_C = logprobs_CV.gather(1, targets_C[:, None]).squeeze(1)
        with torch.no_grad():
            entropy_C = _entropy(logprobs_CV) if with_entropy else picked_C.new_empty(0)
        return picked_C, entropy_C

    pairs = [
        checkpoint(one, hidden_CH, targets_C, use_reentrant=False)
        for hidden_CH, targets_C in zip(torch.split(hidden_TH, chunk), torch.split(targets_T, chunk), strict=True)
    ]
    logprobs_T = torch.cat([logprobs_C for logprobs_C, _ in pairs])
    return logprobs_T, torch.cat([entropy_C for _, entropy_C in pairs]) if with_entropy else None


def _full_precision(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _entropy(logprobs_CV: Tensor) -> Tensor:
    # `entr` takes 0 log 0 as 0: heads mask vocabulary with logits of -inf.
    entropy_C: Tensor = torch.special.entr(logprobs_CV.exp()).sum(-1)
    return entropy_C


def _logits(hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, temperature: float) -> Tensor:
    logits_CV = _full_precision(functional.linear(hidden_CH.to(weight_VH.dtype), weight_VH, bias_V))
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)


class _TokenLogprobs(torch.autograd.Function):
    """Saves the hidden states and one number a token; never more than a chunk of logits."""

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
    ) -> tuple[Tensor, Tensor]:
        logprobs, normalisers, entropies = [], [], []
        for hidden_CH, targets_C in zip(torch.split(hidden_TH, chunk), torch.split(targets_T, chunk), strict=True):
            logits_CV = _logits(hidden_CH, weight_VH, bias_V, temperature)
            normaliser_C = logits_CV.logsumexp(-1)
            logprobs.append(logits_CV.gather(1, targets_C[:, None]).squeeze(1) - normaliser_C)
            normalisers.append(normaliser_C)
            if with_entropy:
                entropies.append(_entropy(logits_CV.sub_(normaliser_C[:, None])))
        logprobs_T, normalisers_T = torch.cat(logprobs), torch.cat(normalisers)
        entropy_T = torch.cat(entropies) if with_entropy else logprobs_T.new_empty(0)
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, normalisers_T)
        ctx.chunk, ctx.temperature = chunk, temperature
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
            logits_CV = _logits(hidden_TH[part], weight_VH, bias_V, ctx.temperature)
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
        )
