"""DeepSpeed's settings for a recipe, and loading a model sharded. Imports no deepspeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from olmorl import config
from olmorl.errors import ConfigError

BUCKET: Final = 500_000_000
"""Gradients that are summed over the ranks in one call. DeepSpeed holds a buffer of this size from stage 2 on."""
MOST_LIVE: Final = 1_000_000_000
"""Parameters that stage 3 gathers at most, a larger module and those ahead apart."""
PREFETCHED: Final = 50_000_000
"""Parameters that stage 3 gathers ahead."""
SUB_GROUP: Final = 1_000_000_000
"""Parameters that stage 3 updates in one call, with a copy of their gradients in fp32."""


def settings(model: config.Model, learner: config.Learner, device: torch.device) -> dict[str, Any]:
    """The settings for `deepspeed.initialize`: fp32 master weights, fp32 gradient sums, steps only on request.

    Raises:
        ConfigError: a dtype that cannot be trained in.
    """
    if model.dtype == "float16":
        raise ConfigError('model.dtype = "float16": the learner trains in "bfloat16" or "float32"; set one of them')
    stage = stage_of(model, learner)
    return {
        "train_micro_batch_size_per_gpu": 1,
        # Minibatches have different numbers of rows: each `step` uses all gradients since the step before.
        "managed_gradient_accumulation": False,
        "bf16": {"enabled": model.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "gradient_clipping": learner.max_grad_norm if stage else 0.0,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": device.type == "cuda" and stage >= 2,
            "contiguous_gradients": True,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "stage3_prefetch_bucket_size": PREFETCHED,
            "stage3_max_live_parameters": MOST_LIVE,
            "stage3_max_reuse_distance": MOST_LIVE,
            "sub_group_size": SUB_GROUP,
            **({"offload_optimizer": {"device": "cpu"}} if learner.offload_optimizer else {}),
        },
    }


def stage_of(model: config.Model, learner: config.Learner) -> int:
    """Stage 0 sums bf16 gradients in bf16 and cannot offload. Stage 1 has the same mathematics without these limits."""
    if model.dtype == "float32" and not learner.offload_optimizer:
        return learner.zero_stage
    return max(learner.zero_stage, 1)


class _Sharded:
    """Tells transformers to shard a model while it is built. Its own class for this needs the accelerate package."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_zero3(self) -> bool:
        return True


def load(build: Callable[[], PreTrainedModel], config: dict[str, Any]) -> PreTrainedModel:
    """The model that `build` loads. At stage 3 each weight is sharded over the ranks as it is read."""
    if config["zero_optimization"]["stage"] < 3:
        return build()
    sharded = _Sharded(config)
    set_hf_deepspeed_config(sharded)
    try:
        model = build()
    finally:
        unset_hf_deepspeed_config()
    _rebuild_computed_buffers(model)
    return model


def _rebuild_computed_buffers(model: PreTrainedModel) -> None:
    """Restore fp32: DeepSpeed makes all tensors bf16 while it shards. With bf16 rotary frequencies, positions drift."""
    saved = model.state_dict().keys()
    for prefix, module in model.named_modules():
        computed = [name for name, _ in module.named_buffers(recurse=False) if f"{prefix}.{name}" not in saved]
        if computed:
            fresh = type(module)(config=model.config)
            for name in computed:
                setattr(module, name, getattr(fresh, name).to(getattr(module, name).device))
