"""A policy small enough that everything around it shows: random weights of the Olmo 3 architecture, about 4M of them."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import Olmo3Config, Olmo3ForCausalLM, PreTrainedTokenizerFast

from olmorl.ports import NamedBuffer

SYMBOLS = ["<pad>", "<end>", *"0123456789", *"abcdefghijklmnopqrstuvwxyz", *" +-*/=().,?\\{}"]


def build(folder: Path, max_model_len: int) -> Olmo3ForCausalLM:
    """Write model and tokenizer to `folder` as transformers and vLLM load them; returns the model, in bfloat16."""
    torch.manual_seed(0)
    model = Olmo3ForCausalLM(
        Olmo3Config(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=max_model_len,
            sliding_window=max_model_len,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    ).to(torch.bfloat16)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    # The model has more rows than there are symbols: each id needs a text.
    vocabulary |= {f"w{index}": index for index in range(len(SYMBOLS), 512)}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<end>")


def buffers(model: Olmo3ForCausalLM) -> list[NamedBuffer]:
    """The weights as the learner publishes them."""
    return [
        NamedBuffer(name, "bfloat16", tuple(tensor.shape), memoryview(tensor.contiguous().view(torch.uint8).numpy()))
        for name, tensor in model.state_dict().items()
    ]
