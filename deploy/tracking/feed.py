"""Hands records to a tracking process. The orchestrator never waits for it."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from olmorl import codec
from olmorl.deploy.tracking.records import Taken, TrackedAttempt, TrackedLine, TrackedRun
from olmorl.learner.storage.rollout_writer import receive, send
from olmorl.parent_death import start_child

log = logging.getLogger(__name__)
MOST_WAITING = 4096
"""Records that may wait for the process: at 1 KB each, some MB."""
CLOSE_S = 15.0
"""Longest wait for the last records at the end of a run."""
_PROGRAM = "olmorl.deploy.tracking.tracking_process"
Record = TrackedLine | TrackedAttempt


class TrackingFeed:
    """One process and the bounded queue of its records. A record that finds no room is dropped and counted."""

    def __init__(self, run: TrackedRun, environment: Mapping[str, str], most_waiting: int = MOST_WAITING) -> None:
        self._run = run
        self._environment = environment
        self._waiting: queue.Queue[Record | None] = queue.Queue(most_waiting)
        self._num_refused = 0
        """Written by `put` alone, as `_num_lost` by the thread alone."""
        self._num_lost = 0
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._send_all, name=f"feed-{run.sink}", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Records that have not arrived, and will not."""
        return self._num_refused + self._num_lost

    def put(self, record: Record) -> None:
        """Hand over a record. Returns at once."""
        try:
            if self._is_over:
                raise queue.Full
            self._waiting.put_nowait(record)
        except queue.Full:
            if self._num_refused == 0:
                log.warning("%s does not keep up: its points are dropped and counted", self._run.sink)
            self._num_refused += 1

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Wait for the waiting records, at most so long, and end the process. Blocks."""
        deadline = time.monotonic() + wait_s
        with suppress(queue.Full):
            self._waiting.put(None, timeout=wait_s)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()
        self._count_waiting()
        if self.num_dropped:
            log.warning("%s lacks %d points", self._run.sink, self.num_dropped)

    def _send_all(self) -> None:
        # The process ends with the thread that starts it.
        self._process, link = start_child(_PROGRAM, self._environment)
        record = None
        try:
            with link:
                send(link, self._run)
                while (record := self._waiting.get()) is not None:
                    send(link, record)
                    self._num_lost += codec.decode(receive(link), Taken).lost
        except (OSError, EOFError):
            self._num_lost += record is not None
            log.warning("the process of %s ended: further points are dropped and counted", self._run.sink)
        self._is_over = True
        self._count_waiting()
        self._process.wait()

    def _count_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._num_lost += self._waiting.get_nowait() is not None
