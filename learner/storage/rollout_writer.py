"""The process that writes `rollouts/`, the orchestrator's handle of it, and the messages between the two.

orchestrator -> writer   Append, then its records
writer -> orchestrator   Appended
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import zstandard

from olmorl import codec
from olmorl.errors import DiskFull, ProcessLost, ResourceError
from olmorl.learner.storage import durable_files, rollout_record, sealed_records
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Message
from olmorl.parent_death import die_with_parent, end_child, start_child

_LENGTH_BYTES = 8
_ANSWER_S = 600.0
"""Deadline of the process to take some bytes, or to answer. A step of a large run takes seconds."""
_END_S = 10.0


class Append(Message, frozen=True, kw_only=True):
    """Add the records that follow to the end of a file, all of them or none."""

    path: str
    num_records: int


class Appended(Message, frozen=True, kw_only=True):
    """The answer to `Append`. With an error, nothing was added."""

    error: str = ""
    kind: Literal["", "full", "refused", "failed"] = ""
    """The kind of the error: the disk is full, it refuses the write, or a record cannot be written."""


class RolloutWriter:
    """Encodes, compresses and appends records in a process of its own, one call after the other.

    The process ends with this object, with this process, and with the thread that started it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def start(self) -> None:
        """Start the process; returns at once. The calling thread has to live as long as the process."""
        self._process, self._link = start_child("olmorl.learner.storage.rollout_writer")
        self._link.settimeout(_ANSWER_S)

    def append(self, path: Path, records: Sequence[Ended]) -> None:
        """Add records to the end of a file, all of them or none. Blocks.

        Raises:
            DiskFull: there is no room for them.
            ResourceError: the disk refuses the write.
            ProcessLost: the process has died, hangs, or cannot write a record.
        """
        assert self._process is not None and self._link is not None, "started"
        try:
            send(self._link, Append(path=str(path), num_records=len(records)))
            for record in records:
                send(self._link, record)
            answer = codec.decode(receive(self._link), Appended)
        except TimeoutError:
            self._process.kill()
            raise ProcessLost(f"{self} has not answered for {_ANSWER_S:g} s; {path} lacks records") from None
        except (OSError, EOFError):
            raise ProcessLost(f"{self} died; {path} lacks records") from None
        if answer.kind == "full":
            raise DiskFull(answer.error)
        if answer.kind == "refused":
            raise ResourceError(answer.error)
        if answer.error:
            raise ProcessLost(f"{self} cannot write {path}: {answer.error}")

    def close(self) -> None:
        """End the process and wait for its end. Blocks."""
        if self._process is None or self._link is None:
            return
        self._link.close()
        end_child(self._process, _END_S)

    def __str__(self) -> str:
        pid = self._process.pid if self._process else "not started"
        return f"the process that writes rollouts (pid {pid})"


def send(link: socket.socket, message: object) -> None:
    """Send one message. Raises OSError."""
    data = codec.encode(message)
    link.sendall(len(data).to_bytes(_LENGTH_BYTES, "little"))
    link.sendall(data)


def receive(link: socket.socket) -> memoryview:
    """The bytes of the next message. Raises EOFError at the end of the link, OSError otherwise."""
    return _exactly(link, int.from_bytes(_exactly(link, _LENGTH_BYTES), "little"))


def _exactly(link: socket.socket, size: int) -> memoryview:
    data = rest = memoryview(bytearray(size))
    while rest:
        count = link.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return data


def main(argv: list[str]) -> None:
    """Serve until the orchestrator closes the socket."""
    link = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    while True:
        try:
            asked = codec.decode(receive(link), Append)
            send(link, _answer(asked, (receive(link) for _ in range(asked.num_records))))
        except (EOFError, OSError):
            return


def _answer(asked: Append, records: Iterator[memoryview]) -> Appended:
    try:
        _append(Path(asked.path), records)
    except DiskFull as error:
        return Appended(error=str(error), kind="full")
    except ResourceError as error:
        return Appended(error=str(error), kind="refused")
    except (TypeError, ValueError) as error:  # also errors of the encoders
        for _ in records:
            pass
        return Appended(error=f"{type(error).__name__}: {error}", kind="failed")
    return Appended()


def _append(path: Path, records: Iterator[memoryview]) -> None:
    """Add one zstd frame with its digest. Only its compressed form is held."""
    compressor = zstandard.ZstdCompressor().compressobj()
    parts = [compressor.compress(rollout_record.line(codec.decode(data, Ended))) for data in records]
    frame = b"".join([*parts, compressor.flush()])
    durable_files.append_soon(path, sealed_records.header(frame, rollout_record.name_of(path)) + frame)


if __name__ == "__main__":
    main(sys.argv[1:])
