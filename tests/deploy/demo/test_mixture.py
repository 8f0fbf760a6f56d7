"""The mixed problems: the verifier accepts each careful answer and refuses each hasty one."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from olmorl.config import Verifiers
from olmorl.deploy.demo.mixture import mixture
from olmorl.messages import Verdict
from olmorl.verifiers.scorer import VerifierScorer
from tests.verifiers.builders import make_completion, make_prompt

DOMAINS = ("math", "ifeval", "code")


def test_problems_never_repeat_and_depend_on_the_seed() -> None:
    some = list(islice(mixture(1), 2000))
    assert len({problem.question for problem in some}) == 2000
    assert list(islice(mixture(1), 2000)) == some
    assert list(islice(mixture(2), 2000)) != some
    assert min(Counter(problem.dataset for problem in some).values()) > 350


@pytest.mark.parametrize("dataset", DOMAINS)
async def test_careful_answers_are_right_and_hasty_ones_wrong(dataset: str) -> None:
    some = [problem for problem in islice(mixture(0), 200) if problem.dataset == dataset][:24]
    scorer = VerifierScorer(Verifiers())

    async def verdicts(careful: bool) -> list[Verdict]:
        told = [make_prompt((dataset,), (problem.ground_truth,)) for problem in some]
        said = [make_completion(problem.work_out(careful)) for problem in some]
        return [(await scorer.verify(p, c))[dataset] for p, c in zip(told, said, strict=True)]

    await scorer.start()
    try:
        right, wrong = await verdicts(careful=True), await verdicts(careful=False)
    finally:
        await scorer.stop()
    assert [verdict.reward for verdict in right] == [1.0] * len(some), right
    assert sum(verdict.reward or 0.0 for verdict in wrong) <= 0.15 * len(some), wrong
