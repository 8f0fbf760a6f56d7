"""vLLM's `nccl` weight transfer on the CPU: its own code, with gloo for NCCL and without streams."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from olmorl.queues.weights.transfer import TransferDevice

STALL_S = 6.0
BUFFER_BYTES = 100_000


@dataclass(frozen=True)
class OverGloo(TransferDevice):
    """A file `faults/host` has the next fault of the host: `flip`, `die` or `hang`, in its second broadcast."""

    name: str = "cpu"
    stall_s: float = STALL_S
    host: str = ""
    faults: Path | None = None

    def prepare(self) -> None:
        """Replace what needs a GPU, in a process that may be killed afterwards."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch
        import vllm.distributed.weight_transfer.nccl_common as common
        import vllm.distributed.weight_transfer.packed_tensor as packed

        from olmorl.queues.weights import vllm_transfer

        def gloo(address: str, port: int, rank: int, world_size: int, device: object) -> Communicator:
            return Communicator(address, port, rank, world_size, self)

        patched: Any = torch
        patched.accelerator.current_device_index = lambda: 0
        patched.accelerator.synchronize = lambda: None
        patched.cuda.stream = nullcontext
        patched_common: Any = common
        patched_common.stateless_init_process_group = gloo
        patched_packed: Any = packed
        patched_packed._get_streams = lambda device, number: (SimpleNamespace(synchronize=lambda: None),) * number
        vllm_transfer.BUFFER_BYTES = BUFFER_BYTES

    @property
    def is_due(self) -> bool:
        return self.faults is not None and (self.faults / self.host).exists()

    def strike(self, data: Any) -> None:
        """Do what the fault of this host says, once."""
        assert self.faults is not None
        fault = (self.faults / self.host).read_text()
        (self.faults / self.host).unlink()
        if fault == "flip":
            data[0] ^= 1
        elif fault == "die":
            os._exit(1)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)


class Communicator:
    """A group of processes with the two calls of vLLM's that the transfer makes."""

    def __init__(self, address: str, port: int, rank: int, world_size: int, device: OverGloo) -> None:
        import torch.distributed as dist

        limit = timedelta(seconds=60)
        store = dist.TCPStore(address, port, world_size, is_master=rank == 0, timeout=limit)
        self._group: Any = dist.ProcessGroupGloo(store, rank, world_size, limit)
        self._device = device
        self._warned = False

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()
        self._warned = self._device.is_due and not self._warned
        if self._device.is_due and not self._warned:
            self._device.strike(tensor)

    def destroy(self) -> None:
        self._group = None


class Members:
    """Receivers in threads of this process, as vLLM's sender sees them."""

    def __init__(self, receivers: Sequence[Any]) -> None:
        self._receivers = receivers
        self.updates: list[dict[str, Any]] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        def enter(number: int) -> None:
            receiver = self._receivers[number]
            receiver.init_transfer_engine(receiver.parse_init_info(init_info | {"rank_offset": 1 + number}))

        with ThreadPoolExecutor() as pool:
            list(pool.map(enter, range(len(self._receivers))))

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None:
        self.updates.append(update_info)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda receiver: receiver.update_weights(update_info), self._receivers))

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def lend(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OverGloo.prepare` for one test."""
    import torch
    import vllm.distributed.weight_transfer.nccl_common as common
    import vllm.distributed.weight_transfer.packed_tensor as packed

    from olmorl.queues.weights import vllm_transfer

    for owner, name in (
        (torch.accelerator, "current_device_index"),
        (torch.accelerator, "synchronize"),
        (torch.cuda, "stream"),
        (common, "stateless_init_process_group"),
        (packed, "_get_streams"),
        (vllm_transfer, "BUFFER_BYTES"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    OverGloo().prepare()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
