"""One engine on two nodes: two programs that share nothing but a network address. Real vLLM, one worker in each."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
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
from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.errors import EngineDied, WeightError
from olmorl.ports import EngineNode, Sampling, StagedWeights
from tests.actors.vllm_engine import following_node
from tests.actors.vllm_engine.refusing_loader import VARIABLE
from tests.actors.vllm_engine.test_engine import (
    ANSWER,
    MAX_MODEL_LEN,
    START,
    Case,
    ask,
    assert_covered,
    running,
    untied_case,
)
from tests.actors.vllm_engine.test_two_workers import distance, name_of, order

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
LONG = Sampling(max_tokens=240, min_tokens=240, seed=3)
Follower = subprocess.Popen[bytes]
DIED_S = 20.0
"""Longest time until a node notices the loss of a worker."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return untied_case(tmp_path_factory.mktemp("case"))


def leader(case: Case, folder: Path, node: EngineNode | None, core: int | None) -> VllmEngine:
    return VllmEngine(
        EngineStart(
            config.Model(path=str(case.folder), dtype=case.dtype),
            following_node.settings(),
            max_model_len=MAX_MODEL_LEN,
            seed=0,
            core=core,
            processes=EngineProcesses(folder / "notes"),
            node=node,
        ),
        START,
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def follower(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Follower, str]]:
    """The other node, and the address where it meets this one."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "orders"))
    order(tmp_path, "nothing")
    address = free_address()
    command = [sys.executable, "-m", following_node.__name__, str(case.folder), case.dtype, "1"]
    process = subprocess.Popen([*command, str(tmp_path / "notes"), address])
    try:
        yield process, address
    finally:
        process.kill()
        process.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(
    case: Case, follower: tuple[Follower, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[VllmEngine]:
    monkeypatch.setattr(arguments, "LOADER", following_node.LOADER)
    engine = leader(case, tmp_path, EngineNode(0, 2, follower[1]), core=0)
    try:
        await engine.start(None)
        yield engine
    finally:
        await engine.stop()


def worker_of(follower: Follower) -> psutil.Process:
    children = psutil.Process(follower.pid).children(recursive=True)
    [worker] = [child for child in children if "Worker" in name_of(child)]
    return worker


def stage(case: Case, group: str) -> tuple[dict[str, object], StagedWeights]:
    """A version on both nodes, which have the same file system here."""
    weights = case.perturbed(group)
    staged = case.stage(weights)
    return weights, staged._replace(on_followers=(file_signature(staged.path),))


async def test_two_nodes_answer_as_one_and_take_versions_together_or_not_at_all(
    engine: VllmEngine, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = await ask(engine, "first")
    assert_covered(said)
    assert await distance(engine, case, case.weights) < case.tolerance
    weights, staged = stage(case, "q_proj")
    wrong = staged._replace(on_followers=("another file",))
    with pytest.raises(WeightError, match=r"refused: worker 1: .* is not the file that was checked"):
        await engine.update(wrong)
    order(tmp_path, "1 refuses")
    with pytest.raises(WeightError, match="refused: worker 1 does not like it"):
        await engine.update(staged)
    assert engine.version == START
    order(tmp_path, "nothing")
    in_flight = await running(engine, 2, ANSWER)
    assert (await engine.update(staged)).version == engine.version == staged.manifest.version
    for spread in await asyncio.gather(*in_flight):
        assert_covered(spread)
        assert [span.version for span in spread.spans] == [START, staged.manifest.version]
    assert await distance(engine, case, weights) < case.tolerance  # type: ignore[arg-type]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    one_node = leader(case, tmp_path / "one", None, core=None)
    try:
        await one_node.start(None)
        alike = await ask(one_node, "first")
    finally:
        await one_node.stop()
    assert np.array_equal(said.token_ids, alike.token_ids)
    np.testing.assert_allclose(said.logprobs, alike.logprobs, atol=1e-5)


async def test_the_end_of_a_worker_on_the_other_node_ends_the_engine_and_the_follower(
    engine: VllmEngine, follower: tuple[Follower, str]
) -> None:
    answers = await running(engine, 2, LONG)
    began_at = time.monotonic()
    worker_of(follower[0]).kill()
    for answer in answers:
        with pytest.raises(EngineDied):
            await answer
    assert time.monotonic() - began_at < DIED_S
    assert follower[0].wait(DIED_S) == 1
