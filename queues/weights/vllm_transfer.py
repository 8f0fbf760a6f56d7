"""vLLM's `nccl` weight transfer between hosts, with the chunks of a staged version in the place of parameters.

vLLM makes the group, packs the chunks and broadcasts them. They arrive in the memory of the hosts and not in a model:
an engine loads a version only after all its hashes were compared. The one file of the queues with vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import vllm.model_executor.model_loader.mtp_validation  # noqa: F401  # or the first transfer would wait for it
from vllm.config.parallel import ParallelConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightTransferEngine,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from olmorl.ports import StagedWeights
from olmorl.queues.weights.chunks import sizes
from olmorl.queues.weights.host_cache import TakeChunk
from olmorl.queues.weights.pieces import gather

BUFFER_BYTES = 64 << 20
"""Chunks are packed until they exceed this; vLLM keeps two such buffers on the GPU."""


class SentChunks:
    """The chunks of `staged`, with the two methods of vLLM's `WeightSource` that its `nccl` sender uses.

    `moved` is called for each chunk.
    """

    def __init__(self, device: str, moved: Callable[[], None]) -> None:
        self.staged: StagedWeights | None = None
        self._device = device
        self._moved = moved

    def metadata(self) -> list[ParamMeta]:
        """Names and sizes; nothing while no version is staged."""
        if self.staged is None:
            return []
        manifest = self.staged.manifest
        return [
            ParamMeta(_name(rank, number), torch.uint8, (size,))
            for rank, shard in enumerate(manifest.shards)
            for number, size in enumerate(sizes(shard, manifest.chunk_bytes))
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.staged is None:
            return
        manifest = self.staged.manifest
        with self.staged.path.open("rb") as file:
            for rank, shard in enumerate(manifest.shards):
                for number, chunk in enumerate(gather(file.fileno(), shard.pieces, manifest.chunk_bytes)):
                    self._moved()
                    # A copy: vLLM collects several chunks before it packs them.
                    copied = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
                    yield _name(rank, number), copied.to(self._device)


class ReceivedChunks:
    """Takes the place of vLLM's model. `moved` is called for each chunk."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.take: TakeChunk | None = None
        """None: the chunks are dropped."""
        self._moved = moved

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take chunks from the device. vLLM calls this."""
        for name, tensor in named:
            self._moved()
            if self.take is not None:
                rank, number = map(int, name.split("/"))
                self.take(rank, number, tensor.cpu().numpy().data)


def open_sender(
    host: str, port: int, num_receivers: int, control: VLLMWeightSyncClient, source: SentChunks
) -> TrainerWeightTransferEngine[Any]:
    """vLLM's sending side, when all receivers have entered its group. Blocks until then, without a deadline."""
    where = NCCLTrainerInitInfo(
        rank=0,
        master_address=host,
        master_port=port,
        world_size=1 + num_receivers,
        packed_buffer_size_bytes=BUFFER_BYTES,
    )
    return WeightTransferTrainerFactory.trainer_init(where, client=control, source=source)


def open_receiver(device: str, target: ReceivedChunks) -> WeightTransferEngine[Any, Any]:
    """vLLM's receiving side, in no group yet."""
    # Of vLLM's configuration this engine reads the place of a worker among others of its model: there are none.
    configuration: Any = SimpleNamespace(parallel_config=ParallelConfig(), model_config=None)
    model: Any = target
    return WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend="nccl"), configuration, torch.device(device), model
    )


def _name(rank: int, number: int) -> str:
    return f"{rank}/{number}"
