"""What answers in other languages state and take back, and texts that stay as they are."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest

from olmorl.verifiers.math.math_verifier import MathVerifier
from olmorl.verifiers.math.words.languages import in_english
from olmorl.verifiers.pool.pool import Pool

SENTENCES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
NUMBERS = (("36", "41"), ("7", "120"), ("1250", "3"))
FORMS = ("{}", "48 / 2 = 24\n\n{}")


@pytest.mark.parametrize(("kind", "reward"), [("states", 1.0), ("other", 0.0)])
@pytest.mark.parametrize("language", SENTENCES)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_sentence_states_its_number_or_does_not(
    math_pool: Pool, language: str, kind: str, reward: float
) -> None:
    rows = [
        (form.format(sentence.format(n=n, m=m)), n)
        for sentence in SENTENCES[language][kind]
        for n, m in NUMBERS
        for form in FORMS
    ]
    verdicts = await asyncio.gather(*(MathVerifier(math_pool).verify(text, label) for text, label in rows))
    assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict.reward != reward] == []


@pytest.mark.parametrize(
    "text",
    [
        "The total is 5, and no more, or so they say.",
        "Solution: x = 5 or x = 6 per car",
        "x = 5",
        r"\frac{a}{e} \le 5 \ne y",
        "Van der Berg",
        "",
    ],
)
def test_english_and_formulas_stay(text: str) -> None:
    assert in_english(text) == text


def test_formulas_inside_another_language_stay() -> None:
    assert in_english("Las soluciones son $e = y$ y \\(o\\).") == "the solutions are $e = y$ and \\(o\\)."


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("答案是36。", " the answer is  36. "),
        ("Die Antwort ist 36.", "the answer is 36."),
        ("उत्तर ३६ है।", "answer is ३६ . "),
    ],
)
def test_words_around_numbers_are_put_into_english(text: str, english: str) -> None:
    assert in_english(text) == english
