"""The process that writes `rollouts/`, started by `RolloutWriter`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import zstandard

from olmorl import codec
from olmorl.errors import DiskFull, ResourceError
from olmorl.learner.storage import durable_files, rollout_record, sealed_records
from olmorl.learner.storage.rollout_record import Ended
from olmorl.learner.storage.rollout_writer import Append, Appended, receive, send
from olmorl.parent_death import die_with_parent


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
    durable_files.append_soon(path, sealed_records.header(frame) + frame)


if __name__ == "__main__":
    main(sys.argv[1:])
