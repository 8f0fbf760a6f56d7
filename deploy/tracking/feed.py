"""Hands records to a tracking process. The orchestrator never waits for it."""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from olmorl import codec
from olmorl.deploy.tracking.records import Record, Taken, TrackedRun
from olmorl.learner.storage.rollout_writer import receive, send
from olmorl.parent_death import end_child, start_child

log = logging.getLogger(__name__)
MOST_WAITING = 4096
"""Records that may wait for the process: at 1 KB each, some MB."""
CLOSE_S = 15.0
"""Longest wait for the last records at the end of a run."""
_ANSWER_S = 600.0
"""Deadline of the process to take a record. After that it counts as lost."""
_END_S = 5.0
"""Longest wait for its end, once it has taken everything or was killed."""
_PROGRAM = "olmorl.deploy.tracking.tracking_process"


class TrackingFeed:
    """One process and the bounded queue of its records. A record that is not passed on is dropped and counted."""

    def __init__(self, run: TrackedRun, environment: Mapping[str, str], most_waiting: int = MOST_WAITING) -> None:
        self._run = run
        self._environment = environment
        self._waiting: queue.Queue[Record | None] = queue.Queue(most_waiting)
        self._counting = threading.Lock()
        self._num_dropped = 0
        self._num_kept = 0
        """Records that the process has taken, and not passed on yet."""
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._thread = threading.Thread(target=self._send_all, name=f"feed-{run.sink}", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Records that have not arrived, and will not."""
        return self._num_dropped

    def put(self, record: Record) -> None:
        """Hand over a record, from any thread. Returns at once."""
        try:
            if self._is_over:
                raise queue.Full
            self._waiting.put_nowait(record)
        except queue.Full:
            if self._drop(1) == 1:
                log.warning("%s does not keep up: its points are dropped and counted", self._run.sink)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Wait for the waiting records, at most so long, and end the process. Blocks."""
        deadline = time.monotonic() + wait_s
        if not self._is_over:
            with suppress(queue.Full):
                self._waiting.put(None, timeout=wait_s)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive() and self._process is not None and self._link is not None:
            self._process.kill()
            with suppress(OSError):  # a child of the process may hold the other end open
                self._link.shutdown(socket.SHUT_RDWR)
            self._thread.join(2 * _END_S)
        self._drop_waiting()
        if self.num_dropped:
            log.warning("%s lacks %d points", self._run.sink, self.num_dropped)

    def _send_all(self) -> None:
        record = None
        try:
            # The process ends with the thread that starts it.
            self._process, self._link = start_child(_PROGRAM, self._environment)
            with self._link as link:
                link.settimeout(_ANSWER_S)
                send(link, self._run)
                while (record := self._waiting.get()) is not None:
                    send(link, record)
                    self._note(codec.decode(receive(link), Taken))
                link.shutdown(socket.SHUT_WR)
                self._note(codec.decode(receive(link), Taken))
        except Exception as error:  # also of a record that cannot be encoded: the run goes on without the tracker
            said = f"{type(error).__name__}: {error}"
            log.warning("the process of %s ended: further points are dropped and counted (%s)", self._run.sink, said)
        finally:
            self._is_over = True
            self._drop(self._num_kept + (record is not None))
            self._drop_waiting()
            if self._process is not None:
                end_child(self._process, _END_S)

    def _note(self, taken: Taken) -> None:
        self._num_kept = taken.kept
        self._drop(taken.lost)

    def _drop(self, num_records: int) -> int:
        """Count dropped records; returns how many there are so far."""
        with self._counting:
            self._num_dropped += num_records
            return self._num_dropped

    def _drop_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._drop(self._waiting.get_nowait() is not None)
