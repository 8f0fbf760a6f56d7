"""Attention over packed rows: no sample sees another, with every allowed implementation.

`varlen` runs torch's flash kernel once over the whole row, with the bounds of its samples, `flash_attention_4` that of
the package flash-attn-4. `sdpa` runs torch's kernel sample by sample. All three cost the sum of the squared sample
lengths, not the square of the row, and need no mask of a row. transformers passes the sample bounds to the others:
`flash_attention_2` gets summed lengths, `eager` and `flex_attention` get positions that start at 0 with each sample.
Ranks that share a row run one of the three.

With these, samples can also share a prompt. The first sample has it, the others begin at their answers:

    row        prompt  answer 1 | answer 2          | answer 3          | the next prompt ...
    keys       prompt  answer 1 | prompt  answer 2  | prompt  answer 3  | the next prompt ...

So the keys and values of a prompt are computed once and copied in front of each answer. A query sees the keys up to its
own, counted from the end, as in a cache of a prompt.

Shape letters: H query heads, K key heads, T tokens of the row (or t, those of this rank), L of one sample, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from olmorl.errors import ModelError
from olmorl.learner.trainer.compat import attention_kernel
from olmorl.learner.trainer.sequence_parallel import SequenceGroup

_OWN: Final = "olmorl_"
"""Begins the names of the implementations that are here. transformers takes a name with "flash" for one of its own."""
_NAMES: Final = {"sdpa": f"{_OWN}sdpa", "varlen": f"{_OWN}varlen", "flash_attention_4": f"{_OWN}attention_4"}
GPU_ONLY: Final = ("varlen", "flash_attention_2", "flash_attention_4", "flex_attention")
FLASH: Final = ("varlen", "flash_attention_4")
FLASH_HEAD_DIM: Final = 256
"""Largest head size of both flash kernels."""
FLASH_CAPABILITY: Final = (8, 0)
"""Least compute capability of a GPU for torch's."""
HOPPER: Final = 9
"""Major compute capability on which flash-attn-4 was measured, with heads of this size and without windows."""
MEASURED_HEAD_DIM: Final = 128
QUERY_BLOCK: Final = 256
"""Queries of an answer that `sdpa` runs at a time. The keys after a block are left out, those within it are masked."""

States = tuple[Tensor, Tensor, Tensor]
"""query_THD, key_TKD and value_TKD of the whole row."""
Bounds = tuple[Tensor, Tensor | None, int, int]
"""The bounds of the samples in queries and in keys, and the longest sample in each."""


def implementation(wanted: str, device: torch.device, dtype: torch.dtype, model: PretrainedConfig) -> str:
    """The name to load a model with, for a value of `learner.attention`.

    Raises:
        ModelError: an attention that cannot train on this device, in this dtype or with this model.
    """
    head_dim = _head_dim(model)
    runs_flash = dtype in (torch.bfloat16, torch.float16) and head_dim <= FLASH_HEAD_DIM
    if wanted == "auto":
        wanted = _fastest(device, model) if device.type == "cuda" and runs_flash else "sdpa"
    if wanted in GPU_ONLY and device.type != "cuda":
        raise ModelError(f'learner.attention = "{wanted}" trains on GPUs only; on {device.type} set "sdpa" or "eager"')
    if wanted in FLASH and not runs_flash:
        raise ModelError(
            f'learner.attention = "{wanted}" needs model.dtype = "bfloat16" and heads of at most {FLASH_HEAD_DIM} '
            f'values (here {dtype} and {head_dim}); set "sdpa"'
        )
    if wanted == "flash_attention_4" and not _has_flash_4():
        raise ModelError('learner.attention = "flash_attention_4" needs a package: pip install flash-attn-4')
    if wanted not in _NAMES:
        return wanted
    name = _NAMES[wanted]
    AttentionInterface.register(name, partial(_unfolded, _PACKED[name]))
    return name


def _fastest(device: torch.device, model: PretrainedConfig) -> str:
    """The fastest kernel that was measured on GPUs like this one, with heads like those of the model."""
    capability = torch.cuda.get_device_capability(device)
    measured = capability[0] == HOPPER and _head_dim(model) == MEASURED_HEAD_DIM and not _has_windows(model)
    if measured and _has_flash_4():
        return "flash_attention_4"
    return "varlen" if capability >= FLASH_CAPABILITY else "sdpa"


def _has_windows(model: PretrainedConfig) -> bool:
    text = model.get_text_config()
    kinds = getattr(text, "layer_types", None)
    return "sliding_attention" in kinds if kinds else bool(getattr(text, "sliding_window", None))


def _has_flash_4() -> bool:
    return find_spec("flash_attn") is not None and find_spec("flash_attn.cute") is not None


def keep_apart(model: PreTrainedModel) -> None:
    """Let attention run by itself between the pieces that torch compiles. This loads the compiler."""
    name = attention_kernel(model)
    attention = partial(_unfolded, _PACKED[name])
    AttentionInterface.register(name, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]


class Folded:
    """A layout as one argument, which torch.compile passes on without a look at its numbers."""

    def __init__(self, layout: dict[str, Any]) -> None:
        self.layout = layout


def arguments(layout: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """The layout as `model` takes it: folded, unless its attention is one of transformers."""
    if not attention_kernel(model).startswith(_OWN):
        return layout
    of_layers = {"position_ids", "use_cache"}
    rest = {name: value for name, value in layout.items() if name not in of_layers}
    return {name: layout[name] for name in of_layers} | {"row": Folded(rest)}


def _unfolded(attention: Callable[..., Any], *states: Any, row: Folded | None = None, **options: Any) -> Any:
    return attention(*states, **(row.layout if row else {}), **options)


def _head_dim(model: PretrainedConfig) -> int:
    """Size of a head; 0 for a model without any, which is refused later."""
    text = model.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0)


def layout(
    lengths: Sequence[int], device: torch.device, group: SequenceGroup | None = None, prefixes: Sequence[int] = ()
) -> dict[str, Any]:
    """Arguments of a model's forward that keep samples of these lengths apart in one row.

    With a `group`, the forward takes this rank's part of the row. The lengths are always those of the whole row. The
    cache is off: with one, transformers takes the row for a single sequence.

    `prefixes` has a number for each sample: 0, or the tokens of the prompt that the sample shares and that its length
    leaves out. They are the first ones of the last sample before it with a 0. Empty: no sample shares.
    """
    shares = any(prefixes)
    prefixes = prefixes or [0] * len(lengths)
    seen = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    positions_T = torch.cat([torch.arange(prefix, end) for prefix, end in zip(prefixes, seen, strict=True)])
    part = slice(None) if group is None else group.part(len(positions_T))
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return {
        "position_ids": positions_T[part][None].to(device),
        "use_cache": False,
        "sample_lengths": tuple(lengths),
        "key_lengths": tuple(seen),
        "key_tokens": _key_tokens(lengths, prefixes).to(device) if shares else None,
        "sequence_group": group,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": torch.tensor([0, *accumulate(seen)], dtype=torch.int32, device=device) if shares else bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(seen),
    }


def _key_tokens(lengths: Sequence[int], prefixes: Sequence[int]) -> Tensor:
    """The tokens of the row whose keys the samples see, sample by sample."""
    parts, start, first = [], 0, 0
    for length, prefix in zip(lengths, prefixes, strict=True):
        first = first if prefix else start
        parts += [torch.arange(first, first + prefix), torch.arange(start, start + length)]
        start += length
    return torch.cat(parts)


def packed_sdpa(
    module: torch.nn.Module,
    query_1HtD: Tensor,
    key_1KtD: Tensor,
    value_1KtD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    sample_lengths: tuple[int, ...] | None = None,
    key_lengths: tuple[int, ...] = (),
    key_tokens: Tensor | None = None,
    sequence_group: SequenceGroup | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each sample of the row on its own; returns 1tHD.

    Raises:
        ModelError: the model does not pass the sample lengths to its attention, or uses another kind of attention.
    """
    _refuse(module, "sdpa", sample_lengths, options)
    assert sample_lengths is not None

    def attend(query_1HTD: Tensor, *keys_and_values: Tensor) -> Tensor:
        queries = torch.split(query_1HTD, list(sample_lengths), dim=2)
        seen = (torch.split(_seen(states, key_tokens, 2), list(key_lengths), dim=2) for states in keys_and_values)
        samples = zip(queries, *seen, strict=True)
        outputs = [_attend(q, k, v, sliding_window, scale=scaling, dropout_p=dropout) for q, k, v in samples]
        return torch.cat([output.transpose(1, 2) for output in outputs], dim=1)

    return _over_whole_row(sequence_group, attend, query_1HtD, key_1KtD, value_1KtD), None


def _ragged(
    name: str,
    kernel: Callable[..., Any],
    module: torch.nn.Module,
    query_1HtD: Tensor,
    key_1KtD: Tensor,
    value_1KtD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    key_tokens: Tensor | None = None,
    sequence_group: SequenceGroup | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention of all samples of the row in one kernel; returns 1tHD.

    A window of W tokens holds the query's own and the W - 1 before it. The kernel counts positions from the end of a
    sample, so an answer's first query sees the whole prompt. There is no dropout: the policy has none.

    Raises:
        ModelError: the model does not pass the sample bounds to its attention, or uses another kind of attention.
    """
    _refuse(module, name, cu_seq_lens_q, options)
    assert cu_seq_lens_q is not None

    def attend(*states_1HTD: Tensor) -> Tensor:
        query_THD, key_TKD, value_TKD = (each[0].transpose(0, 1) for each in states_1HTD)
        states = (query_THD, _seen(key_TKD, key_tokens, 0), _seen(value_TKD, key_tokens, 0))
        bounds = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        output_THD = kernel(states, bounds, scaling, sliding_window)
        assert isinstance(output_THD, Tensor)
        return output_THD[None]

    return _over_whole_row(sequence_group, attend, query_1HtD, key_1KtD, value_1KtD), None


def _torch_flash(states: States, bounds: Bounds, scale: float | None, window: int | None) -> Any:
    """torch's flash kernel."""
    reach = (-1 if window is None else window - 1, 0)
    query, key, value = states
    grouped = query.shape[1] != key.shape[1]
    return varlen_attn(query, key, value, *bounds, scale=scale, window_size=reach, enable_gqa=grouped)


def _flash_4(states: States, bounds: Bounds, scale: float | None, window: int | None) -> Any:
    """The kernel of flash-attn-4, which is compiled for the GPU at its first call."""
    from flash_attn.cute import flash_attn_varlen_func

    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    reach = (None, None) if window is None else (window - 1, 0)
    options = dict(zip(names, bounds, strict=True))
    return flash_attn_varlen_func(*states, **options, softmax_scale=scale, causal=window is None, window_size=reach)[0]


packed_varlen = partial(_ragged, "varlen", _torch_flash)
packed_flash_4 = partial(_ragged, "flash_attention_4", _flash_4)


def _over_whole_row(group: SequenceGroup | None, attend: Callable[..., Tensor], *states: Tensor) -> Tensor:
    """Run `attend` on all tokens of the row: of all heads, or of this rank's."""
    if group is None:
        return attend(*states)
    return group.heads_of_tokens(attend(*(group.tokens_of_heads(each) for each in states)))


_PACKED: Final[dict[str, Callable[..., Any]]] = {
    _NAMES["sdpa"]: packed_sdpa,
    _NAMES["varlen"]: packed_varlen,
    _NAMES["flash_attention_4"]: packed_flash_4,
}


def _refuse(module: torch.nn.Module, name: str, bounds: object, options: dict[str, Any]) -> None:
    """Raise ModelError for attention without sample bounds, or of a kind that a packed implementation does not have."""
    unknown = [option for option in ("softcap", "s_aux", "position_bias") if options.get(option) is not None]
    if bounds is None or unknown:
        why = f"it uses {', '.join(unknown)}" if unknown else "it does not pass the sample bounds to its attention"
        raise ModelError(f"{type(module).__name__} cannot run packed rows with {name}: {why}; set learner.attention")


def _seen(states: Tensor, key_tokens: Tensor | None, dim: int) -> Tensor:
    """The keys or values that the samples see, sample by sample. `dim` counts the tokens of the row."""
    return states if key_tokens is None else states.index_select(dim, key_tokens)


def _attend(query: Tensor, key: Tensor, value: Tensor, window: int | None, **options: Any) -> Tensor:
    """Attention of one sample. With fewer queries than keys, the queries are the last ones."""
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    length = key.shape[2]
    prefix = length - query.shape[2]
    reach = length if window is None else window
    if length <= reach and not prefix:
        return scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    # In blocks of at most one window, a query reaches at most the block before. So the cost is L times the window.
    block = min(reach, QUERY_BLOCK) if length <= reach else reach
    outputs = []
    for start in range(prefix, length, block):
        stop, first = min(start + block, length), max(0, start - reach + 1)
        distance = torch.arange(start, stop, device=query.device)[:, None] - torch.arange(
            first, stop, device=query.device
        )
        near = (distance >= 0) & (distance < reach)
        part = query[:, :, start - prefix : stop - prefix], key[:, :, first:stop], value[:, :, first:stop]
        outputs.append(scaled_dot_product_attention(*part, attn_mask=near, **options))
    return torch.cat(outputs, dim=2)
