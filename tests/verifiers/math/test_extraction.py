"""Thinking is stripped, one answer is found, and no text takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.verifiers.math.extraction import MAX_ANSWER, final_answer, strip_thinking


@pytest.mark.parametrize(
    ("text", "opened", "kept"),
    [
        ("no tags", False, "no tags"),
        ("no tags", True, None),
        ("<think>a</think> b", False, " b"),
        ("a</think> b", True, " b"),
        ("a</think> b", False, " b"),
        ("<think>a", False, None),
        ("x <think>a</think> y <think>b</think> z", False, "x  y  z"),
        ("x <think>a</think> y <think>b", False, None),
        ("<think>a <think>b</think> c", False, " c"),
        ("<think>a</think> b</think> c", False, " c"),
        ("", False, ""),
    ],
)
def test_thinking_is_stripped(text: str, opened: bool, kept: str | None) -> None:
    assert strip_thinking(text, "<think>", "</think>", opened) == kept


def test_tags_are_configurable() -> None:
    assert strip_thinking("[[a]] b", "[[", "]]", False) == " b"


@pytest.mark.parametrize(
    ("text", "answer", "how"),
    [
        (r"so \boxed{42}", "42", "boxed"),
        (r"\boxed{1} then \boxed{2}", "2", "boxed"),
        (r"\boxed{\frac{1}{2}} is it", r"\frac{1}{2}", "boxed"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
        (r"\fbox{7}", "7", "boxed"),
        (r"\boxed {7}", "7", "boxed"),
        (r"\boxed{5} and \boxed{6", "5", "boxed"),
        (r"\boxed{\boxed{5}}", "5", "boxed"),
        (r"\boxed{}", "", "boxed"),
        (r"\boxed{3} #### 4", "3", "boxed"),
        ("work\n#### 1,234", "1,234", "hashes"),
        ("#### 5\nmore words", "5", "hashes"),
        ("#### Step 3\nso 8", "8", "line"),
        ("#### 2. Compute the sum\n4 + 6 = 10.\n\nThe answer is 10.", "10", "marker"),
        ("#### 2. Compute the sum\n4 + 6 = 10.\n\n<answer>10</answer>", "10", "tags"),
        ("#### 2) Compute\nSo she has 10 apples.", "10", "last_number"),
        ("#### 2 apples case\nThey are 10.\n\n**Final Answer:** 10", "10", "marker"),
        ("#### 10\n\nI hope this helps!", "10", "hashes"),
        ("#### 2. Compute the sum", "2. Compute the sum", "hashes"),
        ("<answer>x + 1</answer>", "x + 1", "tags"),
        ("<answer>The answer is 9.</answer>", "9", "tags"),
        ("The final answer is 42.", "42", "marker"),
        ("The answer is: $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}", "marker"),
        ("**Final Answer:** 3.5", "3.5", "marker"),
        ("Answer: \\(x^2\\)", "x^2", "marker"),
        ("The correct option is **C**.", "C", "marker"),
        ("The best choice is A because it rains", "A", "marker"),
        ("Thus the correct choice is (B) because 2 > 1.", "(B)", "marker"),
        ("we get 3 and then 17", "17", "last_number"),
        ("about 1,234.5 units", "1,234.5", "last_number"),
        ("that is 1/2 of the sum", "1/2", "last_number"),
        (r"that is $-\frac{3}{4}$ here", r"-\frac{3}{4}\text{ here}", "last_formula"),
        ("7 - 5", "7 - 5", "line"),
        ("so 9 + 6 = 15 liters of the 24", "15 liters", "last_number"),
        ("it is 5, 6 or 7", "5, 6 or 7", "line"),
        ("The answer is 18<|endoftext|>", "18", "marker"),
        ("The answer is 18. Wait, no.", "", "marker"),
        (r"it is not \boxed{18}", "", "boxed"),
    ],
)
def test_the_answer_is_found(text: str, answer: str, how: str) -> None:
    found = final_answer(text)
    assert found is not None
    assert (found.text, found.how) == (answer, how)


@pytest.mark.parametrize("text", ["", "nothing here", "x2 is a name", "\\boxed{" + "1" * (MAX_ANSWER + 1) + "}"])
def test_there_may_be_no_answer(text: str) -> None:
    assert final_answer(text, last_number=False) is None


def test_a_box_that_never_closes_is_no_answer() -> None:
    assert final_answer(r"so \boxed{42") is None


def test_the_last_number_is_an_option() -> None:
    assert final_answer("it is 5", last_number=False) is None


MEGABYTES = [
    "\\boxed{" * 150_000,
    "{" * 1_000_000,
    "\\boxed{" + "{" * 1_000_000,
    "</think>" * 125_000,
    "<think>" * 125_000,
    "<think></think>" * 70_000,
    "answer " * 150_000,
    "answer is " * 100_000,
    "answer" + " " * 1_000_000 + "is",
    "#" * 1_000_000,
    "####" + "1" * 1_000_000,
    "<answer>" * 125_000,
    "1," * 500_000,
    "1 / " * 250_000,
    "9" * 1_000_000,
    "-" * 1_000_000,
    "\\frac{" * 160_000,
    "\\" * 1_000_000,
]


@pytest.mark.parametrize("text", MEGABYTES, ids=range(len(MEGABYTES)))
def test_a_megabyte_takes_less_than_a_second(text: str) -> None:
    started = time.process_time()
    stripped = strip_thinking(text, "<think>", "</think>", False)
    final_answer(text if stripped is None else stripped)
    assert time.process_time() - started < 1.0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["\\boxed{", "}", "{", "\\", "####", "\n", "answer is", "5", " ", "$", ".", "<answer>", "</answer>"]
        )
    )
)
def test_whatever_is_found_is_short_and_comes_from_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    found = final_answer(text)
    if found is not None:
        assert len(found.text) <= MAX_ANSWER
        parts = found.text.replace(", ", "\\text{ ").split("\\text{ ")  # a list of boxes; words behind a formula
        assert all(part.strip("} ") in text for part in parts)
