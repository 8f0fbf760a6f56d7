"""Checks while data load whether a verifier can use each label: `verify(label, label)` must give full reward.

Most labels need only microseconds. The others go to worker processes, which the first of them starts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

from olmorl.config import Verifiers
from olmorl.errors import DeadlinePassed
from olmorl.verifiers.pool.fork_server import WorkerStartFailed
from olmorl.verifiers.pool.pool import RETRIES, Pool
from olmorl.verifiers.registry import WARM, all_verifiers, close, unknown

T = TypeVar("T")
BATCH = 512
"""The most labels in the pool at one time."""


class LabelChecker:
    """Checks labels within a deadline, while the caller waits. Implements `ports.LabelCheck`."""

    def __init__(self, settings: Verifiers) -> None:
        workers = max(settings.workers, min(os.cpu_count() or 1, 8))
        self._pool = Pool(workers, settings.timeout_s, settings.memory_mib, preload=WARM)
        self._verifiers = all_verifiers(settings, self._pool)
        self._deadline_s = 60 + BATCH * settings.timeout_s * (RETRIES + 2)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def check_many(self, labels: Iterable[tuple[str, Any]]) -> list[str | None]:
        """For each `(verifier, label)`: None if the label is usable, else the reason. Slow ones run in parallel."""
        reasons: list[str | None] = []
        slow: list[tuple[int, str, Any]] = []
        for index, (dataset, label) in enumerate(labels):
            verifier = self._verifiers.get(dataset)
            reasons.append(unknown(dataset, list(self._verifiers)) if verifier is None else None)
            if verifier is not None and not verifier.usable(label):
                slow.append((index, dataset, label))
        for start in range(0, len(slow), BATCH):
            batch = slow[start : start + BATCH]
            for (index, _, _), reason in zip(batch, self._wait(self._problems(batch)), strict=True):
                reasons[index] = reason
        return reasons

    async def _problems(self, batch: list[tuple[int, str, Any]]) -> list[str | None]:
        return await asyncio.gather(*(self._verifiers[dataset].problem(label) for _, dataset, label in batch))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on a separate event loop, because the caller may already be on one."""
        loop = self._started()
        try:
            return asyncio.run_coroutine_threadsafe(work, loop).result(self._deadline_s)
        except TimeoutError:
            raise DeadlinePassed(
                f"labels were not checked in {self._deadline_s:g} s (owner: LabelChecker); raise verifiers.timeout_s"
            ) from None

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            # The pool's processes die with the thread that started them, so the thread lives as long as the pool.
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="label-checks", daemon=True)
            self._thread.start()
            try:
                asyncio.run_coroutine_threadsafe(self._pool.start(), self._loop).result(self._deadline_s)
            except WorkerStartFailed as error:
                raise DeadlinePassed(f"the label checker's worker processes did not start: {error}") from None
        return self._loop

    def close(self) -> None:
        """End the pool and its thread, if they were started."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(self._deadline_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _stop(self) -> None:
        await close(self._verifiers)
        await self._pool.stop()

    def __enter__(self) -> LabelChecker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
