"""Generated pairs against the math verifier: nothing is paid though wrong, and few right answers are not paid."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.verifiers.fuzz.generate import pairs
from tests.verifiers.fuzz.judge import judge
from tests.verifiers.fuzz.report import ERROR, UNPAID, WRONG, counts, grouped

PAIRS, SEED = 20_000, 12
MAX_UNPAID = 0.005
"""Of the equal pairs."""


@pytest.mark.timeout(600)
async def test_nothing_is_paid_though_wrong_and_few_right_answers_are_not_paid() -> None:
    judged = await judge(pairs(PAIRS, SEED))
    found = sum(counts(judged).values(), start=Counter())
    assert found["pairs"] == PAIRS
    assert found[WRONG] == found[ERROR] == 0, grouped(judged)
    assert found[UNPAID] <= MAX_UNPAID * found["equal"], grouped(judged)
