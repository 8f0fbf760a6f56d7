"""Rewards for the shape of a completion."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl.messages import Completion, Prompt
from olmorl.verifiers.format_rewards import READ, Length, Overlong, ReasoningSteps, StrictFormat, TagCount

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]


@pytest.mark.parametrize(
    ("text", "opened", "kept"),
    [
        ("<think>a</think><answer>b</answer>", False, True),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>\n", False, True),
        (" \n<think>a</think><answer>b</answer>", False, True),
        ("a</think><answer>b</answer>", True, True),
        ("<think>a < b > c</think><answer><b>1</b></answer>", False, True),
        # Without thinking, or without an answer.
        ("<answer>b</answer>", False, False),
        ("<answer>b</answer>", True, False),
        ("</think><answer>b</answer>", True, False),
        ("<think></think><answer>b</answer>", False, False),
        ("<think> \n\t</think><answer>b</answer>", False, False),
        ("<think>\u200b\x00</think><answer>b</answer>", False, False),
        ("<think>a</think>", False, False),
        ("<think>a</think><answer></answer>", False, False),
        ("<think>a</think><answer> \n</answer>", False, False),
        ("<think>a</think><answer>\u200b</answer>", False, False),
        ("<think>a</think>b", False, False),
        ("a", False, False),
        ("", False, False),
        ("", True, False),
        # Before, between and after.
        ("x<think>a</think><answer>b</answer>", False, False),
        ("<think>a</think>x<answer>b</answer>", False, False),
        ("<think>a</think><answer>b</answer>x", False, False),
        ("<think>a</think><answer>b</answer>.", False, False),
        ("<think>a</think>\u200b<answer>b</answer>", False, False),
        # Each tag once, in order.
        ("<think>a</think><answer>b</answer><answer>b</answer>", False, False),
        ("<think>a</think><think>a</think><answer>b</answer>", False, False),
        ("<think>a<think>a</think><answer>b</answer>", False, False),
        ("<think>a</think><answer>b<answer></answer>", False, False),
        ("<think>a<answer>b</answer></think><answer>b</answer>", False, False),
        ("<think>a<answer>b</think></answer>", False, False),
        ("<answer>b</answer><think>a</think>", False, False),
        ("</think>a<think><answer>b</answer>", False, False),
        ("<think>a</think></answer>b<answer>", False, False),
        ("<think>a</think><answer>b", False, False),
        ("<think>a", True, False),
        ("<think>a</think><answer>b</answer>", True, False),
        ("a</think><answer>b</answer>", False, False),
        ("<THINK>a</THINK><answer>b</answer>", False, False),
        ("< think>a</think><answer>b</answer>", False, False),
    ],
)
async def test_thinking_then_an_answer(
    text: str, opened: bool, kept: bool, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    rule = StrictFormat("<think>", "</think>")
    verdict = await rule.verify_row(make_prompt(thinking_opened=opened), make_completion(text), None, None)
    assert (verdict.reward, verdict.error_kind) == (float(kept), None)


async def test_the_tags_of_thinking_are_the_run_s(make_prompt: Make, make_completion: MakeCompletion) -> None:
    rule = StrictFormat("[T]", "[/T]")
    for text, kept in (("[T]a[/T]<answer>b</answer>", 1.0), ("<think>a</think><answer>b</answer>", 0.0)):
        assert (await rule.verify_row(make_prompt(), make_completion(text), None, None)).reward == kept


@pytest.mark.parametrize(
    "unit", ["<think>", "</think>", "<answer>", "<", "a", " ", "\x00", "\ud800", "<think>a</think>"]
)
async def test_hostile_shapes(unit: str, make_prompt: Make, make_completion: MakeCompletion) -> None:
    started = time.process_time()
    for rule in (StrictFormat("<think>", "</think>"), TagCount("<think>", "</think>"), ReasoningSteps()):
        verdict = await rule.verify_row(make_prompt(), make_completion(unit * (100_000 // len(unit))), None, None)
        assert verdict.error_kind is None
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("text", "opened", "reward"),
    [
        ("<think>a</think><answer>b</answer>", False, 1.0),
        ("a</think><answer>b</answer>", True, 1.0),
        ("a</think><answer>b</answer>", False, 0.75),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False, 0.5),
        ("<think>a", True, 0.0),
        ("<think>a", False, 0.25),
        ("a", False, 0.0),
        ("", True, 0.25),
        ("<answer>" * 100_000, False, 0.0),
    ],
)
async def test_tags_that_are_there_once(
    text: str, opened: bool, reward: float, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    rule = TagCount("<think>", "</think>")
    verdict = await rule.verify_row(make_prompt(thinking_opened=opened), make_completion(text), None, None)
    assert verdict.reward == reward


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("First, I add.\nThen, I halve.\nFinally, I look.", 3),
        ("Step 1: add\nStep 2: halve\nStep 3: look\nStep 4: rest", 4),
        ("**Step 1.** add\n### Step 2 halve", 2),
        ("1. add\n2) halve\n- look\n* rest", 4),
        ("- add\n- add\n-  ADD", 1),
        ("1.\n2.\n3.", 0),
        ("First\n-5 is the result\n3.14 too\nFirst we add", 0),
        ("so it is 1. or 2.", 0),
        ("", 0),
        ("- \t" * 100_000, 0),
        (" " * 200_000 + "\n- add", 0),
    ],
)
async def test_steps(text: str, steps: int, make_prompt: Make, make_completion: MakeCompletion) -> None:
    started = time.process_time()
    verdict = await ReasoningSteps().verify_row(make_prompt(), make_completion(text), None, None)
    assert (verdict.reward, verdict.extracted) == (pytest.approx(min(steps / 3, 1)), str(steps))
    assert time.process_time() - started < 5.0
    assert READ < 200_000


@pytest.mark.parametrize(("tokens", "reward"), [(1, 1.0), (80, 1.0), (85, 0.75), (90, 0.5), (100, 0.0), (500, 0.0)])
async def test_the_length_of_a_row(
    tokens: int, reward: float, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    long = replace(make_completion("<think>"), token_ids=np.zeros(tokens, np.int32))
    for label in ({"max_tokens": 100, "buffer": 20}, '{"max_tokens": 100, "buffer": 20}'):
        assert Overlong().usable(label)
        assert (await Overlong().verify_row(make_prompt(), long, None, label)).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    "label",
    [
        None,
        "",
        "100",
        100,
        {"max_tokens": 100},
        {"max_tokens": 10, "buffer": 0},
        {"max_tokens": 10, "buffer": 11},
        {"max_tokens": 10, "buffer": 5, "x": 1},
        {"max_tokens": "10", "buffer": 5},
    ],
)
async def test_a_budget_that_cannot_be_used(label: Any, make_prompt: Make, make_completion: MakeCompletion) -> None:
    assert not Overlong().usable(label)
    assert await Overlong().problem(label) is not None
    verdict = await Overlong().verify_row(make_prompt(), make_completion("a"), "a", label)
    assert (verdict.reward, verdict.error_kind) == (None, "label")


async def test_a_text_without_tokens_has_no_length(make_prompt: Make, make_completion: MakeCompletion) -> None:
    empty = np.zeros(0, np.int32)
    completion = make_completion("long", token_ids=empty, logprobs=empty.astype(np.float32), spans=())
    prompt = make_prompt(("overlong",), ({"max_tokens": 10, "buffer": 4},))
    verdict = await Overlong().verify_row(prompt, completion, "long", {"max_tokens": 10, "buffer": 4})
    assert (verdict.reward, verdict.error_kind) == (None, "no_tokens")


@pytest.mark.parametrize(
    ("tokens", "exact", "at_most"),
    [(100, 1.0, 1.0), (50, 1 - 50 / 32768, 1.0), (132, 1 - 32 / 32768, 1 - 32 / 32768), (40_000, 0.0, 0.0)],
)
async def test_lengths_are_scored_as_in_open_instruct(
    tokens: int, exact: float, at_most: float, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    completion = make_completion("long", token_ids=np.ones(tokens, np.int32))
    for rule, expected in ((Length(may_be_shorter=False), exact), (Length(may_be_shorter=True), at_most)):
        verdict = await rule.verify_row(make_prompt(), completion, None, "100")
        assert verdict.reward == pytest.approx(expected)


async def test_a_length_needs_tokens_and_a_number(make_prompt: Make, make_completion: MakeCompletion) -> None:
    rule = Length(may_be_shorter=True)
    empty = make_completion("long", token_ids=np.zeros(0, np.int32))
    verdict = await rule.verify_row(make_prompt(), empty, "long", 100)
    assert (verdict.reward, verdict.error_kind) == (None, "no_tokens")
    for label in ("", "long", "-1", 0, "nan", "inf", True, None, [100]):
        assert not rule.usable(label)
        verdict = await rule.verify_row(make_prompt(), make_completion("a"), "a", label)
        assert (verdict.reward, verdict.error_kind) == (None, "label")
