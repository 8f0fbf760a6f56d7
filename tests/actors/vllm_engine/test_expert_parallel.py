"""An update reaches the experts of a mixture that are spread over the workers of an engine. Real vLLM, on the CPU.

vLLM 0.32 loads such a model on a CPU, and cannot compute with it: its kernel there takes every expert for a local one.
So the weights themselves are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.messages import Buffer, Version, WeightsReady
from olmorl.ports import StagedWeights
from tests.models.families import FAMILIES, MAX_TOKENS, build

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
Digests = list[dict[str, str]]


def staged(model: Any, path: Path, version: Version) -> StagedWeights:
    """The weights under the names of a checkpoint."""
    buffers, end = [], 0
    with path.open("wb") as file:
        for name, tensor in revert_weight_conversion(model, model.state_dict()).items():
            data = tensor.contiguous().numpy().tobytes()
            buffers.append(Buffer(name, "float32", tuple(tensor.shape), end, len(data)))
            end += file.write(data)
    ready = WeightsReady(version=version, buffers=tuple(buffers), num_bytes=end, chunk_bytes=1 << 20, shards=())
    return StagedWeights(ready, path)


async def digests(folder: Path, notes: Path, updates: list[StagedWeights]) -> list[Digests]:
    """Of each worker's weights, after the start and after each update."""
    engine = VllmEngine(
        EngineStart(
            config.Model(path=str(folder), dtype="float32"),
            config.Actors(
                tensor_parallel=2,
                max_running=4,
                kv_cache_gib=0.25,
                enforce_eager=True,
                vllm={"enable_expert_parallel": True},
            ),
            max_model_len=MAX_TOKENS,
            seed=0,
            core=None,
            processes=EngineProcesses(notes),
        ),
        Version(1, 0),
    )
    try:
        await engine.start(None)
        assert engine._llm.vllm_config.parallel_config.enable_expert_parallel
        found = [await engine._llm.compute_weight_checksums()]
        for update in updates:
            await engine.update(update)
            found.append(await engine._llm.compute_weight_checksums())
        return found
    finally:
        await engine.stop()


def experts(found: Digests) -> list[dict[str, str]]:
    return [{name: digest for name, digest in one.items() if "experts" in name} for one in found]


async def test_an_update_gives_spread_experts_the_weights_of_an_engine_that_starts_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    first, second = tmp_path / "first", tmp_path / "second"
    build(FAMILIES["OLMoE"], first)
    build(FAMILIES["OLMoE"], second)
    model = AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    old = staged(model, tmp_path / "old", Version(1, 2))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(second)
    new = staged(model, tmp_path / "new", Version(1, 1))
    before, after, back = await digests(first, tmp_path / "notes", [new, old])
    [expected] = await digests(second, tmp_path / "notes", [])
    assert after == expected != before == back
    assert all(experts(before)) and experts(before)[0].values() != experts(before)[1].values(), "each has its own"
