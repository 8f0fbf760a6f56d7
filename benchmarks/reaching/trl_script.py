"""One run of TRL's GRPOTrainer, in TRL's own environment: `python trl_script.py SETTINGS.json`.

Optimizer, learning rate and reward are the service's: the same classes and functions. Writes one line for each
step into `steps.jsonl`, and the weights of each version. The time that this takes is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from olmorl.config import Learner
from olmorl.learner.trainer.lr_schedule import learning_rate
from olmorl.verifiers.math.math_verifier import WARM, MathVerifier
from olmorl.verifiers.pool.pool import Pool


class MathReward:
    """The service's math verifier as a reward function. TRL calls it in one event loop, always the same."""

    __name__ = "math"

    def __init__(self) -> None:
        self._pool = Pool(1, timeout_s=10.0, preload=(WARM,))
        self._verifier = MathVerifier(self._pool)
        self._started = False

    async def start(self) -> None:
        if not self._started:
            await self._pool.start()
            self._started = True

    async def __call__(self, completions: Any, ground_truth: list[str], **_: Any) -> list[float | None]:
        await self.start()
        texts = [turns[0]["content"] for turns in completions]
        return [
            (await self._verifier.verify(text, label)).reward if text.strip() else 0.0
            for text, label in zip(texts, ground_truth, strict=True)
        ]


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes the time, the reward and the weights of each version, and leaves the time of the writing out."""

    def __init__(self, folder: Path, model: torch.nn.Module) -> None:
        self._folder = folder
        self._model = model
        self._left_out = 0.0
        self._steps = (folder / "steps.jsonl").open("w", buffering=1, encoding="utf-8")
        self._at = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._write(step=0, at=time.time())

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        started = time.time()
        self._at = started - self._left_out
        weights = {name: weight.detach().clone() for name, weight in self._model.state_dict().items()}
        save_file(weights, self._folder / f"version_{state.global_step}.safetensors")
        self._left_out += time.time() - started

    def on_log(self, _: Any, state: Any, *__: Any, logs: dict[str, Any], **___: Any) -> None:
        if "reward" in logs:
            self._write(
                step=state.global_step,
                at=self._at,
                reward=float(logs["reward"]),
                tokens=float(logs["completions/mean_length"]),
                useless=float(logs["frac_reward_zero_std"]),
            )

    def _write(self, **values: float) -> None:
        self._steps.write(json.dumps(values) + "\n")


def main(settings: dict[str, Any]) -> None:
    """Train."""
    threads = settings["threads"]
    torch.set_num_threads(threads)
    folder = Path(settings["folder"])
    with Path(settings["train"]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    data = Dataset.from_list([{"prompt": row["messages"], "ground_truth": row["ground_truth"]} for row in rows])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    learner = Learner(**settings["learner"])
    steps = settings["steps"]
    optimizer = torch.optim.AdamW(
        model.parameters(), learner.learning_rate, betas=learner.betas, eps=learner.eps, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: learning_rate(min(done + 1, steps), learner, steps) / learner.learning_rate
    )
    batch = settings["prompts"] * settings["group"]
    config = GRPOConfig(
        output_dir=str(folder),
        seed=settings["seed"],
        max_steps=steps,
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=batch // settings["micro_batch"],
        num_generations=settings["group"],
        max_completion_length=settings["max_tokens"],
        temperature=1.0,
        max_grad_norm=learner.max_grad_norm,
        loss_type="dapo",
        scale_rewards=settings["scale_rewards"],
        epsilon=0.2,
        epsilon_high=0.272,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings["more"],
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(settings["model"], padding_side="left"),
        reward_funcs=MathReward(),
        args=config,
        train_dataset=data,
        optimizers=(optimizer, schedule),
        callbacks=[Recorder(folder, model)],
    )
    trainer.train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
