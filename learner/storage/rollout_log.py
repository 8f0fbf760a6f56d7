"""`rollouts/`: every draw that ended, with everything generated for it, as zstd-compressed JSON lines.

    step_000012.3.jsonl.zst             the groups of step 12 and those filtered on the way to it, by incarnation 3
    step_000013.3.partial.jsonl.zst     still being written, and readable at any time
    evaluation_000010.math.3.jsonl.zst  the answers of the set `math` to its evaluation of version 10

Readers of training groups use `files`, which has no evaluation. The records have the same fields, with the outcome
`evaluation`.

Every write is one zstd frame with a digest (`sealed_records`): changed bytes are noticed, and a file that a crash cut
off is readable up to its last whole frame. A crash loses the records that were not written; the ledger still has their
outcomes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard

from olmorl.errors import ResourceError
from olmorl.learner.background import in_thread
from olmorl.learner.storage import durable_files, sealed_records
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import ENDING, PARTIAL, Ended, name_of
from olmorl.learner.storage.rollout_writer import RolloutWriter
from olmorl.messages import Group, Result

log = logging.getLogger(__name__)
MOST_PENDING = 4096
"""Draws and steps that may wait for the disk. With more, the orchestrator waits too."""
MOST_PENDING_TOKENS = 1 << 26
"""Completion tokens that may wait for the disk, in addition to one step's: 0.8 GB."""


class _Item(NamedTuple):
    """Records that are written together or not at all."""

    records: Sequence[Ended]
    ends: int | None = None
    """The step or the evaluated version whose file these records end. Earlier records belong to it too."""
    evaluation: str = ""
    """How the file of an evaluation begins; empty for training groups."""
    restarts: bool = False
    """Whether the records of the file so far are removed first."""

    @property
    def num_tokens(self) -> int:
        return sum(ended.result.num_tokens for ended in self.records)


class RolloutLog:
    """Writes one record for each draw that ended, in the background and in the order of the outcomes."""

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        first_step: int,
        disk: DiskWriter,
        observe: Callable[[Ended], None] | None = None,
    ) -> None:
        """`observe` is called with every draw that is put."""
        self._observe = observe
        self._folder = folder
        self._disk = disk
        self._incarnation = incarnation
        self._step = first_step
        self._pending: asyncio.Queue[_Item] = asyncio.Queue(MOST_PENDING)
        self._pending_tokens = 0
        self._room = asyncio.Event()
        self._room.set()
        self._process = RolloutWriter()
        self._writer = asyncio.create_task(self._write_all())

    async def put(self, result: Result, outcome: Outcome, cause: str = "") -> None:
        """Record a draw that ended without training. Waits only while too many records wait for the disk."""
        await self._hand_over(_Item([Ended(result, outcome, None, cause)]))

    async def end_step(self, step: int, groups: Sequence[Group]) -> None:
        """Record the trained groups of `step`. Everything put before belongs to this step or an earlier one."""
        await self._hand_over(_Item([Ended(group, Outcome.TRAINED, step, "") for group in groups], step))

    async def put_evaluation(self, version: int, name: str, answers: Sequence[tuple[Result, str]]) -> None:
        """Record answers of an evaluation round, each with the cause why it does not count, if any."""
        records = [Ended(result, Outcome.EVALUATION, None, cause) for result, cause in answers]
        await self._hand_over(_Item(records, None, _evaluation(version, name)))

    async def restart_evaluation(self, version: int, name: str) -> None:
        """Remove the answers of an evaluation round that begins again, so that none is there twice."""
        await self._hand_over(_Item([], None, _evaluation(version, name), restarts=True))

    async def end_evaluation(self, version: int, name: str) -> None:
        """End the file of an evaluation round."""
        await self._hand_over(_Item([], version, _evaluation(version, name)))

    async def flush(self) -> None:
        """Wait until everything put so far is written. Raises ResourceError when the disk refused it."""
        await self._unless_failed(asyncio.ensure_future(self._pending.join()))

    async def close(self) -> None:
        """Write all pending records, and end the background task and the process."""
        try:
            await self.flush()
        finally:
            self._writer.cancel()
            await asyncio.wait([self._writer])
            await in_thread(self._process.close)

    def has(self, step: int) -> bool:
        """Whether the groups of a step are recorded already, by an earlier incarnation."""
        paths = list(self._folder.glob(f"step_{step:06d}.*"))
        return any(not path.name.endswith(PARTIAL) or self._holds(path, step) for path in paths)

    def _holds(self, path: Path, step: int) -> bool:
        try:
            return any(record["step"] == step for record in read(path))
        except ResourceError as error:
            log.warning("%s", error)
            return False

    async def _hand_over(self, item: _Item) -> None:
        if self._observe and not item.evaluation:
            for ended in item.records:
                self._observe(ended)
        await self._unless_failed(asyncio.ensure_future(self._room.wait()))
        await self._unless_failed(asyncio.ensure_future(self._pending.put(item)))
        self._count(item.num_tokens)

    async def _unless_failed(self, wait: asyncio.Future[Any]) -> None:
        try:
            await asyncio.wait([wait, self._writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            wait.cancel()
        if self._writer.done():
            self._writer.result()

    def _count(self, num_tokens: int) -> None:
        self._pending_tokens += num_tokens
        if self._pending_tokens < MOST_PENDING_TOKENS:
            self._room.set()
        else:
            self._room.clear()

    async def _write_all(self) -> None:
        items = [await self._pending.get()]
        self._process.start()  # in this thread: the process ends with the thread that starts it
        while True:
            while not self._pending.empty():
                items.append(self._pending.get_nowait())
            await self._disk.write(partial(in_thread, self._write, deque(items)))
            for item in items:
                self._pending.task_done()
                self._count(-item.num_tokens)
            items = [await self._pending.get()]

    def _write(self, items: deque[_Item]) -> None:
        """Removes the written items from `items`, so that the rest can be tried again."""
        while items:
            part = _of_one_file(items)
            begin = part[0].evaluation or f"step_{self._step:06d}"
            path = self._folder / f"{begin}.{self._incarnation}{PARTIAL}"
            if part[0].restarts:
                path.unlink(missing_ok=True)
            if records := [ended for item in part for ended in item.records]:
                self._process.append(path, records)
            for _ in part:
                items.popleft()
            if (last := part[-1]).ends is not None:
                items.appendleft(last._replace(records=[]))
                self._finish(path, last)
                items.popleft()

    def _finish(self, path: Path, last: _Item) -> None:
        begin = last.evaluation or f"step_{last.ends:06d}"
        try:
            if path.exists():
                _end_file(path)
                path.rename(self._folder / f"{begin}.{self._incarnation}{ENDING}")
        except OSError as error:
            raise durable_files.unwritable(path, error) from error
        if not last.evaluation and last.ends is not None:
            self._step = last.ends + 1


def _evaluation(version: int, name: str) -> str:
    return f"evaluation_{version:06d}.{name}"


def _of_one_file(items: Iterable[_Item]) -> list[_Item]:
    """The first items that go into one file, up to its end."""
    part: list[_Item] = []
    for item in items:
        if part and (item.restarts or item.evaluation != part[0].evaluation):
            break
        part.append(item)
        if item.ends is not None:
            break
    return part


def _end_file(path: Path) -> None:
    """Mark a file as complete, also if an earlier try did."""
    size = path.stat().st_size
    before = size - len(sealed_records.end(0))
    with path.open("rb") as file:
        file.seek(max(before, 0))
        is_ended = before >= 0 and file.read() == sealed_records.end(before)
    if not is_ended:
        durable_files.append_soon(path, sealed_records.end(size))


def read(path: Path, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Iterator[Any]:
    """The records of one file, up to its last whole frame. Its step may have ended since it was listed.

    `decode` reads one line, by default as plain data.

    Raises:
        ResourceError: it is damaged, after the records before the damage.
    """
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        path = path.with_name(path.name.removesuffix(PARTIAL) + ENDING)
        data = memoryview(path.read_bytes())
    try:
        for lines in _frames(data, name_of(path), is_complete=not path.name.endswith(PARTIAL)):
            yield from map(decode, lines.splitlines())
    except (ValueError, zstandard.ZstdError) as error:
        raise ResourceError(
            f"{path}: damaged ({error}); restore it from a copy, or remove it: nothing is trained from it, and the "
            "ledger still has the outcomes of its draws"
        ) from error


def _frames(data: memoryview, name: str, is_complete: bool) -> Iterator[bytes]:
    for frame in sealed_records.split(data, complete=is_complete, name=name):
        yield zstandard.ZstdDecompressor().decompressobj().decompress(frame)


def step_of(path: Path) -> int:
    """The step a file belongs to; of an evaluation, the version that it evaluates."""
    return int(path.name.split(".")[0].rpartition("_")[2])


def evaluation_of(path: Path) -> str | None:
    """The name of the evaluated set; None for a file of training groups."""
    kind, _, rest = name_of(path).partition(".")
    return rest.rpartition(".")[0] if kind.startswith("evaluation_") else None


def files(folder: Path) -> list[Path]:
    """The files of training groups, in the order of their steps."""
    return sorted(folder.glob(f"step_*{ENDING}"))


def evaluation_files(folder: Path) -> list[Path]:
    """The files of evaluations, in the order of their versions."""
    return sorted(folder.glob(f"evaluation_*{ENDING}"))


def retain(folder: Path, keep: str, done: int, incarnation: int) -> None:
    """Remove the files of steps and versions up to `done` that `checkpoint.rollouts` does not keep. Blocks.

    What `incarnation` still writes is kept.
    """
    rule, _, number = keep.partition(" ")
    if rule == "all":
        return
    for path in [*files(folder), *evaluation_files(folder)]:
        step = step_of(path)
        kept = step % int(number) == 0 if rule == "every" else step > done - int(number)
        kept |= path.name.endswith(f".{incarnation}{PARTIAL}")
        if step <= done and not kept:
            path.unlink(missing_ok=True)
