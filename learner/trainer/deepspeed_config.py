"""DeepSpeed's settings for a recipe, and loading a model sharded. Imports deepspeed only in `check`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from olmorl import config
from olmorl.environment import variables_set
from olmorl.errors import ConfigError
from olmorl.learner.trainer import compat

BUCKET: Final = 500_000_000
"""Gradients that are summed over the ranks in one call. DeepSpeed holds a buffer of this size from stage 2 on."""
MOST_LIVE: Final = 1_000_000_000
"""Most parameters that stage 3 gathers, except a larger module and the parameters gathered ahead."""
PREFETCHED: Final = 50_000_000
"""Parameters that stage 3 gathers ahead."""
SUB_GROUP: Final = 1_000_000_000
"""Parameters that stage 3 updates in one call, with a copy of their gradients in fp32."""
OWNED: Final[Mapping[str, str]] = {
    "train_batch_size": "set schedule.prompts_per_step",
    "train_micro_batch_size_per_gpu": "a micro-batch is one row; set learner.row_tokens",
    "gradient_accumulation_steps": "set learner.minibatches",
    "managed_gradient_accumulation": "set learner.minibatches",
    "optimizer": "set learner.learning_rate, betas, eps and weight_decay",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's AdamW",
    "scheduler": "set learner.schedule and learner.warmup_steps",
    "bf16": "set model.dtype",
    "fp16": "set model.dtype",
    "torch_autocast": "set model.dtype",
    "data_types.grad_accum_dtype": "gradients are summed in fp32",
    "gradient_allreduce_op": "the loss is scaled for a mean over ranks",
    "gradient_clipping": "set learner.max_grad_norm",
    "zero_optimization.stage": "set learner.zero_stage",
    "zero_optimization.offload_optimizer": "set learner.offload_optimizer",
    "zero_optimization.cpu_offload": "set learner.offload_optimizer",
    "zero_optimization.offload_param": "weights stay on GPUs; more learner.nodes make shards smaller",
    "zero_optimization.cpu_offload_param": "weights stay on GPUs; more learner.nodes make shards smaller",
    "sequence_parallel_size": "set learner.sequence_parallel",
    "tensor_parallel": "ZeRO shards the model; set learner.zero_stage",
    "pipeline": "ZeRO shards the model; set learner.zero_stage",
}
"""Settings of DeepSpeed that a recipe cannot pass on, and why or what to do instead."""


def settings(model: config.Model, learner: config.Learner, device: torch.device) -> dict[str, Any]:
    """The settings for `deepspeed.initialize`: fp32 master weights, fp32 gradient sums, steps only on request.

    Raises:
        ConfigError: a dtype that cannot be trained in.
    """
    if model.dtype == "float16":
        raise ConfigError('model.dtype = "float16": the learner trains in "bfloat16" or "float32"; set one of them')
    refuse_owned(learner.deepspeed)
    stage = _stage(model, learner)
    own = {
        "train_micro_batch_size_per_gpu": 1,
        # Minibatches have different numbers of rows: each `step` uses all gradients since the previous step.
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
    return _merged(own, learner.deepspeed)


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`own` with the values of `given`, table by table."""
    merged = dict(own)
    for name, value in given.items():
        tables = isinstance(value, dict) and isinstance(own.get(name), dict)
        merged[name] = _merged(own[name], value) if tables else value
    return merged


def _values(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values with their dotted names."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def refuse_owned(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a setting that other keys decide, or that is left to another program."""
    for leaf, value in _values(given):
        for name, reason in OWNED.items():
            if f"{leaf}.".startswith(f"{name}."):
                raise ConfigError(f"learner.deepspeed.{leaf} cannot be set here: {reason}")
        if value == "auto":
            raise ConfigError(
                f'learner.deepspeed.{leaf} = "auto": only the Trainer of Transformers fills it in; give a value'
            )


def check(model: config.Model, learner: config.Learner) -> None:
    """Let DeepSpeed check the settings. Takes seconds when `learner.deepspeed` is not empty.

    Raises:
        ConfigError: a setting of `learner.deepspeed` that other keys decide, that DeepSpeed does not know, or whose
            value it refuses.
    """
    wanted = settings(model, learner, torch.device("cpu"))
    if not learner.deepspeed:
        return
    with variables_set({"DS_ACCELERATOR": "cpu"}):
        from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    table, read = compat.read_names(wanted)
    try:
        DeepSpeedConfig(table)
    except (DeepSpeedConfigError, ValueError, TypeError, AssertionError, AttributeError) as error:
        said = " ".join(str(error).split()) or repr(error)
        raise ConfigError(f"learner.deepspeed: DeepSpeed refuses it: {said}") from None
    if unknown := [leaf for leaf, _ in _values(learner.deepspeed) if leaf not in read]:
        raise ConfigError(
            f"learner.deepspeed.{unknown[0]}: DeepSpeed has no such setting; its documentation lists them by table"
        )


def _stage(model: config.Model, learner: config.Learner) -> int:
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
