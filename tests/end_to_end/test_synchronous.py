"""With `max_lag = 0` a plain synchronous loop over the same samples gives the same policy, step by step."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from olmorl import config
from olmorl.actors import admission
from olmorl.actors.loop import Actor
from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.learner import loop
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage import rollout_log
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Completion, Prompt, Span, TokenIds, Verdict, Version
from olmorl.ports import EngineLoad, EngineUse, Row, Sampling, StagedWeights, Update
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.weights.memory_store import MemoryWeightStore

STEPS, PROMPTS, GROUP, VOCAB = 4, 3, 4, 200
LEARNING_RATE, EPS_LOW, EPS_HIGH, RHO = 1e-3, 0.2, 0.272, 1.5
ADAM_EPS = 1e-5
"""Large enough that Adam does not blow the rounding of near-zero gradients up to whole updates."""


class ScriptedEngine:
    """Answers a request with what its seed says, and claims log-probabilities that are off from the policy's."""

    def __init__(self) -> None:
        self.version = Version(0, 0)
        self.tokens_generated = 0
        self.tokens_aborted = 0

    async def start(self, weights: StagedWeights | None) -> None:
        if weights is not None:
            self.version = weights.manifest.version

    async def generate(self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0) -> Completion:
        random = np.random.default_rng(sampling.seed)
        length = int(random.integers(2, 20))
        await asyncio.sleep(0.001 * length)
        self.tokens_generated += length
        return Completion(
            index=0,
            token_ids=random.integers(0, VOCAB, length).astype(np.int32),
            logprobs=random.normal(-5.2, 0.5, length).astype(np.float32),
            spans=(Span(self.version, 0, length),),
            finish_reason="stop",
            text="",
        )

    async def update(self, staged: StagedWeights) -> Update:
        self.version = staged.manifest.version
        return Update(self.version, 0.0)

    def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, kv_used=0.0, max_running=16)

    def use(self) -> EngineUse:
        return EngineUse(0.0, 0.0)

    async def stop(self) -> None: ...


class ParityScorer:
    """Rewards the share of even tokens: seldom equal over a group."""

    async def start(self) -> None: ...

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        return {"parity": Verdict(reward=float(np.mean(completion.token_ids % 2 == 0)))}

    async def combine(self, prompt: Prompt, completions: Any) -> tuple[Completion, ...]:
        from msgspec.structs import replace

        return tuple(replace(c, reward=c.verdicts["parity"].reward) for c in completions)

    def counts(self) -> dict[str, dict[str, float]]:
        return {}

    async def stop(self) -> None: ...


class RecordingTrainer(DeepSpeedTrainer):
    """Keeps the parameters after each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.history: list[dict[str, torch.Tensor]] = []

    async def train(self, shard: Any) -> dict[str, float]:
        values = await super().train(shard)
        self.history.append(
            {
                buffer.name: torch.frombuffer(bytearray(buffer.data), dtype=torch.float32).reshape(buffer.shape)
                for buffer in self.snapshot()
            }
        )
        return values


def settings(tmp_path: Path, policy: Path) -> config.Config:
    return config.build(
        {
            "run": {"name": "sync", "directory": str(tmp_path)},
            "model": {"path": str(policy), "dtype": "float32"},
            "data": {"max_prompt_tokens": 8},
            "sampling": {"group_size": GROUP, "max_tokens": 20},
            "schedule": {"steps": STEPS, "prompts_per_step": PROMPTS, "max_lag": 0},
            "objective": {"rho": RHO, "eps_low": EPS_LOW, "eps_high": EPS_HIGH},
            "learner": {
                "zero_stage": 0,
                "learning_rate": LEARNING_RATE,
                "eps": ADAM_EPS,
                "row_tokens": 64,
                "device": "cpu",
            },
            "checkpoint": {"every": 100},
            "weights": {"proof_tolerance": "off"},  # the engine makes its log-probabilities up
        }
    )


async def serve(recipe: config.Config, trainer: RecordingTrainer) -> None:
    """The whole service in one process, with two actors."""
    clock = SystemClock()
    queue, store = MemoryQueue(QueueSettings(), 1000, clock), MemoryWeightStore()
    rows = [Row(f"r:{i}", "", np.array([i, 7, 9], np.int32), ("parity",), ("",), {}, False) for i in range(100)]
    stream = PromptStream([Source("r", None, rows)], 0)
    orchestrator = await Orchestrator.open(recipe, queue, stream, clock, num_ranks=1, evaluations={})
    actors = [
        Actor(
            name=f"actor-{i}",
            engine=ScriptedEngine(),
            queue=queue.another(),
            weights=store,
            scorer=ParityScorer(),
            clock=clock,
            sample=lambda prompt, index: Sampling(max_tokens=20, seed=1000 * prompt.draw_id + index),
            lanes=admission.lanes(recipe.sampling, recipe.evaluation, []),
            settings=recipe.actors,
            evaluation_share=0.5,
            lease_s=60.0,
            max_lag=0,
        )
        for i in range(2)
    ]
    running = [asyncio.create_task(actor.run()) for actor in actors]
    book = asyncio.create_task(orchestrator.run())
    await loop.run(0, trainer, orchestrator, store, clock, recipe)
    await book
    for actor in actors:
        await actor.stop()
    await asyncio.gather(*running)


def trained_groups(run_dir: Path) -> dict[int, list[dict[str, Any]]]:
    """By step, in the order of their draws, from what the run left behind."""
    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in (run_dir / "rollouts").glob("*.zst"):
        for group in rollout_log.read(path):
            if group["outcome"] == "trained":
                steps[group["step"]].append(group)
    return steps


def synchronous_loop(policy: Path, steps: dict[int, list[dict[str, Any]]]) -> list[dict[str, torch.Tensor]]:
    """One sample at a time, the objective as its formula is written, torch's own AdamW."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=ADAM_EPS, weight_decay=0.0
    )
    history = []
    for step in range(1, STEPS + 1):
        num_tokens = sum(len(c["token_ids"]) for group in steps[step] for c in group["completions"])
        optimizer.zero_grad()
        for group in steps[step]:
            rewards = [c["reward"] for c in group["completions"]]
            for completion, reward in zip(group["completions"], rewards, strict=True):
                prompt = group["prompt_token_ids"]
                ids = torch.tensor([prompt + completion["token_ids"]])
                logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
                logprobs = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
                old, behaviour = logprobs.detach(), torch.tensor(completion["logprobs"])
                weight = (old - behaviour).exp().clamp(max=RHO)
                ratio = (logprobs - old).exp()
                advantage = reward - sum(rewards) / len(rewards)
                clipped = ratio.clamp(1 - EPS_LOW, 1 + EPS_HIGH)
                objective = weight * torch.minimum(ratio * advantage, clipped * advantage)
                (-objective.sum() / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return history


@pytest.mark.timeout(300)
def test_lag_0_is_the_synchronous_algorithm(tmp_path: Path, policy: Path) -> None:
    recipe = settings(tmp_path, policy)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    trainer = RecordingTrainer(
        recipe.model,
        recipe.learner,
        resolve(recipe.objective, 20),
        temperature=1.0,
        steps=STEPS,
        seed=0,
        ranks=Ranks(0, 1, address),
    )
    try:
        asyncio.run(serve(recipe, trainer))
    finally:
        trainer.close()
    steps = trained_groups(recipe.run_dir)
    draws = [[group["prompt_id"] for group in steps[step]] for step in range(1, STEPS + 1)]
    assert draws == [sorted(ids) for ids in draws] and all(len(ids) == PROMPTS for ids in draws)
    expected = synchronous_loop(policy, steps)
    start = expected[0]
    for ours, theirs in zip(trainer.history, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-6
    assert max(float((start[name] - expected[-1][name]).abs().max()) for name in start) > 1e-4, "nothing was learnt"
