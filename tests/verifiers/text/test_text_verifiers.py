"""The verifiers that compare text."""

from __future__ import annotations

import time
from typing import Any

import pytest

from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.text.text_verifiers import Finished, MultipleChoice, RegexMatch, StringMatch, TokenF1, references

SIZE = 100_000
HOSTILE = [
    (unit * SIZE)[:SIZE]
    for unit in (
        "a", " ", ".", ",", "-", "'", '"', "\\", "(", "(A) ", "A, ", "[", "<answer>", "answer is ", "\\boxed{", "#",
        "\x00", "\ud800", "\u0301", "1,", "9", "-.", "+", "\n", "A\n", "the ", "and ", "“", "_", "*", "漢",
        "is correct ", "x" * 99 + " ",
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "label", "matched"),
    [
        # The whole answer, whatever it is, as well as a marked one.
        ("The answer is 42", "answer is 42", True),
        ("The answer is 42", "42", True),
        ("The answer is 42!", "answer is 42", True),
        ("<answer>The capital of France is Paris.</answer>", "capital of france is paris", True),
        ("So it is 42", "42", False),
        ("I have 7 and 42", "42", False),
        ("The capital is Paris", "Paris", False),
        ("Paris or Rome", "Paris", False),
        ("Romeo and Juliet by Shakespeare", "romeo and juliet by shakespeare", True),
        (r"\boxed{New  York}", "New York", True),
        ("Reasoning first.\n<answer>New York City!</answer>", "new york city", True),
        ("<answer>wrong</answer>", "42", False),
        ("The answer is Rome. No: the answer is Paris.", "Paris", True),
        ("The answer is Rome. No: the answer is Paris.", "Rome", False),
        # Case, white space, marks and articles.
        ("  hello \t\n world  ", "Hello, world!", True),
        ("The elephant", "elephant", True),
        ("An elephant.", "the Elephant", True),
        ("elephants", "elephant", False),
        ("“Paris”", "Paris", True),
        ("rock'n'roll", "rock n roll", False),
        ("Cafe\u0301", "Café", True),
        ("cafe", "café", False),
        ("theory", "ory", False),
        ("", "42", False),
        ("...", "42", False),
        ("the", "a", False),
        # What the marks would make of a number, and of a name.
        ("-5", "5", False),
        ("\u22125", "-5", True),
        ("314", "3.14", False),
        ("3.14.", "3.14", True),
        ("12", "1/2", False),
        ("12", "1,2", False),
        ("1,000", "1000", True),
        ("1030", "10:30", False),
        ("5", ".5", False),
        ("C", "C++", False),
        ("C++.", "c++", True),
        ("A", "A-", False),
        ("A+", "A-", False),
        ("Grade: A-", "grade A-", True),
        ("The is", "is", True),
        ("Vitamin the", "Vitamin", True),
        ("Vitamin", "Vitamin A", False),
        ("A.", "A", True),
        ("B", "A", False),
        ("-", "+", False),
        ("+", "+", True),
        # Several references.
        ("NYC", ["New York City", "NYC"], True),
        ("Rome", ["New York City", "NYC"], False),
        ("New York City NYC", ["New York City", "NYC"], False),
        ("42", 42, True),
    ],
)
async def test_string_match(text: str, label: Any, matched: bool) -> None:
    assert StringMatch().usable(label)
    assert (await StringMatch().verify(text, label)).reward == float(matched)


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("hello world", "hello world", 1.0),
        ("hello world", "hello", 2 / 3),
        ("hello world", "goodbye", 0.0),
        ("<answer>hello world</answer>", "hello world", 1.0),
        ("The answer is a big red cat.", "the red cat", 2 * 2 / 5),
        ("cat cat cat", "cat", 2 / 4),
        ("cat", "cat cat cat", 2 / 4),
        ("...", "cat", 0.0),
        ("The", "the", 1.0),
        ("hello world", ["goodbye", "hello world"], 1.0),
        ("hello world", ["hello", "world"], 2 / 3),
        ("hello world", ["foo", "hello there you"], 2 / 5),
        ("hello world", ["foo", "bar"], 0.0),
        ("hello world", ["hello world"], 1.0),
        ("hello world", '["goodbye", "hello world"]', 1.0),
        ("goodbye hello world", '["goodbye", "hello world"]', 0.8),
        ("[not json", "[not json", 1.0),
        ("1999", ["2000", 1999], 1.0),
        ("both: foo bar", ["foo", "bar"], 2 / 4),
    ],
)
async def test_f1(text: str, label: Any, reward: float) -> None:
    assert TokenF1().usable(label)
    assert (await TokenF1().verify(text, label)).reward == pytest.approx(reward)


@pytest.mark.parametrize("label", [None, "", " ", [], [""], ["a", None], [["a"]], {}, {"a": 1}, True, ["a", " "]])
async def test_labels_without_text(label: Any) -> None:
    assert references(label) == []
    for rule in (StringMatch(), TokenF1()):
        assert not rule.usable(label)
        assert "not empty" in str(await rule.problem(label))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("[B]", "B"),
        ("B.", "B"),
        ("B)", "B"),
        ("b", "B"),
        ("(b)", "B"),
        ("b)", "B"),
        ("**B**", "B"),
        ("*B*", "B"),
        ("`B`", "B"),
        ("\\boxed{B}", "B"),
        ("\\boxed{\\text{B}}", "B"),
        ("$\\boxed{(B)}$", "B"),
        ("\\boxed{\\textbf{(B)}}", "B"),
        ("\\boxed{B) Paris}", "B"),
        ("Answer: B", "B"),
        ("**Answer: B**", "B"),
        ("**Answer:** B", "B"),
        ("Answer:\nB", "B"),
        ("The answer is (B)", "B"),
        ("The answer is B.", "B"),
        ("the answer is b", "B"),
        ("The answer is option B", "B"),
        ("The correct option is C", "C"),
        ("The correct answer is **D**.", "D"),
        ("<answer>C</answer>", "C"),
        ("<answer>(c) Paris</answer>", "C"),
        ("C) Paris", "C"),
        ("C. Paris", "C"),
        ("(C) Paris", "C"),
        ("C: Paris", "C"),
        ("C - Paris", "C"),
        ("The answer is B because of gravity", "B"),
        ("The answer is B, because of gravity", "B"),
        ("The answer is (B) Paris", "B"),
        ("The answer is B) Paris. Rome is not.", "B"),
        ("Option B", "B"),
        ("I choose B", "B"),
        ("I would go with (D).", "D"),
        ("B is correct", "B"),
        ("I think B is the right answer.", "B"),
        ("A is wrong. The answer is B.", "B"),
        ("The answer is A. Wait, no. The answer is B.", "B"),
        ("Answer: D\n\nBecause the sun is hot.", "D"),
        ("So we choose\nB", "B"),
        ("Paris is the capital, so it must be (C).", "C"),
        ("The answer is $B$", "B"),
        ("C\n\nExplanation: it rains", "C"),
        ("(C) Vitamin D", "C"),
        ("C. Vitamin D", "C"),
        ("The answer is B, not C", "B"),
        ("The answer is (B), not (C)", "B"),
        ("The answer is (B) because (A) is wrong.", "B"),
        ("The answer is (B), since (A) and (C) violate the condition.", "B"),
        ("#### B", "B"),
        ("A", "A"),
        ("a", "A"),
        ("a)", "A"),
        ("A. A dog", "A"),
        ("The answer is A", "A"),
        ("I", "I"),
        ("The final answer is (I)", "I"),
        ("The answer is A.\n", "A"),
        ("Reasoning (A) is wrong.\nTherefore, the answer is (B).", "B"),
        ("The correct answer choice is C", "C"),
        ("The answer is: **(B) Paris**", "B"),
        ("Final Answer: C", "C"),
        ("The best option is E", "E"),
        ("Correct choice: J", "J"),
        ("B.\n\nB is in the book.", "B"),
        ("Choice B", "B"),
        ("**C**\n", "C"),
        ("The answer is [D].", "D"),
    ],
)
async def test_the_letter_of_a_choice(text: str, letter: str) -> None:
    assert (await MultipleChoice().verify(text, letter)).reward == 1.0
    other = "A" if letter != "A" else "B"
    assert (await MultipleChoice().verify(text, f"({other.lower()})")).reward == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "A dog",
        "A cat sat",
        "I think so",
        "B and C",
        "B or C",
        "A, B",
        "B/C",
        "The answer is B or C",
        "The answer is B and maybe C",
        "(A) (B)",
        "\\boxed{A, C}",
        "\\boxed{AC}",
        "\\boxed{42}",
        "The answer is A dog",
        "The answer is a dog",
        "The answer is not B",
        "",
        "Paris",
        "K",
        "BC",
        "B-12",
        "Bob",
        "Option A is wrong",
        "A is the first letter",
        "A) Paris\nB) Rome\nC) Oslo",
        "The answer is (A) or (B)",
        "B flat major",
        "C++",
        "C#",
        "D'Arcy",
        "(B) is wrong",
        "I am sure it rains",
        "It cannot be (C).",
        "a dog and (b)",
        "Either A or B is fine",
        "<answer>A or B</answer>",
        "The answer is A, B, or C",
        "(C) is not right",
        "The answer isn't B",
    ],
)
async def test_no_letter_in_prose_or_several(text: str) -> None:
    assert [(await MultipleChoice().verify(text, letter)).reward for letter in "ABCDEFGHIJ"] == [0.0] * 10


@pytest.mark.parametrize(
    ("label", "usable"),
    [
        ("A", True),
        ("(b)", True),
        ("[C]", True),
        ("D.", True),
        ("e)", True),
        ("K", False),
        ("AB", False),
        ("", False),
        (None, False),
        (1, False),
    ],
)
def test_choice_labels(label: Any, usable: bool) -> None:
    assert MultipleChoice().usable(label) is usable


@pytest.mark.parametrize("rule", [StringMatch(), TokenF1(), MultipleChoice()])
async def test_hostile_text_takes_linear_time(rule: StringMatch | TokenF1 | MultipleChoice) -> None:
    for text in HOSTILE:
        started = time.process_time()
        verdict = await rule.verify(text, "A")
        assert verdict.error_kind is None
        assert time.process_time() - started < 1.0, repr(text[:20])


async def test_a_regular_expression_runs_where_it_can_be_killed() -> None:
    pool = Pool(1, timeout_s=1.0)
    await pool.start()
    try:
        rule = RegexMatch(pool)
        assert (await rule.verify("baa", "a+$")).reward == 1.0
        assert (await rule.verify("bab", "a+$")).reward == 0.0
        verdict = await rule.verify("a" * 40 + "b", "(a+)+$")
        assert (verdict.reward, verdict.method) == (0.0, "limit")
    finally:
        await pool.stop()


@pytest.mark.parametrize("label", ["(", "*", "(" * 100_000, "a{99999999999999999999}", "", None, 1, ["a"]])
async def test_patterns_that_cannot_be_used(label: Any) -> None:
    rule = RegexMatch(Pool(1, timeout_s=1.0))
    assert not rule.usable(label)
    assert "not a regular expression" in str(await rule.problem(label))


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("I searched. <finish>The Paris!</finish>", "paris", 1.0),
        ("<FINISH>Rome</FINISH>", '["Paris", "Rome"]', 1.0),
        ("<finish>two\nwords</finish>", ["two words"], 1.0),
        ("<finish>Rome</finish><finish>Paris</finish>", "Paris", 0.0),
        ("<finish>Paris, I think</finish>", "Paris", 0.0),
        ("<finish> </finish>", "Paris", 0.0),
        ("Paris", "Paris", 0.0),
        ("<finish>Paris", "Paris", 0.0),
    ],
)
async def test_the_text_in_finish_tags(text: str, label: Any, reward: float) -> None:
    assert Finished().usable(label)
    assert (await Finished().verify(text, label)).reward == reward
    assert not Finished().usable("{}")
