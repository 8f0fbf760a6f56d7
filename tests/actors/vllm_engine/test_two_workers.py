"""A version is on all workers of a tensor-parallel engine, or on none. Real vLLM, with two workers on the CPU."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio

from olmorl import config
from olmorl.actors.vllm_engine import arguments
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.errors import EngineDied, WeightError
from tests.actors.vllm_engine.refusing_loader import VARIABLE
from tests.actors.vllm_engine.test_engine import ANSWER, MAX_MODEL_LEN, PROMPT, START, Case, Weights, untied_case
from tests.waiting import lives

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
LOADER = "tests.actors.vllm_engine.refusing_loader.RefusingLoader"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return untied_case(tmp_path_factory.mktemp("case"))


@pytest_asyncio.fixture(loop_scope="module")
async def engine(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmEngine]:
    monkeypatch.setattr(arguments, "LOADER", LOADER)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "orders"))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    order(tmp_path, "nothing")
    before = in_shared_memory()
    engine = VllmEngine(
        EngineStart(
            config.Model(path=str(case.folder), dtype=case.dtype),
            config.Actors(tensor_parallel=2, max_running=4, kv_cache_gib=0.25, enforce_eager=True),
            max_model_len=MAX_MODEL_LEN,
            seed=0,
            core=None,
            processes=EngineProcesses(tmp_path / "notes"),
        ),
        START,
    )
    await engine.start(None)
    try:
        yield engine
    finally:
        await engine.stop()
        assert in_shared_memory() <= before


def in_shared_memory() -> set[Path]:
    """The memory in which workers of engines meet."""
    return set(Path("/dev/shm").glob("vllm_dist_*"))


def order(folder: Path, what: str) -> None:
    (folder / "orders").write_text(what, encoding="ascii")


async def distance(engine: VllmEngine, case: Case, weights: Weights) -> float:
    """The largest difference between the log-probabilities of the engine and of transformers with these weights."""
    said = await engine.generate(f"request-{next(case.numbers)}", PROMPT, ANSWER)
    assert {span.version for span in said.spans} == {engine.version}
    return float(np.abs(said.logprobs - case.reference(weights, said)).max())


async def test_a_version_that_one_worker_refuses_reaches_none_and_half_a_version_ends_the_engine(
    engine: VllmEngine, case: Case, tmp_path: Path
) -> None:
    first, second = case.perturbed("q_proj"), case.perturbed("up_proj")
    workers = [process for process in psutil.Process().children(recursive=True) if "VLLM::Worker" in name_of(process)]
    assert len(workers) == 2
    order(tmp_path, "1 refuses")
    with pytest.raises(WeightError, match="refused: worker 1 does not like it"):
        await engine.update(case.stage(first))
    assert engine.version == START
    assert await distance(engine, case, case.weights) < case.tolerance < await distance(engine, case, first)
    order(tmp_path, "nothing")
    staged = case.stage(first)
    assert (await engine.update(staged)).version == engine.version == staged.manifest.version
    assert await distance(engine, case, first) < case.tolerance
    order(tmp_path, "1 loads nothing")
    with pytest.raises(EngineDied, match=r"were loaded in part: its workers answered \['1\.\d+', ''\]"):
        await engine.update(case.stage(second))
    assert not any(map(lives, workers))
    with pytest.raises(EngineDied):
        await engine.generate("late", PROMPT, ANSWER)


async def test_a_worker_that_breaks_while_it_loads_ends_the_engine(
    engine: VllmEngine, case: Case, tmp_path: Path
) -> None:
    order(tmp_path, "0 breaks")
    with pytest.raises(EngineDied, match=r"were loaded in part: .*the memory is broken"):
        await engine.update(case.stage(case.perturbed("up_proj")))
    with pytest.raises(EngineDied):
        await engine.generate("late", PROMPT, ANSWER)


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
