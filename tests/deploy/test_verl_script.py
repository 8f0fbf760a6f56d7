"""The recipe of a script of verl's PPO trainer, and what has no counterpart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy import launch, verl_script
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.presets import resolve

GSM8K = """
set -x

folder=${HOME}/data/gsm8k
train="['$folder/train.jsonl']"
export NOTHING=1

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae \\
    data.train_files="$train" \\
    data.val_files=$folder/test.jsonl \\
    data.train_batch_size=8 \\
    data.max_prompt_length=64 \\
    data.max_response_length=32 \\
    data.filter_overlong_prompts=True \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=org/model \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=2e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.actor.use_kl_loss=False \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \\
    critic.optim.lr=3e-5 \\
    critic.model.path=org/critic \\
    critic.model.fsdp_config.param_offload=False \\
    critic.ppo_micro_batch_size_per_gpu=2 \\
    algorithm.use_kl_in_reward=False \\
    trainer.critic_warmup=1 \\
    trainer.logger=['console','wandb'] \\
    trainer.project_name='sums' \\
    trainer.experiment_name='critic' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.save_freq=-1 \\
    trainer.test_freq=10 \\
    +trainer.val_before_train=False \\
    trainer.total_epochs=15 $@ 2>&1 | tee out.log

    # trainer.save_freq=20 \\
    # trainer.total_epochs=1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    row = {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "1 + 1?"}]}
    lines = json.dumps(row | {"reward_model": {"style": "rule", "ground_truth": "2"}}) + "\n"
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text(lines * 35)
    return tmp_path


def script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text)
    return path


def recipe(folder: Path, *more: str) -> config.Config:
    """The recipe of the fewest keys and `more` of them."""
    words = ("trainer.total_training_steps=5", "data.train_batch_size=256", *more)
    path = script(folder, "python3 -m verl.trainer.main_ppo " + " ".join(words))
    return config.load(path, keys=verl_script.keys_of(path))


def test_the_ppo_example(home: Path) -> None:
    path = script(home, GSM8K)
    found = config.load(path, [("schedule.max_lag", "2")], keys=verl_script.keys_of(path))
    assert found.data.train == [f"{home}/data/gsm8k/train.jsonl"]
    assert found.evaluation.data == [f"{home}/data/gsm8k/test.jsonl"]
    assert (found.schedule.prompts_per_step, found.sampling.group_size, found.learner.minibatches) == (8, 1, 2)
    assert found.schedule.steps == 4 * 15, "35 rows are four batches of 8, 15 times"
    assert (found.data.max_prompt_tokens, found.sampling.max_tokens, found.data.over_long) == (64, 32, "filter")
    assert (found.learner.learning_rate, found.learner.weight_decay, found.learner.betas) == (2e-6, 0.01, (0.9, 0.999))
    assert (found.critic.path, found.critic.learning_rate, found.critic.warmup_steps) == ("org/critic", 3e-5, 1)
    assert (found.run.directory, found.run.name, found.telemetry.tracker) == (
        Path("checkpoints/sums"),
        "critic",
        "wandb",
    )
    assert (found.actors.tensor_parallel, found.actors.gpu_memory_utilization) == (2, 0.4)
    assert (found.schedule.max_lag, found.evaluation.every, found.checkpoint.every) == (
        2,
        10,
        config.Checkpoint().every,
    )
    switches = resolve(found.objective, 32)
    assert (switches.advantage, switches.clip, switches.normalize, switches.rho) == ("gae", "dual", "token", None)
    assert not found.schedule.filter_zero_gradient and switches.kl_beta == 0


def test_a_key_of_the_critic_is_named_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"critic\.ppo_epochs: no counterpart here"):
        recipe(tmp_path, "critic.ppo_epochs=5", "critic.model.enable_gradient_checkpointing=True")
    assert recipe(tmp_path, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "critic.ppo_epochs=5")


def test_the_defaults_are_those_of_verl(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    assert resolve(found.objective, 512) == resolve(config.Objective(preset="verl", advantage="gae"), 512)
    assert (found.sampling.max_tokens, found.data.max_prompt_tokens, found.schedule.max_lag) == (512, 512, 0)
    assert (found.learner.learning_rate, found.learner.minibatches, found.evaluation.every) == (1e-6, 1, 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("algorithm.adv_estimator=grpo", {"advantage": "mean_sample_std"}),
        ("algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False", {"advantage": "mean"}),
        ("algorithm.adv_estimator=rloo", {"advantage": "leave_one_out"}),
        ("algorithm.adv_estimator=reinforce_plus_plus_baseline", {"advantage": "mean_whiten"}),
        ("algorithm.gamma=0.9 algorithm.lam=0.95", {"advantage": "gae", "gamma": 0.9, "lam": 0.95}),
        ("actor_rollout_ref.actor.clip_ratio=0.1", {"eps_low": 0.1, "eps_high": 0.1}),
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", {"eps_low": 0.2, "eps_high": 0.28}),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", {"normalize": "sequence"}),
        (
            "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01",
            {"kl_beta": 0.01, "kl_in": "loss", "kl_estimator": "k3"},
        ),
        (
            "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.target_kl=0.2",
            {"kl_beta": 0.001, "kl_in": "reward", "kl_estimator": "k1", "kl_target": 0.2},
        ),
    ],
)
def test_the_objective(tmp_path: Path, given: str, expected: dict[str, Any]) -> None:
    switches = resolve(recipe(tmp_path, *given.split(), "actor_rollout_ref.rollout.n=4").objective, 512)
    assert {name: getattr(switches, name) for name in expected} == expected


def test_a_function_adapters_and_a_warm_up(tmp_path: Path) -> None:
    found = recipe(
        tmp_path,
        "custom_reward_function.path=/x/mine.py",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.target_modules=all-linear",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.3",
        "actor_rollout_ref.actor.optim.warmup_style=cosine",
        "data.truncation=left",
        "trainer.save_freq=2",
    )
    assert found.verifiers.functions == ["/x/mine.py:compute_score"]
    assert (found.model.lora.rank, found.model.lora.alpha) == (8, 16.0)
    assert (found.learner.warmup_steps, found.learner.schedule, found.checkpoint.every) == (2, "cosine", 2)
    assert found.data.over_long == "truncate"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("algorithm.adv_estimator=remax", "algorithm.adv_estimator=remax: no counterpart"),
        ("actor_rollout_ref.rollout.name=sglang data.nothing=1", "rollout.name=sglang, data.nothing: no counterpart"),
        ("trainer.logger=[wandb,swanlab]", "trainer.logger=swanlab, trainer.logger=wandb: no counterpart"),
        ("trainer.nnodes=2", "trainer.nnodes=2"),
        ("actor_rollout_ref.actor.use_kl_loss=True algorithm.use_kl_in_reward=True", "use_kl_loss with algorithm.use_"),
        ("algorithm.use_kl_in_reward=True algorithm.kl_penalty=full", "the estimate full of the KL"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=100", "is no multiple of ppo_mini_batch_size=100"),
        ("trainer.total_training_steps=null data.train_files=/nowhere.parquet", "/nowhere.parquet: not there"),
        ("actor_rollout_ref.actor.optim.lr=7", r"run\.sh.*\n.*learner\.learning_rate"),
        ("algorithm.adv_estimator=grpo", r"run\.sh.*\n.*sampling\.group_size = 1"),
        ("data.seed=$NOT_SET_ANYWHERE", "the variable NOT_SET_ANYWHERE is not set"),
        ("data.seed=$(date)", "the script is not executed"),
        ("--config-name=mine data.seed=1 more", "more: no key=value behind verl"),
        ("'", "No closing quotation"),
    ],
)
def test_what_has_no_counterpart_is_named(tmp_path: Path, given: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(tmp_path, *given.split())


def test_another_script_is_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main([str(script(tmp_path, "echo hello"))]) == 2
    assert "does not start verl.trainer.main_ppo; a recipe of this service ends in .toml" in capsys.readouterr().err


def test_the_plan_of_a_script(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(home, GSM8K.replace("critic.model.path=org/critic", "").replace("parallel_size=2", "parallel_size=1"))
    assert launch.main([str(path), "--dry-run", "--model.build", "demo"]) == 0
    assert 'preset = "verl"' in capsys.readouterr().out
