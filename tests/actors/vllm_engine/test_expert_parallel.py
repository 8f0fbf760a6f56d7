"""The experts of a mixture are spread over the workers of an engine, at the start and by an update. Real vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.messages import Buffer, Completion, Version, WeightsReady
from olmorl.ports import Sampling, StagedWeights
from tests.models.families import FAMILIES, MAX_TOKENS, build

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
PROMPT = np.array([5, 9, 2, 44, 61, 7], dtype=np.int32)
ANSWER = Sampling(max_tokens=24, seed=3)
CLOSE = 1e-3
"""Nats. A moved group of weights moves the log-probabilities by far more."""


def scores(model: Any, said: Completion) -> np.ndarray[Any, Any]:
    """The log-probabilities of the answer's tokens, by transformers."""
    ids = torch.tensor([[*PROMPT, *said.token_ids]], dtype=torch.long)
    with torch.no_grad():
        logprobs_TV = model(ids).logits[0, len(PROMPT) - 1 : -1].float().log_softmax(-1)
    found: np.ndarray[Any, Any] = logprobs_TV.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
    return found


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


async def test_experts_spread_over_two_workers_compute_what_transformers_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    build(FAMILIES["OLMoE"], tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    engine = VllmEngine(
        config.Model(path=str(tmp_path / "model"), dtype="float32"),
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
        initial=Version(1, 0),
        notes=tmp_path / "notes",
    )
    try:
        await engine.start(None)
        assert engine._llm.vllm_config.parallel_config.enable_expert_parallel
        said = await engine.generate("first", PROMPT, ANSWER)
        before = scores(model, said)
        assert np.abs(said.logprobs - before).max() < CLOSE
        torch.manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "experts" in name:
                    weight.add_(torch.randn_like(weight) * weight.std())
        assert np.abs(scores(model, said) - before).max() > 100 * CLOSE, "the experts matter"
        await engine.update(staged(model, tmp_path / "staged", Version(1, 1)))
        said = await engine.generate("second", PROMPT, ANSWER)
        assert np.abs(said.logprobs - scores(model, said)).max() < CLOSE
    finally:
        await engine.stop()
