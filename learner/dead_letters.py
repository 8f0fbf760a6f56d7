"""Dead letters: prompts and results that could not be used, for people to read and to try again."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from olmorl.learner.accounts import Accounts, Outcome
from olmorl.learner.books import Books
from olmorl.messages import TRAIN_LANE
from olmorl.ports import Queue


class Letter(NamedTuple):
    """One of them, with what the ledger knows of its draw."""

    draw: int
    row: str
    reason: str
    payload: bytes


async def disown(queue: Queue, accounts: Accounts, emptied: bool) -> None:
    """Drop the letters of draws that this history does not have.

    Args:
        emptied: of the lane: no answer is on its way, and draws that have not failed by now have no letter.
    """
    letters = {letter.draw_id for letter in await queue.dead_letters(TRAIN_LANE)}
    ours = letters & accounts.draws.keys()
    if emptied:
        ours = {draw_id for draw_id in ours if accounts.draws[draw_id].outcome is Outcome.FAILED}
    await queue.drop_dead_letters(letters - ours, TRAIN_LANE)


class DeadLetters:
    """A letter leaves the queue once its row is drawn again, as a new draw; the old one has failed for good."""

    def __init__(self, queue: Queue, books: Books, turn: asyncio.Lock) -> None:
        """`turn` is held by whoever works with the books."""
        self._queue = queue
        self._books = books
        self._turn = turn

    async def look(self) -> list[Letter]:
        """All that are kept, oldest first."""
        draws = self._books.accounts.draws
        letters = await self._queue.dead_letters(TRAIN_LANE)
        return [Letter(letter.draw_id, draws[letter.draw_id].row, letter.reason, letter.payload) for letter in letters]

    async def replay(self) -> list[int]:
        """Have the rows of all letters drawn again, as the lag allows; returns the draws that are replayed."""
        async with self._turn:
            return await self._replay(self._books.accounts)

    async def _replay(self, accounts: Accounts) -> list[int]:
        failed = {
            letter.draw_id
            for letter in await self._queue.dead_letters(TRAIN_LANE)
            if accounts.draws[letter.draw_id].outcome is Outcome.FAILED
        }
        await self._queue.drop_dead_letters(failed & accounts.replayed, TRAIN_LANE)
        new = sorted(failed - accounts.replayed - set(accounts.to_replay))
        await self._books.recall(new)
        return new
