"""Answers that start with a verb, and answers that do not."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from olmorl.verifiers.instructions.instruction_verifier import satisfied
from olmorl.verifiers.instructions.texts.verbs import MAX_TOKEN, starts_with_verb

STARTS = tomllib.loads(Path(__file__).with_name("starts.toml").read_text(encoding="utf-8"))


def _holds(answer: str) -> bool:
    return satisfied((answer, [("words:start_verb", {})])) == [True]


def test_most_verbs_are_found_and_hardly_anything_else() -> None:
    verbs, others = STARTS["verbs"].splitlines(), STARTS["others"].splitlines()
    missed = [answer for answer in verbs if not _holds(answer)]
    mistaken = [answer for answer in others if _holds(answer)]
    assert min(len(verbs), len(others)) >= 200
    assert len(missed) <= 0.06 * len(verbs), missed
    assert len(mistaken) <= 0.01 * len(others), mistaken


@pytest.mark.parametrize("word", ["Research", "Water", "Title", "Unplug", "Email", "Bookmark", "Prototype", "Close"])
@pytest.mark.parametrize("following", ["the", "your", "each", "it"])
def test_an_object_makes_a_noun_or_an_unknown_word_a_verb(word: str, following: str) -> None:
    assert starts_with_verb([word, following, "now", "."])


@pytest.mark.parametrize(
    ("answer", "verb"),
    [
        ("Understand", True),
        ("Conceive!", True),
        ("Build, then test.", True),
        ("Whirring softly, it slept", True),
        ("Whirring gears fill the room.", True),
        ("Planning helps.", True),
        ("Evening falls.", False),
        ("Wedding bells rang.", False),
        ("Beijing is large.", False),
        ("Exciting news!", False),
        ("understand the rules", True),
        ("BUILD a house.", True),
        ("Understanding is hard.", True),
        ("Brainstorm ideas.", True),
        ("Brainstorm: a noun", False),
        ("Research: a noun", False),
        ("Name three rivers.", True),
        ("Step three is next.", False),
        ("Plan A failed.", False),
        ("Factor x out.", True),
        ("Factor A is large.", False),
        ("Even the best fail.", False),
        ("Alexander the Great", False),
        ("Books the size of doors", False),
        ("Can you?", False),
        ("**Create** it", False),
        ('"Create it"', False),
        ("1. Create it", False),
        ("- Create it", False),
    ],
)
def test_forms_and_surroundings(answer: str, verb: bool) -> None:
    assert _holds(answer) is verb


@pytest.mark.parametrize(
    "said", [[], [""], ["x" * 1000], ["\x00"], ["\ud800"], ["Go", "x" * 100_000], ["é" * MAX_TOKEN] * 99]
)
def test_tokens_that_no_tagger_likes(said: list[str]) -> None:
    started = time.process_time()
    assert starts_with_verb(said) in (True, False)
    assert time.process_time() - started < 1.0
