"""Scripts as the guides of TRL and verl write them train a small random policy here, unchanged but for the import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from olmorl import read_run
from tests.deploy.test_numbers_of_peers import REWARDS
from tests.end_to_end.launching import ROOT, Launch

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

TRL = """
from olmorl.trl import GRPOConfig, GRPOTrainer
{rewards}
rows = {rows}
args = GRPOConfig(
    output_dir="runs/test", max_steps=2, per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
    max_prompt_length=64,
    learning_rate=1e-5, logging_steps=1, use_cpu=True, bf16=False, use_vllm=True, vllm_mode="colocate",
)
trainer = GRPOTrainer(model={policy!r}, reward_funcs=[{functions}], args=args, train_dataset=rows)
trainer.train()
"""
TEXTS = [{"prompt": f"What is {n} + {n}?", "ground_truth": str(2 * n), "task": "math"} for n in range(20)]
TURNS = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}]} for n in range(20)]
VERL = """
set -x
train="['{folder}/train.parquet']"
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae \\
    data.train_files="$train" \\
    data.val_files={folder}/test.parquet \\
    data.train_batch_size=8 \\
    data.max_prompt_length=64 \\
    data.max_response_length=16 \\
    data.filter_overlong_prompts=True \\
    data.truncation='error' \\
    actor_rollout_ref.model.path={policy} \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.3 \\
    critic.optim.lr=1e-5 \\
    critic.model.path={policy} \\
    critic.ppo_micro_batch_size_per_gpu=4 \\
    custom_reward_function.path={folder}/rewards.py \\
    trainer.critic_warmup=0 \\
    trainer.logger=['console'] \\
    trainer.project_name=runs \\
    trainer.experiment_name=test \\
    trainer.n_gpus_per_node=1 \\
    trainer.nnodes=1 \\
    trainer.save_freq=-1 \\
    trainer.test_freq=-1 \\
    trainer.total_epochs=2 $@
"""


@pytest.mark.parametrize(
    ("rows", "functions"),
    [(TEXTS, "by_tokens, by_label, of_math, of_code"), (TURNS, "by_tokens, by_form")],
    ids=["texts", "turns"],
)
def test_a_script_of_trl(tmp_path: Path, policy: Path, rows: list[dict[str, Any]], functions: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRL.format(rewards=REWARDS, rows=rows, policy=str(policy), functions=functions))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tables = read_run(tmp_path / "runs" / "test")
    assert tables.metrics.column("step").to_pylist() == [1, 2]
    trained = [one for one in tables.answers.to_pylist() if one["outcome"] == "trained"]
    assert len(trained) == 2 * 8
    for one in trained:
        verdicts = {name: verdict["reward"] for name, verdict in json.loads(one["verdicts"]).items()}
        assert verdicts["by_tokens"] == one["tokens"] and set(verdicts) == set(functions.split(", "))
        assert one["reward"] == sum(reward for reward in verdicts.values() if reward is not None)
        assert verdicts.get("of_code") is None and verdicts.get("of_math", 1) is not None


WITH_CALLBACKS = """
import sys
from datasets import Dataset
from transformers import TrainerCallback
from olmorl.trl import GRPOConfig, GRPOTrainer
{rewards}

class Seen(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print("logged", state.global_step, logs["reward"], logs["rewards/by_form/mean"], file=seen)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = "resume" not in sys.argv

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print("evaluated", metrics["eval_prompts"], metrics["eval_reward"], file=seen)

seen = open("seen.txt", "a")
rows = Dataset.from_list({rows})
args = GRPOConfig(
    output_dir="runs/test", max_steps=12, per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
    max_prompt_length=64, learning_rate=1e-5, logging_steps=1, use_cpu=True, bf16=False, reward_weights=[0.5, 0.1, 2],
    eval_strategy="steps", eval_steps=4, num_generations_eval=2, save_steps=4,
)
trainer = GRPOTrainer(
    model={policy!r}, reward_funcs=[by_form, letters, of_code], args=args, train_dataset=rows,
    eval_dataset=rows.select(range(3)), callbacks=[Seen()], overrides={{"actors.enforce_eager": True}},
)
trainer.train(resume_from_checkpoint="resume" in sys.argv)
if "resume" in sys.argv:
    trainer.save_model("saved")
"""
LETTERS = """
def letters(prompts, completions, log_metric, **kwargs):
    found = [sum(letter.isalpha() for letter in one[-1]["content"]) for one in completions]
    log_metric("letters", max(found))
    return found
"""


def test_a_script_of_trl_with_an_evaluation_and_callbacks_goes_on(tmp_path: Path, policy: Path) -> None:
    rows = [{**one, "task": "math"} for one in TURNS]
    script = tmp_path / "train.py"
    script.write_text(WITH_CALLBACKS.format(rewards=REWARDS + LETTERS, rows=rows, policy=str(policy)))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in ([], ["resume"]):
        done = subprocess.run(
            [sys.executable, script, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=290,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tables = read_run(tmp_path / "runs" / "test")
    lines = tables.metrics.to_pylist()
    assert [line["step"] for line in lines] == [*range(1, 13)] and {line["incarnation"] for line in lines} == {1, 2}
    seen = [line.split() for line in (tmp_path / "seen.txt").read_text().splitlines()]
    logged = [words for what, *words in seen if what == "logged"]
    assert [int(step) for step, *_ in logged] == [*range(1, 13)]
    assert [float(reward) for _, reward, _ in logged] == [line["reward_mean"] for line in lines]
    assert [float(reward) for *_, reward in logged] == [line["reward_by_form_mean"] for line in lines]
    assert all(line["logged_letters_mean"] > 0 for line in lines)
    evaluated = [words for what, *words in seen if what == "evaluated"]
    assert len(evaluated) >= 2 and {prompts for prompts, _ in evaluated} == {"3"}
    for one in tables.answers.to_pylist():
        verdicts = {name: verdict["reward"] for name, verdict in json.loads(one["verdicts"]).items()}
        assert verdicts["of_code"] is None, "it is for other rows"
        assert one["reward"] == pytest.approx(0.5 * verdicts["by_form"] + 0.1 * verdicts["letters"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").num_parameters() > 0


def test_a_script_of_verl(tmp_path: Path, policy: Path) -> None:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"What is {n} + 1? End with ####."}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {"split": "train", "index": n},
        }
        for n in range(12)
    ]
    for name in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    (tmp_path / "rewards.py").write_text(REWARDS)
    script = tmp_path / "run.sh"
    script.write_text(VERL.format(folder=tmp_path, policy=policy))
    run = Launch(tmp_path, script)
    try:
        run.start(f"--run.directory={tmp_path}/runs")
        assert run.wait(500) == 0, run.output()
    finally:
        run.end()
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2], "12 rows are one batch of 8, twice"
    assert all("value_explained_fraction" in line for line in lines), "a critic learns too"
    trained = [one for one in read_run(run.run_dir).answers.to_pylist() if one["outcome"] == "trained"]
    assert len(trained) == 2 * 8 and {len(json.loads(one["verdicts"])) for one in trained} == {1}
    assert all(one["newest_version"] == one["step"] - 1 for one in trained), "generation and training take turns"
