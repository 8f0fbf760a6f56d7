"""Runs inside vLLM's worker process: copies staged weights from shared memory into the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

import torch
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_processing, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta
from vllm.platforms import current_platform

from olmorl import codec
from olmorl.actors.vllm_engine import compat
from olmorl.actors.vllm_engine.mapped_weights import MappedWeights
from olmorl.actors.vllm_engine.merged_weights import BaseWeights, MergedWeights
from olmorl.actors.vllm_engine.weight_check import model_folder
from olmorl.messages import Buffer, WeightsReady


class StagedWeightLoader:
    """Mixed into vLLM's worker. A version is loaded only after all workers of the engine have accepted it.

    All calls come between two engine steps.
    """

    # `self` is vLLM's Worker, which refuses mixins that declare any attribute it has.
    def check_staged_weights(
        self: Any, path: str, signatures: Sequence[str], manifest: bytes, adapter_scale: float = 0.0
    ) -> str | None:
        """Why this worker cannot load a staged version; empty when it can, None when it should be asked again soon.

        Brings the pages of the file into this process, and changes nothing else.

        Args:
            signatures: for each node of the engine, of the file there whose bytes were compared with the published
                hashes.
            adapter_scale: the factor of adapters, if the version consists of them; else 0.
        """
        signature = signatures[self.parallel_config.node_rank]
        wanted = path, signature, manifest
        if getattr(self, "checked_weights", None) != wanted:
            self.checked_weights = self.staged_weights = None
            try:
                staged = MappedWeights(Path(path), signature, codec.decode(manifest, WeightsReady))
                if adapter_scale:
                    staged = MergedWeights(staged, _base_weights(self), adapter_scale, self.device)
                problems = _misfits(staged.manifest.buffers, len(staged.file))
            except (OSError, ValueError) as error:
                problems = [str(error)]
            if problems:
                return f"worker {self.rank}: {'; '.join(problems[:5])}"
            self.checked_weights, self.staged_weights = wanted, staged
        return "" if self.staged_weights.is_ready() else None

    def load_staged_weights(self: Any, version: str) -> str:
        """Copy the checked version into the model. Each tensor-parallel worker takes its own share of every tensor.

        Returns:
            The version that every parameter has now.

        Raises:
            RuntimeError: some parameters are new and some are not, or another version was checked. The worker computes
                no further step. The engine must end: other workers may have loaded the version.
        """
        self.execute_model = _refuse_step  # hides the method of the class, until all is loaded
        staged: MappedWeights = self.staged_weights
        if str(staged.manifest.version) != version:
            raise RuntimeError(f"worker {self.rank} has checked weights {staged.manifest.version}, not {version}")
        with torch.no_grad():
            _model_weights(self).load(staged)
        del self.execute_model
        return version

    def start_stall_timer(self: Any) -> None:
        """Note the time: the steps stand still."""
        self.stalled_at = time.monotonic()

    def read_stall_timer(self: Any) -> float:
        """Seconds since `start_stall_timer`: the next step can begin."""
        return float(time.monotonic() - self.stalled_at)

    def release_staged_weights(self: Any) -> None:
        """Give back the memory of the loaded version, when the engine goes on."""
        staged: MappedWeights = self.staged_weights
        self.checked_weights = self.staged_weights = None
        staged.release()


def _refuse_step(*_: object) -> NoReturn:
    raise RuntimeError("the engine holds parameters of two versions, and computes no further step")


def _base_weights(worker: Any) -> BaseWeights:
    """The weights that adapters are added to."""
    if not hasattr(worker, "base_weights"):
        worker.base_weights = BaseWeights(model_folder(worker.model_config.model))
    weights: BaseWeights = worker.base_weights
    return weights


def _model_weights(worker: Any) -> _ModelWeights:
    """The weights of the worker's model."""
    if not hasattr(worker, "model_weights"):
        worker.model_weights = _ModelWeights(worker.get_model(), worker.vllm_config)
    weights: _ModelWeights = worker.model_weights
    return weights


class _ModelWeights:
    """The parameters of a model, which `load` replaces.

    On a CPU vLLM's weight loaders write into the parameters of plain layers, and into fresh ones where the kernel has
    a packed copy alone. For other layers, and on GPUs, vLLM's reload makes each layer again from the file.
    """

    def __init__(self, model: torch.nn.Module, vllm_config: VllmConfig) -> None:
        self._model = model
        self._vllm_config = vllm_config
        self._on_accelerator = torch.accelerator.is_available()
        layers: list[Any] = list(model.modules())
        self._packed = [layer for layer in layers if _is_packed(layer)]
        direct = all(layer in self._packed or _is_as_in_a_checkpoint(layer) for layer in layers)
        self._reloads = not current_platform.is_cpu() or current_platform.is_zen_cpu() or not direct
        shared = {id(layer.weight) for layer in _embeddings(model)}
        heads = [layer for layer in layers if isinstance(layer, ParallelLMHead)]
        self._heads = [layer for layer in heads if not self._reloads or id(layer.weight) in shared]
        self._experts = [layer for layer in layers if compat.packs_experts(layer)]

    def load(self, staged: MappedWeights) -> None:
        """Give every parameter its value of the staged version, which is ready."""
        with set_current_vllm_config(self._vllm_config):
            if self._reloads:
                reload_model(self._model, staged.tensors(), self._vllm_config.model_config)
            else:
                self._load_direct(staged.tensors())
            for head in self._heads:  # its kernel on a CPU multiplies by a packed copy of the weight
                head.quant_method.process_weights_after_loading(head)
            for layer in self._experts:
                compat.pack_experts(layer)
        if self._on_accelerator:
            torch.accelerator.synchronize()  # the stall ends with the copies, not with their launch

    def _load_direct(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for layer in self._packed:
            restore_layer_on_meta(layer, get_layerwise_info(layer))
            materialize_layer(layer, get_layerwise_info(layer))
        expected = {name for name, _ in self._model.named_parameters()}
        _check_loaded(expected, self._model.load_weights(tensors))  # type: ignore[operator]
        for layer in self._packed:
            layer.quant_method.process_weights_after_loading(layer)
        for layer in self._model.modules():
            if is_deferred_attention_layer(layer):
                layer.process_weights_after_loading(self._vllm_config.model_config.dtype)  # type: ignore[operator]


def _is_as_in_a_checkpoint(layer: torch.nn.Module) -> bool:
    """Whether a layer computes with the parameters that weight loaders write."""
    method = getattr(layer, "quant_method", None)
    made, _ = get_layerwise_info(layer).restore_metadata
    present = dict(layer.named_parameters(recurse=False))
    names = made.keys() | (present.keys() - {"bias"})  # vLLM's reload leaves a bias alone, too
    return type(method) in (NoneType, UnquantizedLinearMethod, UnquantizedEmbeddingMethod) and all(
        name in made and name in present and _alike(present[name], made[name]) for name in names
    )


def _is_packed(layer: torch.nn.Module) -> bool:
    """Whether a plain layer has its weight only in the form of a CPU kernel: the parameter is empty."""
    made, buffers = get_layerwise_info(layer).restore_metadata
    weight = dict(layer.named_parameters(recurse=False)).get("weight")
    is_plain = type(getattr(layer, "quant_method", None)) is UnquantizedLinearMethod and not buffers
    return is_plain and list(made) == ["weight"] and weight is not None and not weight.numel()


def _alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (tensor.shape, tensor.stride(), tensor.dtype) == (other.shape, other.stride(), other.dtype)


def reload_model(
    model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], model_config: ModelConfig
) -> None:
    """vLLM's own reload. Raises RuntimeError if a parameter got no new value."""
    expected = {name for name, _ in model.named_parameters()}
    initialize_layerwise_reload(model)
    loaded = model.load_weights(tensors)  # type: ignore[operator]
    unloaded = _unloaded(model)
    with _unsaid({type(layer).__name__ for layer in unloaded}):
        finalize_layerwise_reload(model, model_config)
    _check_unloaded(model, unloaded)
    _check_loaded(expected, loaded)


def _check_loaded(expected: Collection[str], loaded: Collection[str]) -> None:
    """Raises RuntimeError if parameters got no new value."""
    if missing := set(expected).difference(loaded):
        raise RuntimeError(f"no new value for {sorted(missing)[:5]} ({len(missing)} parameters in all)")


def _unloaded(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that got no weights: vLLM will warn that they failed to load."""
    layers = [layer for layer in model.modules() if not is_deferred_attention_layer(layer)]
    infos = [(layer, get_layerwise_info(layer)) for layer in layers]
    return [layer for layer, info in infos if info.can_load() and not info.load_numel and info.load_numel_total]


def _check_unloaded(model: torch.nn.Module, unloaded: Sequence[torch.nn.Module]) -> None:
    """Check that every parameter was loaded, except computed ones (tables of rotary positions) and the embedding's.

    Raises:
        RuntimeError: parameters of a layer kept their old values.
    """
    embeddings = {id(layer.weight) for layer in _embeddings(model)}
    for layer in unloaded:
        own = [name for name, weight in layer.named_parameters(recurse=False) if id(weight) not in embeddings]
        if own:
            raise RuntimeError(f"{type(layer).__name__} got no new values for {', '.join(own)}")


@contextmanager
def _unsaid(layers: Collection[str]) -> Iterator[None]:
    """Suppress vLLM's warnings about layers of these classes: they are checked here."""

    known = {f"{layer}: Failed to load weights" for layer in layers}

    def is_news(record: logging.LogRecord) -> bool:
        return record.getMessage() not in known

    logger = logging.getLogger(finalize_layerwise_processing.__module__)
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def _misfits(buffers: Sequence[Buffer], size: int) -> list[str]:
    """The faults of buffers that are not tensors within a file of `size` bytes."""
    problems = []
    for buffer in buffers:
        dtype = getattr(torch, buffer.dtype, None)
        if not isinstance(dtype, torch.dtype):
            problems.append(f"{buffer.name} has the unknown dtype {buffer.dtype}")
        elif dtype.itemsize * prod(buffer.shape) != buffer.num_bytes or buffer.offset + buffer.num_bytes > size:
            problems.append(
                f"{buffer.name} is not {buffer.num_bytes} bytes of {buffer.dtype} {buffer.shape} in the file"
            )
    return problems


def _embeddings(model: torch.nn.Module) -> list[torch.nn.Module]:
    kinds = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    return [module for module in kinds if not isinstance(module, ParallelLMHead)]
