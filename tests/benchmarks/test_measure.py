"""The harness of the benchmarks, on a benchmark whose numbers are known."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", FOLDER / "measure.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measure", module)
    spec.loader.exec_module(module)
    return module


def test_the_ratio_is_taken_within_each_repetition(measure: ModuleType, tmp_path: Path) -> None:
    # The first repetition is the warm-up; were the ratio one of medians, it would be 30 / 60.
    service, bare = iter([999.0, 10.0, 30.0, 80.0]), iter([1.0, 100.0, 60.0, 40.0])

    @contextmanager
    def prepare(quick: bool) -> Iterator[Callable[[], Mapping[str, float]]]:
        assert quick
        yield lambda: {"service": next(service), "bare": next(bare)}

    benchmark = measure.Benchmark(
        name="known",
        title="A benchmark whose numbers are known",
        units={"service": "tokens/s", "bare": "tokens/s"},
        ratio=("service", "bare"),
        target=0.9,
        prepare=prepare,
        packages=("numpy", "no-such-distribution"),
    )
    assert measure.main(benchmark, ["--quick", "--json", str(tmp_path / "new" / "known.json")]) == 0
    written = json.loads((tmp_path / "new" / "known.json").read_text())

    assert written["benchmark"] == "known"
    assert written["ratio"] == 0.5
    assert written["spread"] == [0.1, 2.0]
    assert written["rows"][0] == {"name": "service", "unit": "tokens/s", "median": 30.0, "values": [10.0, 30.0, 80.0]}
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["packages"]["no-such-distribution"] == "not installed"
    assert written["command"] == shlex.join(["python", *sys.orig_argv[1:]])
