"""Lists the keys that recipes of earlier versions have, and what replaces each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple


class Removed(NamedTuple):
    """A key that no longer exists."""

    default: Any
    """A recipe may still have it with this value: it says what happens anyway."""
    advice: str


_PATIENCE = "set supervision.patience, which multiplies all built-in deadlines"
_BUILT_IN = "it is built in; remove it"
_LEASE = "it is one and a half times queue.outage_deadline_s; set that"
_START = "set actors.start_deadline_s, which holds for the resources of the cluster too"
_STRICT = "name it in verifiers.math_strict"
_EXTENDED = 'set learner.extended = "keep N" or "decay N", with the steps before as N'
_VLLM = "set actors.vllm."
_SERVICE: Final[Mapping[str, Removed]] = {
    "retries": Removed(4, _BUILT_IN),
    "breaker_threshold": Removed(5, _BUILT_IN),
    "outage_deadline_s": Removed(600, "it is ten times timeout_s; set that"),
    "cache_size": Removed(10_000, _BUILT_IN),
    "max_answer_chars": Removed(32_000, _BUILT_IN),
}
REMOVED: Final[Mapping[str, Removed]] = {
    "learner.extended_from": Removed(None, _EXTENDED),
    "learner.extended_rate": Removed("keep", _EXTENDED),
    "learner.logprob_chunk": Removed(1024, _BUILT_IN),
    "learner.offload_activations": Removed(False, 'set learner.gradient_checkpointing = "offload"'),
    "learner.recompute_norms": Removed(False, "set learner.mlp_tiles over 1, which includes it"),
    "learner.share_prompts": Removed(True, 'set learner.attention = "eager": then no answer shares a prompt'),
    "learner.fp32_reduce": Removed(False, 'set learner.deepspeed.communication_data_type = "fp32"'),
    "actors.max_waiting": Removed(16, "it is a quarter of actors.max_running, at most 16; remove it"),
    "actors.kv_headroom": Removed(0.1, _BUILT_IN),
    "actors.max_model_len": Removed(None, "it is data.max_prompt_tokens plus the longest answer; remove it"),
    "actors.max_batched_tokens": Removed(None, f"{_VLLM}max_num_batched_tokens"),
    "actors.prefix_caching": Removed(True, f"{_VLLM}enable_prefix_caching"),
    "actors.heartbeat_s": Removed(1, _BUILT_IN),
    "actors.weight_poll_s": Removed(0.1, _BUILT_IN),
    "verifiers.recycle_after": Removed(5000, _BUILT_IN),
    "verifiers.retries": Removed(2, _BUILT_IN),
    "verifiers.think_start": Removed("<think>", "set verifiers.think_tags to begin and end"),
    "verifiers.think_end": Removed("</think>", "set verifiers.think_tags to begin and end"),
    "verifiers.math_last_number": Removed(True, _STRICT),
    "verifiers.math_percent": Removed("lenient", _STRICT),
    "verifiers.math_units": Removed("lenient", _STRICT),
    "verifiers.math_case": Removed("ignore", _STRICT),
    "verifiers.math_ordered_lists": Removed(False, f'{_STRICT} as "order"'),
    "verifiers.code_answer_timeout_s": Removed(60, "it is ten times verifiers.code_test_timeout_s; set that"),
    "verifiers.code_disk_mib": Removed(32, _BUILT_IN),
    "verifiers.code_output_kib": Removed(1024, _BUILT_IN),
    **{f"verifiers.judge.{name}": removed for name, removed in _SERVICE.items()},
    **{f"verifiers.reward_model.{name}": removed for name, removed in _SERVICE.items()},
    "queue.fsync": Removed("everysec", "for another flush of its file, set queue.url to a Redis of your own"),
    "queue.lease_s": Removed(180, _LEASE),
    "queue.max_attempts": Removed(5, _BUILT_IN),
    "queue.total_deadline_s": Removed(86_400, "it is 48 hours; remove it"),
    "queue.connect_deadline_s": Removed(10, "it is 10 s, or queue.outage_deadline_s if that is shorter; remove it"),
    "weights.transfer": Removed("auto", "each host pulls versions from the store; remove it"),
    "weights.chunk_mib": Removed(16, _BUILT_IN),
    "weights.proof": Removed(True, 'set weights.proof_tolerance = "off"'),
    "checkpoint.deadline_s": Removed(1800, _PATIENCE),
    "evaluation.share": Removed(0.25, _BUILT_IN),
    "cluster.peak_tflops": Removed(None, "set cluster.peak to this and the bytes"),
    "cluster.peak_gb_per_s": Removed(None, "set cluster.peak to the operations and this"),
    "cluster.wait_s": Removed(600, _START),
    "cluster.stop_deadline_s": Removed(30, _PATIENCE),
    "supervision.heartbeat_deadline_s": Removed(8, _PATIENCE),
    "supervision.answer_deadline_s": Removed(30, _PATIENCE),
    "supervision.step_deadline_s": Removed(3600, _PATIENCE),
    "supervision.restarts": Removed(5, _BUILT_IN),
    "supervision.backoff_s": Removed(1, _BUILT_IN),
    "supervision.longest_backoff_s": Removed(30, _BUILT_IN),
    "supervision.drain_deadline_s": Removed(1800, _PATIENCE),
    "supervision.no_actor_deadline_s": Removed(120, _PATIENCE),
}


def drop(tree: dict[str, Any], *, whatever_value: bool) -> list[str]:
    """Take the removed keys out of a recipe. Returns a line for each that must be changed first, and leaves that.

    Args:
        whatever_value: take all of them out, as from the recipe of a run that an earlier version has started.
    """
    lines = []
    for key, (default, advice) in REMOVED.items():
        *sections, name = key.split(".")
        section = _section(tree, sections)
        if section is None or name not in section:
            continue
        if whatever_value or section[name] == default:
            del section[name]
        else:
            lines.append(f"{key}: this key was removed: {advice}")
    return lines


def _section(tree: Any, names: Sequence[str]) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else None
