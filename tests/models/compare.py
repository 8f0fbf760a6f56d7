"""Compares the learner and an engine on one family: `python -m tests.models.compare FAMILY` prints the result as JSON.

The learner's own weights change, group by group, are published as in a run, and reach the running engine in flight.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.actors.vllm_engine.weight_check import checkpoint_shapes
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Buffer, Completion, Sample, TokenIds, Version, WeightsReady
from olmorl.ports import NamedBuffer, Sampling, StagedWeights
from tests.learner.conftest import _free_port
from tests.models.families import FAMILIES, MAX_TOKENS, build

PROMPT: Final = np.array([5, 9, 2, 44, 61, 7], np.int32)
NUM_TOKENS: Final = 40


class Differences:
    """The largest difference between engine and learner, for each group of weights that changed."""

    def __init__(self) -> None:
        self.before = 0.0
        self.after: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        """By how much the change moved the learner's own log-probabilities: a small move would prove nothing."""


def sample_of(completion: Completion) -> Sample:
    """The completion as the learner trains on it."""
    size = len(completion.token_ids)
    return Sample(
        draw_id=0,
        prompt_ids=PROMPT,
        completion_ids=completion.token_ids,
        behaviour_logprobs=completion.logprobs,
        loss_mask=np.ones(size, np.bool_),
        lags=np.zeros(size, np.int32),
        advantage=1.0,
    )


class Pair:
    """A learner and an engine of one model."""

    def __init__(self, model: Path, work: Path) -> None:
        settings = config.Model(path=str(model), dtype="float32")
        self._work = work
        self._numbers = iter(range(1, 10_000))
        self.learner = DeepSpeedTrainer(
            settings,
            config.Learner(device="cpu", zero_stage=0),
            resolve(config.Objective(), NUM_TOKENS),
            temperature=1.0,
            steps=1,
            seed=0,
            ranks=Ranks(0, 1, f"127.0.0.1:{_free_port()}"),
        )
        self.engine = VllmEngine(
            EngineStart(
                settings,
                config.Actors(max_running=8, kv_cache_gib=0.25, enforce_eager=True),
                max_model_len=MAX_TOKENS,
                seed=0,
                core=min(os.sched_getaffinity(0)),
                processes=EngineProcesses(work / "notes"),
            ),
            Version(1, 0),
        )

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray[Any, Any]]:
        """The learner's log-probabilities of each completion, from one packed row."""
        logprobs_T = self.learner.score(row_arrays(list(samples))).numpy()
        ends = np.cumsum([len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples])
        return [logprobs_T[end - len(sample.completion_ids) : end] for sample, end in zip(samples, ends, strict=True)]

    async def sample(self, seed: int = 3, prompt: TokenIds = PROMPT) -> Sample:
        said = await self.engine.generate(f"{next(self._numbers)}", prompt, Sampling(max_tokens=NUM_TOKENS, seed=seed))
        return sample_of(said)

    async def distance(self) -> float:
        """The largest difference of the log-probabilities of an answer of the engine."""
        answer = await self.sample()
        return float(np.abs(self.score([answer])[0] - answer.behaviour_logprobs).max())

    async def publish(self) -> None:
        """Bring the learner's weights to the engine, as a run does."""
        await self.engine.update(self._stage(self.learner.snapshot()))

    def _stage(self, buffers: Sequence[NamedBuffer]) -> StagedWeights:
        path, found, end = self._work / "staged", [], 0
        with path.open("wb") as file:
            for buffer in buffers:
                found.append(Buffer(buffer.name, buffer.dtype, buffer.shape, end, buffer.data.nbytes))
                end += file.write(buffer.data)
        version = Version(1, next(self._numbers))
        ready = WeightsReady(version=version, buffers=tuple(found), num_bytes=end, chunk_bytes=1 << 20, shards=())
        return StagedWeights(ready, path)


def groups_of(model: torch.nn.Module) -> dict[str, list[torch.nn.Parameter]]:
    """The parameters by their names without the numbers of layers."""
    groups: dict[str, list[torch.nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        groups.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).append(weight)
    return groups


async def change_each_group(pair: Pair) -> Differences:
    """Change one group of the learner's weights after the other, publish, and compare."""
    found = Differences()
    found.before = await pair.distance()
    fixed = await pair.sample()
    for name, weights in groups_of(pair.learner._model).items():
        before = pair.score([fixed])[0]
        saved = [weight.detach().clone() for weight in weights]
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in weights:
                weight.add_(torch.randn_like(weight) * weight.std().clamp(min=0.1))
        found.moved[name] = float(np.abs(pair.score([fixed])[0] - before).max())
        await pair.publish()
        found.after[name] = await pair.distance()
        with torch.no_grad():
            for weight, old in zip(weights, saved, strict=True):
                weight.copy_(old)
    await pair.publish()
    found.after["all weights back"] = await pair.distance()
    return found


async def packed_apart(pair: Pair) -> float:
    """The largest difference between samples in one row and each of them alone."""
    samples = [await pair.sample(seed) for seed in range(3)]
    together = pair.score(samples)
    return max(
        float(np.abs(pair.score([sample])[0] - row).max()) for sample, row in zip(samples, together, strict=True)
    )


def exported(pair: Pair, model: Path, folder: Path) -> bool:
    """Whether an export loads, with the weights of the learner and the names of the first model."""
    pair.learner.export(folder, config.SamplingSettings())
    loaded = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    same = all(torch.equal(loaded[name], weight) for name, weight in pair.learner._model.named_parameters())
    return same and checkpoint_shapes(folder) == checkpoint_shapes(model)


async def compare(name: str, work: Path) -> dict[str, Any]:
    """All comparisons of one family, in nats."""
    model = work / "model"
    build(FAMILIES[name], model)
    pair = Pair(model, work)
    try:
        await pair.engine.start(None)
        found = await change_each_group(pair)
        return {
            "groups": len(found.after) - 1,
            "before": found.before,
            "after": max(found.after.values()),
            "worst_group": max(found.after, key=lambda group: found.after[group]),
            "moved_least": min(found.moved.values()),
            "least_group": min(found.moved, key=lambda group: found.moved[group]),
            "packed": await packed_apart(pair),
            "export": exported(pair, model, work / "exported"),
        }
    finally:
        await pair.engine.stop()
        pair.learner.close()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(asyncio.run(compare(sys.argv[1], Path(work)))))


if __name__ == "__main__":
    main()
