"""What counts as solved: the built-in verifiers of a row decide, and functions only where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.solved import is_solved
from olmorl.verifiers.scorer import VerifierScorer, weigh

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]


def decide(
    built_in: str, rewards: Mapping[str, float | None], weights: Mapping[str, float], how: str, at: float | None = None
) -> bool:
    verdicts = {name: Verdict(reward=reward) for name, reward in rewards.items()}
    return is_solved(built_in.split(), verdicts, weigh(verdicts, weights, how), weights, how, at)


@pytest.mark.parametrize(
    ("built_in", "rewards", "weights", "how", "expected"),
    [
        # A wrong answer stays unsolved, whatever functions add to it.
        ("math", {"math": 0.0, "brief": 1.0}, {}, "sum", False),
        ("math", {"math": 0.0, "brief": 500.0}, {}, "sum", False),
        ("math", {"math": 0.0, "brief": 1.0}, {"brief": 9.0}, "mean", False),
        # A right answer is solved, whatever functions and weights take from it.
        ("math", {"math": 1.0, "brief": -3.0}, {}, "sum", True),
        ("math", {"math": 1.0, "brief": 0.0}, {}, "mean", True),
        ("math", {"math": 1.0, "brief": 0.0}, {}, "product", True),
        ("math", {"math": 1.0}, {"math": 0.1}, "sum", True),
        ("math", {"math": 1.0, "brief": None}, {}, "sum", True),
        ("math", {"math": 0.0}, {"math": 10.0}, "sum", False),
        # A share of tests or constraints, or a grade, is solved at its largest.
        ("code", {"code": 0.9}, {"code": 5.0}, "sum", False),
        ("code", {"code": 1.0}, {}, "sum", True),
        ("general-quality", {"general-quality": 8 / 9}, {"general-quality": 2.0}, "sum", False),
        ("general-quality", {"general-quality": 1.0}, {}, "sum", True),
        ("f1", {"f1": sum([0.1] * 10)}, {}, "sum", True),
        # Several verifiers: each of them.
        ("math format", {"math": 1.0, "format": 0.0}, {}, "sum", False),
        ("math format", {"math": 0.0, "format": 1.0}, {"format": 3.0}, "sum", False),
        ("math format", {"math": 1.0, "format": 1.0}, {}, "mean", True),
        ("math math#2", {"math": 1.0, "math#2": 0.0}, {"math": 2.0}, "sum", False),
        # One without a weight is only watched; where none has one, they count again.
        ("math format", {"math": 1.0, "format": 0.0}, {"format": 0.0}, "sum", True),
        ("math format", {"math": 0.0, "format": 1.0}, {"format": 0.0}, "sum", False),
        ("math", {"math": 0.0, "brief": 1.0}, {"math": 0.0}, "sum", False),
        ("math", {"math": 1.0, "brief": 0.0}, {"math": 0.0}, "sum", True),
        # A penalty is at its best at 0.
        ("math regex", {"math": 1.0, "regex": 0.0}, {"regex": -1.0}, "sum", True),
        ("math regex", {"math": 1.0, "regex": 1.0}, {"regex": -1.0}, "sum", False),
        # Functions alone: the largest that their weights allow.
        ("", {"brief": 1.0}, {"brief": 0.1}, "sum", True),
        ("", {"brief": 0.99}, {"brief": 10.0}, "sum", False),
        ("", {"a": 1.0, "b": 0.0}, {}, "sum", False),
        ("", {"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 0.2}, "sum", True),
        ("", {"a": 1.0, "b": 0.5}, {"a": 0.3, "b": 0.6}, "mean", False),
        ("", {"a": 1.0, "b": 1.0}, {"a": 0.3, "b": 0.6}, "mean", True),
        ("", {"a": 1.0, "b": 1.0}, {"a": 0.5, "b": 0.5}, "product", True),
        ("", {"a": 1.0, "b": 0.9}, {"a": 2.0, "b": 2.0}, "product", False),
        ("", {"a": 1.0, "b": None}, {"b": 4.0}, "sum", True),
        ("", {"a": 1.0, "toolong": 1.0}, {"toolong": -1.0}, "sum", False),
        ("", {"a": 1.0, "toolong": 0.0}, {"toolong": -1.0}, "sum", True),
        ("", {"toolong": 0.5}, {"toolong": -1.0}, "sum", False),
    ],
)
def test_the_rule(
    built_in: str, rewards: Mapping[str, float | None], weights: Mapping[str, float], how: str, expected: bool
) -> None:
    assert decide(built_in, rewards, weights, how) is expected


@pytest.mark.parametrize(("given", "at", "expected"), [(7.0, 10.0, False), (10.0, 10.0, True), (-0.1, -0.2, True)])
def test_functions_of_another_scale_say_what_their_largest_is(given: float, at: float, expected: bool) -> None:
    assert decide("", {"grade": given}, {}, "sum", at) is expected


def test_where_a_row_has_a_verifier_a_scale_of_functions_says_nothing() -> None:
    assert decide("math", {"math": 1.0, "grade": 0.0}, {}, "sum", 10.0)
    assert not decide("math", {"math": 0.0, "grade": 10.0}, {}, "sum", 10.0)


async def test_the_scorer_marks_what_is_solved(
    quick: Verifiers, reward_file: Callable[[str], str], make_prompt: Make, make_completion: MakeCompletion
) -> None:
    file = reward_file("def generous(completions, **columns):\n    return [5.0 for c in completions]\n")
    settings = quick.model_copy(update={"functions": [f"{file}:generous"], "weights": {"math": 0.1}})
    scorer = VerifierScorer(settings)
    await scorer.start()
    try:
        prompt = make_prompt(("math",), ("42",))
        group = [make_completion(r"\boxed{42}"), make_completion(r"\boxed{41}", 1)]
        verified = [replace(one, verdicts=await scorer.verify(prompt, one)) for one in group]
        right, wrong = await scorer.combine(prompt, verified)
        assert (right.solved, wrong.solved) == (True, False)
        assert (right.reward, wrong.reward) == (5.1, 5.0)
    finally:
        await scorer.stop()
