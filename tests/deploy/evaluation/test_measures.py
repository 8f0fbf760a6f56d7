"""The numbers against definitions that share no code with them: all subsets, roots of the interval's equation."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations
from math import sqrt

import pytest

from olmorl.deploy.evaluation.measures import Answers, Outcome, difference, estimate, estimates


def answers(solved: str, votes: str | None = None) -> Answers:
    """`+` solved, `-` not, `?` no reward; a vote is a digit, `.` none."""
    marks = votes or "0" * len(solved)
    return Answers(
        [
            Outcome(None if mark == "?" else mark == "+", None if vote == "." else int(vote), 10, False)
            for mark, vote in zip(solved, marks, strict=True)
        ],
        votes is not None,
    )


def mean(prompts: dict[str, Answers], name: str, samples: int, *ks: int) -> float:
    return estimates(prompts, samples, ks)[name].mean


def test_pass_at_k_is_the_share_of_all_subsets_with_a_solved_answer() -> None:
    rng = random.Random(0)
    for _ in range(50):
        solved = [rng.random() < 0.3 for _ in range(7)]
        text = "".join("+" if one else "-" for one in solved)
        for k in (2, 3, 7):
            subsets = list(combinations(solved, k))
            assert mean({"a": answers(text)}, f"pass@{k}", 7, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_avg_counts_prompts_alike_and_leaves_out_what_has_no_reward() -> None:
    prompts = {"a": answers("+-?"), "b": answers("++-"), "c": answers("???")}
    assert mean(prompts, "avg@3", 3) == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Two answers of `a` have a reward: they are no sample of three.
    assert mean(prompts, "pass@3", 3, 3) == 1.0
    assert len(estimates(prompts, 3, [3])["pass@3"].values) == 1


@pytest.mark.parametrize(
    ("solved", "votes", "k", "expected"),
    [
        ("++-", "001", 3, 1.0),
        ("+--", "011", 3, 0.0),
        ("+-", "01", 2, 0.5),  # a tie of two counts half
        ("+--", "012", 3, 1 / 3),
        ("+---", "0123", 2, 0.25),  # blocks: a tie with the right answer, and two wrong ones
        ("+--", "0..", 3, 1.0),  # no answer is no vote
        ("--", "..", 2, 0.0),
        ("++--+", "00110", 2, 0.5),  # the last answer is in no block
    ],
)
def test_the_majority(solved: str, votes: str, k: int, expected: float) -> None:
    assert mean({"a": answers(solved, votes)}, f"maj@{k}", len(solved), k) == pytest.approx(expected)


def test_programs_have_no_majority() -> None:
    assert "maj@2" not in estimates({"a": answers("+-")}, 2, [2])


def test_an_interval_of_one_sample_a_prompt_is_wilsons() -> None:
    values = {str(n): float(n < 6) for n in range(20)}
    made = estimate(values)
    # Wilson's bounds are the roots of (p - mean)^2 = z^2 p (1 - p) / n; here n is one less, by the sample variance.
    for bound in (made.low, made.high):
        assert (bound - 0.3) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / 19, rel=1e-5)
    assert made.low < 0.3 < made.high


def test_more_prompts_narrow_an_interval_and_equal_ones_have_one_too() -> None:
    few = estimate({str(n): float(n % 2) for n in range(10)})
    many = estimate({str(n): float(n % 2) for n in range(1000)})
    assert many.high - many.low < (few.high - few.low) / 5
    alike = estimate({str(n): 1.0 for n in range(30)})
    assert alike.mean == alike.high == 1.0
    assert alike.low == pytest.approx(30 / (30 + 1.959964**2), rel=1e-5)


def test_the_intervals_hold_what_they_promise() -> None:
    """Of 400 evaluations of 40 prompts with 4 samples, about 95% hold the true mean."""
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        chances = [rng.betavariate(1, 2) for _ in range(40)]
        values = {str(n): sum(rng.random() < chance for _ in range(4)) / 4 for n, chance in enumerate(chances)}
        made = estimate(values)
        held += made.low <= 1 / 3 <= made.high
    assert 0.92 <= held / 400 <= 0.98


def test_differences_are_paired() -> None:
    one = estimate({"a": 1.0, "b": 0.5, "c": 1.0, "x": 0.0})
    other = estimate({"a": 0.5, "b": 0.0, "c": 0.5, "y": 1.0})
    gap = difference(one, other)
    assert gap is not None and (gap.mean, gap.low, gap.high) == pytest.approx((0.5, 0.5, 0.5))
    moved = difference(one, estimate({"a": 1.0, "b": 0.0, "c": 0.0}))
    assert moved is not None
    mean = Fraction(3, 2) / 3
    deviation = sqrt(sum((value - mean) ** 2 for value in (0, Fraction(1, 2), 1)) / 2)
    assert moved.high == pytest.approx(float(mean) + 1.959964 * deviation / sqrt(3), rel=1e-5)
    assert difference(one, estimate({"a": 1.0})) is None
