"""Calls that share a round trip: which share it, which wait, and the effect of a cancelled caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from olmorl.queues.prompts.call_batcher import CallBatcher


class Wire:
    """Answers each batch with its doubles, one turn of the loop later."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, calls: Sequence[int]) -> list[int]:
        self.batches.append(list(calls))
        await self.open.wait()
        if 13 in calls:
            raise OSError("refused")
        return [2 * call for call in calls]


async def test_calls_made_meanwhile_share_the_next_batches() -> None:
    wire = Wire()
    together = CallBatcher(wire.send, limit=3)
    wire.open.clear()
    calls = [asyncio.create_task(together(n)) for n in range(6)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(together(n)) for n in (6, 7)]
    await asyncio.sleep(0)
    wire.open.set()
    assert await asyncio.gather(*calls, *late) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert sorted(n for batch in wire.batches for n in batch) == list(range(8))
    assert max(len(batch) for batch in wire.batches) == 3
    assert len(wire.batches) <= 4


async def test_an_error_reaches_all_of_its_batch_and_no_other() -> None:
    wire = Wire()
    together = CallBatcher(wire.send, limit=2)
    wire.open.clear()
    calls = [asyncio.create_task(together(n)) for n in (1, 12, 13, 4)]
    await asyncio.sleep(0)
    wire.open.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failed = next(batch for batch in wire.batches if 13 in batch)
    for call, answer in zip((1, 12, 13, 4), answers, strict=True):
        assert isinstance(answer, OSError) if call in failed else answer == 2 * call


async def test_a_cancelled_sender_leaves_the_batch_to_the_others() -> None:
    wire = Wire()
    together = CallBatcher(wire.send, limit=8)
    wire.open.clear()
    first = asyncio.create_task(together(1))
    await asyncio.sleep(0)
    others = [asyncio.create_task(together(n)) for n in (2, 3)]
    await asyncio.sleep(0)
    first.cancel()
    wire.open.set()
    assert await asyncio.gather(*others) == [4, 6]
    with pytest.raises(asyncio.CancelledError):
        await first
