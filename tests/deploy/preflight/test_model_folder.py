"""Folders that real libraries saved pass, and the sizes that are worked out for them are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.preflight import model_folder
from olmorl.errors import ConfigError, ModelError
from tests.deploy.folders import CONFIG, bare_model, safetensors, shapes

SHAPE: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
SAVED: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": None},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 16},
    "gemma3_text": {"head_dim": 32},
    "gpt_neox": {},
    "phi3": {},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 32},
}


def recipe(folder: Path, max_tokens: int = 64, **sections: Any) -> config.Config:
    sizes = {"data": {"max_prompt_tokens": 64}, "sampling": {"max_tokens": max_tokens}}
    model = {"model": {"path": str(folder), "dtype": "float32"}}
    on_cpu = {} if "cluster" in sections else {"learner": {"device": "cpu"}}
    return config.build({**model, **on_cpu, **sizes, **sections})


@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saves_is_whole_and_fits(tmp_path: Path, name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(name.split()[0], **SHAPE, **SAVED[name])
    folder = bare_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    model = AutoModelForCausalLM.from_config(made)
    model.save_pretrained(folder)
    model_folder.check_folder(recipe(folder))
    sizes = model_folder.Architecture.of(json.loads((folder / "config.json").read_text()))
    assert sizes is not None and (sizes.layers, sizes.vocabulary) == (4, 260)


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    names = {}
    tensors = list(shapes().items())
    for number, part in enumerate((tensors[:5], tensors[5:]), 1):
        file = folder / f"model-{number:05d}-of-00002.safetensors"
        file.write_bytes(safetensors(dict(part)))
        names |= dict.fromkeys(dict(part), file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    model_folder.check_folder(recipe(folder))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing"):
        model_folder.check_folder(recipe(folder))


@pytest.mark.parametrize("num_bytes", [*range(12), 100, 1000])
def test_every_place_to_break_off_is_noticed(tmp_path: Path, num_bytes: int) -> None:
    folder = bare_model(tmp_path / "m")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for cut in (whole[:num_bytes], whole[: len(whole) - 1 - num_bytes], whole + bytes(1 + num_bytes)):
        file.write_bytes(cut)
        with pytest.raises(ModelError, match=r"model\.safetensors: .*download it again"):
            model_folder.check_folder(recipe(folder))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [2, 2]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": 16},
        "F32",
        None,
    ],
)
def test_entries_that_contradict_themselves(tmp_path: Path, entry: Any) -> None:
    folder = bare_model(tmp_path / "m")
    text = json.dumps({"x": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(ModelError, match=r"model\.safetensors: .*download it again"):
        model_folder.check_folder(recipe(folder))


def test_the_cache_holds_one_answer_or_the_recipe_is_refused(tmp_path: Path) -> None:
    # 2 layers x 2 (keys and values) x 2 heads x 32 x 4 bytes, for 64 + 64 tokens
    needed = 2 * 2 * 2 * 32 * 4 * 128
    folder = bare_model(tmp_path / "m")
    model_folder.check_folder(recipe(folder, actors={"kv_cache_gib": needed / 2**30}))
    with pytest.raises(ConfigError, match=r"actors\.kv_cache_gib = .* too small for one answer.*128 tokens"):
        model_folder.check_folder(recipe(folder, actors={"kv_cache_gib": (needed - 1) / 2**30}))
    on_gpu = {"actors": {"kv_cache_gib": 1e-9}, "cluster": {"gpus_per_node": 8}}
    model_folder.check_folder(recipe(folder, **on_gpu))


def test_heads_that_cannot_be_dealt_to_the_ranks_of_a_row(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    model_folder.check_folder(recipe(folder, learner={"ranks_per_node": 2, "sequence_parallel": 2}))
    with pytest.raises(ModelError, match=r"sequence_parallel = 4 .* 2 attention heads and 2 key heads.* set it to 2"):
        model_folder.check_folder(recipe(folder, learner={"ranks_per_node": 4, "sequence_parallel": 4}))


def test_a_sliding_window_needs_no_more_than_its_width(tmp_path: Path) -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 28}
    folder = bare_model(tmp_path / "m", **kinds)
    needed = 2 * 2 * 32 * 4 * (128 + 256)  # one block and two
    model_folder.check_folder(recipe(folder, 129, actors={"kv_cache_gib": needed / 2**30}))
    with pytest.raises(ConfigError, match="too small"):
        model_folder.check_folder(recipe(folder, 129, actors={"kv_cache_gib": (needed - 1) / 2**30}))


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"max_position_embeddings": 128}, True),
        ({"max_position_embeddings": 127}, False),
        ({"max_position_embeddings": 127, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, True),
        ({"max_position_embeddings": 127, "rope_scaling": {"type": "linear", "factor": 4.0}}, True),
        ({"max_position_embeddings": 127, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, False),
        ({"max_position_embeddings": 127, "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, True),
        ({"max_position_embeddings": None}, True),
    ],
)
def test_positions_that_the_model_was_not_made_for(tmp_path: Path, changes: dict[str, Any], fits: bool) -> None:
    folder = bare_model(tmp_path / "m", **changes)
    if fits:
        model_folder.check_folder(recipe(folder))
        return
    with pytest.raises(ConfigError, match=r"128 tokens .* knows 127 positions"):
        model_folder.check_folder(recipe(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}, r"heads have 16 numbers .* 32, 64, 80"),
        ({"model_type": "lama"}, r"model_type = 'lama' is no architecture of transformers \d"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, r"'own' is no .*needs code of its own"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantized \(gptq: .*before its quantization"),
    ],
)
def test_a_model_that_engine_or_learner_cannot_run(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = bare_model(tmp_path / "m", **changes)
    with pytest.raises(ModelError, match=message):
        model_folder.check_folder(recipe(folder))
    if "head_dim" in changes:
        model_folder.check_folder(recipe(folder, cluster={"gpus_per_node": 8}))


def test_the_heads_and_the_architectures_are_those_of_the_libraries() -> None:
    from transformers import CONFIG_MAPPING
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(model_folder.HEADS_ON_CPU) == CPUAttentionBackend.get_supported_head_sizes()
    assert [kind for kind in CONFIG_MAPPING if not model_folder._is_known(kind)] == []


def test_a_configuration_of_other_words_is_left_to_the_libraries(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({"architectures": ["X"], "n_embd": 16}))
    assert model_folder.check_folder(recipe(folder)) is not None


def test_text_models_inside_others(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    inner = {key: value for key, value in CONFIG.items() if key != "architectures"}
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["X"], "text_config": inner | {"vocab_size": 300}})
    )
    with pytest.raises(ModelError, match=r"embed_tokens\.weight has shape \[260, 64\], not \[300, 64\]"):
        model_folder.check_folder(recipe(folder))
