"""A model folder with a configuration alone, for tests that start no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Olmo3Config


@pytest.fixture
def config_folder(tmp_path: Path) -> Path:
    Olmo3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        architectures=["Olmo3ForCausalLM"],
    ).save_pretrained(tmp_path)
    return tmp_path
