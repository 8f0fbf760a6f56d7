"""Measures trained tokens/s of the DeepSpeed trainer against a bare PyTorch loop on the same rows, on one core.

The bare loop has the same model, rows, log-probability chunks, loss, fp32 master weights, fp32 gradient sums, clipping
and fused AdamW, and nothing else: no hooks, no buckets, no ranks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
import numpy as np
import torch
from transformers import Olmo3Config, Olmo3ForCausalLM

from olmorl import config
from olmorl.learner.algorithm.objective import LossInputs, policy_loss
from olmorl.learner.algorithm.presets import Switches, resolve
from olmorl.learner.batching.packing import RowArrays, pack, row_arrays
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.policy import LOGPROB_CHUNK, PackedPolicy, policy_row
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Sample, Shard

VOCABULARY = 300
ROW_TOKENS = 2048
PROMPT_TOKENS = 40
LEARNER = config.Learner(device="cpu", zero_stage=2, learning_rate=1e-5, row_tokens=ROW_TOKENS)
CPU = torch.device("cpu")


class BareLoop:
    """A minimal loop that computes the same update."""

    def __init__(self, settings: config.Model, switches: Switches) -> None:
        self._policy = PackedPolicy(models.load(settings, "sdpa", CPU), 1.0, LOGPROB_CHUNK)
        self._policy.train()
        self._weights = list(self._policy.parameters())
        self._masters = [weight.detach().float().clone() for weight in self._weights]
        self._switches = switches
        self._optimizer = torch.optim.AdamW(
            self._masters,
            lr=LEARNER.learning_rate,
            betas=LEARNER.betas,
            eps=LEARNER.eps,
            weight_decay=LEARNER.weight_decay,
            fused=True,
        )
        for master in self._masters:
            master.grad = torch.zeros_like(master)

    def step(self, shard: Shard) -> None:
        for row in shard.minibatches[0]:
            self._add_gradient(row_arrays(row), shard)
        torch.nn.utils.clip_grad_norm_(self._masters, LEARNER.max_grad_norm, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            torch._foreach_copy_(self._weights, self._masters)

    def _add_gradient(self, row: RowArrays, shard: Shard) -> None:
        logprobs_T, entropy_T = self._policy(policy_row(row, CPU), with_entropy=True)
        inputs = LossInputs(
            logprobs_BT=logprobs_T[None],
            old_logprobs_BT=logprobs_T.detach()[None],
            behaviour_logprobs_BT=torch.from_numpy(row.behaviour_logprobs_T)[None],
            advantages_BT=torch.from_numpy(row.advantages_T)[None],
            loss_mask_BT=torch.from_numpy(row.loss_mask_T)[None],
            sequence_ids_BT=torch.from_numpy(row.sequence_ids_T)[None],
            lags_BT=torch.from_numpy(row.lags_T)[None],
            loss_tokens=shard.loss_tokens[0],
            num_sequences=shard.num_sequences[0],
            entropy_BT=entropy_T[None],
        )
        policy_loss(inputs, self._switches)[0].backward()
        gradients = [weight.grad for weight in self._weights]
        torch._foreach_add_([master.grad for master in self._masters], gradients)
        for weight in self._weights:
            weight.grad = None


def make_model(folder: Path, quick: bool) -> config.Model:
    """A random model of the demo's size (about 4M weights), or a quarter of it."""
    hidden = 128 if quick else 256
    shape = Olmo3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=ROW_TOKENS,
        sliding_window=256,
        pad_token_id=0,
        eos_token_id=1,
    )
    Olmo3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    return config.Model(path=str(folder), dtype="bfloat16")


def make_shard(step: int, num_groups: int) -> Shard:
    """Groups of eight completions with long-tailed lengths, packed for one rank."""
    rng = np.random.default_rng(step)
    groups = [[_sample(rng, draw) for _ in range(8)] for draw in range(num_groups)]
    return pack(groups, step=step, num_ranks=1, num_minibatches=1, row_tokens=ROW_TOKENS)[0]


def _sample(rng: np.random.Generator, draw: int) -> Sample:
    num_tokens = int(np.clip(rng.lognormal(4.7, 0.6), 8, 640))
    return Sample(
        draw_id=draw,
        prompt_ids=rng.integers(0, VOCABULARY, PROMPT_TOKENS).astype(np.int32),
        completion_ids=rng.integers(0, VOCABULARY, num_tokens).astype(np.int32),
        behaviour_logprobs=rng.normal(-5.7, 0.1, num_tokens).astype(np.float32),
        loss_mask=np.ones(num_tokens, np.bool_),
        lags=np.zeros(num_tokens, np.int32),
        advantage=float(rng.normal()),
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _tokens_per_s(step: Callable[[Shard], object], shards: Sequence[Shard]) -> float:
    started = time.perf_counter()
    for shard in shards:
        step(shard)
    return sum(shard.loss_tokens[0] for shard in shards) / (time.perf_counter() - started)


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    """Set up both loops in one process on one core. A repetition runs the same steps in both, in turn."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    switches = resolve(config.Objective(), max_tokens=640)
    with tempfile.TemporaryDirectory() as folder:
        settings = make_model(Path(folder), quick)
        ranks = Ranks(0, 1, free_address())
        trainer = DeepSpeedTrainer(settings, LEARNER, switches, temperature=1.0, steps=1000, seed=0, ranks=ranks)
        bare = BareLoop(settings, switches)
    shards = [make_shard(step, num_groups=2 if quick else 4) for step in (1, 2)]
    rows: dict[str, Callable[[Shard], object]] = {
        "trainer": lambda shard: asyncio.run(trainer.train(shard)),
        "bare loop": bare.step,
    }
    order = list(rows)

    def repeat() -> measure.Values:
        order.reverse()
        return {name: _tokens_per_s(rows[name], shards) for name in order}

    try:
        yield repeat
    finally:
        trainer.close()


BENCHMARK = measure.Benchmark(
    name="learner_efficiency",
    title="Trained tokens per second on one core: DeepSpeedTrainer (ZeRO-2, bf16) and a bare PyTorch loop",
    units={"trainer": "tokens/s", "bare loop": "tokens/s"},
    ratio=("trainer", "bare loop"),
    target=0.95,
    prepare=prepare,
    packages=("torch", "deepspeed", "transformers"),
    repetitions=7,
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
