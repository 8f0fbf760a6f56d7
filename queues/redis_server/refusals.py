"""Writes the messages about a Redis that does not answer, or refuses, for example on a full disk."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

from redis import exceptions

from olmorl import disk_space
from olmorl.queues.redis_server.url import Address

_ASK_S = 2.0
_FULL = tuple(os.strerror(code) for code in (ENOSPC, EDQUOT))
_MAKE_ROOM = "make room there, then continue with --resume"

Ask = Callable[[Sequence[str]], Awaitable[list[bytes]]]


async def explain(error: BaseException, address: Address, seconds: float, ask: Ask) -> str:
    """Why calls to the Redis at `address` have failed for `seconds`, and what to do.

    Args:
        error: of the last call.
        ask: sends a command that only reads.
    """
    text = str(error)
    if not isinstance(error, exceptions.ResponseError | exceptions.BusyLoadingError):
        reason = f"{type(error).__name__}{f': {text}' if text else ''}"
        return f"{address} has not answered for {seconds:g} s: {reason}"
    code = f"{error.status_code} {text}"
    if "MISCONF" in code:
        place, refuses = await _folder(address, ask), f"has refused every write for {seconds:g} s"
        if any(reason in text for reason in _FULL):
            return f"{_disk_of(address, place)}: Redis at {address} {refuses}; {_MAKE_ROOM}"
        return f"Redis at {address} cannot write to the disk{_at(place)}, and {refuses}: {text}; repair the disk"
    if "OOM" in code:
        return f"Redis at {address} has had no memory left for {seconds:g} s: {text}; raise its maxmemory"
    return f"{address} has refused calls for {seconds:g} s: {text}"


def _disk_of(address: Address, folder: Path | None) -> str:
    if folder is None:
        return f"the disk of Redis at {address} is full"
    if _is_here(address) and folder.is_dir():
        return disk_space.full(folder)
    return f"the disk of {folder} on the host of Redis is full"


def _at(folder: Path | None) -> str:
    return f" of {folder}" if folder else ""


async def _folder(address: Address, ask: Ask) -> Path | None:
    """The folder of its files; None when the service hides it."""
    with suppress(exceptions.RedisError, TimeoutError, IndexError):
        async with asyncio.timeout(_ASK_S):
            return Path((await ask(("CONFIG", "GET", "dir")))[1].decode())
    return None


def _is_here(address: Address) -> bool:
    """Whether the address belongs to this host: a socket can listen on no other."""
    if address.service:
        return False
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address.hosts[0].name else socket.AF_INET) as probe:
        probe.bind((address.hosts[0].name, 0))
        return True
    return False
