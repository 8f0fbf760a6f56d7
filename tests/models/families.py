"""Tiny random models of the families that the learner and the engines are compared on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from olmorl.deploy.demo.tiny_model import build_tokenizer

MAX_TOKENS: Final = 256
WINDOW: Final = 16
"""Shorter than the answers that are compared."""
_SHAPE: Final = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_TOKENS,
    "initializer_range": 0.08,
    "bos_token_id": None,
}
_LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_WINDOWS: Final = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


class Family(NamedTuple):
    """The type of its configuration, and what is its own."""

    kind: str
    has: str
    """What its models have, for people."""
    more: Mapping[str, Any]


FAMILIES: Final[Mapping[str, Family]] = {
    "Olmo 2": Family("olmo2", "norms after the layers", {}),
    "Olmo 3": Family("olmo3", "sliding windows", {"sliding_window": WINDOW, "layer_types": _WINDOWS}),
    "Qwen 2.5": Family("qwen2", "biases, tied head", {"tie_word_embeddings": True}),
    "Qwen 3": Family("qwen3", "norms of queries and keys, tied head", {"tie_word_embeddings": True}),
    "Llama 3": Family("llama", "scaled rotary positions", {"rope_parameters": _LLAMA3_ROPE}),
    "Mistral": Family("mistral", "one sliding window", {"sliding_window": WINDOW}),
    "Gemma 3": Family(
        "gemma3_text",
        "scaled embeddings, two rotary tables, tied head",
        {"sliding_window": WINDOW, "layer_types": _WINDOWS, "query_pre_attn_scalar": 32},
    ),
    "Phi 3": Family("phi3", "fused projections", {"sliding_window": None}),
    "OLMoE": Family("olmoe", "8 experts, 2 of them for each token", {"num_experts": 8, "num_experts_per_tok": 2}),
    "Qwen 3 MoE": Family(
        "qwen3_moe",
        "8 experts, 2 of them for each token",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
}


def build(family: Family, folder: Path) -> None:
    """Write a random model in fp32 with a tokenizer of one token a byte."""
    tokenizer = build_tokenizer(MAX_TOKENS)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    made = AutoConfig.for_model(family.kind, vocab_size=len(tokenizer), **(_SHAPE | ends | dict(family.more)))
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # norms and biases are all ones or zeros at first
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
