"""Lists the keys that recipes of earlier versions have, and what replaces each of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final

_BUILT_IN = "it is built in, or follows from other keys; remove it"
_MATH = "last_number=true percent='lenient' units='lenient' case='ignore' ordered_lists=false"
_SERVICE = "retries=4 breaker_threshold=5 cache_size=10000 max_answer_chars=32000"
_ADVICE: Final[Mapping[str, str]] = {
    "learner.logprob_chunk=1024 actors.kv_headroom=0.1 actors.heartbeat_s=1 actors.weight_poll_s=0.1": _BUILT_IN,
    "actors.max_waiting=16 actors.max_model_len=nan weights.transfer='auto' weights.chunk_mib=16": _BUILT_IN,
    "verifiers.recycle_after=5000 verifiers.retries=2 verifiers.code_disk_mib=32": _BUILT_IN,
    "verifiers.code_output_kib=1024 evaluation.share=0.25 queue.connect_deadline_s=10": _BUILT_IN,
    "queue.max_attempts=5 queue.total_deadline_s=86400 supervision.restarts=5 supervision.backoff_s=1": _BUILT_IN,
    "supervision.longest_backoff_s=30": _BUILT_IN,
    " ".join(f"verifiers.{name}.{key}" for name in ("judge", "reward_model") for key in _SERVICE.split()): _BUILT_IN,
    "verifiers.judge.outage_deadline_s=600 verifiers.reward_model.outage_deadline_s=600": "it is ten times timeout_s",
    "checkpoint.deadline_s=1800 cluster.stop_deadline_s=30 supervision.heartbeat_deadline_s=8 "
    "supervision.answer_deadline_s=30 supervision.step_deadline_s=3600 supervision.drain_deadline_s=1800 "
    "supervision.no_actor_deadline_s=120": "set supervision.patience, which multiplies all built-in deadlines",
    "learner.extended_from=nan learner.extended_rate='keep'": (
        'set learner.extended = "keep N" or "decay N", with the steps before as N'
    ),
    "learner.offload_activations=false": 'set learner.gradient_checkpointing = "offload"',
    "learner.recompute_norms=false": "set learner.mlp_tiles over 1, which includes it",
    "learner.share_prompts=true": 'set learner.attention = "eager": then no answer shares a prompt',
    "learner.fp32_reduce=false": 'set learner.deepspeed.communication_data_type = "fp32"',
    "actors.max_batched_tokens=nan": "set actors.vllm.max_num_batched_tokens",
    "actors.prefix_caching=true": "set actors.vllm.enable_prefix_caching",
    "verifiers.think_start='<think>' verifiers.think_end='</think>'": 'set verifiers.think_tags = ["BEGIN", "END"]',
    **{
        f"verifiers.math_{old}": f'write "{new}" into the list verifiers.math_strict, or remove it'
        for old, new in zip(_MATH.split(), ("last_number", "percent", "units", "case", "order"), strict=True)
    },
    "verifiers.code_answer_timeout_s=60": "it is ten times verifiers.code_test_timeout_s; set that",
    "verifiers.code_memory_mib=1024": "set verifiers.memory_mib, which holds for programs too",
    "queue.fsync='everysec'": "for another flush of its file, set queue.url to a Redis of your own",
    "queue.lease_s=180": "it is one and a half times queue.outage_deadline_s; set that",
    "weights.proof=true": 'set weights.proof_tolerance = "off"',
    "verifiers.reward_model.center=0 verifiers.reward_model.scale=1": (
        "set verifiers.reward_model.zero_and_unit = [CENTER, SCALE]"
    ),
    "cluster.peak_tflops=nan cluster.peak_gb_per_s=nan": "set cluster.peak = [TFLOPS, GB_PER_S]",
    "sampling.top_p=1 sampling.top_k=0": "the learner trains the whole distribution: remove it",
    "cluster.wait_s=600": "set actors.start_deadline_s, which holds for the resources of the cluster too",
}
REMOVED: Final[Mapping[str, tuple[Any, str]]] = {
    key: (tomllib.loads(f"value={default}")["value"], advice)
    for pairs, advice in _ADVICE.items()
    for key, _, default in (pair.partition("=") for pair in pairs.split())
}
"""For each key the value with which it may stay in a recipe, because that holds anyway (NaN: none), and the advice."""


def drop(tree: dict[str, Any], *, whatever_value: bool) -> dict[str, str]:
    """Take the removed keys out of a recipe. Returns the advice for each key that must be changed, which stays.

    Args:
        whatever_value: take all of them out, as from the recipe of a run that an earlier version has started.
    """
    found = {}
    for key, (default, advice) in REMOVED.items():
        *sections, name = key.split(".")
        section: Any = tree
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            if whatever_value or section[name] == default:
                del section[name]
            else:
                found[key] = advice
    return found
