"""The rows of the verifier benchmark are scored correctly."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from olmorl.config import Verifiers
from olmorl.verifiers.scorer import VerifierScorer

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("measure", "verifiers"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


async def test_its_rows_are_scored(benchmark: ModuleType) -> None:
    scorer = VerifierScorer(Verifiers(timeout_s=20.0))
    await scorer.start()
    try:
        rows = benchmark.repeated([*benchmark.NUMBERS, *benchmark.ALGEBRA], 24)
        rows.append(("ifeval", benchmark.CONSTRAINTS, benchmark.ESSAY))
        assert await benchmark.checks_per_s(scorer, rows) > 0
        checked = scorer.counters["rules"]
        # The numbers are settled without a worker; algebra and the instructions are not.
        assert (checked.checks, checked.outcomes["done"]) == (len(benchmark.ALGEBRA) + 1, len(benchmark.ALGEBRA) + 1)
        rewards = []
        for dataset, label, text in rows:
            verdicts = await scorer.verify(benchmark.prompt(dataset, label), benchmark.completion(text))
            rewards.append(verdicts[dataset].reward)
        numbers, algebra = [1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0]
        assert rewards == [*numbers, *algebra, 1]
    finally:
        await scorer.stop()


def test_a_rate_is_of_what_was_asked_for(benchmark: ModuleType) -> None:
    assert set(benchmark.BENCHMARK.units) >= set(benchmark.BENCHMARK.ratio)
    assert len(benchmark.repeated(benchmark.NUMBERS, 30)) == 30
