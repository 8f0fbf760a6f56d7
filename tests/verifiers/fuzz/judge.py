"""Gives pairs to the math verifier as a run does, with its real pools, and counts what it says about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple

from olmorl.verifiers.math.math_verifier import WARM, MathVerifier
from olmorl.verifiers.pool.pool import Pool
from tests.verifiers.fuzz.pairs import Pair

TIMEOUT_S = 10.0
BATCH = 100
"""Pairs that are in the pools at once."""


class Judged(NamedTuple):
    """What the verifier said about a pair."""

    pair: Pair
    reward: float | None
    method: str
    error: str = ""
    seconds: float = 0.0
    """Its share of the time of its batch."""

    @property
    def outcome(self) -> str:
        """`agrees`, `paid though wrong`, `right and not paid`, or `error`."""
        if self.reward is None or self.method == "limit":
            return "error"
        if bool(self.reward) == self.pair.truth:
            return "agrees"
        return "paid though wrong" if self.reward else "right and not paid"


async def judge(pairs: Iterable[Pair], workers: int = 1) -> list[Judged]:
    """Family by family. A pair without an answer by the deadline of the pools counts as an error."""
    pool = Pool(workers, TIMEOUT_S, preload=(WARM,))
    await pool.start()
    rule = MathVerifier(pool)
    ordered = sorted(pairs, key=lambda pair: pair.family)
    try:
        return [
            one for start in range(0, len(ordered), BATCH) for one in await _batch(rule, ordered[start : start + BATCH])
        ]
    finally:
        await rule.close()
        await pool.stop()


async def _batch(rule: MathVerifier, pairs: list[Pair]) -> list[Judged]:
    started = time.monotonic()
    verdicts = await asyncio.gather(*(rule.verify(pair.completion, pair.label) for pair in pairs))
    each = (time.monotonic() - started) / len(pairs)
    return [
        Judged(pair, verdict.reward, verdict.method or "", verdict.error_kind or "", each)
        for pair, verdict in zip(pairs, verdicts, strict=True)
    ]
