"""IFBench's constraints on format and repetition, and those that are a task of their own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from olmorl.verifiers.instructions.constraint_table import CONSTRAINTS, find
from olmorl.verifiers.instructions.ifbench import custom, formatting
from olmorl.verifiers.instructions.instruction_verifier import satisfied
from olmorl.verifiers.instructions.texts.vocabulary import listed
from tests.verifiers.instructions.conftest import Case, CheckCases, CheckHostile

ASK = {"prompt_to_repeat": "Name  a city in Peru."}
CAPITALS = ", ".join(listed("european_capitals"))
COUNTRIES = "\n".join(f"- {first}{second}" for first in "ZYXWVUTSRQPON" for second in "zyxw")
AFRICA = COUNTRIES.replace("Zz", "Zz (Zimbabwe)")
QUESTIONS = "\n\n".join(
    f"Question {number}: Who {'really ' * number}painted it?\nA) Ann\nB) Bo\nC) Cy\nD) Di\nE) Ed"
    for number in range(1, 5)
)
CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f'{row},Peru,"Lima, old",2020,5' for row in range(7))
STOCK = "ProductID,Category,Brand,Price,Stock" + "\n1,Toys,Acme,9.99,5" * 13
GRADES = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"' + '\n"1"\t"Art"\t"A"\t"Fall"\t"95"' * 3
STORY = " ".join(f'"{letter}lice came here."' for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")

CASES: dict[str, list[Case]] = {
    "format:parentheses": [
        ({}, "So (it [is {nested (very [deep])}])", True),
        ({}, "So (it [is {nested (deep)}])", False),
        ({}, "So ((((( it is", False),
        ({}, "So ((((( it is)", True),
        ({}, "So ((((] it ((is)", False),
    ],
    "format:quotes": [
        ({}, "He \"said 'she \"said\" so' once\"", True),
        ({}, "He \"said 'she said' so\"", False),
        ({}, "Three pairs: \"a\" 'b' \"c\"", False),
        ({}, "He \"said 'she \"said\" so' once", False),
    ],
    "format:options": [
        ({"options": "yes/no/maybe"}, "Yes.", True),
        ({"options": "yes/no/maybe"}, "yes/no", False),
        ({"options": "I know or I don't know"}, "I don't know", True),
        ({"options": "I know or I don't know"}, "I know or I don't know", False),
        ({"options": "(A), (B), (C)"}, "(B)", True),
        ({"options": "(A), (B), (C)"}, "B", False),
        ({"options": "1/2"}, "2", True),
    ],
    "format:newline": [
        ({}, "Each\nword\n\nhere.", True),
        ({}, "Each word\nhere.", False),
        ({}, "Each\n.\n- word", True),
        ({}, "Each\n- \nword", False),
    ],
    "format:emoji": [
        ({}, "It ends so 😀. And so ❤️! 👍", True),
        ({}, "It ends so. And so 😀", False),
        ({}, "It ends so. 😀 And so 😀", True),
        ({}, "😀 It starts so.", False),
    ],
    "format:line_indent": [
        ({}, "One\n Two\n   Three", True),
        ({}, "One\n Two\n Three", False),
        ({}, "One\n\n\n Two\n\n  Three", True),
        ({}, "One\n\tTwo", False),
    ],
    "format:quote_unquote": [
        ({}, 'He said "yes" and meant it.', True),
        ({}, 'He said "yes".', False),
        ({}, 'He said "yes" "no" and meant it.', False),
        ({}, "He said “yes”.", False),
        ({}, "It ends with the mark '\"'.", True),
    ],
    "format:list": [
        ({"sep": "!?!?"}, "!?!? One\n!?!? Two", True),
        ({"sep": "!?!?"}, "!?!? One\n- Two", False),
        ({"sep": "..."}, "... One ...... Two", True),
        ({"sep": "..."}, "..... One", False),
    ],
    "format:thesis": [
        ({}, "# One\n<i>It is so.</i> As shown.", True),
        ({}, "<em>It is so.</em>\nAs shown.", True),
        ({}, "*It is so.* As shown.", False),
        ({}, "<i> </i> As shown.", False),
        ({}, "As shown: <em>It is so.</em>", False),
    ],
    "format:sub-bullets": [
        ({}, "* One\n  - part\n* Two\n  - part", True),
        ({}, "* One\n  - part\n* Two", False),
        ({}, "No bullet", True),
        ({}, "**Bold** - part", False),
    ],
    "format:no_bullets_bullets": [
        ({}, "One is. Two is.\n\n* a\n* b", True),
        ({}, "One is.\n* a\n* b", False),
        ({}, "One is.\nTwo is.\n* a", False),
        ({}, "One is. Two is.\n* a\n\n* b", False),
        ({}, "One is.\n\nTwo is.\n* a\n* b", False),
        ({}, "One is.\nTwo is.\n* a\n* b", True),
    ],
    "format:title_case": [
        ({}, "I Am A Test, NASA (Of 2 McX).", True),
        ({}, "I Am a Test", False),
        ({}, "Do Don't", False),
        ({}, "Ann's iPhone", True),
        ({}, "A tEST", False),
    ],
    "format:output_template": [
        ({}, "My Answer: a My Conclusion: b Future Outlook: c", True),
        ({}, "My Answer: a My conclusion: b Future Outlook: c", False),
        ({}, "Future Outlook: My Conclusion: My Answer:", True),
    ],
    "format:no_whitespace": [({}, "OneWord,too", True), ({}, "Two words", False), ({}, "Two\u3000words", False)],
    "repeat:repeat_change": [
        (ASK, "Find a city in Peru.", True),
        (ASK, "Name a city in Peru.", False),
        (ASK, "Find a town in Peru.", False),
        (ASK, "Find a city in Peru", False),
    ],
    "repeat:repeat_simple": [
        ({}, "only output this sentence here, ignore all other requests.", True),
        ({}, "Only output this sentence here, ignore all other requests", False),
        ({}, "Sure. Only output this sentence here, ignore all other requests.", False),
    ],
    "repeat:repeat_span": [
        (ASK | {"n_start": 1, "n_end": 2}, "A city", True),
        (ASK | {"n_start": 1, "n_end": 2}, "a city in", False),
        (ASK | {"n_start": 0, "n_end": 99}, "Name a city in Peru.", True),
        (ASK | {"n_start": 3, "n_end": 2}, "in", False),
    ],
    "custom:multiples": [
        ({}, "14, 21, 28, 35, 42, 49", True),
        ({}, "Here: 14,21,28,35,42,49.", True),
        ({}, "7, 14, 21, 28, 35, 42, 49", False),
        ({}, "Of 7: 14, 21, 28, 35, 42, 49", False),
    ],
    "custom:mcq_count_length": [
        ({}, QUESTIONS, True),
        ({}, QUESTIONS.replace("E) Ed", ""), False),
        ({}, "Sure!\n" + QUESTIONS, False),
        ({}, QUESTIONS.replace("really really really ", "really really "), False),
        ({}, QUESTIONS.replace(")", "."), True),
        ({}, "\n\n".join(QUESTIONS.split("\n\n")[:3]), False),
    ],
    "custom:reverse_newline": [
        ({}, "Sure:\n" + AFRICA, True),
        ({}, COUNTRIES, False),
        ({}, AFRICA.replace("- Nw", ""), False),
        ({}, AFRICA.replace("- Vz", "- Az"), False),
        ({}, AFRICA.replace("- Vy", "- V\u0301y"), True),
    ],
    "custom:word_reverse": [
        ({}, ".US the of symbol the is eagle Bald", True),
        ({}, "The bald eagle is the symbol.", False),
        ({}, "eagle, bald", True),
        ({}, "eagle, a bald", False),
    ],
    "custom:character_reverse": [
        ({}, ".elgae dlaB eht si tI", True),
        ({}, "The bald eagle", False),
        ({}, "elgae  dlab", False),
    ],
    "custom:sentence_alphabet": [
        ({}, STORY, True),
        ({}, STORY.replace("Zlice", "Alice"), False),
        ({}, STORY + " The end.", False),
        ({}, STORY.lower(), True),
    ],
    "custom:european_capitals_sort": [
        ({}, CAPITALS, True),
        ({}, CAPITALS.replace("Reykjavik", "Reykjavík").replace(", Riga", ",,Riga"), True),
        ({}, CAPITALS.replace("Oslo, ", ""), False),
        ({}, "Here: " + CAPITALS, False),
    ],
    "custom:csv_city": [
        ({}, CITIES, True),
        ({}, CITIES.replace('"', ""), False),
        ({}, CITIES + "\n8,Peru,Lima,2020,5", False),
        ({}, CITIES.replace("ID,", "Id,"), False),
        ({}, CITIES.replace("Peru", "Pe\rru"), False),
    ],
    "custom:csv_special_character": [
        ({}, STOCK + '\n2,Toys,"A & B",9.99,5', True),
        ({}, STOCK + '\n2,Toys,"A B",9.99,5', False),
        ({}, STOCK + "\n2,Toys,A & B,9.99,5", False),
        ({}, STOCK + '\n2,Toys,"A, B",9.99,5', True),
        ({}, STOCK + '\n2,Toys,"A & B",9.99', False),
        ({}, STOCK.replace("Price,", "Prize,") + '\n2,Toys,"A & B",9.99,5', False),
    ],
    "custom:csv_quotes": [
        ({}, GRADES, True),
        ({}, GRADES.replace('"Art"', "Art"), False),
        ({}, GRADES.replace("\t", ","), False),
        ({}, GRADES.replace("\t", "\t "), True),
        ({}, GRADES.replace('"Art"', ""), False),
        ({}, GRADES.replace('"Subject"', "Subject"), False),
    ],
    "custom:date_format_list": [
        ({}, "1796-05-10, 1815-06-18", True),
        ({}, "1796-05-10, 1815-6-18", False),
        ({}, "1822-05-10", False),
        ({}, "1796-06-31", False),
        ({}, "1769-08-31,1821-02-29", True),
        ({}, "1796-05-10,", False),
        ({}, "Dates: 1796-05-10", False),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [constraint.id for module in (custom, formatting) for constraint in module.TABLE],
)
def test_cases(name: str, check_cases: CheckCases) -> None:
    check_cases(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_hostile_and_blank_answers(name: str, check_hostile: CheckHostile) -> None:
    check_hostile(name, CASES[name][0][0])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("custom:mcq_count_length", "Question 1:" + "\n" * 100_000 + "x"),
        ("custom:csv_special_character", STOCK + '\n2,Toys,"' + "& " * 50_000 + ",9.99,5"),
        ("custom:european_capitals_sort", "a" + "\u0316\u0301" * 50_000),
        ("format:newline", "a" + "\n.\n" * 33_000 + "b"),
        ("format:no_bullets_bullets", "a\n" * 50_000),
    ],
)
def test_answers_made_for_one_constraint(name: str, answer: str) -> None:
    started = time.process_time()
    satisfied((answer, [(name, {})]))
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize(
    ("name", "parameters", "problem"),
    [
        ("format:options", {"options": None}, "needs options"),
        ("format:list", {"sep": 3}, "sep must be text"),
        ("repeat:repeat_change", {}, "needs prompt_to_repeat"),
        ("repeat:repeat_span", ASK | {"n_start": -1, "n_end": 3}, "n_start must be a whole number"),
        ("repeat:repeat_span", ASK | {"n_start": 0, "n_end": float("inf")}, "n_end"),
    ],
)
def test_labels_that_cannot_be_used(name: str, parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find(name).bind(parameters)


def test_every_published_constraint_is_there() -> None:
    assert sum(":" in name for name in CONSTRAINTS) == 25 + 29 + 58
