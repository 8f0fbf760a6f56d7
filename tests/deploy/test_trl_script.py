"""The recipe of a script of TRL, and what has no counterpart."""

from __future__ import annotations

import asyncio
import dataclasses
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import TrainerCallback

from olmorl import config
from olmorl.config import Lora
from olmorl.deploy import api, trl_script
from olmorl.errors import ConfigError, DataError
from olmorl.learner.algorithm.presets import resolve
from olmorl.trl import GRPOConfig, GRPOTrainer
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from tests.verifiers.environments.test_forked_environments import calls, prompt

ROWS = [{"prompt": f"{n} + 1?", "wanted": n + 1} for n in range(20)]


def exact(completions: list[str], wanted: list[int], **_: Any) -> list[float]:
    return [float(text == str(n)) for text, n in zip(completions, wanted, strict=True)]


def short(completions: list[str], **_: Any) -> list[float]:
    return [-float(len(text)) for text in completions]


def recipe(functions: Any = exact, rows: Any = ROWS, overrides: Any = None, **arguments: Any) -> Any:
    return GRPOTrainer("org/model", functions, GRPOConfig(**arguments), rows, overrides=overrides).recipe


def test_the_defaults_are_those_of_trl() -> None:
    found = recipe()
    assert (found.schedule.prompts_per_step, found.sampling.group_size, found.sampling.max_tokens) == (1, 8, 256)
    assert found.schedule.steps == 60, "three epochs of 20 rows, one prompt a step"
    assert (found.learner.learning_rate, found.learner.schedule, found.learner.betas) == (1e-6, "linear", (0.9, 0.999))
    switches = resolve(found.objective, 256)
    assert switches == resolve(type(found.objective)(preset="trl"), 256)


def test_arguments_become_keys(tmp_path: Path) -> None:
    found = recipe(
        [exact, short],
        output_dir=str(tmp_path / "out" / "mine"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=12,
        num_generations=6,
        max_steps=100,
        warmup_ratio=0.05,
        loss_type="dr_grpo",
        scale_rewards=False,
        beta=0.04,
        epsilon=0.1,
        epsilon_high=0.28,
        reward_weights=[1.0, 0.01],
        num_iterations=2,
        bf16=False,
        lr_scheduler_type="constant_with_warmup",
        vllm_importance_sampling_correction=False,
        logging_steps=1,
        use_vllm=True,
        overrides={"schedule.max_lag": 4, "data.system_prompt": "Add."},
    )
    assert (found.run.directory, found.run.name) == (tmp_path / "out", "mine")
    assert (found.schedule.prompts_per_step, found.schedule.steps, found.schedule.max_lag) == (8, 50, 4)
    assert (found.learner.warmup_steps, found.learner.schedule, found.learner.epochs) == (3, "constant", 2)
    assert found.verifiers.weights == {"exact": 1.0, "short": 0.01}
    assert (found.model.dtype, found.data.system_prompt) == ("float32", "Add.")
    switches = resolve(found.objective, 256)
    assert (switches.advantage, switches.normalize, switches.rho) == ("mean", "constant", None)
    assert (switches.eps_low, switches.eps_high, switches.kl_beta, switches.kl_estimator) == (0.1, 0.28, 0.04, "k3")


def test_the_bound_of_cispo_is_a_ratio() -> None:
    switches = resolve(recipe(loss_type="cispo", epsilon_high=5.0).objective, 256)
    assert (switches.clip, switches.eps_low, switches.eps_high) == ("cispo", 1.0, 4.0)


def test_rewards_that_are_normalized_one_by_one() -> None:
    assert recipe(multi_objective_aggregation="normalize_then_sum").objective.advantage == "gdpo"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"loss_type": "sapo"}, "loss_type = 'sapo'"),
        ({"top_p": 0.9, "top_k": 20}, "top_k = 20, top_p = 0.9"),
        ({"sync_ref_model": True}, "sync_ref_model"),
        ({"max_tool_calling_iterations": 3}, "max_tool_calling_iterations"),
        ({"num_generation": 3}, "num_generation: no counterpart"),
        ({"per_device_train_batch_size": 6}, "multiple of num_generations = 8"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "of the 16 answers of an optimizer step"),
        ({"push_to_hub": True}, "push_to_hub = True"),
        ({"optim": "adafactor"}, "optim = 'adafactor'"),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, "model_init_kwargs"),
        ({"eval_strategy": "steps"}, "eval_strategy = 'steps' needs an eval_dataset"),
        ({"eval_strategy": "always"}, "eval_strategy = 'always'"),
        ({"save_strategy": "best"}, "save_strategy = 'best'"),
        ({"metric_for_best_model": "reward"}, "metric_for_best_model: no counterpart"),
        ({"report_to": ["wandb", "swanlab"]}, "report_to = 'wandb, swanlab'"),
        ({"reward_weights": [1.0, 2.0]}, "2 entries for 1 functions"),
        ({"learning_rate": 7.0}, "learner.learning_rate"),
    ],
)
def test_what_has_no_counterpart_is_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        recipe(**arguments)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: GRPOTrainer("m", exact, peft_config=object()), "peft_config: adapters are LoRA here"),
        (lambda: GRPOTrainer("m", exact, None, ROWS, processing_class=1), "processing_class: no counterpart"),
        (lambda: GRPOTrainer("m", exact, None, ROWS, callbacks=[print]), "is no TrainerCallback: no counter"),
        (lambda: GRPOTrainer("m", exact, None, ROWS, callbacks=[Substeps]), r"callbacks: Substeps\.on_substep_end: no"),
        (lambda: GRPOTrainer("m", exact, None, ROWS).train("out/checkpoint-5"), "True goes on with the newest checkpo"),
        (lambda: GRPOTrainer(object(), exact), "folder or hub name"),  # type: ignore[arg-type]
        (lambda: GRPOTrainer("m", ["org/reward-model"]), "verifiers.reward_model"),  # type: ignore[list-item]
        (lambda: GRPOTrainer("m", exact, GRPOConfig(), iter(ROWS)), "set max_steps"),
        (lambda: GRPOTrainer("m", exact, GRPOConfig(), "rows.jsonl"), "set max_steps"),
        (lambda: GRPOTrainer("m", exact, GRPOConfig(max_steps=3, save_strategy="epoch"), iter(ROWS)), "save_steps"),
    ],
)
def test_what_a_trainer_cannot_take_is_named(call: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()


class Substeps(TrainerCallback):
    def on_substep_end(self, *arguments: Any, **more: Any) -> None: ...


def test_arguments_are_attributes_and_may_be_set() -> None:
    args = GRPOConfig(output_dir="out/mine")
    assert (args.output_dir, args.per_device_train_batch_size) == ("out/mine", 8)
    args.learning_rate = 3e-6
    args.num_generation = 4
    with pytest.raises(ConfigError, match="num_generation: no counterpart"):
        GRPOTrainer("m", exact, args, ROWS)
    del args.num_generation
    assert GRPOTrainer("m", exact, args, ROWS).recipe.learner.learning_rate == 3e-6


def test_evaluations_and_checkpoints_come_after_so_many_learner_steps() -> None:
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    args = GRPOConfig(
        **given, max_steps=100, eval_strategy="steps", eval_steps=0.1, save_steps=8, num_generations_eval=2,
        temperature=0.7,
    )  # fmt: skip
    found = GRPOTrainer("m", exact, args, ROWS, eval_dataset=ROWS[:3]).recipe
    assert (found.schedule.steps, found.evaluation.every, found.checkpoint.every) == (25, 3, 2)
    assert (found.evaluation.samples, found.evaluation.temperature) == (2, 0.7)
    args = GRPOConfig(**given, eval_strategy="epoch", save_strategy="epoch", eval_steps=5)
    found = GRPOTrainer("m", exact, args, ROWS, ROWS[:3]).recipe
    assert (found.schedule.steps, found.evaluation.every, found.checkpoint.every) == (15, 5, 5), "20 rows, 4 a step"
    assert found.evaluation.samples == 8


class Watcher(TrainerCallback):
    def __init__(self, stop_at: int = 100) -> None:
        self.stop_at, self.seen = stop_at, list[Any]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.seen.append(("begin", args.output_dir, state.max_steps))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        self.seen.append(("log", state.global_step, logs["reward"], logs["rewards/exact/mean"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        control.should_training_stop = state.global_step >= self.stop_at
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
        self.seen.append(("evaluate", metrics["eval_reward"]))

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_evaluate = True
        self.seen.append(("save", state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.seen.append(("end", state.log_history[-1]["step"]))


def test_callbacks_follow_the_lines_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"step": n, "reward_mean": n / 10, "reward_exact_mean": n / 20} for n in (1, 2)]
    stops = []

    def run(recipe: Any, *, evaluation: Any, on_step: Any, **_: Any) -> str:
        assert evaluation == {"held": ROWS[:2]}
        for line in (*lines, {**lines[1], "eval_held_out_reward_mean": 0.5, "eval_held_out_version": 2}):
            stops.append(on_step(line))
            folder = recipe.run_dir / "checkpoints" / f"step_{line['step']}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "complete").touch()
        return "tables"

    monkeypatch.setattr(api, "run", run)
    args = GRPOConfig(output_dir=str(tmp_path / "mine"), max_steps=7, eval_strategy="steps")
    watcher = Watcher(2)
    trainer = GRPOTrainer("m", exact, args, ROWS, {"held": ROWS[:2]}, callbacks=[Watcher, watcher])
    with pytest.warns(UserWarning, match="should_evaluate of a callback has no effect"):
        assert trainer.train() == "tables"
    assert stops == [False, True, True]
    assert watcher.seen == [
        ("begin", str(tmp_path / "mine"), 7), ("log", 1, 0.1, 0.05), ("save", 1), ("log", 2, 0.2, 0.1), ("save", 2),
        ("evaluate", 0.5), ("end", 2),
    ]  # fmt: skip


def test_the_model_is_copied_once_it_is_there(tmp_path: Path) -> None:
    trainer = GRPOTrainer("m", exact, GRPOConfig(output_dir=str(tmp_path / "mine")), ROWS)
    with pytest.raises(DataError, match="the run is not over; of a checkpoint: olmorl-ctl"):
        trainer.save_model()
    (tmp_path / "mine" / "export").mkdir(parents=True)
    (tmp_path / "mine" / "export" / "config.json").write_text("{}")
    trainer.save_model()
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "mine" / "config.json").exists() and (tmp_path / "saved" / "config.json").exists()


def test_adapters() -> None:
    def lora(**fields: Any) -> Any:
        return GRPOTrainer(
            "m", exact, GRPOConfig(max_steps=1), ROWS, peft_config=LoraConfig(**fields)
        ).recipe.model.lora

    plain = lora()
    assert (plain.rank, plain.alpha, plain.target_modules) == (8, 8.0, ("q_proj", "v_proj"))
    found = lora(r=32, lora_alpha=64, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    assert (found.rank, found.alpha, found.target_modules) == (32, 64.0, ("o_proj", "q_proj"))
    assert lora(target_modules="all-linear").target_modules == Lora().target_modules
    with pytest.raises(
        ConfigError, match=r"lora_dropout = 0\.1, target_modules = '\.\*q', use_dora = True: no counter"
    ):
        lora(use_dora=True, lora_dropout=0.1, target_modules=".*q")
    args = GRPOConfig(max_steps=1)
    trainer = GRPOTrainer("m", exact, args, ROWS, peft_config=LoraConfig(), overrides={"model.lora.rank": 4})
    assert trainer.recipe.model.lora.rank == 4


class Schedules(Enum):
    LINEAR = "linear"
    COSINE = "cosine"


def test_several_optimizer_steps_for_each_generation_are_minibatches() -> None:
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 12, "warmup_steps": 4}
    for arguments in ({"steps_per_generation": 8}, {"generation_batch_size": 32}):
        found = recipe(**given, **arguments)
        assert (found.schedule.prompts_per_step, found.learner.minibatches) == (4, 4)
        assert (found.schedule.steps, found.learner.warmup_steps) == (3, 1), "of four optimizer steps each"


def test_a_share_of_the_steps_is_a_warm_up_too() -> None:
    assert recipe(max_steps=50, warmup_steps=0.1).learner.warmup_steps == 5


def test_a_tracker_is_named_as_it_is_here() -> None:
    assert recipe(report_to=["wandb"]).telemetry.tracker == recipe(report_to="wandb").telemetry.tracker == "wandb"
    assert recipe(report_to=[]).telemetry.tracker is None


def twice(number: int) -> int:
    """
    Doubles.

    Args:
        number: What is doubled.
    """
    return 2 * number


async def half(number: int) -> float:
    """
    Halves.

    Args:
        number: What is halved.
    """
    return number / 2


def test_functions_as_tools_are_called_by_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_command", lambda *_: (0, ""))
    monkeypatch.setattr(api, "read_run", lambda folder: folder)
    args = GRPOConfig(output_dir=str(tmp_path / "mine"))
    GRPOTrainer("m", exact, args, ROWS, tools=[twice, half], overrides={"episodes.tool_parser": "hermes"}).train()
    stored = config.load(tmp_path / "mine.inputs" / "recipe.toml")
    assert [one["function"]["name"] for one in schemas(stored.episodes)] == ["twice", "half"]

    async def played() -> Any:
        environments = ForkedEnvironments(stored.episodes, stored.verifiers)
        await environments.start()
        try:
            world = environments.open()
            await world.reset(prompt(), 0)
            return await world.step(calls(("twice", {"number": 4}), ("half", {"number": 3}), ("half", {"number": "x"})))
        finally:
            await environments.stop()

    doubled, halved, wrong = (one["content"] for one in asyncio.run(played()).messages)
    assert (doubled, halved) == ("8", "1.5") and wrong.startswith("Error: TypeError")


class Counter:
    def reset(self, **row: Any) -> None: ...


def test_an_episode_has_as_many_turns_as_tokens_or_tool_calls() -> None:
    def turns(**arguments: Any) -> tuple[int, int]:
        made = GRPOTrainer("m", exact, GRPOConfig(**arguments), ROWS, environment_factory=Counter).recipe
        return made.episodes.max_turns, made.longest_answer

    assert turns(max_completion_length=512) == (512, 512), "of all answers and results together"
    assert turns(max_completion_length=512, max_tool_calling_iterations=3) == (4, 512)
    with pytest.raises(ConfigError, match="tools: make them methods"):
        GRPOTrainer("m", exact, GRPOConfig(), ROWS, tools=[twice], environment_factory=Counter)
    with pytest.raises(ConfigError, match="environment_factory is one class"):
        GRPOTrainer("m", exact, GRPOConfig(), ROWS, environment_factory={"counter": Counter})  # type: ignore[arg-type]


def test_overrides_come_last() -> None:
    found = recipe(vllm_importance_sampling_correction=False, overrides={"objective.rho": 2.0})
    assert found.objective.rho == 2.0


def test_of_trls_own_configuration_the_changed_fields_count() -> None:
    @dataclasses.dataclass
    class Theirs:
        learning_rate: float = 1e-6
        num_generations: int = 8
        debug: list[str] = dataclasses.field(default_factory=list)
        sapo_temperature_neg: float = 1.05
        derived: int = dataclasses.field(default=0, init=False)
        steps_per_generation: int | None = None
        lr_scheduler_type: Any = "linear"
        accelerator_config: Any = None

        def __post_init__(self) -> None:
            self.steps_per_generation = self.steps_per_generation or 1
            self.accelerator_config = {"split_batches": False}
            self.lr_scheduler_type = Schedules(self.lr_scheduler_type)

    assert trl_script._given(Theirs()) == {}
    assert trl_script._given(Theirs(num_generations=4)) == {"num_generations": 4}
    assert GRPOTrainer("m", exact, Theirs(lr_scheduler_type="cosine"), ROWS).recipe.learner.schedule == "cosine"
    assert GRPOTrainer("m", exact, Theirs(learning_rate=2e-6), ROWS).recipe.learner.learning_rate == 2e-6
    with pytest.raises(ConfigError, match="sapo_temperature_neg"):
        GRPOTrainer("m", exact, Theirs(sapo_temperature_neg=2.0), ROWS)
