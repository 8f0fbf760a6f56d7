"""What the pool and its worker processes say to each other: msgpack frames with a length in front. Never pickle.

pool   -> worker  Job, Job, ...        one at a time
worker -> pool    Ready, Reply, Reply  one for each Job, in order
nursery -> pool   Up, then Exited for each worker that ended
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec
import numpy as np

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 64 << 20


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Call `task`, a `module:function` of this project, with `args`."""

    task: str
    args: Any


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A worker is set up and takes jobs."""

    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A worker could not set itself up."""

    detail: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """How a job ended: `memory` means that it passed the worker's memory limit, `raised` any other exception."""

    kind: Literal["done", "memory", "raised"]
    value: Any = None
    detail: str = ""


class Up(msgspec.Struct, frozen=True, tag=True):
    """The nursery has imported what its workers need and forks on request."""


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker ended; `signal` is 0 when it left by itself."""

    pid: int
    signal: int


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a check cannot be given a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_job = msgspec.msgpack.Decoder(Job)
_answer = msgspec.msgpack.Decoder(Ready | Refused | Reply)
_notice = msgspec.msgpack.Decoder(Up | Exited)


def frame(message: Any) -> bytes:
    """Encode one message with its length. Raises TypeError or ValueError for what msgpack cannot hold."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a check of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


def read_job(body: bytes) -> Job:
    return _job.decode(body)


def read_answer(body: bytes | memoryview) -> Ready | Refused | Reply:
    """Raises msgspec.MsgspecError for anything else."""
    answer: Ready | Refused | Reply = _answer.decode(body)
    return answer


def notice(message: Up | Exited) -> bytes:
    """One datagram of the nursery."""
    return _encoder.encode(message)


def read_notice(data: bytes) -> Up | Exited:
    message: Up | Exited = _notice.decode(data)
    return message
