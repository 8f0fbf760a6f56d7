"""A version goes into the parameters or through vLLM's reload; a layer without new weights is an error."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import layerwise

from olmorl import codec
from olmorl.actors.vllm_engine import weight_loader
from olmorl.actors.vllm_engine.mapped_weights import tensors_of
from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.actors.vllm_engine.weight_loader import (
    StagedWeightLoader,
    _check_unloaded,
    _ModelWeights,
    _unloaded,
    _unsaid,
)
from olmorl.messages import Buffer, Version, WeightsReady

pytestmark = [pytest.mark.engine, pytest.mark.doors]


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
    worker: Any = SimpleNamespace(rank=1, parallel_config=SimpleNamespace(node_rank=1))
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


class Weights:
    """Loads nothing, or fails."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault

    def load(self, *_: object) -> None:
        if self._fault:
            raise self._fault


def worker_with(weights: Weights, version: Version) -> Any:
    staged = SimpleNamespace(manifest=SimpleNamespace(version=version))
    return SimpleNamespace(rank=1, staged_weights=staged, model_weights=weights)


def test_a_worker_whose_load_failed_computes_no_further_step() -> None:
    whole, broken, other = (
        worker_with(Weights(), Version(1, 2)),
        worker_with(Weights(OSError("no memory")), Version(1, 2)),
        worker_with(Weights(), Version(1, 1)),
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


SHAPES = {"norm.weight": (32,), "dense.q": (64, 32), "dense.k": (64, 32), "turned.weight": (4, 6)}
HALVES = {"q": 0, "k": 1}
CONFIG: Any = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.float32))


class Turned(QuantizeMethodBase):
    """A method that computes the model's weight from the loaded one."""

    def create_weights(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> None:
        raise AssertionError("the layer makes its own")

    def apply(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> torch.Tensor:
        raise AssertionError("nothing is computed here")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.weight = torch.nn.Parameter(layer.weight.data.t().contiguous(), requires_grad=False)


class Layer(torch.nn.Module):
    def __init__(self, shape: tuple[int, ...], method: QuantizeMethodBase) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.quant_method = method


def load_half(param: torch.Tensor, loaded_weight: torch.Tensor, half: int) -> None:
    param.data[64 * half : 64 * (half + 1)].copy_(loaded_weight)


class Model(torch.nn.Module):
    """`dense` is made of two tensors of the checkpoint; `turned` is there only when asked for."""

    def __init__(self, *, turns: bool) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32, bias=False)
        self.dense = Layer((128, 32), UnquantizedLinearMethod())
        self.dense.weight.weight_loader = load_half  # type: ignore[attr-defined]
        if turns:
            self.turned = Layer((4, 6), Turned())
        layerwise.record_metadata_for_reloading(self)
        for layer in self.children():
            if isinstance(layer, Layer):
                layer.quant_method.process_weights_after_loading(layer)
        self.skipped = ""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            layer, _, part = name.partition(".")
            if name == self.skipped or not hasattr(self, layer):
                continue
            weight = self.get_parameter(f"{layer}.weight")
            if part in HALVES:
                weight.weight_loader(weight, tensor, HALVES[part])  # type: ignore[attr-defined]
            else:
                getattr(weight, "weight_loader", layerwise.default_weight_loader)(weight, tensor)
            loaded.add(f"{layer}.weight")
        return loaded


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in bfloat16 on a processor without instructions for it."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no kernel for this dtype")

    monkeypatch.setattr(utils, "check_cpu_sgl_kernel", lambda *_: False)
    monkeypatch.setattr(utils.ops, "create_onednn_mm", refuse)


def staged(seed: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A mapped weight file, and its tensors as copies."""
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    file, buffers = bytearray(), []
    for name, tensor in tensors.items():
        buffers.append(Buffer(name, "float32", tuple(tensor.shape), len(file), tensor.nbytes))
        file += tensor.numpy().tobytes()
    mapped = SimpleNamespace(tensors=lambda: tensors_of(buffers, file))  # type: ignore[arg-type]
    return mapped, tensors


def assert_computes_with(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    inputs = torch.randn(5, 32)
    weight = torch.cat([tensors["dense.q"], tensors["dense.k"]])
    torch.testing.assert_close(model.dense.cpu_linear(inputs, model.dense.weight, None), inputs @ weight.t())
    assert torch.equal(model.norm.weight, tensors["norm.weight"])
    if hasattr(model, "turned"):
        assert torch.equal(model.turned.weight, tensors["turned.weight"].t())


@pytest.mark.parametrize(
    ("has_kernels", "turns", "direct"),
    [(False, False, True), (False, True, False), (True, False, True), (True, True, False)],
)
def test_each_version_reaches_the_kernels(
    monkeypatch: pytest.MonkeyPatch, has_kernels: bool, turns: bool, direct: bool
) -> None:
    """A model with a layer that computes its weight from the loaded one goes through vLLM's reload."""

    def reload(*arguments: Any) -> None:
        reloads.append("")
        weight_loader_reload(*arguments)

    reloads: list[str] = []
    weight_loader_reload = weight_loader.reload_model
    monkeypatch.setattr(weight_loader, "reload_model", reload)
    if not has_kernels:
        without_kernels(monkeypatch)
    model: Any = Model(turns=turns)
    assert (model.dense.weight.numel() == 0) is has_kernels
    weights, before = _ModelWeights(model, CONFIG), model.norm.weight
    for seed in (1, 2, 3):
        version, tensors = staged(seed)
        with torch.no_grad():
            weights.load(version)
        assert_computes_with(model, tensors)
        assert model.norm.weight is before
        assert (model.dense.weight.numel() == 0) is has_kernels
    assert len(reloads) == (0 if direct else 3)


@pytest.mark.parametrize("turns", [False, True])
def test_a_parameter_without_a_new_value_is_an_error(monkeypatch: pytest.MonkeyPatch, turns: bool) -> None:
    without_kernels(monkeypatch)
    model = Model(turns=turns)
    model.skipped = "norm.weight"
    with pytest.raises(RuntimeError, match=r"norm\.weight|LayerNorm got no new values"), torch.no_grad():
        _ModelWeights(model, CONFIG).load(staged(1)[0])


def test_a_head_of_its_own_kernel_is_packed_after_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel keeps a packed copy of the head beside the parameter."""

    class PackedHead(Head):
        def __init__(self) -> None:
            super().__init__(torch.nn.Parameter(torch.zeros(4, 2), requires_grad=False))
            self.quant_method = SimpleNamespace(process_weights_after_loading=self.pack)
            self.packed = torch.zeros(4, 2)

        def pack(self, layer: Any) -> None:
            assert layer is self
            self.packed = self.weight.detach().clone()

    class HeadOnly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = Embedding(), PackedHead()
            self.head.weight = self.embed.weight

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
            for _, tensor in weights:
                self.embed.weight.weight_loader(self.embed.weight, tensor)  # type: ignore[attr-defined, operator]
            return {"embed.weight"}

    model = HeadOnly()
    model.embed.weight.weight_loader = layerwise.default_weight_loader  # type: ignore[attr-defined]
    layerwise.record_metadata_for_reloading(model)
    tensor = torch.randn(4, 2)
    buffers = [Buffer("embed.weight", "float32", (4, 2), 0, tensor.nbytes)]
    file: Any = bytearray(tensor.numpy().tobytes())
    version: Any = SimpleNamespace(tensors=lambda: tensors_of(buffers, file))
    with torch.no_grad():
        _ModelWeights(model, CONFIG).load(version)
    assert torch.equal(model.head.packed, tensor)
