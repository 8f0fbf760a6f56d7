"""The process group of the learner's ranks, over gloo or nccl, with a deadline on every collective; and its speed."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported in a way mypy does not see

from olmorl.errors import ConfigError, DeadlinePassed
from olmorl.network import way_to

_GATHERED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes of a timed all-gather, by device."""
_ROUNDS = 3


class Ranks(NamedTuple):
    """This process among all ranks; `address` is rank 0's `host:port`."""

    rank: int
    world: int
    address: str
    timeout_s: float = 1800.0
    """Longest wait of a collective for the other ranks."""


def training_device(wanted: str) -> torch.device:
    """The device for a value of `learner.device`. A rank's process sees its GPU as device 0.

    Raises:
        ConfigError: the setting is a GPU and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError('learner.device = "cuda": torch sees no GPU here; set learner.device to "cpu" or "auto"')
    return torch.device("cuda", 0)


def join(ranks: Ranks, device: torch.device) -> None:
    """Join the process group.

    Raises:
        DeadlinePassed: not all ranks joined within `timeout_s`.
    """
    interface = way_to(ranks.address).interface
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    timeout = timedelta(seconds=ranks.timeout_s)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=_store(ranks, timeout),
            rank=ranks.rank,
            world_size=ranks.world,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    except dist.DistError as error:
        raise DeadlinePassed(
            f"learner rank {ranks.rank} waited {ranks.timeout_s:g} s for all {ranks.world} ranks at {ranks.address}: "
            f"{error}"
        ) from None


def _store(ranks: Ranks, timeout: timedelta) -> TCPStore:
    """The store that the ranks meet at. Rank 0 listens only on its own address; torch by itself listens on all."""
    host, _, port = ranks.address.rpartition(":")
    if ranks.rank > 0:
        return TCPStore(host, int(port), ranks.world, timeout=timeout)
    listening = socket.create_server((host, int(port))).detach()
    return TCPStore(host, int(port), ranks.world, is_master=True, timeout=timeout, master_listen_fd=listening)


def all_gather_bytes_per_s(outside: int, device: torch.device) -> float:
    """Speed at which the pieces of `outside` other ranks arrive in an all-gather. All ranks call this together."""
    world = dist.get_world_size()
    piece = torch.ones(_GATHERED_BYTES[device.type] // world, dtype=torch.uint8, device=device)
    whole = torch.empty(world * piece.numel(), dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(whole, piece)  # opens the connections
    dist.barrier()
    _wait_for(device)
    began_at = time.monotonic()
    for _ in range(_ROUNDS):
        dist.all_gather_into_tensor(whole, piece)
    _wait_for(device)
    seconds = time.monotonic() - began_at
    assert bool(whole.all()), "the pieces of all ranks have arrived"
    return _ROUNDS * outside * piece.numel() / seconds


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def links(interface: str, system: Path = Path("/sys/class")) -> tuple[str, float] | None:
    """The network of this host and its bytes per second: active InfiniBand ports, else the interface."""
    rates = []
    for port in sorted(system.glob("infiniband/*/ports/*")):
        with suppress(OSError):
            if "ACTIVE" in (port / "state").read_text(encoding="ascii"):
                rates += [float(rate) for rate in re.findall(r"^([\d.]+) Gb", (port / "rate").read_text("ascii"))]
    if rates:
        shown = " + ".join(f"{rates.count(rate)} x {rate:g} Gb/s" for rate in sorted(set(rates), reverse=True))
        return f"InfiniBand {shown}", sum(rates) * 1e9 / 8
    with suppress(OSError, ValueError):
        megabits = int((system / "net" / interface / "speed").read_text(encoding="ascii"))
        if megabits > 0:
            return f"{interface} {megabits / 1000:g} Gb/s", megabits * 1e6 / 8
    return None
