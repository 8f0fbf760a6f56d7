"""One reward from several verdicts; what could not be scored fails the group and is never a 0."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.errors import RewardFunctionError, Unscorable
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.scorer import VerifierScorer, token_rewards, weigh

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]


def verdicts(**rewards: float | None) -> dict[str, Verdict]:
    return {name: Verdict(reward=reward) for name, reward in rewards.items()}


@pytest.mark.parametrize(
    ("how", "expected"),
    [("sum", 2 * 0.5 + 3 * 1.0), ("mean", (2 * 0.5 + 3 * 1.0) / 5), ("product", (2 * 0.5) * (3 * 1.0))],
)
def test_weights_by_hand(how: str, expected: float) -> None:
    assert weigh(verdicts(a=0.5, b=1.0), {"a": 2.0, "b": 3.0}, how) == pytest.approx(expected)


def test_what_does_not_apply_does_not_count() -> None:
    assert weigh(verdicts(a=0.5, b=None), {"b": 9.0}, "mean") == 0.5


@pytest.mark.parametrize(
    ("given", "weights", "how", "kind"),
    [
        (verdicts(a=None, b=None), {}, "sum", "nothing_applies"),
        ({}, {}, "sum", "nothing_applies"),
        ({"a": Verdict(reward=None, error_kind="timeout"), "b": Verdict(reward=1.0)}, {}, "sum", "timeout"),
        (verdicts(a=1.0, b=1.0), {"a": 1.0, "b": -1.0}, "mean", "weights"),
        (verdicts(a=1e308, b=1e308), {}, "sum", "not_finite"),
        (verdicts(a=-1e99), {"a": 1e60}, "sum", "not_finite"),
    ],
)
def test_a_group_without_a_reward_says_why(
    given: dict[str, Verdict], weights: dict[str, float], how: str, kind: str
) -> None:
    with pytest.raises(Unscorable) as failed:
        weigh(given, weights, how)
    assert failed.value.error_kind == kind


def by_token(*rewards: float) -> Verdict:
    values = np.array(rewards, np.float32)
    return Verdict(reward=float(np.nansum(values)), token_rewards=values)


NAN = math.nan


@pytest.mark.parametrize(
    ("how", "expected"),
    # 2 times (0.5, -, 0.25, -), and 3 times a reward of 1 for the whole, which comes with the last token.
    [("sum", [1.0, NAN, 0.5, 3.0]), ("mean", [0.2, NAN, 0.1, 0.6])],
)
def test_rewards_of_tokens_by_hand(how: str, expected: list[float]) -> None:
    given = {"a": by_token(0.5, NAN, 0.25, NAN), "b": Verdict(reward=1.0), "c": Verdict(reward=None)}
    weights = {"a": 2.0, "b": 3.0}
    found = token_rewards(given, weights, how, 4)
    assert np.asarray(found) == pytest.approx(expected, nan_ok=True)
    assert np.nansum(np.asarray(found)) == pytest.approx(weigh(given, weights, how))


def test_without_rewards_of_tokens_there_are_no_parts() -> None:
    assert token_rewards(verdicts(a=1.0), {}, "sum", 3) is UNSET
    assert np.asarray(token_rewards({"a": by_token(1.0, 0.5)}, {}, "product", 2)).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("given", "weights", "how", "kind"),
    [
        ({"a": by_token(1.0), "b": Verdict(reward=1.0)}, {}, "product", "token_rewards"),
        ({"a": by_token(3e38, 0.0)}, {"a": 10.0}, "sum", "not_finite"),
    ],
)
def test_rewards_of_tokens_that_have_no_parts_fail(
    given: dict[str, Verdict], weights: dict[str, float], how: str, kind: str
) -> None:
    with pytest.raises(Unscorable, match="a: ") as failed:
        token_rewards(given, weights, how, len(np.asarray(given["a"].token_rewards)))
    assert failed.value.error_kind == kind


async def test_a_group_of_which_a_function_rewards_tokens(
    reward_file: Callable[[str], str], quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    file = reward_file(
        "def steps(completions, completion_ids, wanted, **columns):\n"
        "    return [[0.5] * (len(ids) + extra) for ids, extra in zip(completion_ids, wanted)]\n"
    )
    group = [replace(make_completion("no", n), token_ids=np.arange(2 + n, dtype=np.int32)) for n in range(2)]
    settings = quick.model_copy(update={"functions": [f"{file}:steps*2"]})
    prompt = make_prompt(columns={"wanted": 0})
    scorer = VerifierScorer(settings)
    await scorer.start()
    try:
        first, second = await scorer.combine(prompt, await verified(scorer, prompt, group))
        assert (first.reward, second.reward) == (2.0, 3.0)
        assert np.asarray(first.token_rewards).tolist() == [1.0, 1.0]
        assert second.verdicts["steps"].token_rewards is UNSET, "the completion has them"
        longer = make_prompt(columns={"wanted": 1})
        with pytest.raises(Unscorable, match="steps: returned 3 rewards for the 2 tokens of completion 0"):
            await scorer.combine(longer, await verified(scorer, longer, group))
    finally:
        await scorer.stop()


async def verified(scorer: VerifierScorer, prompt: Prompt, completions: list[Completion]) -> list[Completion]:
    return [replace(c, verdicts=await scorer.verify(prompt, c)) for c in completions]


async def test_a_whole_group(
    quick: Verifiers, reward_file: Callable[[str], str], make_prompt: Make, make_completion: MakeCompletion
) -> None:
    file = reward_file(
        "def brief(completions, **columns):\n    return [1.0 if len(c) < 20 else 0.0 for c in completions]\n"
    )
    settings = quick.model_copy(update={"functions": [f"{file}:brief*0.5"], "weights": {"math": 2.0}})
    scorer = VerifierScorer(settings)
    await scorer.start()
    try:
        prompt = make_prompt(("math", "math", "string_match"), ("42", r"\sqrt{1764}", "42"))
        group = [make_completion(r"\boxed{42}"), make_completion("a long story that ends with 41", 1)]
        first, second = await scorer.combine(prompt, await verified(scorer, prompt, group))
        assert set(first.verdicts) == {"math", "math#2", "string_match", "brief"}
        assert first.reward == 2.0 + 1.0 + 1.0 + 0.5
        assert second.reward == 0.0
        assert first.verdicts["math#2"].method == "algebra"
        assert first.verdicts["math"].seconds > 0
        assert scorer.counters["rules"].checks == 2
        assert scorer.counters["functions"].checks == 1
        counts = scorer.counts()
        assert (counts["rules"]["checks"], counts["rules"]["outcomes.done"], counts["rules"]["queue_depth"]) == (
            2,
            2,
            0,
        )
        assert counts["functions"]["checks"] == 1
    finally:
        await scorer.stop()


async def test_thinking_blank_answers_and_unknown_verifiers(
    quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    scorer = VerifierScorer(quick)
    await scorer.start()
    try:
        plain = make_prompt(("math",), ("42",))
        opened = make_prompt(("math",), ("42",), thinking_opened=True)
        for prompt, text, reward in [
            (plain, r"<think>\boxed{42}", 0.0),
            (plain, r"<think>\boxed{41}</think>\boxed{42}", 1.0),
            (opened, r"\boxed{42}", 0.0),
            (opened, r"hm</think>\boxed{42}", 1.0),
            (plain, "", 0.0),
            (plain, " \n", 0.0),
        ]:
            verdict = (await scorer.verify(prompt, make_completion(text)))["math"]
            assert (verdict.reward, verdict.error_kind) == (reward, None), text
        prompt = make_prompt(("mathh",), ("42",))
        group = await verified(scorer, prompt, [make_completion("42")])
        assert group[0].verdicts["mathh"].reward is None
        with pytest.raises(Unscorable, match="did you mean 'math'"):
            await scorer.combine(prompt, group)
        with pytest.raises(Unscorable, match="missing_verdict"):
            await scorer.combine(plain, [make_completion("42")])
        with pytest.raises(Unscorable, match="nothing_applies"):
            await scorer.combine(make_prompt(), [make_completion("42")])
    finally:
        await scorer.stop()


@pytest.mark.parametrize("name", ["regex", "ifeval", "string_match", "f1", "multiple_choice", "format"])
async def test_lone_surrogates_and_null_bytes_are_scored(
    name: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    label: Any = {"func_name": "validate_no_commas"} if name == "ifeval" else "a"
    scorer = VerifierScorer(quick)
    await scorer.start()
    try:
        for text in ("a \ud800", "\udfff", "a\x00", "\x00"):
            verdicts = await scorer.verify(make_prompt((name,), (label,)), make_completion(text))
            assert (verdicts[name].error_kind, verdicts[name].reward is None) == (None, False)
    finally:
        await scorer.stop()


async def test_a_failing_function_fails_the_group_with_its_cause(
    quick: Verifiers, reward_file: Callable[[str], str], make_prompt: Make, make_completion: MakeCompletion
) -> None:
    file = reward_file("def broken(completions, **columns):\n    raise RuntimeError('the model is asleep')\n")
    scorer = VerifierScorer(quick.model_copy(update={"functions": [f"{file}:broken"]}))
    await scorer.start()
    try:
        prompt = make_prompt(("math",), ("42",))
        group = await verified(scorer, prompt, [make_completion("42")])
        with pytest.raises(Unscorable, match="the model is asleep") as failed:
            await scorer.combine(prompt, group)
        assert failed.value.error_kind == "function_raised"
    finally:
        await scorer.stop()


async def test_a_function_that_does_not_import_stops_the_start(quick: Verifiers) -> None:
    scorer = VerifierScorer(quick.model_copy(update={"functions": ["no_such_module_of_mine:reward"]}))
    with pytest.raises(RewardFunctionError, match="no_such_module_of_mine"):
        await scorer.start()
    await scorer.stop()


async def test_eight_groups_at_once_with_a_hostile_answer(make_prompt: Make, make_completion: MakeCompletion) -> None:
    scorer = VerifierScorer(Verifiers(workers=2, timeout_s=3.0))
    await scorer.start()
    try:

        async def group(number: int) -> list[float | None]:
            prompt = make_prompt(("math",), (rf"{number}\sqrt{{2}}",))
            texts = [rf"\boxed{{\frac{{{2 * number}}}{{\sqrt2}}}}", rf"\boxed{{{number + 1}\sqrt2}}", "none", ""]
            texts += [r"\boxed{9^{9^{9}}}"] if number == 1 else []
            members = [make_completion(text, index) for index, text in enumerate(texts)]
            checked = await asyncio.gather(*(scorer.verify(prompt, member) for member in members))
            scored = [replace(m, verdicts=v) for m, v in zip(members, checked, strict=True)]
            return [completion.reward for completion in await scorer.combine(prompt, scored)]

        rewards = await asyncio.gather(*(group(number) for number in range(1, 9)))
        assert rewards == [[1.0, 0.0, 0.0, 0.0, 0.0]] + [[1.0, 0.0, 0.0, 0.0]] * 7
    finally:
        await scorer.stop()
