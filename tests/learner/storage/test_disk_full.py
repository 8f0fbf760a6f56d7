"""A full disk: the write is made again until there is room, and by name it ends."""

from __future__ import annotations

import pytest

from olmorl.clock import LoopClock, run_simulated
from olmorl.errors import DiskFull, ResourceError
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.waits import Waits


class Disk:
    """Full until a moment of simulated time."""

    def __init__(self, full_until: float) -> None:
        self.full_until = full_until
        self.clock = LoopClock()
        self.attempts = 0

    async def write(self) -> str:
        self.attempts += 1
        if self.clock.now() < self.full_until:
            raise DiskFull("journal/000004.batch: No space left on device")
        return "written"


def test_a_write_waits_for_room_and_people_see_for_what() -> None:
    disk = Disk(full_until=20.0)
    clock = disk.clock

    async def scenario() -> tuple[str, float, list[str]]:
        waits = Waits(clock)
        seen: list[str] = []

        async def write() -> str:
            seen.extend(wait.what for wait in waits.current())
            return await disk.write()

        written = await DiskWriter(clock, 60.0, waits).write(write)
        assert not waits.current()
        return written, clock.now(), seen

    written, now, seen = run_simulated(scenario())
    assert (written, now) == ("written", 20.0)
    assert set(seen) == {"room on the disk (journal/000004.batch: No space left on device)"}
    assert len(seen) == disk.attempts - 1 == 20


def test_no_room_in_time_ends_by_name() -> None:
    disk = Disk(full_until=1000.0)

    async def scenario() -> float:
        with pytest.raises(
            DiskFull, match=r"000004\.batch: No space left on device, .*--resume \(there was none within 60 s\)"
        ):
            await DiskWriter(disk.clock, 60.0).write(disk.write)
        return disk.clock.now()

    assert run_simulated(scenario()) == 60.0


def test_any_other_trouble_is_not_waited_for() -> None:
    async def write() -> None:
        raise ResourceError("journal: Input/output error")

    async def scenario() -> float:
        with pytest.raises(ResourceError, match="Input/output error"):
            await DiskWriter(LoopClock(), 60.0).write(write)
        return LoopClock().now()

    assert run_simulated(scenario()) == 0.0
