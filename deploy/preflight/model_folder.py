"""Checks that the files of a model folder belong together, and that engine and learner know such a model.

It reads headers alone, within milliseconds. Other mistakes are found when the libraries load the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.config import Config
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight.engine_bytes import cache_width
from olmorl.errors import ConfigError, ModelError
from olmorl.learner.data.chat_templates import LightTokenizer, check_vocabulary
from olmorl.learner.trainer.recurrent_layers import refuse_recurrent
from olmorl.learner.trainer.sequence_parallel import refuse_heads

GIB = 2**30
_LENGTH_BYTES = 8
_AGAIN = "download it again, or save it again with save_pretrained (a pointer of git-lfs: git lfs pull)"
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
"""Bits of one element, for the types whose sizes are checked."""
_PLAIN = ("llama", "mistral", "olmo", "olmo2", "olmo3", "qwen2", "qwen3")
"""Model types whose tensors follow from their configuration in the same way."""
HEADS_ON_CPU = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of heads that vLLM's attention on a CPU computes."""
_LAYER = re.compile(r"^layers\.(\d+)\.")
_BLOCK_TOKENS = 128
"""Tokens in a block of the KV cache on CPU."""
Shape = tuple[int, ...]


class Architecture(NamedTuple):
    """The sizes in a model's configuration."""

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the head may be the embedding."""
    windows: tuple[int | None, ...]
    """Tokens of the sliding window of each layer; None without one."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Architecture | None:
        """None when sizes are not given in the common words."""
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        sizes = [tree.get(name) for name in names]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            return None
        hidden, layers, heads, vocabulary = (int(size) for size in sizes if size is not None)
        kinds = tree.get("layer_types") or ["full_attention"] * layers
        window = tree.get("sliding_window")
        return cls(
            kind=str(tree.get("model_type")),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=tree.get("num_key_value_heads") or heads,
            head_dim=tree.get("head_dim") or hidden // heads,
            vocabulary=vocabulary,
            tied=tree.get("tie_word_embeddings") is not False,
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        )


def check_folder(settings: Config) -> LightTokenizer | None:
    """Check weights, configuration, tokenizer and the lengths that the recipe asks for, where they are in folders.

    Returns the tokenizer, as `light_tokenizer` does.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    folder, name = Path(settings.model.path), settings.model.tokenizer or settings.model.path
    tokenizer = light_tokenizer(settings)
    if not folder.is_dir():
        return tokenizer
    tree = _configuration(folder)
    _check_kind(folder, tree)
    refuse_recurrent(settings.model.path, tree)
    shapes = tensors(folder)
    architecture = Architecture.of(tree)
    if architecture is None:
        return tokenizer
    _check_fit(folder, architecture, tree, shapes)
    if tokenizer is not None and tokenizer.largest_id >= architecture.vocabulary:
        raise ModelError(
            f"{name}: the tokenizer writes tokens up to {tokenizer.largest_id}, and the model in {folder} knows "
            f"{architecture.vocabulary} (vocab_size): name the model's own tokenizer in model.tokenizer"
        )
    _check_ends(folder, tree, architecture.vocabulary)
    refuse_heads(architecture.heads, architecture.kv_heads, settings.learner.sequence_parallel)
    _check_length(settings, tree)
    if not (hardware.is_open(settings) or plan(settings).on_gpu):
        _check_heads(folder, architecture, tree)
        _check_cache(settings, architecture)
    return tokenizer


def _check_ends(folder: Path, tree: Mapping[str, Any], vocabulary: int) -> None:
    """The end tokens are tokens of the model: it could not write another one, and no answer would end."""
    file = folder / "generation_config.json"
    generation = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name, values in (("config.json", tree), (file.name, generation)):
        ends = values.get("eos_token_id")
        for end in ends if isinstance(ends, list) else [ends]:
            if isinstance(end, int) and not 0 <= end < vocabulary:
                raise ModelError(
                    f"{folder / name}: eos_token_id = {end} is no token of the model, which knows {vocabulary} "
                    "(vocab_size): no answer would end; write the id of the tokenizer's end token there"
                )


def architecture(folder: Path) -> Architecture | None:
    """The sizes of the model in a folder; None when they are not given in the common words."""
    return Architecture.of(_configuration(folder))


def light_tokenizer(settings: Config) -> LightTokenizer | None:
    """The tokenizer of the recipe without transformers; None where it is not in a folder, or not in that form.

    Raises:
        ModelError: the folder has no tokenizer, or a damaged one.
    """
    from olmorl.learner.data.chat_templates import template_of

    name, template = settings.model.tokenizer or settings.model.path, settings.model.chat_template
    folder = Path(name)
    if not folder.is_dir():
        return None
    check_vocabulary(folder, name)
    if not (folder / "tokenizer.json").is_file():
        return None
    return LightTokenizer(folder, None if template is None else template_of(template))


def _configuration(folder: Path) -> Mapping[str, Any]:
    tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = tree.get("text_config")
    return {**tree, **inner} if isinstance(inner, dict) else tree


# --- the kind of the model --------------------------------------------------------------------------


def _check_kind(folder: Path, tree: Mapping[str, Any]) -> None:
    """Raises ModelError for a model that the learner's library does not know, or whose weights are quantized."""
    if quantized := tree.get("quantization_config"):
        method = quantized.get("quant_method", "unknown method") if isinstance(quantized, dict) else quantized
        raise ModelError(
            f"{folder}: its weights are quantized ({method}: quantization_config in config.json), and the learner "
            "trains plain ones: take the model before its quantization; [actors.vllm] quantization quantizes the "
            "engines' copy"
        )
    kind = tree.get("model_type")
    if kind is not None and not _is_known(kind):
        needs = "; it needs code of its own (auto_map), which is not run" if "auto_map" in tree else ""
        raise ModelError(
            f"{folder}/config.json: model_type = {kind!r} is no architecture of transformers {version('transformers')}"
            f"{needs}: take a model of another architecture"
        )


def _is_known(kind: str) -> bool:
    """Whether transformers has the architecture. Its lists are read as text, because importing it takes seconds."""
    spec = find_spec("transformers")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    lists = [path for folder in folders for path in Path(folder, "models", "auto").glob("*.py")]
    return not lists or any(f'"{kind}"' in path.read_text(encoding="utf-8") for path in lists)


def _check_heads(folder: Path, sizes: Architecture, tree: Mapping[str, Any]) -> None:
    """Raises ModelError for heads that an engine on a CPU would die of, at its first prompt."""
    has_latent = "kv_lora_rank" in tree  # its heads have other sizes in the cache
    if sizes.head_dim not in HEADS_ON_CPU and not has_latent:
        raise ModelError(
            f"{folder}: its attention heads have {sizes.head_dim} numbers (head_dim, or hidden_size / "
            f"num_attention_heads), and vLLM's engine on a CPU computes {', '.join(map(str, HEADS_ON_CPU))}: take "
            "another model, or a machine with GPUs"
        )


# --- weights ----------------------------------------------------------------------------------------


def tensors(folder: Path) -> dict[str, Shape]:
    """Names and shapes of all tensors.

    Raises:
        ModelError: there are none, a file is cut off or damaged, or one that the index names is missing.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index}: not an index of safetensors files ({error!r}): {_AGAIN}") from None
        if missing := sorted(names - {file.name for file in files}):
            raise ModelError(f"{folder}: {missing[0]} is missing, and {index.name} names it: {_AGAIN}")
    if not files:
        raise ModelError(f"{folder}: no *.safetensors there; save the model with save_pretrained()")
    return {name: shape for file in files for name, shape in _header(file)}


def _header(file: Path) -> Iterator[tuple[str, Shape]]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            raise ModelError(
                f"{file}: cut off, or not a safetensors file: its header is longer than its {size} bytes: {_AGAIN}"
            )
        text = opened.read(length)
    try:
        header = json.loads(text)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        parts = [
            (name, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"]) for name, entry in entries.items()
        ]
        end = max((stop for *_, stop in parts), default=0)
    except (ValueError, AttributeError, TypeError, KeyError):
        raise ModelError(f"{file}: not a safetensors file: its header cannot be read: {_AGAIN}") from None
    there = size - _LENGTH_BYTES - length
    if there != end:
        raise ModelError(f"{file}: cut off or damaged: its tensors take {end} bytes, and it has {there}: {_AGAIN}")
    for name, dtype, shape, start, stop in parts:
        if dtype in _BITS and stop - start != prod(shape) * _BITS[dtype] // 8:
            raise ModelError(
                f"{file}: damaged: {name} of shape {list(shape)} and type {dtype} has {stop - start} bytes: {_AGAIN}"
            )
        yield name, shape


def _check_fit(folder: Path, sizes: Architecture, tree: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    given = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    wanted = _expected(sizes, tree)
    wrong = [
        f"{name} has shape {list(given[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in given and given[name] != shape
    ]
    if sizes.kind in _PLAIN:
        optional = {"lm_head.weight"} if sizes.tied else set()
        wrong += [f"{name} is missing" for name in wanted if name not in given and name not in optional]
        beyond = {int(found[1]) for name in given if (found := _LAYER.match(name)) and int(found[1]) >= sizes.layers}
        wrong += [f"layer {layer} is beyond num_hidden_layers = {sizes.layers}" for layer in sorted(beyond)]
    if wrong:
        raise ModelError(
            f"{folder}: the weights do not fit config.json: {wrong[0]}"
            + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            + "; put the configuration and the weights of one model into the folder"
        )


def _expected(sizes: Architecture, tree: Mapping[str, Any]) -> dict[str, Shape]:
    """Tensors that follow from the configuration, without the prefix `model.`."""
    wanted: dict[str, Shape] = {"embed_tokens.weight": (sizes.vocabulary, sizes.hidden)}
    if sizes.kind not in _PLAIN:
        return wanted
    wanted["lm_head.weight"] = (sizes.vocabulary, sizes.hidden)
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    inner = tree.get("intermediate_size")
    layer: dict[str, Shape] = {
        "self_attn.q_proj": (queries, sizes.hidden),
        "self_attn.k_proj": (keys, sizes.hidden),
        "self_attn.v_proj": (keys, sizes.hidden),
        "self_attn.o_proj": (sizes.hidden, queries),
    }
    if isinstance(inner, int):
        layer |= {"mlp.gate_proj": (inner, sizes.hidden), "mlp.up_proj": (inner, sizes.hidden)}
        layer |= {"mlp.down_proj": (sizes.hidden, inner)}
    for number in range(sizes.layers):
        wanted |= {f"layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return wanted


# --- lengths ----------------------------------------------------------------------------------------


def _check_length(settings: Config, tree: Mapping[str, Any]) -> None:
    """Refuse more positions than the model was made for, unless its configuration extends them (`rope_scaling`)."""
    limit = tree.get("max_position_embeddings")
    if not isinstance(limit, int) or _is_scaled(tree) or settings.max_model_len <= limit:
        return
    raise ConfigError(
        f"the engines would take {settings.max_model_len} tokens (data.max_prompt_tokens and "
        f"the longest answer), and the model in {settings.model.path} knows {limit} "
        "positions: lower sampling.max_tokens, evaluation.max_tokens or data.max_prompt_tokens"
    )


def _is_scaled(tree: Mapping[str, Any]) -> bool:
    given = tree.get("rope_scaling") or tree.get("rope_parameters") or {}
    groups = [given, *(part for part in given.values() if isinstance(part, dict))]
    kinds = {group.get("rope_type", group.get("type", "default")) for group in groups}
    return kinds != {"default"}


def cache_bytes(sizes: Architecture, heads: int, length: int, width: int) -> int:
    """Bytes in the KV cache of one sequence of `length` tokens, for `heads` key heads of `width` bytes a number."""
    held = [length if window is None else min(window, length) for window in sizes.windows]
    tokens = sum(-(-number // _BLOCK_TOKENS) * _BLOCK_TOKENS for number in held)
    return tokens * 2 * heads * sizes.head_dim * width


def _check_cache(settings: Config, sizes: Architecture) -> None:
    """On CPU the recipe says how large the KV cache is; on a GPU the engine finds out."""
    length = settings.max_model_len
    needed = cache_bytes(sizes, sizes.kv_heads, length, cache_width(settings))
    given = settings.actors.kv_cache_gib * GIB
    if given < needed:
        raise ConfigError(
            f"actors.kv_cache_gib = {settings.actors.kv_cache_gib:g} is too small for one answer: a prompt and answer "
            f"of {length} tokens takes {needed / GIB:.2g} GiB in this model; set it to at least "
            f"{1.05 * needed / GIB:.2g}, better many times that, or lower sampling.max_tokens"
        )
