"""Bytes of an engine's KV cache and weights, with the options that `actors.vllm` passes on.

vLLM has more formats than are known here. Unknown ones count as the model's own dtype, which is at least as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from olmorl.config import Config
from olmorl.model_cost import VALUE_BYTES

_CACHE_BYTES: Final[Mapping[str, int]] = VALUE_BYTES | {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
"""Bytes of a key or value, by `kv_cache_dtype`."""
_WEIGHT_BYTES: Final[Mapping[str, float]] = {
    "fp8": 1,
    "fp8_per_tensor": 1,
    "fp8_per_block": 1,
    "fp8_per_channel": 1,
    "int8_per_channel_weight_only": 1,
    "mxfp8": 1 + 1 / 32,
}
"""Bytes of a weight of a linear layer with its scale, by `quantization`. Embedding and head keep the model's dtype."""


def cache_width(settings: Config) -> int:
    """Bytes of a key or value in the KV cache."""
    own = VALUE_BYTES[settings.model.dtype]
    return _CACHE_BYTES.get(str(settings.actors.vllm.get("kv_cache_dtype")), own)


def weight_bytes(settings: Config, parameters: int, vocabulary: int, hidden: int) -> int:
    """Bytes of all weights of a model with so many parameters. Its embedding and head are `vocabulary` x `hidden`."""
    own = VALUE_BYTES[settings.model.dtype]
    width = _WEIGHT_BYTES.get(str(settings.actors.vllm.get("quantization")))
    if width is None:
        return parameters * own
    kept = min(parameters, 2 * vocabulary * hidden)
    return kept * own + int((parameters - kept) * width)
