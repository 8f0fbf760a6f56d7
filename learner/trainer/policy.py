"""The policy as one module: it takes a packed row and returns the log-probability of every trained token.

Shape letters: T tokens of a packed row, P the tokens of it that are predicted, E hidden size, V vocabulary. When
several ranks share a row, t and p are this rank's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from olmorl.errors import ModelError
from olmorl.learner.batching.packing import RowArrays
from olmorl.learner.trainer import packed_attention
from olmorl.learner.trainer.compat import attention_kernel
from olmorl.learner.trainer.logprobs import PLAIN, token_logprobs
from olmorl.learner.trainer.sequence_parallel import SequenceGroup

LOGPROB_CHUNK: Final = 1024
"""Tokens that have logits in memory at one time."""
SCALED_HEADS: Final = ("final_logit_softcapping", "logits_scaling", "logit_scale")
LEAK: Final = 1e-3
"""Largest move (nats) of a sample's log-probability when its neighbour changes. In a correct model it does not move."""
PROBE_TOKENS: Final = 8
TOKEN_STRIDE: Final = 7919
"""Distance of the token ids of a probe: a prime, so that they are spread over the vocabulary."""
CUT: Final = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest mean difference (nats) between a row on one rank and the same row shared, above that of rounding."""
CUT_LENGTHS: Final = (13, 38, 12)
"""Tokens of the samples of that row: for 2 to 64 ranks, parts of the row begin inside of samples."""


class PolicyRow(NamedTuple):
    """The part of a row that the network needs."""

    token_ids_T: Tensor
    lengths: tuple[int, ...]
    """Tokens of each sample, padding last: attention stays inside."""
    predicted_P: Tensor
    """Indices of the tokens whose log-probability is computed; never 0."""
    prefixes: tuple[int, ...] = ()
    """For each sample 0, or the tokens of the prompt that it shares: the first ones of the last sample with a 0. Empty:
    each sample has its own prompt."""

    def before(self) -> Tensor:
        """P: the tokens that the predicted ones are predicted from."""
        before_P = self.predicted_P - 1
        if not any(self.prefixes):
            return before_P
        # The first token of an answer without its own prompt is predicted from the end of the shared one.
        before_T, start, first = torch.arange(-1, len(self.token_ids_T) - 1), 0, 0
        for length, prefix in zip(self.lengths, self.prefixes, strict=True):
            first = first if prefix else start
            before_T[start] = first + prefix - 1
            start += length
        return before_T.to(before_P.device)[self.predicted_P]


def policy_row(arrays: RowArrays, device: torch.device) -> PolicyRow:
    """Predict only loss tokens, so that prompts cost no logits. A row without any predicts token 1."""
    predicted = np.flatnonzero(arrays.loss_mask_T)
    starts = np.array([0, *(np.flatnonzero(np.diff(arrays.sequence_ids_T)) + 1)])
    return PolicyRow(
        token_ids_T=torch.from_numpy(arrays.token_ids_T).long().to(device),
        lengths=tuple(np.diff([*starts, len(arrays.sequence_ids_T)]).tolist()),
        predicted_P=torch.from_numpy(predicted if predicted.size else np.array([1])).to(device),
        prefixes=tuple(arrays.position_ids_T[starts].tolist()),
    )


class _RowPart(NamedTuple):
    """What one rank computes of a row."""

    token_ids_t: Tensor
    lengths: tuple[int, ...]
    """Tokens of each sample of the whole row, with the padding that makes it divisible among the ranks."""
    prefixes: tuple[int, ...]
    predicted_p: Tensor
    """The predicted tokens of the row whose predecessor is in this part."""
    before_p: Tensor
    """Their predecessors, counted from the start of this part."""


def _whole_row(row: PolicyRow) -> _RowPart:
    return _RowPart(row.token_ids_T, row.lengths, row.prefixes, row.predicted_P, row.before())


def _row_part(row: PolicyRow, group: SequenceGroup) -> _RowPart:
    padding = group.padding(len(row.token_ids_T))
    padded_T = nn.functional.pad(row.token_ids_T, (0, padding))
    part = group.part(len(padded_T))
    before_P = row.before()
    own = group.own(before_P, part)
    return _RowPart(
        token_ids_t=padded_T[part],
        lengths=(*row.lengths, padding) if padding else row.lengths,
        prefixes=(*row.prefixes, 0) if padding and row.prefixes else row.prefixes,
        predicted_p=row.predicted_P[own],
        before_p=before_P[own] - part.start,
    )


class PackedPolicy(nn.Module):
    """Log-probabilities at the sampling temperature. Samples of a row are isolated; no matrix of all logits exists."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        chunk: int,
        fp32_head: bool = False,
        group: SequenceGroup | None = None,
        saving: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Wrap `model`.

        Args:
            chunk: tokens that have logits at one time.
            fp32_head: compute logits in fp32; else they are rounded to the model's dtype.
            group: ranks that share each row. Each computes its part, and gets the result for the whole row.
            saving: context of the layers, which may hold the tensors that they save for the backward pass.

        Raises:
            ModelError: the model does more to its logits than a linear head.
        """
        super().__init__()
        configs = (model.config, model.config.get_text_config())  # two of a model that has more than text
        scaled = [
            name for name in SCALED_HEADS if any(getattr(each, name, None) not in (None, 1, 1.0) for each in configs)
        ]
        if scaled:
            raise ModelError(
                f"{type(model).__name__} sets {scaled[0]}, which the learner does not apply: "
                "its log-probabilities would be wrong; use a model with a plain head"
            )
        self.model = model
        self.temperature = temperature
        self.head = LogprobHead(model.get_output_embeddings(), chunk, fp32_head)
        self.group = group
        self.saving = saving

    def forward(
        self, row: PolicyRow, with_entropy: bool = False, tempered: bool = True, shared: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """logprobs_T with a gradient, and entropy_T (nats) if asked for; 0 at tokens that are not predicted.

        At the sampling temperature, or at temperature 1 if not `tempered`. If not `shared`, this rank computes the
        whole row, also when it has a group.
        """
        group = self.group if shared else None
        part = _whole_row(row) if group is None else _row_part(row, group)
        layout = packed_attention.layout(part.lengths, row.token_ids_T.device, group, part.prefixes)
        with self.saving():
            arguments = packed_attention.arguments(layout, self.model)
            hidden_tE = self.model.base_model(part.token_ids_t[None], **arguments).last_hidden_state[0]
        predicted_p = part.predicted_p
        hidden_pE, targets_p = hidden_tE[part.before_p], row.token_ids_T[predicted_p]
        logprobs_p, entropy_p = self.head(hidden_pE, targets_p, with_entropy, self.temperature if tempered else 1.0)
        blank_T = logprobs_p.new_zeros(len(row.token_ids_T))

        def spread(values_p: Tensor) -> Tensor:
            values_T = blank_T.index_copy(0, predicted_p, values_p)
            return values_T if group is None else group.whole(values_T, predicted_p)

        return spread(logprobs_p), None if entropy_p is None else spread(entropy_p)


class LogprobHead(nn.Module):
    """Owns the weight of the model's head, so that ZeRO-3 gathers it while this module runs."""

    def __init__(self, head: nn.Linear, chunk: int, fp32_logits: bool) -> None:
        super().__init__()
        self.weight = head.weight
        self.bias = getattr(head, "bias", None)
        self.chunk = chunk
        self.fp32_logits = fp32_logits
        self.passes = PLAIN

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
            self.passes,
        )


def refuse_leaks(
    policy: Callable[[PolicyRow], tuple[Tensor, Any]], model: PreTrainedModel, device: torch.device
) -> None:
    """Change the first of two packed samples, and check that the second gives the same log-probabilities.

    Raises:
        ModelError: the samples see each other: recurrent layers, or an attention that ignores the bounds.
    """
    row_T = torch.arange(2 * PROBE_TOKENS, device=device) % model.config.get_text_config().vocab_size
    changed_T = torch.cat([row_T[:PROBE_TOKENS].flip(0), row_T[PROBE_TOKENS:]])
    second_P = torch.arange(PROBE_TOKENS + 1, 2 * PROBE_TOKENS, device=device)
    with torch.no_grad():
        before_T, after_T = (
            policy(PolicyRow(tokens_T, (PROBE_TOKENS, PROBE_TOKENS), second_P))[0] for tokens_T in (row_T, changed_T)
        )
    drift = (before_T - after_T).abs().max().item()
    if not drift <= LEAK:
        raise ModelError(
            f"{type(model).__name__} with {attention_kernel(model)}: packed samples see each other "
            f"(log-probabilities move by {drift:.2g}); set learner.attention to another value, "
            "or use a model whose layers are all attention"
        )


def refuse_sharing(
    policy: Callable[[PolicyRow], tuple[Tensor, Any]], model: PreTrainedModel, device: torch.device
) -> None:
    """Check that two answers with a shared prompt get the log-probabilities that each has with its own.

    Raises:
        ModelError: they differ or see each other: some layer looks at neighbouring tokens or counts positions itself.
    """
    length = PROBE_TOKENS
    row_T = torch.arange(3 * length, device=device) * TOKEN_STRIDE % model.config.get_text_config().vocab_size
    prompt_T, first_T, second_T = row_T.split(length)
    second_P = torch.arange(2 * length, 3 * length, device=device)

    def of_second(answer_T: Tensor) -> Tensor:
        tokens_T = torch.cat([prompt_T, answer_T, second_T])
        return policy(PolicyRow(tokens_T, (2 * length, length), second_P, (0, length)))[0][second_P]

    with torch.no_grad():
        shared_P, changed_P = of_second(first_T), of_second(first_T.flip(0))
        own = PolicyRow(torch.cat([prompt_T, second_T]), (2 * length,), second_P - length)
        alone_P = policy(own)[0][length:]
    leak, drift = (shared_P - changed_P).abs().max().item(), (shared_P - alone_P).abs().mean().item()
    if not (leak <= LEAK and drift <= CUT[model.dtype]):
        raise ModelError(
            f"{type(model).__name__} with {attention_kernel(model)} cannot share a prompt among answers: "
            f'log-probabilities move by {max(leak, drift):.2g}; set learner.attention = "eager"'
        )


def refuse_cuts(policy: Callable[..., tuple[Tensor, Any]], model: PreTrainedModel, device: torch.device) -> None:
    """Check that the ranks of a group together give the log-probabilities of one rank. All ranks call this together.

    Raises:
        ModelError: some layer looks at neighbouring tokens in another way than by attention.
    """
    row_T = torch.arange(sum(CUT_LENGTHS), device=device) * TOKEN_STRIDE % model.config.get_text_config().vocab_size
    row = PolicyRow(row_T, CUT_LENGTHS, torch.arange(1, len(row_T), device=device))
    with torch.no_grad():
        drift = (policy(row)[0] - policy(row, shared=False)[0]).abs().mean().item()
    if not drift <= CUT[model.dtype]:
        raise ModelError(
            f"{type(model).__name__} cannot share a row among ranks: log-probabilities move by {drift:.2g} on average; "
            "set learner.sequence_parallel = 1"
        )
