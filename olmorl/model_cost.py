"""Operations and bytes of a decoder-only transformer, counted from its configuration and the shapes of its weights.

A multiplication and an addition are two operations. Only what the result needs is counted: matrix products of the
weights, causal attention over the real length or the window of each layer, and logits where they are asked for. Norms,
rotary positions and activations are left out: together they are below one percent. A recomputation is no useful
operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

Shapes = Mapping[str, tuple[int, ...]]
VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a weight, a key or a value, by the name of the dtype."""
BACKWARD = 2
"""Backward passes cost so many forward passes: one product for the input, one for the weight."""
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class DevicePeak(NamedTuple):
    """The limits of one device; None: not known."""

    flops_per_s: float | None = None
    bytes_per_s: float | None = None

    def times(self, devices: int) -> DevicePeak:
        """The peak of several devices together."""
        return DevicePeak(*(None if value is None else value * devices for value in self))


class AnswerWork(NamedTuple):
    """The work of an engine for its answers, without the reading of weights."""

    flops: float = 0.0
    num_bytes: float = 0.0
    """Bytes of the KV cache, read and written."""

    def __add__(self, other: object) -> AnswerWork:
        assert isinstance(other, AnswerWork)
        return AnswerWork(self.flops + other.flops, self.num_bytes + other.num_bytes)

    def at_least(self, other: AnswerWork) -> AnswerWork:
        """The larger of each."""
        return AnswerWork(max(self.flops, other.flops), max(self.num_bytes, other.num_bytes))


class LayerAttention(NamedTuple):
    """Attention of one kind of layer."""

    layers: int
    window: int | None
    """Tokens that a token sees, itself included; None: all before it."""


@dataclass(frozen=True)
class ModelCost:
    """The cost of the tokens of one model."""

    dense: int
    """Weights of the matrix products that every token passes, without embedding and head."""
    experts: int
    """Weights of all experts."""
    active: float
    """Share of the experts that a token passes; 0 without experts."""
    head: int
    """Weights of the head, tied or not."""
    query_width: int
    """Values of all query heads of a layer."""
    kv_width: int
    """Keys and values of one token in one layer."""
    attention: tuple[LayerAttention, ...]
    value_bytes: int
    """Bytes of one weight, key or value."""

    def forward_flops(self, begin: int, end: int, logits: int) -> float:
        """Returns the flops of positions `begin` to `end` of a sequence, with the logits of so many tokens."""
        linear = (self.dense + self.active * self.experts) * (end - begin)
        seen = sum(kind.layers * pairs(begin, end, kind.window) for kind in self.attention)
        # Each pair costs a product of query and key, and one of weight and value.
        return 2 * (linear + self.head * logits) + 4 * self.query_width * seen

    def answer(self, prompt: int, generated: int, cached: int = 0) -> AnswerWork:
        """Returns the work of an answer so far: its prompt without the `cached` tokens, and one token after another.

        The prompt's keys and values are read once, as in one step.
        """
        if not generated:
            return AnswerWork()
        # The last token that was generated has not been an input.
        last = prompt + generated - 1
        read = sum(
            kind.layers * (pairs(prompt, last, kind.window) + min(prompt, kind.window or prompt))
            for kind in self.attention
        )
        written = (last - cached) * sum(kind.layers for kind in self.attention)
        num_bytes = self.value_bytes * self.kv_width * (read + written)
        return AnswerWork(self.forward_flops(cached, last, generated), num_bytes)

    def step_bytes(self, tokens: int) -> float:
        """Returns the bytes of weights that an engine reads for a step: tokens spread evenly over the experts."""
        touched = 1 - (1 - self.active) ** tokens
        return self.value_bytes * (self.dense + self.head + touched * self.experts)


def pairs(begin: int, end: int, window: int | None) -> int:
    """Pairs of a token and one that it sees, over the tokens at positions `begin` to `end`."""
    if window is None or end <= window:
        return (end * (end + 1) - begin * (begin + 1)) // 2
    if begin >= window:
        return (end - begin) * window
    return pairs(begin, window, None) + (end - window) * window


def model_cost(config: Any, shapes: Shapes, value_bytes: int) -> ModelCost | None:
    """The cost of a model; None for a configuration that does not say what it needs.

    Args:
        config: of transformers, for text.
        shapes: of every weight by its name in a checkpoint; a tied head may be left out.
        value_bytes: of a weight while it is used.
    """
    heads = getattr(config, "num_attention_heads", None)
    if not heads or not getattr(config, "num_hidden_layers", None):
        return None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    embedding = next((prod(shape) for name, shape in shapes.items() if name.endswith(_EMBEDDING)), 0)
    head = next((prod(shape) for name, shape in shapes.items() if name.endswith(_HEAD)), embedding)
    dense = experts = 0
    for name, shape in shapes.items():
        if len(shape) < 2 or name.endswith((_HEAD, _EMBEDDING)):
            continue
        if ".experts." in name:
            experts += prod(shape)
        else:
            dense += prod(shape)
    number = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0
    return ModelCost(
        dense=dense,
        experts=experts,
        active=config.num_experts_per_tok / number if experts and number else 0.0,
        head=head,
        query_width=heads * head_dim,
        kv_width=2 * kv_heads * head_dim,
        attention=_attention(config),
        value_bytes=value_bytes,
    )


def _attention(config: Any) -> tuple[LayerAttention, ...]:
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds: Iterable[str] = getattr(config, "layer_types", None) or (
        ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    )
    return tuple(
        LayerAttention(number, window if kind == "sliding_attention" else None)
        for kind, number in sorted(Counter(kinds).items())
    )
