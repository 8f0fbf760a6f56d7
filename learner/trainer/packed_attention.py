"""Attention over packed rows: no sample sees another, with every allowed implementation.

`sdpa` runs torch's kernel sample by sample. So the cost is the sum of the squared sample lengths, not the square of the
row, and there is no mask of a whole row. transformers passes the sample bounds to the others: `flash_attention_2` gets
summed lengths, `eager` and `flex_attention` get positions that start at 0 with each sample.

Shape letters: H query heads, K key heads, T tokens of the row, L of one sample, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from olmorl.errors import ModelError

PACKED_SDPA: Final = "olmorl_sdpa"
GPU_ONLY: Final = ("flash_attention_2", "flex_attention")


def implementation(wanted: str, device: torch.device) -> str:
    """The name to load a model with, for a value of `learner.attention`.

    Raises:
        ModelError: an attention that cannot train on this device.
    """
    if wanted == "auto":
        wanted = "flash_attention_2" if device.type == "cuda" and find_spec("flash_attn") else "sdpa"
    if wanted in GPU_ONLY and device.type != "cuda":
        raise ModelError(f'learner.attention = "{wanted}" trains on GPUs only; on {device.type} set "sdpa" or "eager"')
    if wanted == "sdpa":
        AttentionInterface.register(PACKED_SDPA, packed_sdpa)
        return PACKED_SDPA
    return wanted


def layout(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Arguments of a model's forward that keep samples of these lengths apart in one row.

    The cache is off: with one, transformers takes the row for a single sequence.
    """
    positions_1T = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return {
        "position_ids": positions_1T,
        "use_cache": False,
        "sample_lengths": tuple(lengths),
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def packed_sdpa(
    module: torch.nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    sample_lengths: tuple[int, ...] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each sample of the row on its own; returns 1THD.

    Raises:
        ModelError: the model does not pass the sample lengths to its attention, or uses another kind of attention.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if sample_lengths is None or unknown:
        why = f"it uses {', '.join(unknown)}" if unknown else "it does not pass the sample bounds to its attention"
        raise ModelError(f"{type(module).__name__} cannot run packed rows with sdpa: {why}; set learner.attention")
    parts = zip(*(torch.split(t, list(sample_lengths), dim=2) for t in (query_1HTD, key_1KTD, value_1KTD)), strict=True)
    outputs = [_attend(q, k, v, sliding_window, scale=scaling, dropout_p=dropout) for q, k, v in parts]
    return torch.cat([output.transpose(1, 2) for output in outputs], dim=1), None


def _attend(query: Tensor, key: Tensor, value: Tensor, window: int | None, **options: Any) -> Tensor:
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    length = query.shape[2]
    if window is None or length <= window:
        return scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    if options["enable_gqa"]:
        # On GPUs, torch's fused kernels with a mask take no grouped heads, and the other one keeps all pairs of tokens.
        key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
        options["enable_gqa"] = False
    # In blocks of one window, a query reaches at most the block before. So the cost is L times the window.
    outputs = []
    for start in range(0, length, window):
        stop, first = min(start + window, length), max(0, start - window + 1)
        distance = torch.arange(start, stop, device=query.device)[:, None] - torch.arange(
            first, stop, device=query.device
        )
        near = (distance >= 0) & (distance < window)
        block = query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop]
        outputs.append(scaled_dot_product_attention(*block, attn_mask=near, **options))
    return torch.cat(outputs, dim=2)
