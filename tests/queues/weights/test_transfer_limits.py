"""How long a host waits for a transfer, and over which network the hosts meet."""

from __future__ import annotations

import os

import pytest

from olmorl.messages import Version, WeightsReady
from olmorl.queues.weights import transfer
from olmorl.queues.weights.transfer import HostTransfer, TransferDevice


@pytest.mark.parametrize(("num_bytes", "limit_s"), [(0, 10.0), (10**10, 10.0 + 20.0 + 20.0), (10**12, 150.0)])
def test_the_limit_has_both_ways_of_a_version_and_leaves_time_for_the_store(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, limit_s: float
) -> None:
    """From the store to the sender, and from there to the hosts."""
    asked: list[float] = []
    host = HostTransfer("run", None, 150.0, TransferDevice(stall_s=10.0), "one")  # type: ignore[arg-type]
    monkeypatch.setattr(host, "_ask", lambda _, limit: asked.append(limit) or "")
    host.bring(WeightsReady(version=Version(1, 2), buffers=(), num_bytes=num_bytes, chunk_bytes=1, shards=()))
    assert asked == [limit_s]


def test_nccl_uses_the_network_of_ray_unless_another_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # restored after the test
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    monkeypatch.setattr(transfer.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    transfer._prepare_environment(None)
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("=lo", "7")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    transfer._prepare_environment("0,1")
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("eth7", "0,1")
