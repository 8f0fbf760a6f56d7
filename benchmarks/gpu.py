"""Measures learner and engine together on one GPU: a random model of 1.6B weights, answers of up to 8,192 tokens.

    python benchmarks/gpu.py --json benchmarks/results/gpu.json

`demo` and `service` are runs of the launcher, in which learner and engine share the GPU. The reward of `service` is the
parity of the number of letters, because a random model solves nothing. Of each run the steps after the first count.

`pair` is a learner and an engine in one process. The engine generates all the time. Between two of its steps it takes
versions that the learner has just trained. Learner and engine score the same sampled tokens before and after. The stall
is compared with a copy of the same bytes from host memory to the GPU, out of pages that were touched before.

`gpu_learner.py` measures the learner alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import measure
import numpy as np
import torch
from gpu_learner import GIB, WORKLOADS, build, result_of, settings_of, shard_of, timed, trainer_of

from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.deploy.cluster.device_peak import device_peak
from olmorl.deploy.demo.tiny_model import build_tokenizer
from olmorl.learner.batching.packing import row_arrays
from olmorl.messages import Buffer, Completion, Sample, TokenIds, Version, WeightsReady
from olmorl.ports import NamedBuffer, Sampling, StagedWeights

WORK: Final = WORKLOADS["1.6B"]
VOCABULARY, PROMPT, ANSWER = WORK.vocabulary, WORK.prompt, WORK.answer
MIB: Final = 2**20
SHARE: Final = 0.5
"""Part of the GPU's memory that the engine takes."""
PACKAGES = ("torch", "deepspeed", "transformers", "vllm", "triton")


def build_both(folder: Path) -> None:
    """The learner's model, with a tokenizer for the engine."""
    build(folder, WORK)
    build_tokenizer(PROMPT + ANSWER).save_pretrained(folder)


# --- learner and engine -----------------------------------------------------------------------------


class Pair:
    """A learner and an engine of one model on one GPU."""

    def __init__(self, model: Path, work: Path) -> None:
        changes = {"actors.max_running": 64, "actors.gpu_memory_utilization": SHARE}
        self.settings = settings = settings_of(model, WORK, changes, gpu_share=1 - SHARE)
        self.work, self._number = work, 0
        self.learner = trainer_of(settings)
        processes = EngineProcesses(work / "notes")
        start = EngineStart(settings.model, settings.actors, settings.max_model_len, 0, None, processes)
        self.engine = VllmEngine(start, Version(1, 0))

    async def generate(self, sampling: Sampling) -> tuple[TokenIds, Completion]:
        """A new prompt, and the engine's answer."""
        self._number += 1
        prompt = np.random.default_rng(self._number).integers(2, VOCABULARY, PROMPT).astype(np.int32)
        return prompt, await self.engine.generate(f"{self._number}", prompt, sampling)

    def difference(self, prompt: TokenIds, said: Completion) -> np.ndarray[Any, Any]:
        """By how much learner and engine differ on each token of an answer, in nats."""
        size = len(said.token_ids)
        sample = Sample(
            draw_id=0,
            prompt_ids=prompt,
            completion_ids=said.token_ids,
            behaviour_logprobs=said.logprobs,
            loss_mask=np.ones(size, np.bool_),
            lags=np.zeros(size, np.int32),
            advantage=1.0,
        )
        return np.abs(self.learner.score(row_arrays([sample])).cpu().numpy()[PROMPT:] - said.logprobs)

    def stage(self, version: Version) -> tuple[StagedWeights, float]:
        """The learner's weights as a file in shared memory, and the pause of the learner."""
        since = time.perf_counter()
        buffers: Sequence[NamedBuffer] = self.learner.snapshot()
        pause_s = time.perf_counter() - since
        path, found, end = self.work / str(version), [], 0
        with path.open("wb") as file:
            for buffer in buffers:
                found.append(Buffer(buffer.name, buffer.dtype, buffer.shape, end, buffer.data.nbytes))
                end += file.write(buffer.data)
        ready = WeightsReady(version=version, buffers=tuple(found), num_bytes=end, chunk_bytes=MIB, shards=())
        return StagedWeights(ready, path), pause_s


def copies_s(num_bytes: int) -> tuple[float, float]:
    """Seconds to copy so many bytes of touched pages to the GPU: pageable and pinned."""
    there = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    found = []
    for pinned in (False, True):
        here = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        found.append(median(timed(partial(there.copy_, here))[0] for _ in range(3)))
    return found[0], found[1]


async def pair(model: Path, work: Path) -> dict[str, Any]:
    """Agreement before and after six updates in flight, their times, and the speed of the engine around them."""
    both = Pair(model, work)
    began_at = time.monotonic()
    await both.engine.start(None)
    found: dict[str, Any] = {"engine_start_s": time.monotonic() - began_at, "gpu_share": SHARE}
    peak = device_peak(both.settings, on_gpu=True)
    found["agreement_before"] = await _agreement(both)
    answers: list[Completion] = []

    async def keep_busy() -> None:
        while True:
            answers.append((await both.generate(Sampling(max_tokens=ANSWER)))[1])

    slots = [asyncio.create_task(keep_busy()) for _ in range(both.settings.actors.max_running)]
    await asyncio.sleep(10)
    found["engine_before"] = await _rate(both.engine, peak, 20.0)
    found["updates"] = [await _update(both, number) for number in range(1, 7)]
    num_bytes = found["updates"][-1]["bytes"]
    found["copy_s"], found["pinned_copy_s"] = copies_s(num_bytes)
    probe = both.learner.probe()
    assert probe is not None
    scored = await both.engine.score(probe.token_ids)
    found["proof"] = _summary([np.abs(scored - np.array(probe.logprobs, np.float32))])
    found["agreement_after"] = await _agreement(both)
    found["engine_after"] = await _rate(both.engine, peak, 10.0)
    mixed = [said for said in answers if len(said.spans) > 1]
    found["spans"] = [[f"{span.version}", span.start, span.end] for span in (mixed[-1].spans if mixed else ())]
    found["answers"], found["mean_tokens"] = len(answers), float(np.mean([len(said.token_ids) for said in answers]))
    for slot in slots:
        slot.cancel()
    await asyncio.gather(*slots, return_exceptions=True)
    await both.engine.stop()
    both.learner.close()
    return found


async def _update(both: Pair, number: int) -> dict[str, float]:
    """Train a step, and bring its weights to the running engine. Then the engine goes on for two seconds."""
    await both.learner.train(shard_of(both.settings, WORK, number, longest=False))
    staged, pause_s = await asyncio.to_thread(both.stage, Version(1, number))
    since = time.perf_counter()
    update = await both.engine.update(staged)
    update_s = time.perf_counter() - since
    staged.path.unlink()
    await asyncio.sleep(2)
    return {
        "pause_s": pause_s,
        "update_s": update_s,
        "stall_s": update.stall_s,
        "bytes": staged.manifest.num_bytes,
    }


async def _agreement(both: Pair) -> dict[str, float]:
    """The differences of learner and engine on four answers of 512 tokens."""
    return _summary([both.difference(*await both.generate(Sampling(max_tokens=512))) for _ in range(4)])


def _summary(differences: Sequence[np.ndarray[Any, Any]]) -> dict[str, float]:
    every = np.concatenate(differences)
    return {
        "tokens": len(every),
        "mean": float(every.mean()),
        "p99": float(np.quantile(every, 0.99)),
        "largest": float(every.max()),
    }


async def _rate(engine: VllmEngine, peak: Any, seconds: float) -> dict[str, float]:
    """Tokens/s, MFU and MBU of the engine over a window."""
    since, tokens, use = time.monotonic(), engine.tokens_generated, engine.use()
    await asyncio.sleep(seconds)
    now, after = time.monotonic() - since, engine.use()
    return {
        "tokens_per_s": (engine.tokens_generated - tokens) / now,
        "mbu": (after.num_bytes - use.num_bytes) / now / peak.bytes_per_s,
        "mfu": (after.flops - use.flops) / now / peak.flops_per_s,
        "running": (after.running_s - use.running_s) / now,
    }


# --- runs of the launcher ---------------------------------------------------------------------------

RECIPE: Final = """
[model]
path = "{model}"
fp32_head = true

[data]
train = ["{work}/data.jsonl"]
max_prompt_tokens = {prompt}

[sampling]
group_size = 8
max_tokens = {answer}

[schedule]
steps = 12
prompts_per_step = 2
max_lag = 2

[learner]
learning_rate = 1e-6
gradient_checkpointing = true

[actors]
max_running = 128
gpu_memory_utilization = 0.6

[verifiers]
functions = ["{work}/reward.py:parity"]

[cluster]
gpu_memory_gib = {memory}
"""
REWARD: Final = """
def parity(completions, **columns):
    return [float(len(turns[-1]["content"]) % 2) for turns in completions]
"""
TOLD: Final = (
    "actor_tokens_per_s", "useful_tokens_per_s", "learner_step_s", "learner_wait_s", "learner_snapshot_s",
    "learner_publish_fraction", "learner_mfu", "engine_mfu", "engine_mbu", "weight_publish_s", "weight_stall_s_max",
    "weight_proof_diff_mean", "weight_proof_fraction", "kl_engine_learner_fresh", "lag_mean", "completion_tokens_mean",
)  # fmt: skip
"""Metrics of a run that are reported."""


def run_of(recipe: Path, work: Path, *more: str) -> dict[str, Any]:
    """Run the launcher; for each metric the median of the steps after the first, the least and the greatest."""
    command = [sys.executable, "-m", "olmorl.deploy.launch", str(recipe), "--run.directory", str(work), *more]
    since = time.monotonic()
    subprocess.run([*command, "--run.name", "run"], stdout=sys.stderr, check=True)
    steps = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {
        "steps": len(steps),
        "seconds": time.monotonic() - since,
        "first_step_s": steps[0]["wall_s"],
    }
    for name in TOLD:
        values = [step[name] for step in steps[1:] if step.get(name) is not None]
        found[name] = [median(values), min(values), max(values)] if values else None
    return found


def service(model: Path, work: Path) -> dict[str, Any]:
    """The whole service with the random model."""
    rows = [
        {"messages": [{"role": "user", "content": f"What is {n} + {7 * n}? Explain each step."}]} for n in range(400)
    ]
    (work / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (work / "reward.py").write_text(REWARD)
    memory = torch.cuda.get_device_properties(0).total_memory / GIB
    recipe = work / "recipe.toml"
    recipe.write_text(RECIPE.format(model=model, work=work, prompt=PROMPT, answer=ANSWER, memory=memory))
    return run_of(recipe, work)


def demo(work: Path) -> dict[str, Any]:
    """The demo, in the number format that the flash kernels need."""
    recipe = Path(__file__).resolve().parents[1] / "deploy" / "recipes" / "demo.toml"
    return run_of(recipe, work, "--model.dtype", "bfloat16")


# --- all of it --------------------------------------------------------------------------------------


RUNS: Final[Mapping[str, Callable[[Path, Path], dict[str, Any]]]] = {
    "demo": lambda model, work: demo(work),
    "service": service,
    "pair": lambda model, work: asyncio.run(pair(model, work)),
}


def _part(arguments: argparse.Namespace) -> dict[str, Any]:
    """One part, in this process."""
    if arguments.part == "model":
        build_both(arguments.model)
        return {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if arguments.part == "pair" else None) as work:
        return RUNS[arguments.part](arguments.model, Path(work))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.py", description="Learner and engine on one GPU.")
    parser.add_argument("--only", action="append", choices=tuple(RUNS), help="this part; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, or bring them up to date")
    parser.add_argument("--model", type=Path, default=Path(tempfile.gettempdir()) / "olmorl-gpu-model")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one part; default 600")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(_part(arguments)))
        return 0
    if not torch.cuda.is_available():
        print("this benchmark needs an NVIDIA GPU and a CUDA build of torch", file=sys.stderr)
        return 2
    results = json.loads(arguments.json.read_text())["parts"] if arguments.json and arguments.json.exists() else {}
    if not (arguments.model / "config.json").is_file():
        shutil.rmtree(arguments.model, ignore_errors=True)
        _run("model", arguments)
    for name in arguments.only or RUNS:
        results[name] = _run(name, arguments)
        print(name, json.dumps(results[name]), flush=True)
        if arguments.json:
            document = {"parts": results, "gpu": torch.cuda.get_device_name(), "answer_tokens": ANSWER}
            measure.write(arguments.json, document, PACKAGES)
    return int(any("failed" in result for result in results.values()))


def _run(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [str(Path(__file__).resolve()), "--part", part, "--model", str(arguments.model)]
    return result_of(command, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())
