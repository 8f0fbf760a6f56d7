"""What runs inside vLLM's worker process: staged weights go from shared memory into the model."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from olmorl import codec
from olmorl.messages import Buffer, WeightsReady


class StagedWeightLoader:
    """Mixed into vLLM's worker. Loads a version wholly or raises; it is called between two engine steps only."""

    # `self` is vLLM's Worker, which refuses mixins that declare any attribute it has.
    def load_staged_weights(self: Any, path: str, manifest: bytes) -> str:
        """Copy a staged version into the model. Each tensor-parallel worker takes its own share of every tensor.

        Returns:
            Why nothing was touched, or an empty string when every parameter has its new value.

        Raises:
            RuntimeError: some parameters are new and some are not; the engine must not go on.
        """
        try:
            file = _map(Path(path))
        except OSError as error:
            return f"{path} cannot be mapped: {error}"
        ready: WeightsReady = codec.decode(manifest, WeightsReady)
        model: torch.nn.Module = self.get_model()
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            loaded = model.load_weights(_tensors(ready.buffers, file))  # type: ignore[operator]
            finalize_layerwise_reload(model, self.model_config)
            _refresh_tied_head(model)
        if missing := expected - loaded:
            raise RuntimeError(f"no new value for {sorted(missing)[:5]} ({len(missing)} parameters in all)")
        return ""


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _tensors(buffers: tuple[Buffer, ...], file: mmap.mmap) -> Iterator[tuple[str, torch.Tensor]]:
    """Views into the mapping, without a copy."""
    for buffer in buffers:
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        flat = torch.frombuffer(file, dtype=dtype, count=buffer.num_bytes // dtype.itemsize, offset=buffer.offset)
        yield buffer.name, flat.view(buffer.shape)


def _refresh_tied_head(model: torch.nn.Module) -> None:
    """A tied head shares the embedding's parameter, but the CPU back end multiplies by a repacked copy of its own."""
    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    for embedding in model.modules():
        if isinstance(embedding, VocabParallelEmbedding) and not isinstance(embedding, ParallelLMHead):
            for head in heads:
                if head.weight is embedding.weight:
                    head.quant_method.process_weights_after_loading(head)
