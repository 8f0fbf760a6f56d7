"""Translates the recipe and a request into vLLM's arguments."""

from __future__ import annotations

from typing import Any

from olmorl import config
from olmorl.ports import Sampling

LOADER = "olmorl.actors.vllm_engine.weight_loader.StagedWeightLoader"


def engine_arguments(model: config.Model, actors: config.Actors, max_model_len: int, seed: int) -> dict[str, Any]:
    """The keywords of `AsyncEngineArgs`."""
    from vllm.platforms import current_platform

    batched_tokens = actors.max_batched_tokens
    platform: dict[str, Any] = {"gpu_memory_utilization": actors.gpu_memory_utilization}
    if current_platform.is_cpu():
        # After a prefill in parts vLLM rewinds the request's random state, which a CPU generator cannot do.
        kv_cache_bytes = int(actors.kv_cache_gib * 2**30)
        platform = {"kv_cache_memory_bytes": kv_cache_bytes, "enable_chunked_prefill": False}
        batched_tokens = batched_tokens and max(batched_tokens, max_model_len)
    return platform | {
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
        "enable_prefix_caching": actors.prefix_caching,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": LOADER,
    }


def sampling_params(sampling: Sampling) -> Any:
    """vLLM's `SamplingParams`, with the log-probability of each sampled token and the finished output alone."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        seed=sampling.seed,
        stop=list(sampling.stop),
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
