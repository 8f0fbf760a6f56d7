"""Layers without new weights in an update: which of them are an error, and which are only reported."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import layerwise

from olmorl import codec
from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.actors.vllm_engine.weight_loader import StagedWeightLoader, _check_unloaded, _unloaded, _unsaid
from olmorl.messages import Buffer, Version, WeightsReady

pytestmark = pytest.mark.engine


class Embedding(VocabParallelEmbedding):
    """Only its weight: what vLLM does with it needs an engine."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.ones(4, 2))


class Head(ParallelLMHead):
    def __init__(self, weight: torch.nn.Parameter) -> None:
        torch.nn.Module.__init__(self)
        self.weight = weight


class Rotary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cos_sin_cache", torch.ones(8, 2), persistent=False)


def model(tied: bool) -> torch.nn.Module:
    embedding = Embedding()
    head = Head(embedding.weight if tied else torch.nn.Parameter(torch.ones(4, 2)))
    return torch.nn.ModuleDict({"embed": embedding, "rotary": Rotary(), "norm": torch.nn.LayerNorm(2), "head": head})


@pytest.mark.parametrize("tied", [True, False])
def test_tables_that_are_computed_and_a_tied_head_need_no_weights(tied: bool) -> None:
    layers: Any = model(tied)
    _check_unloaded(layers, [layers["rotary"]])
    if tied:
        _check_unloaded(layers, [layers["rotary"], layers["head"]])
    else:
        with pytest.raises(RuntimeError, match="Head got no new values for weight"):
            _check_unloaded(layers, [layers["rotary"], layers["head"]])
    with pytest.raises(RuntimeError, match="LayerNorm got no new values for weight, bias"):
        _check_unloaded(layers, [layers["norm"]])


def test_the_layers_are_the_ones_that_vllm_would_warn_of() -> None:
    """vLLM's own code names the same layers after a reload of the norm only."""
    layers: Any = model(tied=False)
    layerwise.record_metadata_for_reloading(layers)
    layerwise.initialize_layerwise_reload(layers)
    norm = layers["norm"]
    for name in ("weight", "bias"):
        getattr(norm, name).weight_loader(getattr(norm, name), torch.full((2,), 3.0))
    found = _unloaded(layers)
    assert {type(layer).__name__ for layer in found} == {"Embedding", "Rotary", "Head"}
    with heard() as records, _unsaid({"Rotary", "Head"}):
        layerwise.finalize_layerwise_processing(layers, None)  # type: ignore[arg-type]
    assert [record.getMessage() for record in records] == ["Embedding: Failed to load weights"]
    assert torch.equal(norm.weight, torch.full((2,), 3.0))


def test_it_is_silent_for_those_layers_alone_and_for_the_reload_alone() -> None:
    logger = logging.getLogger(layerwise.__name__)
    with heard() as records:
        with _unsaid({"Rotary"}):
            logger.warning("%s: Failed to load weights", "Rotary")
            logger.warning("%s: Failed to load weights", "LayerNorm")
            logger.warning("another warning of %s", "Rotary")
        logger.warning("%s: Failed to load weights", "Rotary")
    said = [record.getMessage() for record in records]
    assert said == [
        "LayerNorm: Failed to load weights",
        "another warning of Rotary",
        "Rotary: Failed to load weights",
    ]


class heard:
    """The log lines of vLLM's reload."""

    def __enter__(self) -> list[logging.LogRecord]:
        self.records: list[logging.LogRecord] = []
        self.handler = logging.Handler()
        self.handler.emit = self.records.append  # type: ignore[method-assign]
        logging.getLogger(layerwise.__name__).addHandler(self.handler)
        return self.records

    def __exit__(self, *_: object) -> None:
        logging.getLogger(layerwise.__name__).removeHandler(self.handler)


def check(path: Path, signature: str, *buffers: Buffer) -> str:
    """The answer of worker 1."""
    ready = WeightsReady(version=Version(1, 2), buffers=buffers, num_bytes=8, chunk_bytes=8, shards=())
    worker: Any = SimpleNamespace(rank=1, parallel_config=SimpleNamespace(node_rank=1), weight_parts=Parts())
    for _ in range(1000):
        answer = StagedWeightLoader.check_staged_weights(worker, str(path), ("", signature), codec.encode(ready))
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError("the pages are not touched within ten seconds")


def test_a_worker_looks_at_the_file_before_any_worker_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(8))
    checked = file_signature(path)
    assert check(path, checked, Buffer("a", "bfloat16", (2, 2), 0, 8)) == ""
    assert "a is not 8 bytes of bfloat16 (2, 3)" in check(path, checked, Buffer("a", "bfloat16", (2, 3), 0, 8))
    assert "a is not 8 bytes" in check(path, checked, Buffer("a", "bfloat16", (2, 2), 2, 8))
    assert "worker 1: a has the unknown dtype float5" in check(path, checked, Buffer("a", "float5", (2,), 0, 8))
    os.truncate(path, 7)
    assert "is not the file that was checked" in check(path, checked, Buffer("a", "bfloat16", (2, 2), 0, 8))
    path.unlink()
    assert "worker 1: [Errno 2] No such file" in check(path, checked)


class Parts:
    """Loads nothing, or fails."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault

    def prepare(self, *_: object) -> None:
        pass

    def load(self, *_: object) -> None:
        if self._fault:
            raise self._fault


def worker_with(parts: Parts, version: Version) -> Any:
    staged = SimpleNamespace(manifest=SimpleNamespace(version=version))
    return SimpleNamespace(rank=1, staged_weights=staged, weight_parts=parts)


def test_a_worker_whose_load_failed_computes_no_further_step() -> None:
    whole, broken, other = (
        worker_with(Parts(), Version(1, 2)),
        worker_with(Parts(OSError("no memory")), Version(1, 2)),
        worker_with(Parts(), Version(1, 1)),
    )
    assert StagedWeightLoader.load_staged_weights(whole, "1.2") == "1.2"
    assert not hasattr(whole, "execute_model"), "the method of the class is in use"
    with pytest.raises(OSError, match="no memory"):
        StagedWeightLoader.load_staged_weights(broken, "1.2")
    with pytest.raises(RuntimeError, match=r"worker 1 has checked weights 1\.1, not 1\.2"):
        StagedWeightLoader.load_staged_weights(other, "1.2")
    for worker in (broken, other):
        with pytest.raises(RuntimeError, match="computes no further step"):
            worker.execute_model("a step")
