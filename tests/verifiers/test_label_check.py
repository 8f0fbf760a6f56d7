"""Labels are judged at load, in microseconds where possible, from any thread or loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from olmorl.config import Verifiers
from olmorl.verifiers.label_check import LabelChecker


@pytest.fixture(scope="module")
def checker() -> Iterator[LabelChecker]:
    with LabelChecker(Verifiers(timeout_s=20.0)) as checker:
        yield checker


@pytest.mark.parametrize(
    ("dataset", "label", "reason"),
    [
        ("math", "42", None),
        ("math", r"\frac{\sqrt{3}}{2}", None),
        ("math", "", "empty"),
        ("math", r"\frac{1}{", "neither mathematics nor short text"),
        ("math", None, "NoneType"),
        ("gsm8k", "So it is\n#### 18", None),
        ("string_match", "Paris", None),
        ("string_match", " ", "not empty"),
        ("f1", "the cat", None),
        ("multiple_choice", "C", None),
        ("multiple_choice", "Paris", "one letter"),
        ("regex", "a+", None),
        ("regex", "(", "not a regular expression"),
        ("f1", ["the cat", "a dog"], None),
        ("f1", [], "not empty"),
        ("format", "", None),
        ("format", None, None),
        ("tag_count", None, None),
        ("reasoning_steps", [], None),
        ("maths", "42", "did you mean 'math'"),
        ("ifeval_99", "42", "known: math, gsm8k"),
    ],
)
def test_reasons(checker: LabelChecker, dataset: str, label: object, reason: str | None) -> None:
    (found,) = checker.check_many([(dataset, label)])
    assert found is None if reason is None else found is not None and reason in found


def test_many_keep_their_order(checker: LabelChecker) -> None:
    labels = [("math", rf"\sqrt{{{number}}}") if number % 3 else ("math", r"\frac{") for number in range(60)]
    assert [reason is None for reason in checker.check_many(labels)] == [bool(number % 3) for number in range(60)]


async def test_it_may_be_called_from_a_running_loop(checker: LabelChecker) -> None:
    assert checker.check_many([("math", r"\sqrt{19}")]) == [None]


def test_plain_labels_start_no_process_and_take_microseconds() -> None:
    threads = threading.active_count()
    with LabelChecker(Verifiers()) as checker:
        started = time.process_time()
        assert not any(checker.check_many(("math", str(number)) for number in range(20_000)))
        assert time.process_time() - started < 20_000 * 200e-6
        assert threading.active_count() == threads
