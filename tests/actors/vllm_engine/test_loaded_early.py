"""A real engine whose core was started before its model was known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import psutil
import pytest

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart, load_libraries
from tests.actors.vllm_engine.test_engine import ANSWER, MAX_MODEL_LEN, PROMPT, START, untied_case
from tests.waiting import with_command

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


async def test_its_core_is_the_early_process_and_computes_the_same(tmp_path: Path) -> None:
    case = untied_case(tmp_path)
    processes = EngineProcesses(tmp_path / "notes")
    actors = config.Actors(max_running=4, kv_cache_gib=0.25, enforce_eager=True)
    await asyncio.to_thread(load_libraries, 0, actors.start_deadline_s, processes, has_core=True)
    [early] = with_command(psutil.Process().children(), "wait_for_work")
    engine = VllmEngine(
        EngineStart(
            config.Model(path=str(case.folder), dtype=case.dtype),
            actors,
            max_model_len=MAX_MODEL_LEN,
            seed=0,
            core=0,
            processes=processes,
        ),
        START,
    )
    try:
        await engine.start(None)
        assert [core.pid for core in engine._llm.engine_core.resources.engine_manager.processes] == [early.pid]
        assert early.cpu_affinity() == [0]
        said = await engine.generate("request", PROMPT, ANSWER)
        assert float(np.abs(said.logprobs - case.reference(case.weights, said)).max()) < case.tolerance
    finally:
        await engine.stop()
    assert not psutil.pid_exists(early.pid)
