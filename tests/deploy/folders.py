"""Model folders, made without torch: small ones with weights, a tokenizer of one token a byte and a chat template, and
the configurations of the published Olmo 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INNER, LAYERS, HEADS = 64, 32, 2, 2
VOCABULARY = 260
TEMPLATE = "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}{% endfor %}<|assistant|>"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}

OLMO3: dict[str, dict[str, Any]] = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "32b": {
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
}
"""The published sizes. Weights are not needed for a plan."""


def bare_model(folder: Path, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """A llama whose weights are all 0; `changes` are made to its configuration alone."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "model.safetensors").write_bytes(safetensors(shapes()))
    write_tokenizer(folder, template)
    return folder


def write_tokenizer(folder: Path, template: str | None) -> None:
    """One token a byte; `template` None: without a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    inner.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


def shapes() -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors of `CONFIG`."""
    attention = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (HIDDEN, HIDDEN))
    inner = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        found |= {f"{prefix}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        found |= {f"{prefix}.mlp.{name}.weight": shape for name, shape in inner.items()}
        found |= {f"{prefix}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    return found


def safetensors(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A file of float32 zeros."""
    header, end = {}, 0
    for name, shape in tensors.items():
        num_bytes = 4
        for size in shape:
            num_bytes *= size
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def olmo3(where: Path, size: str) -> Path:
    """A model folder without weights."""
    tree = {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "vocab_size": 100278,
        "max_position_embeddings": 65536,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "num_key_value_heads": 32,
        **OLMO3[size],
    }
    layers = OLMO3[size]["num_hidden_layers"]
    tree["layer_types"] = ["full_attention" if n % 4 == 3 else "sliding_attention" for n in range(layers)]
    (where / size).mkdir(exist_ok=True)
    (where / size / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    return where / size
