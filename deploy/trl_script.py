"""A script of TRL's GRPOTrainer, run by this service: `from olmorl.trl import GRPOConfig, GRPOTrainer`.

Each argument has a key of the recipe, changes nothing here, or is named as one that has no counterpart.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence, Sized
from enum import Enum
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from olmorl import config
from olmorl.deploy import api
from olmorl.deploy.run_tables import RunTables
from olmorl.deploy.trl_callbacks import Callbacks
from olmorl.errors import ConfigError, DataError
from olmorl.run_dir import RunFiles

_DEFAULTS: Final[dict[str, Any]] = {
    "output_dir": "runs/trl", "learning_rate": 1e-6, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,
    "num_generations": 8, "max_completion_length": 256, "max_prompt_length": 2048, "max_steps": -1,
    "num_train_epochs": 3.0, "lr_scheduler_type": "linear", "warmup_steps": 0, "warmup_ratio": 0.0, "adam_beta1": 0.9,
    "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42, "bf16": True,
    "gradient_checkpointing": True, "epsilon": 0.2, "epsilon_high": None, "loss_type": "dapo", "reward_weights": None,
    "vllm_importance_sampling_correction": True, "save_steps": 500, "save_strategy": "steps", "eval_strategy": "no",
    "logging_steps": 10, "temperature": 1.0,
}  # fmt: skip
"""The values of TRL 1.0 where they matter here."""

_KEYS: Final = {
    "learning_rate": "learner.learning_rate",
    "num_generations": "sampling.group_size",
    "max_completion_length": "sampling.max_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "temperature": "sampling.temperature",
    "weight_decay": "learner.weight_decay",
    "adam_epsilon": "learner.eps",
    "max_grad_norm": "learner.max_grad_norm",
    "seed": "run.seed",
    "gradient_checkpointing": "learner.gradient_checkpointing",
    "beta": "objective.kl_beta",
    "num_iterations": "learner.epochs",
    "importance_sampling_level": "objective.ratio",
    "mask_truncated_completions": "objective.mask_truncated",
    "vllm_importance_sampling_cap": "objective.rho",
    "vllm_tensor_parallel_size": "actors.tensor_parallel",
    "vllm_gpu_memory_utilization": "actors.gpu_memory_utilization",
    "chat_template_kwargs": "data.chat_template_kwargs",
    "shuffle_dataset": "data.shuffle",
    "save_total_limit": "checkpoint.keep",
}
"""Arguments whose value is that of a key."""

_CHOICES: Final[dict[str, dict[Any, dict[str, Any]]]] = {
    "loss_type": {
        "dapo": {"objective.normalize": "token"},
        "grpo": {"objective.normalize": "sequence"},
        "dr_grpo": {"objective.normalize": "constant"},
        "cispo": {"objective.clip": "cispo"},
    },
    "scale_rewards": {
        **{value: {"objective.advantage": "mean_sample_std"} for value in ("group", True)},
        **{value: {"objective.advantage": "mean"} for value in ("none", False)},
    },
    "multi_objective_aggregation": {"sum_then_normalize": {}, "normalize_then_sum": {"objective.advantage": "gdpo"}},
    "lr_scheduler_type": {name: {"learner.schedule": name} for name in ("constant", "linear", "cosine")}
    | {"constant_with_warmup": {"learner.schedule": "constant"}},
    "vllm_importance_sampling_mode": {
        "sequence_mask": {"objective.rho_kind": "sequence_mask"},
        "sequence_truncate": {"objective.rho_kind": "sequence"},
        "token_truncate": {"objective.rho_kind": "truncate"},
    },
    "fp16": {False: {}},
    "top_p": {1.0: {}, None: {}},
    "top_k": {0: {}, None: {}, -1: {}},
    "min_p": {None: {}, 0.0: {}},
    "repetition_penalty": {1.0: {}},
    "delta": {None: {}},
    "top_entropy_quantile": {1.0: {}},
    "sync_ref_model": {False: {}},
    "off_policy_mask_threshold": {None: {}},
    "use_bias_correction_kl": {False: {}},
    "optim": {name: {} for name in ("adamw_torch", "adamw_torch_fused")},
    "push_to_hub": {False: {}},
    "save_strategy": {name: {} for name in ("steps", "epoch", "no")},
    "eval_strategy": {name: {} for name in ("steps", "epoch", "no")},
    "use_cpu": {False: {}, True: {"learner.device": "cpu"}},
    "report_to": {
        **{name: {} for name in ("none", "all", None)},
        **{name: {"telemetry.tracker": name} for name in ("tensorboard", "wandb", "trackio")},
    },
}
"""Arguments of which some values have keys."""

_COMBINED: Final = """
    output_dir per_device_train_batch_size gradient_accumulation_steps generation_batch_size steps_per_generation
    max_steps num_train_epochs warmup_steps warmup_ratio adam_beta1 adam_beta2 bf16 epsilon epsilon_high reward_weights
    vllm_importance_sampling_correction save_steps eval_steps num_generations_eval
""".split()  # noqa: SIM905
"""Arguments that are read one by one."""

_WITHOUT_EFFECT: Final = """
    use_vllm vllm_mode vllm_server_host vllm_server_port vllm_server_base_url vllm_server_timeout vllm_group_port
    vllm_model_impl vllm_enable_sleep_mode vllm_max_model_length logging_steps logging_first_step logging_strategy
    logging_dir log_completions num_completions_to_print log_level log_unique_prompts remove_unused_columns
    disable_tqdm run_name disable_dropout do_eval eval_on_start dataloader_num_workers dataloader_pin_memory tf32
    dataloader_drop_last ddp_find_unused_parameters deepspeed ds3_gather_for_generation gradient_checkpointing_kwargs
    per_device_eval_batch_size do_train save_only_model use_liger_kernel fsdp local_rank overwrite_output_dir
    torch_compile use_transformers_paged use_transformers_continuous_batching cache_implementation
""".split()  # noqa: SIM905
"""Arguments about how TRL runs. This service always generates with vLLM and trains with DeepSpeed."""
_MODULES: Final = ("q_proj", "v_proj")
"""The modules that PEFT gives adapters in most models if none are named."""
_ADAPTERS: Final = {"r": "model.lora.rank", "lora_alpha": "model.lora.alpha"}
_ADAPTERS_WITHOUT_EFFECT: Final = ("task_type", "inference_mode", "base_model_name_or_path", "peft_version")
_OF_THE_MACHINE: Final = ("output_dir", "use_cpu", "bf16", "fp16")
"""Arguments without which TRL's own configuration may refuse to be made on this machine."""


class GRPOConfig(SimpleNamespace):
    """The arguments of TRL's GRPOConfig, by the same names. They are attributes."""

    def __init__(self, output_dir: str = _DEFAULTS["output_dir"], **arguments: Any) -> None:
        super().__init__(**{**_DEFAULTS, "output_dir": output_dir, **arguments})


class GRPOTrainer:
    """Takes what TRL's GRPOTrainer takes. `train` runs the service, which keeps everything in `args.output_dir`."""

    def __init__(
        self,
        model: str,
        reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]],
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        callbacks: Sequence[Any] | None = None,
        peft_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        environment_factory: Callable[[], Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Map the arguments.

        Args:
            model: a Hugging Face folder or hub name.
            reward_funcs: one function or several, in TRL's convention.
            args: TRL's GRPOConfig or the one of this module.
            train_dataset: rows with a `prompt`.
            eval_dataset: such rows, or several sets of them by name, for `eval_strategy`.
            callbacks: TrainerCallbacks, which are called here, after each step.
            peft_config: PEFT's LoraConfig, to train adapters.
            tools: functions with type hints and docstrings, which the policy may call in several turns.
            environment_factory: in place of tools, a class with `reset(**row)`. Its other public methods are tools, and
                reward functions get `environments`. Both need `episodes.tool_parser` in `overrides`.
            overrides: keys of the recipe that TRL has no arguments for, such as `{"schedule.max_lag": 4}`.

        Raises:
            ConfigError: an argument without a counterpart. The message names all of them.
        """
        if refused := sorted(name for name, value in others.items() if value is not None):
            raise ConfigError(f"GRPOTrainer: {', '.join(refused)}: no counterpart here; leave them out")
        if not isinstance(model, str):
            raise ConfigError("GRPOTrainer: model is loaded by the processes of the run: give its folder or hub name")
        functions = list(reward_funcs) if isinstance(reward_funcs, Sequence) else [reward_funcs]
        if any(isinstance(function, str) for function in functions):
            raise ConfigError(
                "GRPOTrainer: a reward model is served over HTTP: set verifiers.reward_model in overrides"
            )
        if environment_factory is not None and not callable(environment_factory):
            raise ConfigError(
                "GRPOTrainer: environment_factory is one class: let its reset choose by a column of the row"
            )
        if tools and environment_factory is not None:
            raise ConfigError("GRPOTrainer: tools: make them methods of the class of environment_factory")
        self._functions, self._rows = functions, train_dataset
        self._environment = _environment_of(tools) if tools else environment_factory
        given = dict(_given(args))
        episodes = {} if self._environment is None else {"episodes.max_turns": _max_turns(given)}
        keys = {**episodes, **_adapters(peft_config), **(overrides or {})}
        self.recipe = recipe_of(model, functions, given, train_dataset, keys)
        strategy = given.get("eval_strategy", "no")
        if strategy != "no" and eval_dataset is None:
            raise ConfigError(f"GRPOConfig: eval_strategy = {strategy!r} needs an eval_dataset")
        self._held_out = None if strategy == "no" else eval_dataset  # as in TRL, where only `evaluate` would use it
        self.args = GRPOConfig() if args is None else args
        self._callbacks: Callbacks | None = None
        if callbacks:
            checkpoints = RunFiles(self.recipe.run_dir).checkpoints
            self._callbacks = Callbacks(callbacks, self.args, self.recipe.schedule.steps, checkpoints)

    def train(self, resume_from_checkpoint: bool | None = None) -> RunTables:
        """Train, and return the tables of the run. The model is in the folder `export` of `args.output_dir`.

        Raises:
            ConfigError: `resume_from_checkpoint` is a path. True goes on with the newest checkpoint.
        """
        if isinstance(resume_from_checkpoint, str | Path):
            raise ConfigError(
                "GRPOTrainer: resume_from_checkpoint = True goes on with the newest checkpoint; an older one: "
                f"olmorl-launch {self.recipe.run_dir}.inputs/recipe.toml --resume --from-step N"
            )
        if self._callbacks:
            self._callbacks.call("on_train_begin")
        tables = api.run(
            self.recipe,
            reward_functions=self._functions,
            environment=self._environment,
            dataset=self._rows,
            evaluation=self._held_out,
            on_step=self._callbacks.on_step if self._callbacks else None,
            resume=bool(resume_from_checkpoint),
        )
        if self._callbacks:
            self._callbacks.look_for_checkpoint()
            self._callbacks.call("on_train_end")
        return tables

    def save_model(self, output_dir: str | None = None) -> None:
        """Copy the trained model, by default into `args.output_dir`. Raises DataError before the run is over."""
        export = RunFiles(self.recipe.run_dir).export
        if not export.is_dir():
            raise DataError(f"{export}: the run is not over; of a checkpoint: olmorl-ctl {export.parent} export FOLDER")
        shutil.copytree(export, output_dir or self.recipe.run_dir, dirs_exist_ok=True)


def _given(args: Any) -> dict[str, Any]:
    """The arguments that were given: of TRL's own configuration those that differ from its defaults."""
    if args is None:
        return {}
    if isinstance(args, GRPOConfig):
        return vars(args)
    # Its own defaults include what it derives from other fields and from the machine, which may not allow all of them.
    kept = {name: getattr(args, name) for name in _OF_THE_MACHINE if hasattr(args, name)}
    return _changed(args, type(args)(**kept)) | kept


def _changed(settings: Any, defaults: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from the defaults."""
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.init}
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in found.items()
        if value != getattr(defaults, name)
    }


def _adapters(peft_config: Any) -> dict[str, Any]:
    """The keys of adapters. Raises ConfigError that names all fields without a counterpart."""
    if peft_config is None:
        return {}
    if getattr(peft_config, "peft_type", None) != "LORA":
        raise ConfigError("GRPOTrainer: peft_config: adapters are LoRA here: give a peft.LoraConfig")
    given = _changed(peft_config, type(peft_config)())
    modules = given.pop("target_modules", _MODULES)
    known = (*_ADAPTERS, *_ADAPTERS_WITHOUT_EFFECT)
    refused = [f"{name} = {value!r}" for name, value in given.items() if name not in known]
    if isinstance(modules, str) and modules != "all-linear":
        refused.append(f"target_modules = {modules!r}")
    if refused:
        raise ConfigError(
            f"GRPOTrainer: peft_config: {', '.join(sorted(refused))}: no counterpart here; leave them out, or see "
            "docs/coming-from.md"
        )
    keys: dict[str, Any] = {key: getattr(peft_config, name) for name, key in _ADAPTERS.items()}
    return keys if modules == "all-linear" else {**keys, "model.lora.target_modules": sorted(modules)}


def recipe_of(
    model: str, functions: Sequence[Any], given: Mapping[str, Any], rows: Any, overrides: Mapping[str, Any]
) -> api.Recipe:
    """The recipe of the arguments. Raises ConfigError that names all arguments without a counterpart."""
    known = {*_KEYS, *_CHOICES, *_COMBINED, *_WITHOUT_EFFECT}
    refused = [name for name in given if name not in known]
    given = {name: _plain(value) if name in _CHOICES else value for name, value in given.items()}
    refused += [f"{name} = {given[name]!r}" for name in _CHOICES if name in given and given[name] not in _CHOICES[name]]
    if refused:
        raise ConfigError(
            f"GRPOConfig: {', '.join(sorted(refused))}: no counterpart here; leave them out, or see docs/coming-from.md"
        )
    args = {**_DEFAULTS, **given}
    keys = {"objective.preset": "trl", "model.path": model, **_batch(args, rows)}
    keys |= {key: args[name] for name, key in _KEYS.items() if name in args}
    for name, choices in _CHOICES.items():
        keys |= choices[args[name]] if name in args else {}
    keys |= _combined(args, functions)
    if not args["vllm_importance_sampling_correction"]:
        keys["objective.rho"] = "off"
        keys.pop("objective.rho_kind", None)
    keys |= overrides
    return config.load(Path("GRPOConfig"), keys=keys)


def _plain(value: Any) -> Any:
    """The value of a choice: a list of one or none, as of `report_to`, is that one or none."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else ", ".join(map(str, value)) or None
    return value


def _combined(args: Mapping[str, Any], functions: Sequence[Any]) -> dict[str, Any]:
    weights = args["reward_weights"] or []
    if weights and len(weights) != len(functions):
        raise ConfigError(f"GRPOConfig: reward_weights has {len(weights)} entries for {len(functions)} functions")
    named = zip(map(api.name_of, functions), weights, strict=bool(weights))
    folder, high = Path(args["output_dir"]), args["epsilon_high"] or args["epsilon"]
    is_cispo = args["loss_type"] == "cispo"  # its epsilon_high is the bound itself, and it has no lower one
    return {
        "run.directory": str(folder.parent),
        "run.name": folder.name,
        "model.dtype": "bfloat16" if args["bf16"] else "float32",
        "learner.betas": [args["adam_beta1"], args["adam_beta2"]],
        "objective.eps_low": 1.0 if is_cispo else args["epsilon"],
        "objective.eps_high": high - 1 if is_cispo else high,
        "verifiers.weights": dict(named),
    }


def _environment_of(functions: Sequence[Callable[..., Any]]) -> Callable[[], list[Callable[..., Any]]]:
    """Makes an environment that is nothing but tools."""
    own = list(functions)

    def tools() -> list[Callable[..., Any]]:
        return own

    return tools


def _max_turns(given: dict[str, Any]) -> int:
    """The bound of answers. TRL's default is the length of an episode, in which each answer has a token."""
    calls = given.pop("max_tool_calling_iterations", None)
    length: int = given.get("max_completion_length", _DEFAULTS["max_completion_length"])
    return length if calls is None else int(calls) + 1


def _batch(args: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Groups, optimizer steps and number of learner steps. TRL counts answers in a batch, and optimizer steps."""
    device, each, group = (
        args[name] for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
    )
    size = (args.get("steps_per_generation") or each) * device
    if "steps_per_generation" not in args:
        size = args.get("generation_batch_size") or size
    minibatches, rest = divmod(size, each * device)
    if rest or not minibatches or size % group:
        raise ConfigError(
            f"GRPOConfig: {size} answers are generated at a time: that must be a multiple of num_generations = {group} "
            f"and of the {each * device} answers of an optimizer step (per_device_train_batch_size x "
            "gradient_accumulation_steps)"
        )
    updates = minibatches * args.get("num_iterations", 1)
    epoch = len(rows) * group / size if isinstance(rows, Sized) and not isinstance(rows, str) else 0.0
    if not epoch and (args["max_steps"] <= 0 or "epoch" in (args["save_strategy"], args["eval_strategy"])):
        raise ConfigError(
            "GRPOConfig: set max_steps, save_steps and eval_steps: the length of train_dataset is unknown"
        )
    steps = ceil(args["max_steps"] / updates if args["max_steps"] > 0 else epoch * args["num_train_epochs"])

    def learner_steps(strategy: str, given: float) -> int:
        """Learner steps of an epoch, of a share of the run, or of a number of optimizer steps."""
        return ceil(epoch if strategy == "epoch" else given * steps if given < 1 else given / updates)

    found = {
        "schedule.prompts_per_step": size // group,
        "schedule.steps": steps,
        "learner.minibatches": minibatches,
        "learner.warmup_steps": learner_steps("steps", args["warmup_steps"] or args["warmup_ratio"]),
        "checkpoint.every": learner_steps(args["save_strategy"], args["save_steps"]),
    }
    if args["eval_strategy"] == "no":
        return found
    return found | {
        "evaluation.every": learner_steps(args["eval_strategy"], args.get("eval_steps") or args["logging_steps"]),
        "evaluation.samples": args.get("num_generations_eval") or group,
        "evaluation.temperature": args["temperature"],
    }
