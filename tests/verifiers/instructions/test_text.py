"""Sentences, tokens and languages: where the published checkers cut."""

from __future__ import annotations

import pytest

from olmorl.verifiers.instructions.texts.language import is_language
from olmorl.verifiers.instructions.texts.markup import enclosed
from olmorl.verifiers.instructions.texts.sentences import rough_sentences, sentences
from olmorl.verifiers.instructions.texts.words import tokens, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", ["One.", "Two."]),
        ("Dr. Smith met Mrs. Jones in St. Louis. They left.", ["Dr. Smith met Mrs. Jones in St. Louis.", "They left."]),
        ("It cost $3.50 at 5 p.m. in the U.S. market.", ["It cost $3.50 at 5 p.m. in the U.S. market."]),
        ("Fruit, nuts, etc. However, no meat.", ["Fruit, nuts, etc.", "However, no meat."]),
        ("He said (quietly.) Then he left.", ["He said (quietly.)", "Then he left."]),
        ('"Stop!" she cried. "Why?"', ['"Stop!"', "she cried.", '"Why?"']),
        ("Wait... what? No!", ["Wait... what?", "No!"]),
        ("1. Open it.\n2. Close it.", ["1.", "Open it.", "2.", "Close it."]),
        ("J. Smith wrote it.", ["J. Smith wrote it."]),
        ("Wow!!! Great", ["Wow!!!", "Great"]),
        ("Wow!!!", ["Wow!!", "!"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!", ["One.", "Two!"]),
        ("Mr. Lee has 3.5 points, e.g. at example.com today.", ["Mr. Lee has 3.5 points, e.g. at example.com today."]),
        ("She has a Ph.D. in art. He left", ["She has a Ph.D. in art.", "He left"]),
        ('He said "Hi." Then he left.', ['He said "Hi".', "Then he left."]),
        ("Well... so", ["Well...", "so"]),
        ("From the U.S. They came", ["From the U.S.", "They came"]),
        ("Acme Inc. He works at Bolt Inc. today", ["Acme Inc", "He works at Bolt Inc. today"]),
        ("What?! No", ["What?", "!", "No"]),
        ("", []),
    ],
)
def test_rough_sentences(text: str, expected: list[str]) -> None:
    assert rough_sentences(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't. She's", ["I", "do", "n't", ".", "She", "'s"]),
        (
            "It cannot, 'tis gonna (end): 3,000",
            ["It", "can", "not", ",", "'t", "is", "gon", "na", "(", "end", ")", ":", "3,000"],
        ),
        ('"Quoted" text--here...', ["``", "Quoted", "''", "text", "--", "here", "..."]),
        ("U.S. COVID-19 a/b #tag", ["U.S.", "COVID-19", "a/b", "#", "tag"]),
        ("One. Two", ["One", ".", "Two"]),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_words() -> None:
    assert words("I don't know snake_case, 3.5!") == ["I", "don", "t", "know", "snake_case", "3", "5"]


def test_what_stands_between_marks_of_one_line() -> None:
    assert list(enclosed("[a] [b\n[c [d] e] <<f>>", "[", "]")) == ["a", "c [d"]
    assert list(enclosed("*a* b *c*d*", "*", "*")) == ["a", "c"]
    assert list(enclosed("<<f>> <<g", "<<", ">>")) == ["f"]


def test_a_language_that_cannot_be_told_is_none() -> None:
    assert not any(is_language(text, "en") for text in ("12345", "", "https://example.org", "???"))
