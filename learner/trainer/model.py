"""Loads the policy's network, and writes it as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from olmorl import config
from olmorl.errors import ModelError, ResourceError
from olmorl.learner.data.loader import open_tokenizer
from olmorl.learner.trainer import packed_attention
from olmorl.learner.trainer.adapters import Adapters
from olmorl.learner.trainer.recurrent_layers import refuse_recurrent

ADAPTER_FOLDER: Final = "adapter"
"""The adapters in PEFT's own form, in an exported folder."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def read_config(settings: config.Model) -> PretrainedConfig:
    """The architecture of the model at `settings.path`, without its weights.

    Raises:
        ModelError: not a model, or an architecture that transformers does not know.
    """
    path = settings.path
    folder = Path(path)
    if folder.exists() and not (folder / "config.json").is_file():
        raise ModelError(f"model.path = {path}: no config.json there; name the folder that save_pretrained wrote")
    if not folder.exists() and (folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1):
        raise ModelError(f"model.path = {path}: no such folder; name a Hugging Face folder or a hub name")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path = {path}: not a model that transformers can read: {_first_line(error)}") from None


def attention_heads(text: PretrainedConfig) -> tuple[int, int]:
    """Query heads and key heads of a layer."""
    heads: int = text.num_attention_heads
    return heads, getattr(text, "num_key_value_heads", None) or heads


def load(settings: config.Model, wanted_attention: str, device: torch.device) -> PreTrainedModel:
    """The model in `settings.dtype`, with an attention that isolates packed samples.

    Raises:
        ModelError: not a causal language model, recurrent layers, weights that are missing, or an attention that is
            not available.
    """
    configuration = read_config(settings)
    refuse_recurrent(settings.path, configuration.get_text_config().to_dict())
    name = packed_attention.implementation(wanted_attention, device, DTYPES[settings.dtype], configuration)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            settings.path,
            dtype=DTYPES[settings.dtype],
            attn_implementation=name,
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise ModelError(f"model.path = {settings.path}: cannot be loaded: {_first_line(error)}") from None
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"model.path = {settings.path}: the folder lacks {len(missing)} weights of a "
            f"{type(model).__name__}, such as {missing[0]}; save the model again"
        )
    without_dropout(model)
    return model


def without_dropout(model: PreTrainedModel) -> None:
    """Turn dropout off: its noise would move the ratio away from 1."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def export(
    model: PreTrainedModel,
    state: Mapping[str, Tensor],
    settings: config.Model,
    sampling: config.SamplingSettings,
    folder: Path,
    adapters: Adapters | None = None,
) -> None:
    """Write `state` as a Hugging Face folder, with the tokenizer, chat template, end tokens and sampling of training.

    Adapters are merged into the weights, and also written alone, into a folder of their own within it.

    Raises:
        ModelError: there is no tokenizer.
        ResourceError: the disk is full or refuses the write.
    """
    tokenizer = open_tokenizer(settings)
    model.generation_config = _generation_config(model.generation_config, tokenizer, sampling)
    try:
        model.save_pretrained(folder, state_dict=adapters.merged(state) if adapters else dict(state))
        tokenizer.save_pretrained(folder)
        if adapters:
            adapters.write(state, folder / ADAPTER_FOLDER)
        for file in (path for path in folder.rglob("*") if path.is_file()):
            file.chmod(folder.stat().st_mode & 0o666)  # safetensors writes files that only their owner can read
    except (OSError, SafetensorError) as error:
        raise ResourceError(
            f"{folder}: the model cannot be written ({_first_line(error)}); make room or name another folder, then "
            "export the last checkpoint: olmorl-ctl RUN export FOLDER"
        ) from None


def _generation_config(before: GenerationConfig, tokenizer: Any, sampling: config.SamplingSettings) -> GenerationConfig:
    """The sampling of the answers that were trained on. The engine ends them at the tokenizer's end token too."""
    ends = before.eos_token_id if isinstance(before.eos_token_id, list) else [before.eos_token_id]
    return GenerationConfig(
        bos_token_id=before.bos_token_id,
        pad_token_id=before.pad_token_id,
        eos_token_id=[end for end in dict.fromkeys([*ends, tokenizer.eos_token_id]) if end is not None] or None,
        do_sample=True,
        temperature=sampling.temperature,
        top_p=1.0,
        top_k=0,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
