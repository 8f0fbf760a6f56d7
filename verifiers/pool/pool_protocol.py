"""The messages between the pool and its processes: msgpack with length and number in front, never pickle.

pool -> worker       TaskCall, TaskCall, ...                  one at a time
worker -> pool       WorkerReady, TaskReply, TaskReply, ...   one TaskReply for each TaskCall, with its number
fork server -> pool  ForkServerReady, then WorkerExited for each worker that ends
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec
import numpy as np

HEADER = struct.Struct("<IQ")
"""The length of the message, and the number of the call that it is or answers."""
START = 0
"""The number of `WorkerReady` and `WorkerRefused`."""
MAX_FRAME_BYTES = 64 << 20


class TaskCall(msgspec.Struct, frozen=True, array_like=True):
    """Call `task`, a `module:function` of this project, with `args`."""

    task: str
    args: Any


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """A worker is set up and accepts calls."""

    pid: int


class WorkerRefused(msgspec.Struct, frozen=True, tag=True):
    """The setup of a worker failed."""

    detail: str


class TaskReply(msgspec.Struct, frozen=True, tag=True):
    """How a call ended. `memory` means that it exceeded the memory limit, `raised` any other exception."""

    kind: Literal["done", "memory", "raised"]
    value: Any = None
    detail: str = ""


class ForkServerReady(msgspec.Struct, frozen=True, tag=True):
    """The fork server has finished its imports and forks workers on request."""


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """A worker ended. `signal` is 0 if it exited by itself."""

    pid: int
    signal: int


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a check cannot take a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_job = msgspec.msgpack.Decoder(TaskCall)
_answer = msgspec.msgpack.Decoder(WorkerReady | WorkerRefused | TaskReply)
_notice = msgspec.msgpack.Decoder(ForkServerReady | WorkerExited)


def encode(message: Any) -> bytes:
    """Encode one message. Raises TypeError or ValueError if msgpack cannot encode it."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a check of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return body


def frame(number: int, body: bytes) -> bytes:
    """An encoded message with its header."""
    return HEADER.pack(len(body), number) + body


def read_job(body: bytes) -> TaskCall:
    return _job.decode(body)


def read_answer(body: bytes | memoryview) -> WorkerReady | WorkerRefused | TaskReply:
    """Decode a message of a worker. Raises msgspec.MsgspecError for any other data."""
    answer: WorkerReady | WorkerRefused | TaskReply = _answer.decode(body)
    return answer


def notice(message: ForkServerReady | WorkerExited) -> bytes:
    """Encode one message of the fork server."""
    return _encoder.encode(message)


def read_notice(data: bytes) -> ForkServerReady | WorkerExited:
    message: ForkServerReady | WorkerExited = _notice.decode(data)
    return message
