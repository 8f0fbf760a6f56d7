"""The process of one tracker, or of the trace export, started by `TrackingFeed`. A hang costs its points alone."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from olmorl import codec
from olmorl.deploy.tracking.records import Record, Taken, TrackedRun
from olmorl.learner.storage.rollout_writer import receive, send
from olmorl.parent_death import die_with_parent

log = logging.getLogger("olmorl.tracking")
_NICE = 10


class Sink(Protocol):
    """Where records go. It may block, and may raise any error."""

    @property
    def num_kept(self) -> int:
        """Records that are not passed on yet."""

    def take(self, record: Record) -> int:
        """Pass a record on; returns how many records, this one or earlier ones, were lost."""

    def close(self) -> int:
        """Pass on what is left; returns how many records were lost."""


class Guard:
    """An error of a sink costs the records that it has not kept, and is logged once for each type."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._told: set[str] = set()

    def call(self, work: Callable[[], int], num_records: int) -> Taken:
        """Do some work of the sink on so many new records."""
        held = self._sink.num_kept + num_records
        try:
            lost = work()
        except Exception as error:
            lost, kind = held - self._sink.num_kept, type(error).__name__
            if kind not in self._told:
                self._told.add(kind)
                log.warning("a point is lost: %s: %s", kind, error)
        return Taken(lost=lost, kept=self._sink.num_kept)


def main(argv: list[str]) -> None:
    """Serve until the orchestrator ends the records."""
    link = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    os.nice(_NICE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sink = open_sink(codec.decode(receive(link), TrackedRun))
    guard = Guard(sink)
    with suppress(EOFError, OSError):
        while True:
            record = codec.decode(receive(link), Record)
            send(link, guard.call(partial(sink.take, record), 1))
    last = guard.call(sink.close, 0)
    with suppress(OSError):
        send(link, last)


def open_sink(run: TrackedRun) -> Sink:
    """The sink of a run. Imports its library."""
    if run.sink == "traces":
        from olmorl.deploy.tracking.spans import SpanSink

        return SpanSink(run)
    from olmorl.deploy.tracking.trackers import TrackerSink, open_tracker

    return TrackerSink(open_tracker(run))


if __name__ == "__main__":
    main(sys.argv[1:])
