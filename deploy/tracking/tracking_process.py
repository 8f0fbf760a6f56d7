"""The process of one tracker, or of the trace export, started by `TrackingFeed`. A hang costs its points alone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from typing import Protocol

from olmorl import codec
from olmorl.deploy.tracking.records import Taken, TrackedAttempt, TrackedLine, TrackedRun
from olmorl.learner.storage.rollout_writer import receive, send
from olmorl.parent_death import die_with_parent

log = logging.getLogger("olmorl.tracking")
_NICE = 10
Record = TrackedLine | TrackedAttempt


class Sink(Protocol):
    """Where records go. It may block, and may raise any error."""

    def take(self, record: Record) -> int:
        """Pass a record on; returns how many records, this one or earlier ones, were lost."""

    def close(self) -> None:
        """Pass on what is left."""


def main(argv: list[str]) -> None:
    """Serve until the orchestrator closes the socket."""
    link = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher: the last points come after it
    os.nice(_NICE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sink = open_sink(codec.decode(receive(link), TrackedRun))
    told: set[str] = set()
    while True:
        try:
            record = codec.decode(receive(link), Record)
        except (EOFError, OSError):
            return sink.close()
        try:
            lost = sink.take(record)
        except Exception as error:
            lost, said = 1, f"{type(error).__name__}: {error}"
            if type(error).__name__ not in told:
                told.add(type(error).__name__)
                log.warning("a point is lost: %s", said)
        send(link, Taken(lost=lost))


def open_sink(run: TrackedRun) -> Sink:
    """The sink of a run. Imports its library."""
    if run.sink == "traces":
        from olmorl.deploy.tracking.spans import SpanSink

        return SpanSink(run)
    from olmorl.deploy.tracking.trackers import TrackerSink, open_tracker

    return TrackerSink(open_tracker(run))


if __name__ == "__main__":
    main(sys.argv[1:])
