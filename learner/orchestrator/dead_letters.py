"""Dead letters: prompts and results that could not be used. People can read them and have their rows drawn again."""

from __future__ import annotations

from typing import NamedTuple

from olmorl.learner.orchestrator.draw_lifecycle import DrawLifecycle
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.messages import TRAIN_LANE
from olmorl.ports import Queue


class Letter(NamedTuple):
    """A dead letter, with the row of its draw."""

    draw: int
    row: str
    reason: str
    payload: bytes


async def drop_foreign(queue: Queue, state: LedgerState, emptied: bool) -> None:
    """Drop the letters of draws that are not part of this history.

    Args:
        emptied: the lane was emptied. Then no result can still arrive, and only failed draws keep their letters.
    """
    letters = {letter.draw_id for letter in await queue.dead_letters(TRAIN_LANE)}
    if emptied:
        ours = letters & (state.failed.keys() | state.to_replay.keys())
    else:
        ours = {draw_id for draw_id in letters if draw_id < state.num_drawn}
    await queue.drop_dead_letters(letters - ours, TRAIN_LANE)


class DeadLetters:
    """A letter leaves the queue when its row is drawn again. The old draw stays failed; the new draw has its own id."""

    def __init__(self, queue: Queue, lifecycle: DrawLifecycle) -> None:
        self._queue = queue
        self._lifecycle = lifecycle

    async def letters(self) -> list[Letter]:
        """All dead letters, oldest first."""
        state = self._lifecycle.state
        draws = state.open | state.failed | state.to_replay
        letters = await self._queue.dead_letters(TRAIN_LANE)
        return [
            Letter(letter.draw_id, draws[letter.draw_id].row, letter.reason, letter.payload)
            for letter in letters
            if letter.draw_id in draws
        ]

    async def replay(self) -> list[int]:
        """Draw the rows of all letters again, as the lag allows; returns their old draws."""
        async with self._lifecycle.exclusive():
            state = self._lifecycle.state
            letters = {letter.draw_id for letter in await self._queue.dead_letters(TRAIN_LANE)}
            waiting = state.open.keys() | state.failed.keys() | state.to_replay.keys()
            await self._queue.drop_dead_letters(letters - waiting, TRAIN_LANE)
            new = sorted(letters & state.failed.keys())
            await self._lifecycle.recall(new)
            return new
