"""Translates the recipe and a request into vLLM's arguments."""

from __future__ import annotations

import json
from argparse import ArgumentError
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from olmorl import config
from olmorl.actors.vllm_engine import compat
from olmorl.errors import ConfigError
from olmorl.ports import EngineNode, Sampling

OWNED: Final[Mapping[str, str]] = {
    "model": "set model.path",
    "tokenizer": "set model.tokenizer",
    "trust_remote_code": "set model.trust_remote_code",
    "dtype": "set model.dtype",
    "seed": "set run.seed",
    "max_model_len": "set data.max_prompt_tokens and sampling.max_tokens",
    "max_num_seqs": "set actors.max_running",
    "tensor_parallel_size": "set actors.tensor_parallel",
    "gpu_memory_utilization": "set actors.gpu_memory_utilization",
    "kv_cache_memory_bytes": "set actors.kv_cache_gib, on GPUs actors.gpu_memory_utilization",
    "enforce_eager": "set actors.enforce_eager",
    "data_parallel_size": "start more engines with actors.engines_per_node or actors.nodes; docs/cluster.md says why",
    "pipeline_parallel_size": "an engine has the GPUs of actors.tensor_parallel",
    "prefill_context_parallel_size": "an engine has the GPUs of actors.tensor_parallel",
    "nnodes": "set actors.nodes_per_engine",
    "node_rank": "the nodes of an engine are numbered when it starts",
    "master_addr": "the nodes of an engine agree on it when it starts",
    "master_port": "the nodes of an engine agree on it when it starts",
    "distributed_executor_backend": "an engine starts its own processes",
    "logprobs_mode": "the learner needs the probabilities that tokens were sampled with",
    "worker_extension_cls": "it loads new weights",
    "scheduling_policy": "scoring after an update comes before prompts that wait, and older draws before newer ones",
    "skip_tokenizer_init": "answers are decoded for the verifiers",
    "disable_log_stats": "the actor reads the load of its engine from them",
}
"""Arguments of vLLM that a recipe cannot pass on, and why or what to do instead."""
SCORING_PRIORITY: Final = -1
"""Priority in vLLM's queue, where prompts have 0 and more: tokens to score get the next free place."""
LOADER = "olmorl.actors.vllm_engine.weight_loader.StagedWeightLoader"


def engine_arguments(
    model: config.Model, actors: config.Actors, max_model_len: int, seed: int, node: EngineNode | None = None
) -> dict[str, Any]:
    """The keywords of `AsyncEngineArgs`. `node` is this node, of an engine on several."""
    from vllm.platforms import current_platform

    passed = passed_on(actors.vllm)
    overrides = passed.pop("hf_overrides", None) or {}
    if model.fp32_head:
        overrides = {**overrides, "head_dtype": "float32"}
    batched_tokens = passed.pop("max_num_batched_tokens", None)
    platform: dict[str, Any] = {"gpu_memory_utilization": actors.gpu_memory_utilization}
    if current_platform.is_cpu():
        # After a prefill in parts vLLM rewinds the request's random state, which a CPU generator cannot do.
        kv_cache_bytes = int(actors.kv_cache_gib * 2**30)
        platform = {"kv_cache_memory_bytes": kv_cache_bytes, "enable_chunked_prefill": False}
        batched_tokens = batched_tokens and max(batched_tokens, max_model_len)
    return (
        platform
        | {"enable_prefix_caching": True}
        | passed
        | {
            "hf_overrides": overrides,
            "model": model.path,
            "tokenizer": model.tokenizer,
            "trust_remote_code": model.trust_remote_code,
            "dtype": model.dtype,
            "seed": seed,
            "max_model_len": max_model_len,
            "max_num_seqs": actors.max_running,
            "max_num_batched_tokens": batched_tokens,
            "tensor_parallel_size": actors.tensor_parallel,
            # Inside a Ray placement group vLLM would choose its Ray executor, which needs a bundle for each GPU.
            "distributed_executor_backend": "mp" if actors.tensor_parallel > 1 else None,
            "enforce_eager": actors.enforce_eager,
            "logprobs_mode": "processed_logprobs",
            "scheduling_policy": "priority",
            "worker_extension_cls": LOADER,
        }
        | _of_node(node)
    )


def _of_node(node: EngineNode | None) -> dict[str, Any]:
    if node is None:
        return {}
    host, _, port = node.meeting_point.rpartition(":")
    return {"nnodes": node.nodes, "node_rank": node.number, "master_addr": host, "master_port": int(port)}


def refuse_owned(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument that other keys decide. Imports no vllm."""
    for name in given:
        if reason := OWNED.get(name):
            raise ConfigError(f"actors.vllm.{name} cannot be set here: {reason}")
    overrides = given.get("hf_overrides")
    if isinstance(overrides, dict) and "head_dtype" in overrides:
        raise ConfigError("actors.vllm.hf_overrides.head_dtype cannot be set here: set model.fp32_head")


def passed_on(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `actors.vllm`, as vLLM's own command line reads them.

    Raises:
        ConfigError: an unknown argument, one that other keys decide, or a value that vLLM refuses.
    """
    refuse_owned(given)
    if not given:
        return {}
    parser, known = compat.command_line()
    values = {}
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else "`vllm serve --help=all` lists them"
            raise ConfigError(f"actors.vllm.{name}: vLLM has no such argument; {hint}")
        try:
            read = parser.parse_args(_words(known[name], value))
        except (ArgumentError, ValueError) as error:
            said = error.message if isinstance(error, ArgumentError) else str(error)
            raise ConfigError(f"actors.vllm.{name} = {value!r}: vLLM refuses it: {said}") from None
        values[name] = getattr(read, name)
    return values


def _words(action: Any, value: Any) -> list[str]:
    """An argument as the words of a command line."""
    positive, *others = action.option_strings
    if isinstance(value, bool) and action.nargs == 0:
        negative = next((flag for flag in others if flag.startswith("--no-")), None)
        return [positive] if value else [negative] if negative else []
    if isinstance(value, list) and action.nargs in ("+", "*"):
        return [positive, *map(str, value)]
    return [positive, value if isinstance(value, str) else json.dumps(value)]


def engine_config(arguments: Mapping[str, Any]) -> Any:
    """vLLM's checked configuration. Raises ValueError or OSError for settings that the model or hardware refuses."""
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    # Without a context, vLLM takes its smallest batch of tokens on every hardware.
    headless = arguments.get("node_rank", 0) > 0
    return AsyncEngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS, headless=headless)


def sampling_params(sampling: Sampling) -> Any:
    """vLLM's `SamplingParams`, with the log-probability of each sampled token and the finished output alone."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        seed=sampling.seed,
        stop=list(sampling.stop),
        include_stop_str_in_output=True,
        logprobs=0,
        flat_logprobs=True,
        # One decode of the whole answer is cheaper than one a token; only stop strings need the latter.
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_params() -> Any:
    """vLLM's `SamplingParams` for the log-probabilities of a prompt's own tokens, which no temperature changes."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )
