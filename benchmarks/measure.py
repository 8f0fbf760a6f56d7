"""Shared code of the benchmarks: interleaved repetitions, one table, one JSON file, the machine's description.

A benchmark measures every row once in each repetition, so that other load on the machine affects all rows. Its ratio is
taken within a repetition:

    BENCHMARK = Benchmark(name="...", units={"service": "tokens/s", "bare": "tokens/s"}, ratio=("service", "bare"), ...)

    if __name__ == "__main__":
        sys.exit(measure.main(BENCHMARK))
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

Values = Mapping[str, float]
"""The measurements of one repetition, by row."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One table: its rows, how one repetition is made, and the two rows whose ratio is the result."""

    name: str
    title: str
    units: Mapping[str, str]
    """Unit of each row, in the order of the table."""
    ratio: tuple[str, str]
    """The measured row, and the row that it is divided by."""
    target: float
    """The ratio that the project aims for."""
    prepare: Callable[[bool], AbstractContextManager[Callable[[], Values]]]
    """Sets up the measurement, given `quick`, and yields the function that makes one repetition."""
    packages: Sequence[str] = ()
    """Distributions whose versions are part of the description."""
    repetitions: int = 5
    quick_repetitions: int = 3
    warm_up: int = 1
    """Repetitions at the start that are not counted."""


@dataclass(frozen=True)
class Report:
    """The measurements of all repetitions of a benchmark."""

    benchmark: Benchmark
    repetitions: Sequence[Values]

    def of(self, row: str) -> list[float]:
        return [values[row] for values in self.repetitions]

    @property
    def ratios(self) -> list[float]:
        """The ratio of each repetition."""
        row, reference = self.benchmark.ratio
        return [values[row] / values[reference] for values in self.repetitions]

    def to_json(self) -> dict[str, Any]:
        """The file that `--json` writes."""
        ratios = self.ratios
        return {
            "benchmark": self.benchmark.name,
            "ratio": median(ratios),
            "ratio_of": list(self.benchmark.ratio),
            "target": self.benchmark.target,
            "spread": [min(ratios), max(ratios)],
            "rows": [
                {"name": name, "unit": unit, "median": median(self.of(name)), "values": self.of(name)}
                for name, unit in self.benchmark.units.items()
            ],
        }


def write(path: Path, document: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Write a result as JSON, with the machine, the versions of `packages`, and the command of this process."""
    command = shlex.join(["python", *sys.orig_argv[1:]])
    whole = {**document, "machine": describe_machine(packages), "command": command}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def describe_machine(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, cores, memory, system, Python, and the versions of `packages`."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in packages},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def run(benchmark: Benchmark, quick: bool) -> Report:
    """Make all repetitions of `benchmark`."""
    with benchmark.prepare(quick) as repeat:
        for _ in range(benchmark.warm_up):
            repeat()
        return Report(benchmark, [repeat() for _ in range(_repetitions(benchmark, quick))])


def _repetitions(benchmark: Benchmark, quick: bool) -> int:
    return benchmark.quick_repetitions if quick else benchmark.repetitions


def show(report: Report, console: Console) -> None:
    """Print the one table."""
    benchmark, machine = report.benchmark, describe_machine(report.benchmark.packages)
    table = Table(title=benchmark.title, title_justify="left", caption_justify="left")
    for heading in ("", "median", "lowest", "highest"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_column("unit")
    for row, unit in benchmark.units.items():
        values = report.of(row)
        table.add_row(row, *(f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in _summary(values)), unit)
    ratio, low, high = _summary(report.ratios)
    table.add_section()
    table.add_row(" / ".join(benchmark.ratio), f"{ratio:.3f}", f"{low:.3f}", f"{high:.3f}", f"aim {benchmark.target}")
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    table.caption = (
        f"{len(report.repetitions)} interleaved repetitions on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['os']}, Python {machine['python']}; {packages}"
    )
    console.print(table)


def _summary(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """The command line of every benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"benchmarks/{benchmark.name}.py", description=benchmark.title)
    parser.add_argument("--quick", action="store_true", help="less work and fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements there")
    arguments = parser.parse_args(argv)
    report = run(benchmark, arguments.quick)
    show(report, Console())
    if arguments.json:
        write(arguments.json, report.to_json(), benchmark.packages)
    return 0
