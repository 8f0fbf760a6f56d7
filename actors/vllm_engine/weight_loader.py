"""Runs inside vLLM's worker process: copies staged weights from shared memory into the model."""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_processing, get_layerwise_info

from olmorl import codec
from olmorl.actors.vllm_engine.mapped_weights import MappedWeights
from olmorl.actors.vllm_engine.weight_replay import Prepared, WeightReplay
from olmorl.messages import Buffer, WeightsReady


class StagedWeightLoader:
    """Mixed into vLLM's worker. A version is loaded only after all workers of the engine have accepted it.

    All calls come between two engine steps.
    """

    # `self` is vLLM's Worker, which refuses mixins that declare any attribute it has.
    def check_staged_weights(self: Any, path: str, signatures: Sequence[str], manifest: bytes) -> str | None:
        """Why this worker cannot load a staged version; empty when it can, None when it should be asked again soon.

        Brings the pages of the file into this process, and changes nothing else.

        Args:
            signatures: for each node of the engine, of the file there whose bytes were compared with the published
                hashes.
        """
        signature = signatures[self.parallel_config.node_rank]
        wanted = path, signature, manifest
        if getattr(self, "checked_weights", None) != wanted:
            self.checked_weights = self.staged_weights = None
            try:
                prepare = _parts(self).prepare
                staged = MappedWeights(Path(path), signature, codec.decode(manifest, WeightsReady), prepare)
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
        staged: MappedWeights[Prepared | None] = self.staged_weights
        if str(staged.manifest.version) != version:
            raise RuntimeError(f"worker {self.rank} has checked weights {staged.manifest.version}, not {version}")
        with torch.no_grad():
            _parts(self).load(staged)
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
        staged: MappedWeights[Prepared | None] = self.staged_weights
        self.checked_weights = self.staged_weights = None
        staged.release()


def _refuse_step(*_: object) -> NoReturn:
    raise RuntimeError("the engine holds parameters of two versions, and computes no further step")


def _parts(worker: Any) -> _Parts:
    """The parts of the worker's model."""
    if not hasattr(worker, "weight_parts"):
        worker.weight_parts = _Parts(worker.get_model(), worker.vllm_config)
    parts: _Parts = worker.weight_parts
    return parts


class _Parts:
    """The parts of a model that updates need, found once."""

    def __init__(self, model: torch.nn.Module, vllm_config: VllmConfig) -> None:
        self._model = model
        self._vllm_config = vllm_config
        self._replay = WeightReplay(model, vllm_config)
        self._on_accelerator = torch.accelerator.is_available()
        layers = list(model.modules())
        shared = {id(layer.weight) for layer in _embeddings(model)}
        self._tied_heads = [
            layer for layer in layers if isinstance(layer, ParallelLMHead) and id(layer.weight) in shared
        ]
        self._experts: list[Any] = [layer for layer in layers if _packs_experts(getattr(layer, "quant_method", None))]

    def prepare(self, file: mmap.mmap, manifest: WeightsReady) -> Prepared | None:
        """What `load` needs and can be made without a pause; None for the first file of a layout."""
        return self._replay.prepare(file) if self._replay.knows(manifest.buffers) else None

    def load(self, staged: MappedWeights[Prepared | None]) -> None:
        """Give every parameter its value of the staged version, which is ready."""
        buffers = staged.manifest.buffers
        if staged.prepared is not None:
            self._replay.load(staged.prepared)
        else:
            tensors = dict(tensors_of(buffers, staged.file))
            optional = [name for name in tensors if name.endswith("lm_head.weight")] if self._tied_heads else []
            with (
                set_current_vllm_config(self._vllm_config),
                self._replay.recording(buffers, list(tensors.values()), optional),
            ):
                reload_model(self._model, tensors, self._vllm_config.model_config)
        self._pack_again()
        if self._on_accelerator:
            torch.accelerator.synchronize()  # the stall ends with the copies, not with their launch

    def _pack_again(self) -> None:
        """Renew packed copies that vLLM makes only at the first load."""
        if not self._tied_heads and not self._experts:
            return
        with set_current_vllm_config(self._vllm_config):
            for head in self._tied_heads:  # it shares the embedding's parameter, but the CPU back end has its own copy
                head.quant_method.process_weights_after_loading(head)
            for layer in self._experts:
                layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)


def _packs_experts(method: object) -> bool:
    """Whether the CPU back end multiplies by packed experts."""
    return isinstance(method, UnquantizedFusedMoEMethod) and method.unquantized_backend == UnquantizedMoeBackend.CPU


def reload_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], model_config: ModelConfig) -> None:
    """vLLM's own reload. Raises RuntimeError if a parameter got no new value."""
    expected = {name for name, _ in model.named_parameters()}
    initialize_layerwise_reload(model)
    loaded = model.load_weights(tensors.items())  # type: ignore[operator]
    unloaded = _unloaded(model)
    with _unsaid({type(layer).__name__ for layer in unloaded}):
        finalize_layerwise_reload(model, model_config)
    _check_unloaded(model, unloaded)
    if missing := expected - loaded:
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


def tensors_of(buffers: Sequence[Buffer], file: mmap.mmap) -> Iterator[tuple[str, torch.Tensor]]:
    """Views into the mapping, without a copy."""
    for buffer in buffers:
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        flat = torch.frombuffer(file, dtype=dtype, count=buffer.num_bytes // dtype.itemsize, offset=buffer.offset)
        yield buffer.name, flat.view(buffer.shape)


def _embeddings(model: torch.nn.Module) -> list[torch.nn.Module]:
    kinds = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    return [module for module in kinds if not isinstance(module, ParallelLMHead)]
