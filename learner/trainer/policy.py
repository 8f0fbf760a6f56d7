"""The policy as one module: it takes a packed row and returns the log-probability of every trained token.

Shape letters: T tokens of a packed row, P the tokens of it that are predicted, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from olmorl.errors import ModelError
from olmorl.learner.batching.packing import RowArrays
from olmorl.learner.trainer import packed_attention
from olmorl.learner.trainer.logprobs import token_logprobs
from olmorl.messages import TokenIds

SCALED_HEADS: Final = ("final_logit_softcapping", "logits_scaling", "logit_scale")
LEAK: Final = 1e-3
"""Largest move (nats) of a sample's log-probability when its neighbour changes. In a correct model it does not move."""
PROBE_TOKENS: Final = 8


class PolicyRow(NamedTuple):
    """The part of a row that the network needs."""

    token_ids_T: Tensor
    lengths: tuple[int, ...]
    """Tokens of each sample, padding last: attention stays inside."""
    predicted_P: Tensor
    """Indices of the tokens whose log-probability is computed; never 0."""


def policy_row(arrays: RowArrays, device: torch.device) -> PolicyRow:
    """Predict only loss tokens, so that prompts cost no logits. A row without any predicts token 1."""
    predicted = np.flatnonzero(arrays.loss_mask_T)
    return PolicyRow(
        token_ids_T=torch.from_numpy(arrays.token_ids_T).long().to(device),
        lengths=_run_lengths(arrays.sequence_ids_T),
        predicted_P=torch.from_numpy(predicted if predicted.size else np.array([1])).to(device),
    )


def _run_lengths(sequence_ids_T: TokenIds) -> tuple[int, ...]:
    borders = np.flatnonzero(np.diff(sequence_ids_T)) + 1
    return tuple(np.diff([0, *borders, len(sequence_ids_T)]).tolist())


class PackedPolicy(nn.Module):
    """Log-probabilities at the sampling temperature. Samples of a row are isolated; no matrix of all logits exists."""

    def __init__(self, model: PreTrainedModel, temperature: float, chunk: int, fp32_head: bool = False) -> None:
        """Wrap `model`; `chunk` tokens have logits at one time, in fp32 with `fp32_head`, else rounded to its dtype.

        Raises:
            ModelError: the model does more to its logits than a linear head.
        """
        super().__init__()
        scaled = [name for name in SCALED_HEADS if getattr(model.config, name, None) not in (None, 1, 1.0)]
        if scaled:
            raise ModelError(
                f"{type(model).__name__} sets {scaled[0]}, which the learner does not apply: "
                "its log-probabilities would be wrong; use a model with a plain head"
            )
        self.model = model
        self.temperature = temperature
        self.head = LogprobHead(model.get_output_embeddings(), chunk, fp32_head)

    def forward(
        self, row: PolicyRow, with_entropy: bool = False, tempered: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """logprobs_T with a gradient, and entropy_T (nats) if asked for; 0 at tokens that are not predicted.

        At the sampling temperature, or at temperature 1 if not `tempered`.
        """
        layout = packed_attention.layout(row.lengths, row.token_ids_T.device)
        hidden_TE = self.model.base_model(row.token_ids_T[None], **layout).last_hidden_state[0]
        predicted_P = row.predicted_P
        temperature = self.temperature if tempered else 1.0
        hidden_PE, targets_P = hidden_TE[predicted_P - 1], row.token_ids_T[predicted_P]
        logprobs_P, entropy_P = self.head(hidden_PE, targets_P, with_entropy, temperature)
        blank_T = logprobs_P.new_zeros(len(row.token_ids_T))
        return (
            blank_T.index_copy(0, predicted_P, logprobs_P),
            None if entropy_P is None else blank_T.index_copy(0, predicted_P, entropy_P),
        )


class LogprobHead(nn.Module):
    """Owns the weight of the model's head, so that ZeRO-3 gathers it while this module runs."""

    def __init__(self, head: nn.Linear, chunk: int, fp32_logits: bool) -> None:
        super().__init__()
        self.weight = head.weight
        self.bias = getattr(head, "bias", None)
        self.chunk = chunk
        self.fp32_logits = fp32_logits

    def forward(
        self, hidden_PE: Tensor, targets_P: Tensor, with_entropy: bool, temperature: float
    ) -> tuple[Tensor, Tensor | None]:
        return token_logprobs(
            hidden_PE,
            self.weight,
            self.bias,
            targets_P,
            self.chunk,
            temperature,
            with_entropy,
            self.fp32_logits,
        )


def refuse_leaks(
    policy: Callable[[PolicyRow], tuple[Tensor, Any]], model: PreTrainedModel, device: torch.device
) -> None:
    """Change the first of two packed samples, and check that the second gives the same log-probabilities.

    Raises:
        ModelError: the samples see each other: recurrent layers, or an attention that ignores the bounds.
    """
    row_T = torch.arange(2 * PROBE_TOKENS, device=device) % model.config.vocab_size
    changed_T = torch.cat([row_T[:PROBE_TOKENS].flip(0), row_T[PROBE_TOKENS:]])
    second_P = torch.arange(PROBE_TOKENS + 1, 2 * PROBE_TOKENS, device=device)
    with torch.no_grad():
        before_T, after_T = (
            policy(PolicyRow(tokens_T, (PROBE_TOKENS, PROBE_TOKENS), second_P))[0] for tokens_T in (row_T, changed_T)
        )
    drift = (before_T - after_T).abs().max().item()
    if not drift <= LEAK:
        raise ModelError(
            f"{type(model).__name__} with {model.config._attn_implementation}: packed samples see each other "
            f"(log-probabilities move by {drift:.2g}); set learner.attention to another value, "
            "or use a model whose layers are all attention"
        )
