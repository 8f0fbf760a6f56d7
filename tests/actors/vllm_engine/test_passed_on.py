"""`[actors.vllm]` as vLLM reads it, and the batch of tokens that vLLM takes for its hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import OlmoeConfig
from vllm import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext

from olmorl import config
from olmorl.actors.vllm_engine.arguments import OWNED, engine_arguments, engine_config, passed_on
from olmorl.errors import ConfigError
from olmorl.ports import EngineNode

pytestmark = pytest.mark.engine


def arguments(folder: Path, fp32_head: bool = False, **actors: Any) -> dict[str, Any]:
    model = config.Model(path=str(folder), fp32_head=fp32_head)
    return engine_arguments(model, config.Actors(**actors), 8192, 0) | {"skip_tokenizer_init": True}


def test_the_batch_of_tokens_is_vllms_for_the_hardware(config_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = AsyncEngineArgs.get_batch_defaults(1)[0][UsageContext.LLM_CLASS]
    assert engine_config(arguments(config_folder)).scheduler_config.max_num_batched_tokens == max(here, 8192)
    sizes = {UsageContext.LLM_CLASS: 16384}
    monkeypatch.setattr(AsyncEngineArgs, "get_batch_defaults", lambda *_: (sizes, sizes))
    assert engine_config(arguments(config_folder)).scheduler_config.max_num_batched_tokens == 16384
    given = arguments(config_folder, vllm={"max_num_batched_tokens": 9000})
    assert engine_config(given).scheduler_config.max_num_batched_tokens == 9000


def test_arguments_are_passed_on_as_vllm_reads_them(config_folder: Path) -> None:
    given = {
        "kv_cache_dtype": "fp8",
        "enable_expert_parallel": True,
        "async_scheduling": False,
        "block_size": 32,
        "hf_overrides": {"rope_theta": 5.0},
        "cudagraph_capture_sizes": [1, 2, 4],
        "compilation_config": {"cudagraph_mode": "NONE"},
        "load_format": "safetensors",
    }
    read = passed_on(given)
    assert read["compilation_config"].cudagraph_mode.name == "NONE"
    assert {name: read[name] for name in given if name != "compilation_config"} == {
        name: value for name, value in given.items() if name != "compilation_config"
    }
    made = arguments(
        config_folder, vllm={"load_format": "dummy", "hf_overrides": {"sliding_window": 7}}, fp32_head=True
    )
    assert made["load_format"] == "dummy"
    assert made["hf_overrides"] == {"sliding_window": 7, "head_dtype": "float32"}
    checked = engine_config(made)
    assert checked.load_config.load_format == "dummy" and str(checked.model_config.head_dtype) == "torch.float32"
    assert checked.model_config.hf_config.sliding_window == 7


def test_experts_are_spread_over_the_gpus_of_all_nodes_of_an_engine(tmp_path: Path) -> None:
    OlmoeConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_experts=8,
        max_position_embeddings=8192,
        architectures=["OlmoeForCausalLM"],
    ).save_pretrained(tmp_path)
    actors = config.Actors(nodes=2, nodes_per_engine=2, tensor_parallel=4, vllm={"enable_expert_parallel": True})
    model, node = config.Model(path=str(tmp_path)), EngineNode(1, 2, "10.0.0.1:7777")
    made = engine_config(engine_arguments(model, actors, 8192, 0, node) | {"skip_tokenizer_init": True}).parallel_config
    assert made.enable_expert_parallel and made.distributed_executor_backend == "mp"
    assert (made.tensor_parallel_size, made.local_world_size, made.nnodes, made.node_rank) == (4, 2, 2, 1)
    assert (made.master_addr, made.master_port) == ("10.0.0.1", 7777)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kv_cache_dtyp": "fp8"}, r"actors\.vllm\.kv_cache_dtyp: vLLM has no such argument; .*'kv_cache_dtype'"),
        ({"nonsense": 1}, "vllm serve --help"),
        ({"kv_cache_dtype": "fp9"}, r"actors\.vllm\.kv_cache_dtype = 'fp9': vLLM refuses it: .*fp8_e4m3"),
        ({"block_size": "many"}, r"block_size = 'many': .*invalid"),
        ({"compilation_config": {"nonsense": 1}}, r"compilation_config = .*nonsense"),
        ({"enable_expert_parallel": "yes"}, r"enable_expert_parallel = 'yes'"),
        ({"max_num_seqs": 4}, r"actors\.vllm\.max_num_seqs cannot be set here: set actors\.max_running"),
        ({"data_parallel_size": 2}, r"engines_per_node"),
        ({"nnodes": 2}, r"set actors\.nodes_per_engine"),
        ({"hf_overrides": {"head_dtype": "float32"}}, r"set model\.fp32_head"),
    ],
)
def test_what_vllm_or_another_key_refuses_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        passed_on(given)
    assert refused.value.exit_code == 2


def test_every_argument_that_we_give_is_ours_alone(config_folder: Path) -> None:
    shared = {"hf_overrides", "enable_chunked_prefill", "enable_prefix_caching", "max_num_batched_tokens"}
    assert arguments(config_folder).keys() - shared <= OWNED.keys()
