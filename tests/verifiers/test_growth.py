"""No reader takes quadratic time: a text that is four times as long takes about four times as long, at most."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest

from olmorl.verifiers.math.extraction import MAX_ANSWER, final_answer, strip_thinking
from olmorl.verifiers.math.notation import normalise, without_remark
from olmorl.verifiers.math.question import MAX_QUESTION, _question
from olmorl.verifiers.math.reading import _read
from olmorl.verifiers.text.choice import choice
from olmorl.verifiers.text.squad import words

TIMES_AS_LONG = 4
TOO_MUCH = 9.0
"""Linear time grows by 4, quadratic time by 16."""
REPEATS = 5
"""At most, and the shortest counts: what else the machine does only adds time."""
LENGTH = 20_000
"""Characters for readers that may be given more: enough to tell the two apart."""
UNITS = (
    "1", "1,", "1,234,", ",", " ", "a ", "$", "$1", "\\frac{", "\\frac{1}{2}", "(", "(a) ", "=", "x = 5\n", ", and ",
    "1 ", "1 000 ", "\n", "\\", "\\boxed{", "\\boxed{1}, ", "\\text{", "\\(", "\\[", "#### ", "<answer>", "<think>",
    "The answer is ", "is 5 ", "5 of ", "5 per ", "or ", "since ", "not ", "1/", "-", "1:", ".", "...", "*", "**a", "_",
    "^{", "!", "'", "1'", "A. ", "one hundred ", "5 hours 3 minutes ", "m^2 ", "%", "€5 ", "√", "½", "²", "\u00a0",
    "\x02", "~", "|", "\\ne ", "\\left\\{", "\\begin{array}", "(x\\in", "0.1", "10^", "\\times 10^", "{,}", "Step 1: ",
    "漢", "a\u0301", "0.3", "the ", "$1$ and ", "a'", "km/", "x^{", "\\text{a^{", "5'6\" ", "rounded to the nearest ",
    "because ",
)  # fmt: skip
AROUND = (("", ""), ("The answer is 5 ", ""), ("x", "y"), (r"\boxed{", "}"), ("$5 ", "\nSo it is 5."))
READERS: dict[str, tuple[Callable[[str], object], int]] = {
    "the final answer": (final_answer, LENGTH),
    "thinking": (lambda text: strip_thinking(text, "<think>", "</think>", False), LENGTH),
    "a choice": (choice, LENGTH),
    "words": (words, LENGTH),
    "an answer": (_read, MAX_ANSWER),
    "notation": (normalise.__wrapped__, MAX_ANSWER),
    "a remark": (without_remark, MAX_ANSWER),
    "a question": (_question.__wrapped__, MAX_QUESTION),
}
"""With the characters that each may be given."""


def seconds(reader: Callable[[str], object], text: str) -> float:
    """Of the processor, for one text."""
    started = time.process_time()
    reader(text)
    return time.process_time() - started


def growth(reader: Callable[[str], object], short: str, long: str) -> float:
    """How many times as long the longer text takes."""
    shortest, longest = seconds(reader, short), seconds(reader, long)
    for _ in range(REPEATS - 1):
        if longest <= TOO_MUCH * shortest:
            break
        shortest, longest = min(shortest, seconds(reader, short)), min(longest, seconds(reader, long))
    return longest / shortest


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Python's garbage collector does not run while a text is read."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", READERS)
def test_time_grows_with_the_text_and_not_with_its_square(name: str) -> None:
    reader, longest = READERS[name]
    grown = {}
    for unit in UNITS:
        for head, tail in AROUND:
            times = (longest - len(head) - len(tail)) // len(unit)
            short, long = (head + unit * number + tail for number in (times // TIMES_AS_LONG, times))
            grown[unit, head] = growth(reader, short, long)
    assert {place: times for place, times in grown.items() if times > TOO_MUCH} == {}


@pytest.mark.usefixtures("no_collector")
def test_quadratic_time_is_seen() -> None:
    def quadratic(text: str) -> int:
        return sum(text[place:].count("a") for place in range(0, len(text), 8))

    assert growth(quadratic, "a" * 5_000, "a" * 20_000) > TOO_MUCH
