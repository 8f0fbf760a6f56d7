"""A shell script that starts verl's PPO trainer, run by this service: `olmorl-launch run_gsm8k.sh`.

Each `key=value` behind `verl.trainer.main_ppo` has a key of the recipe, changes nothing here, or is named as one that
has no counterpart. The script is read, and not executed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from string import Template
from typing import Any, Final

from olmorl.errors import ConfigError
from olmorl.learner.data.row_files import read_file

TRAINER: Final = "verl.trainer.main_ppo"
_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_DEFAULTS: Final[dict[str, Any]] = {
    "data.train_files": [], "data.val_files": [], "data.train_batch_size": 1024, "data.max_prompt_length": 512,
    "data.max_response_length": 512, f"{_ACTOR}.ppo_mini_batch_size": 256, f"{_ACTOR}.optim.lr": 1e-6,
    f"{_ACTOR}.optim.weight_decay": 0.01, f"{_ACTOR}.optim.lr_warmup_steps": -1,
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": 0.0, f"{_ACTOR}.grad_clip": 1.0, f"{_ACTOR}.clip_ratio": 0.2,
    f"{_ACTOR}.clip_ratio_low": None, f"{_ACTOR}.clip_ratio_high": None, f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.kl_loss_coef": 0.001, f"{_ACTOR}.kl_loss_type": "low_var_kl", f"{_ROLLOUT}.n": 1,
    f"{_MODEL}.enable_gradient_checkpointing": True, "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False, "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.kl_ctrl.target_kl": 0.1, "algorithm.filter_groups.enable": False,
    "custom_reward_function.path": None, "custom_reward_function.name": "compute_score",
    "trainer.total_training_steps": None, "trainer.total_epochs": 30, "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k", "trainer.logger": "console", "trainer.save_freq": -1, "trainer.test_freq": -1,
}  # fmt: skip
"""The values of verl's `ppo_trainer.yaml` where they matter here."""

_KEYS: Final = {
    "data.train_batch_size": "schedule.prompts_per_step",
    "data.max_prompt_length": "data.max_prompt_tokens",
    "data.max_response_length": "sampling.max_tokens",
    "data.shuffle": "data.shuffle",
    "data.seed": "run.seed",
    f"{_MODEL}.path": "model.path",
    f"{_MODEL}.enable_gradient_checkpointing": "learner.gradient_checkpointing",
    f"{_MODEL}.lora_rank": "model.lora.rank",
    f"{_MODEL}.lora_alpha": "model.lora.alpha",
    f"{_ACTOR}.optim.lr": "learner.learning_rate",
    f"{_ACTOR}.optim.weight_decay": "learner.weight_decay",
    f"{_ACTOR}.grad_clip": "learner.max_grad_norm",
    f"{_ACTOR}.ppo_epochs": "learner.epochs",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "learner.row_tokens",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "learner.sequence_parallel",
    f"{_ROLLOUT}.n": "sampling.group_size",
    f"{_ROLLOUT}.temperature": "sampling.temperature",
    f"{_ROLLOUT}.tensor_model_parallel_size": "actors.tensor_parallel",
    f"{_ROLLOUT}.gpu_memory_utilization": "actors.gpu_memory_utilization",
    f"{_ROLLOUT}.val_kwargs.n": "evaluation.samples",
    f"{_ROLLOUT}.val_kwargs.temperature": "evaluation.temperature",
    "algorithm.filter_groups.enable": "schedule.filter_zero_gradient",
}
"""Keys whose value is that of a key here."""
_KEYS_OF_CRITIC: Final = {
    "critic.model.path": "critic.path",
    "critic.optim.lr": "critic.learning_rate",
    "critic.cliprange_value": "critic.value_clip",
    "trainer.critic_warmup": "critic.warmup_steps",
    "algorithm.gamma": "objective.gamma",
    "algorithm.lam": "objective.lam",
}
"""The same, which have no effect without a critic."""

_CHOICES: Final[dict[str, dict[Any, dict[str, Any]]]] = {
    "algorithm.adv_estimator": {
        "gae": {"objective.advantage": "gae"},
        "grpo": {"objective.advantage": "mean_sample_std"},
        "rloo": {"objective.advantage": "leave_one_out"},
        "reinforce_plus_plus": {"objective.advantage": "whiten"},
        "reinforce_plus_plus_baseline": {"objective.advantage": "mean_whiten"},
    },
    f"{_ACTOR}.loss_agg_mode": {
        "token-mean": {},
        "seq-mean-token-mean": {"objective.normalize": "sequence"},
        "seq-mean-token-sum-norm": {"objective.normalize": "constant"},
    },
    f"{_ACTOR}.optim.warmup_style": {name: {"learner.schedule": name} for name in ("constant", "cosine")},
    "data.truncation": {"error": {}, "left": {"data.over_long": "truncate"}},
    "data.filter_overlong_prompts": {False: {}, True: {"data.over_long": "filter"}},
    "data.prompt_key": {"prompt": {}},
    f"{_ACTOR}.entropy_coeff": {0: {}},
    f"{_ACTOR}.clip_ratio_c": {3.0: {}},
    f"{_MODEL}.target_modules": {"all-linear": {}},
    f"{_ROLLOUT}.name": {"vllm": {}},
    f"{_ROLLOUT}.top_p": {1: {}},
    f"{_ROLLOUT}.top_k": {-1: {}},
    "critic.grad_clip": {1.0: {}},
    "reward_model.enable": {False: {}},
    "algorithm.kl_ctrl.horizon": {10_000: {}},
    "trainer.nnodes": {1: {}},
}
"""Keys of which some values have a counterpart. The first is verl's default."""
_ESTIMATORS: Final = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_TRACKERS: Final = ("wandb", "tensorboard", "trackio")
_SECTIONS_WITHOUT_EFFECT: Final = ("actor_rollout_ref.ref.", f"{_ACTOR}.fsdp_config.", "critic.model.fsdp_config.")
_WITHOUT_EFFECT: Final = """
    use_remove_padding use_rmpad strategy ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz
    log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
    val_batch_size filter_overlong_prompts_workers free_cache_engine load_format max_num_batched_tokens max_model_len
    enable_chunked_prefill balance_batch n_gpus_per_node val_before_train resume_mode use_legacy_worker_impl
    enable_gradient_checkpointing tokenizer_path
""".split()  # noqa: SIM905
"""Keys, by their last part, about how verl runs. Here rows are packed, and engines and ranks have GPUs of their own."""
_ENDS: Final = ("|", "||", "&&", "&", ";", ">", "2>&1")
"""Words after which a command has no more arguments."""


def keys_of(script: Path) -> dict[str, Any]:
    """Returns the keys of the recipe that a script of verl means, by their dotted names.

    Raises:
        ConfigError: the file does not start the trainer, or a key has no counterpart. The message names all of them.
    """
    given = _overrides(script)
    values = {**{name: next(iter(choices)) for name, choices in _CHOICES.items()}, **_DEFAULTS, **given}
    trackers = [one for one in _listed(values["trainer.logger"]) if one != "console"]
    kl = [name for name in (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward") if values[name]]
    has_critic = values["algorithm.adv_estimator"] == "gae"
    refused = [name for name in given if not _is_known(name) and (has_critic or not name.startswith("critic."))]
    refused += [f"{name}={values[name]}" for name, choices in _CHOICES.items() if values[name] not in choices]
    refused += [f"trainer.logger={one}" for one in trackers if one not in _TRACKERS or len(trackers) > 1]
    refused += [" with ".join(kl)] if len(kl) > 1 else []
    if refused:
        raise ConfigError(
            f"{script}: {', '.join(sorted(refused))}: no counterpart here; leave them out, or see docs/coming-from.md"
        )
    keys: dict[str, Any] = {"objective.preset": "verl", "schedule.max_lag": 0, "learner.betas": [0.9, 0.999]}
    for name, choices in _CHOICES.items():
        keys |= choices[values[name]]
    table = _KEYS | (_KEYS_OF_CRITIC if has_critic else {})
    keys |= {key: values[name] for name, key in table.items() if name in values}
    if trackers:
        keys["telemetry.tracker"] = trackers[0]
    return keys | _objective(values) | _divergence(script, values) | _steps(script, values) | _places(values)


def _is_known(name: str) -> bool:
    tables = (_DEFAULTS, _KEYS, _KEYS_OF_CRITIC, _CHOICES)
    idle = name.startswith(_SECTIONS_WITHOUT_EFFECT) or name.rpartition(".")[2] in _WITHOUT_EFFECT
    return idle or any(name in table for table in tables)


def _objective(values: Mapping[str, Any]) -> dict[str, Any]:
    low, high = (values[f"{_ACTOR}.clip_ratio_{end}"] for end in ("low", "high"))
    clip = values[f"{_ACTOR}.clip_ratio"]
    keys = {"objective.eps_low": clip if low is None else low, "objective.eps_high": clip if high is None else high}
    if values["algorithm.adv_estimator"] == "grpo" and not values["algorithm.norm_adv_by_std_in_grpo"]:
        keys["objective.advantage"] = "mean"
    return keys


def _divergence(script: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    if values[f"{_ACTOR}.use_kl_loss"]:
        place, weight, estimator = "loss", values[f"{_ACTOR}.kl_loss_coef"], values[f"{_ACTOR}.kl_loss_type"]
    elif values["algorithm.use_kl_in_reward"]:
        place, weight, estimator = "reward", values["algorithm.kl_ctrl.kl_coef"], values["algorithm.kl_penalty"]
    else:
        return {}
    if estimator not in _ESTIMATORS:
        raise ConfigError(f"{script}: the estimate {estimator} of the KL has no counterpart here: take low_var_kl")
    keys = {"kl_in": place, "kl_beta": weight, "kl_estimator": _ESTIMATORS[estimator]}
    if place == "reward" and values["algorithm.kl_ctrl.type"] == "adaptive":
        keys["kl_target"] = values["algorithm.kl_ctrl.target_kl"]
    return {f"objective.{name}": value for name, value in keys.items()}


def _steps(script: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, minibatches and warm-up. verl counts prompts in both batch sizes, and leaves out a last partial batch."""
    batch, small = values["data.train_batch_size"], values[f"{_ACTOR}.ppo_mini_batch_size"]
    if batch % small:
        raise ConfigError(f"{script}: data.train_batch_size={batch} is no multiple of ppo_mini_batch_size={small}")
    steps = values["trainer.total_training_steps"]
    if steps is None:
        files = [Path(one) for one in _listed(values["data.train_files"])]
        if missing := [str(one) for one in files if not one.is_file()]:
            raise ConfigError(
                f"{script}: data.train_files: {', '.join(missing)}: not there, so its rows are not counted"
            )
        steps = sum(1 for one in files for _ in read_file(one, columns=False)) // batch * values["trainer.total_epochs"]
    warmup, share = (values[f"{_ACTOR}.optim.{name}"] for name in ("lr_warmup_steps", "lr_warmup_steps_ratio"))
    keys = {"schedule.steps": steps, "learner.minibatches": batch // small}
    keys["learner.warmup_steps"] = warmup if warmup > 0 else ceil(share * steps)
    keys["evaluation.every"] = values["trainer.test_freq"] if values["trainer.test_freq"] > 0 else steps
    return keys | ({"checkpoint.every": values["trainer.save_freq"]} if values["trainer.save_freq"] > 0 else {})


def _places(values: Mapping[str, Any]) -> dict[str, Any]:
    function = values["custom_reward_function.path"]
    return {
        "run.directory": f"checkpoints/{values['trainer.project_name']}",
        "run.name": values["trainer.experiment_name"],
        "data.train": _listed(values["data.train_files"]),
        "evaluation.data": _listed(values["data.val_files"]),
        "verifiers.functions": [f"{function}:{values['custom_reward_function.name']}"] if function else [],
    }


def _overrides(script: Path) -> dict[str, Any]:
    """The `key=value` words behind the trainer's name, with the variables that the script or the environment sets."""
    variables: dict[str, str] = dict(os.environ)
    try:
        words = shlex.split(script.read_text(encoding="utf-8").replace("\\\n", " "), comments=True)
        start = words.index(TRAINER) if TRAINER in words else len(words)
        for word in words[:start]:
            name, given, text = word.partition("=")
            if given and name.isidentifier():
                variables[name] = Template(text).substitute(variables)
        end = next((n for n in range(start, len(words)) if words[n] in _ENDS), len(words))
        found = [Template(word).substitute(variables) for word in words[start + 1 : end] if word not in ("$@", "$*")]
    except KeyError as error:
        raise ConfigError(f"{script}: the variable {error.args[0]} is not set: set it in the environment") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{script}: cannot be read: {error}; the script is not executed") from None
    if start == len(words):
        raise ConfigError(f"{script}: it does not start {TRAINER}; a recipe of this service ends in .toml")
    if others := [word for word in found if "=" not in word]:
        raise ConfigError(f"{script}: {' '.join(others)}: no key=value behind {TRAINER}; leave it out")
    pairs = [word.lstrip("+").split("=", 1) for word in found]
    return {key: _value(text) for key, text in pairs}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(text: str) -> Any:
    """A value as Hydra reads it: a list, a truth value, nothing, a number or a text."""
    if text.startswith("[") and text.endswith("]"):
        return [_value(one.strip()) for one in text[1:-1].split(",") if one.strip()]
    text = text.strip("'\"")
    if text.lower() in (words := {"true": True, "false": False, "null": None, "none": None}):
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return str(Path(text).expanduser()) if text.startswith("~") else text
