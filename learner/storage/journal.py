"""The journal: the groups of a step, durable before the step. A restart replays them instead of generating again.

A file is a sequence of records (`sealed_records`), each a message of `codec`: a header, then the groups in the order of
the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from olmorl import codec
from olmorl.errors import ResourceError
from olmorl.learner.storage import durable_files, sealed_records
from olmorl.messages import Group, Message


class Header(Message, frozen=True, kw_only=True):
    """First record of a file."""

    step: int
    incarnation: int
    draws: list[int]


class Journal:
    """A step's file is complete or absent, and stays until a complete checkpoint covers the step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, incarnation: int, groups: Sequence[Group]) -> None:
        """Make the groups of `step` durable. Blocks. Raises ResourceError when the disk refuses."""
        header = Header(step=step, incarnation=incarnation, draws=[group.prompt.draw_id for group in groups])
        durable_files.write_whole(self.path_of(step), _records([header, *groups]))

    def read(self, step: int) -> list[Group]:
        """The groups of `step`, in order. Raises ResourceError when the file is damaged."""
        path = self.path_of(step)
        try:
            data = memoryview(path.read_bytes())
            first, *rest = sealed_records.split(data, complete=True)
            header = codec.decode(first, Header)
            groups: list[Group] = [codec.decode(record, Group) for record in rest]
            if header.step != step or header.draws != [group.prompt.draw_id for group in groups]:
                raise ValueError("its groups differ from its header")
        except (OSError, ValueError) as error:
            raise ResourceError(
                f"{path}: damaged ({error}); remove it and the steps after it to generate their prompts again"
            ) from error
        return groups

    def steps(self) -> list[int]:
        """The journaled steps, in order."""
        return sorted(int(path.stem) for path in self._folder.glob("*.batch"))

    def replayable(self, after: int) -> list[int]:
        """The journaled steps that follow step `after` without a gap."""
        steps = set(self.steps())
        last = after
        while last + 1 in steps:
            last += 1
        return list(range(after + 1, last + 1))

    def forget(self, up_to: int) -> None:
        """Remove the steps that a complete checkpoint covers."""
        for step in self.steps():
            if step <= up_to:
                self.path_of(step).unlink(missing_ok=True)

    def path_of(self, step: int) -> Path:
        """The file of one step."""
        return self._folder / f"{step:06d}.batch"


def _records(messages: Iterable[Message]) -> Iterator[bytes]:
    num_bytes = 0
    for message in messages:
        data = codec.encode(message)
        header = sealed_records.header(data)
        yield header
        yield data
        num_bytes += len(header) + len(data)
    yield sealed_records.end(num_bytes)
