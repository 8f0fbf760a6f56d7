"""Measures whole versions and deltas: time, CPU time and bytes of publishing and of fetching, against a copy in memory.

    python benchmarks/weight_deltas.py --json benchmarks/results/weight_deltas.json

The weights are bf16 copies of fp32 weights of scale 0.02 that each step moves by the learning rate, up or down, as Adam
does at most. Versions are published into one folder of shared memory and staged in another, so no disk and no network
takes part. From the CPU times follows the rate of a link below which deltas pay, if one core works on them; other load
on the machine changes these times little. Both kinds are measured in turns, version by version. Where the memory is too
small for that, one kind follows the other, on the same weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import measure
import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from olmorl.messages import Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.store import StagedWeightStore, store_in_files

LEARNING_RATE, SCALE = 1e-6, 0.02
TENSOR = 4 << 20
"""Weights of a tensor: 8 MiB."""
STEPS = 4
MIB = 2**20
KINDS = {"whole": 1, "delta": 32}
"""How often a version is whole."""
HELD_IN_TURNS, HELD_ONE_BY_ONE = 12, 6
"""Copies of the weights that exist at the same time, with room to spare."""


class Cost(NamedTuple):
    """Of one version."""

    publish_s: float
    publish_cpu_s: float
    fetch_s: float
    fetch_cpu_s: float
    stored_mib: float


class Row(NamedTuple):
    """One size: medians over the steps."""

    mib: int
    in_turns: bool
    changed: float
    """Share of the weights that a step changes."""
    copy_s: float
    whole: Cost
    delta: Cost

    @property
    def break_even_gb_per_s(self) -> float:
        """Of a link: below it, one core makes and applies a delta sooner than the link moves what it saves."""
        delta_s = self.delta.publish_cpu_s + self.delta.fetch_cpu_s
        more_s = delta_s - self.whole.publish_cpu_s - self.whole.fetch_cpu_s
        fewer_gb = (self.whole.stored_mib - self.delta.stored_mib) * MIB / 1e9
        return fewer_gb / more_s if more_s > 0 else float("inf")


def versions(num_tensors: int, steps: int) -> Iterator[list[NamedBuffer]]:
    """The weights after each step. A few tensors are the content of all, far apart for the compressor."""
    torch.manual_seed(0)
    masters = [torch.randn(TENSOR) * SCALE for _ in range(min(num_tensors, 4))]
    for _ in range(steps):
        for master in masters:
            master += LEARNING_RATE * torch.sign(torch.randn(TENSOR))
        rounded = [master.bfloat16().view(torch.uint8).numpy() for master in masters]
        yield [
            NamedBuffer(f"layers.{n}.weight", "bfloat16", (TENSOR,), memoryview(rounded[n % len(rounded)]))
            for n in range(num_tensors)
        ]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and CPU seconds of this process."""
    began_at, cpu_at = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began_at, time.process_time() - cpu_at


def cost(store: StagedWeightStore, version: Version, buffers: Sequence[NamedBuffer], folder: Path) -> Cost:
    published = timed(lambda: store.publish(version, buffers))
    fetched = timed(lambda: store.fetch(version))
    stored = next(folder.rglob(f"{version}.shard_0")).stat().st_size
    store.discard([version])
    return Cost(*published, *fetched, stored / MIB)


def middle(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(median, zip(*costs, strict=True)))


def rounds(mib: int) -> list[list[str]]:
    """The kinds that are measured in turns, one list after the other. Empty if the memory is too small."""
    free = psutil.virtual_memory().available
    if free >= HELD_IN_TURNS * mib * MIB:
        return [list(KINDS)]
    return [[kind] for kind in KINDS] if free >= HELD_ONE_BY_ONE * mib * MIB else []


def row(mib: int, kinds: Sequence[Sequence[str]]) -> Row:
    """Publish and fetch a few versions of both kinds."""
    costs: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    copies: list[float] = []
    changed: list[float] = []
    for in_turns in kinds:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            measure_kinds(mib, in_turns, Path(folder), costs, copies, changed)
    return Row(mib, len(kinds) == 1, median(changed), median(copies), middle(costs["whole"]), middle(costs["delta"]))


def measure_kinds(
    mib: int,
    kinds: Sequence[str],
    folder: Path,
    costs: dict[str, list[Cost]],
    copies: list[float],
    changed: list[float],
) -> None:
    """Publish and fetch each version as each kind, and copy its bytes."""
    places = {kind: folder / kind for kind in kinds}
    stores = {
        kind: store_in_files("benchmark", place / "published", shared_memory=place / "host", full_every=KINDS[kind])
        for kind, place in places.items()
    }
    before: np.ndarray | None = None
    target = np.zeros(mib * MIB, np.uint8)
    for step, buffers in enumerate(versions(mib * MIB // (2 * TENSOR), STEPS + 1)):
        first = np.frombuffer(buffers[0].data, np.uint16).copy()
        for kind, store in stores.items():
            found = cost(store, Version(1, step), buffers, places[kind] / "published")
            if step:  # the first is whole in both
                costs[kind].append(found)
        if before is not None:
            changed.append(float((before != first).mean()))
            copies.append(timed(lambda: copy_all(buffers, target))[0])  # noqa: B023
        before = first


def copy_all(buffers: Sequence[NamedBuffer], target: np.ndarray) -> None:
    """A copy of the bytes into memory that was touched before."""
    offset = 0
    for buffer in buffers:
        target[offset : offset + buffer.data.nbytes] = np.frombuffer(buffer.data, np.uint8)
        offset += buffer.data.nbytes


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="Whole versions and deltas, medians", title_justify="left")
    for heading in ("MiB", "changed", "kind", "stored MiB", "publish s", "CPU s", "fetch s", "CPU s", "copy s"):
        table.add_column(heading, justify="right")
    for found in rows:
        for kind, each in (("whole", found.whole), ("delta", found.delta)):
            seconds = (each.publish_s, each.publish_cpu_s, each.fetch_s, each.fetch_cpu_s, found.copy_s)
            numbers = [f"{each.stored_mib:,.1f}", *(f"{value:.3f}" for value in seconds)]
            table.add_row(str(found.mib), f"{found.changed:.1%}", kind, *numbers)
        table.add_section()
    console.print(table)
    rates = ", ".join(f"{found.break_even_gb_per_s:.2f} GB/s at {found.mib} MiB" for found in rows)
    console.print(f"a delta pays on links below {rates}, for each core that works on it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    needs = f"sizes; {HELD_ONE_BY_ONE} times as much memory is needed"
    parser.add_argument("--mib", type=int, nargs="+", default=[8, 64, 512, 2048], help=needs)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements there")
    arguments = parser.parse_args()
    console, rows = Console(), []
    for mib in arguments.mib:
        if kinds := rounds(mib):
            rows.append(row(mib, kinds))
        else:
            free = psutil.virtual_memory().available / 2**30
            needed = HELD_ONE_BY_ONE * mib / 1024
            console.print(f"{mib} MiB is left out: it needs {needed:.0f} GiB, and {free:.0f} are free")
    show(rows, console)
    if arguments.json:
        content = {
            "benchmark": "weight_deltas",
            "learning_rate": LEARNING_RATE,
            "rows": [
                {**found._asdict(), "whole": found.whole._asdict(), "delta": found.delta._asdict()}
                | {"break_even_gb_per_s": found.break_even_gb_per_s}
                for found in rows
            ],
        }
        measure.write(arguments.json, content, ("numpy", "zstandard", "xxhash", "torch"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
