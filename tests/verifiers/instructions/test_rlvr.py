"""The constraints named by `func_name`: for each, answers that satisfy it, that do not, and just on either side."""

from __future__ import annotations

import pytest

from olmorl.verifiers.instructions import rlvr
from tests.verifiers.instructions.conftest import Case, CheckCases, CheckHostile

GERMAN = "Das kleine Haus steht am Fluss und jeden Morgen gehen die Leute am Wasser entlang zu ihrer Arbeit."
MANY, ABOUT, MOST = "at least", "around", "at most"

CASES: dict[str, list[Case]] = {
    "verify_keywords": [
        ({"keyword_list": ["river", "Water"]}, "By the RIVER there is water.", True),
        ({"keyword_list": ["river", "water"]}, "By the river.", False),
        ({"keyword_list": ["art"]}, "A party.", True),
    ],
    "verify_keyword_frequency": [
        ({"word": "Cat", "N": 2}, "A cat. The cat's tail; cats.", True),
        ({"word": "cat", "N": 2}, "A cat and cats.", False),
        ({"word": "cat", "N": 0}, "A concatenation", True),
        ({"word": "cat", "N": 1}, "Cat cat", False),
    ],
    "validate_forbidden_words": [
        ({"forbidden_words": ["cat", "dog"]}, "A bird.", True),
        ({"forbidden_words": ["cat", "dog"]}, "A Dog.", False),
        ({"forbidden_words": ["cat"]}, "A concatenation.", False),
    ],
    "verify_letter_frequency": [
        ({"letter": "e", "N": 2}, "Eleven", True),
        ({"letter": "E", "N": 2}, "Eleven", False),
        ({"letter": "e", "N": 3}, "Eleven", False),
        ({"letter": "x", "N": 0}, "Eleven", True),
    ],
    "validate_response_language": [
        ({"language": "de"}, GERMAN, True),
        ({"language": "en"}, GERMAN, False),
        ({"language": "en"}, "https://example.org/index", False),
    ],
    "verify_paragraph_count": [
        ({"N": 2}, "One.\n* * *\nTwo.", True),
        ({"N": 2}, "One.\n***\nTwo.", False),
        ({"N": 2}, "One.\n* * *\nTwo.\n* * *", False),
        ({"N": 1}, "One.", True),
    ],
    "validate_word_constraint": [
        ({"N": 3, "quantifier": MANY}, "I don't know.", True),
        ({"N": 4, "quantifier": MANY}, "I don't know.", False),
        ({"N": 3, "quantifier": MOST}, "I don't know.", True),
        ({"N": 2, "quantifier": MOST}, "I don't know.", False),
        ({"N": 40, "quantifier": ABOUT}, "word " * 44, True),
        ({"N": 40, "quantifier": ABOUT}, "word " * 35, False),
        ({"N": 2, "quantifier": ABOUT}, "I don't know.", True),
    ],
    "verify_sentence_constraint": [
        ({"N": 3, "quantifier": MANY}, "One. Two? Three!", True),
        ({"N": 4, "quantifier": MANY}, "One. Two? Three!", False),
        ({"N": 1, "quantifier": MOST}, "Dr. Smith went, e.g. home.", True),
        ({"N": 1, "quantifier": MOST}, "He went. Home.", False),
        ({"N": 2, "quantifier": ABOUT}, "One. Two? Three!", True),
        ({"N": 5, "quantifier": ABOUT}, "One. Two? Three!", False),
    ],
    "validate_paragraphs": [
        ({"N": 2, "first_word": "Then", "i": 2}, "First.\n\nThen it rained.", True),
        ({"N": 2, "first_word": "then", "i": 2}, "First.\n\nThen it rained.", False),
        ({"N": 3, "first_word": "Then", "i": 2}, "First.\n\nThen it rained.", False),
        ({"N": 1, "first_word": "The", "i": 1}, "Then", True),
    ],
    "verify_postscript": [
        ({"postscript_marker": "P.S."}, "Bye.\nP.S. Write soon.", True),
        ({"postscript_marker": "P.S."}, "Bye.\np.s. Write soon.", False),
        ({"postscript_marker": "P.S."}, "Bye.\nP.S. ", False),
    ],
    "validate_placeholders": [
        ({"N": 2}, "Dear [name], of [address].", True),
        ({"N": 3}, "Dear [name], of [address].", False),
        ({"N": 1}, "a [broken\nplaceholder]", False),
    ],
    "verify_bullet_points": [
        ({"N": 2}, "Buy:\n* milk\n  - bread", True),
        ({"N": 2}, "Buy:\n* milk", False),
        ({"N": 2}, "**Bold**\n* milk", True),
    ],
    "validate_title": [
        ({}, "Text <<Poem of joy>>", True),
        ({}, "<Poem of joy>", False),
        ({}, "<<broken\ntitle>>", False),
    ],
    "validate_choice": [
        ({"options": ["yes", "no"]}, "I say yes.", True),
        ({"options": ["yes", "no"]}, "Yes.", False),
        ({"options": "yes/no/maybe"}, "Perhaps", False),
        ({"options": "yes/no/maybe"}, "maybe", True),
    ],
    "validate_highlighted_sections": [
        ({"N": 2}, "*one* and *two*", True),
        ({"N": 3}, "*one* and *two*", False),
        ({"N": 2}, "**bold**", True),
        ({"N": 1}, "*open\nend*", False),
    ],
    "validate_sections": [
        ({"N": 2, "section_splitter": "Section"}, "Section 1\nText.\nSection2\nText.", True),
        ({"N": 2, "section_splitter": "Section"}, "SECTION 1\nText.\nSECTION 2\nText.", False),
        ({"N": 2, "section_splitter": "Section"}, "Section 1\nText.\nsection 2\nText.", False),
        ({"N": 2, "section_splitter": "SECTION"}, "SECTION 1\nText.\nSECTION 2\nText.", True),
        ({"N": 1, "section_splitter": "Day"}, "Intro\nDay 1: rest", True),
        ({"N": 3, "section_splitter": "Section"}, "Section 1\nText.\nSection 2\nText.", False),
        ({"N": 1, "section_splitter": "Section"}, "The Section without a number", False),
    ],
    "validate_json_format": [
        ({}, '{"a": [1, 2]}', True),
        ({}, '```json\n{"a": 1}\n```', False),
        ({}, "{'a': 1}", False),
    ],
    "validate_repeat_prompt": [
        ({"original_prompt": " Say hi.\n"}, "Say hi. Hi!", True),
        ({"original_prompt": "Say hi."}, "say hi. Hi!", False),
        ({"original_prompt": "Say hi."}, "Say hi", False),
    ],
    "validate_two_responses": [
        ({}, "First.\n******\nSecond.", True),
        ({}, "Same.\n******\nSame.", False),
        ({}, "One\n******\nTwo\n******\nThree", False),
        ({}, "******\nOnly one", False),
    ],
    "validate_uppercase": [
        ({}, "ALL OF IT, 3 TIMES.", True),
        ({}, "ALL OF it.", False),
        ({}, "ÄÖÜ", True),
    ],
    "validate_lowercase": [
        ({}, "all of it, 3 times.", True),
        ({}, "all of It.", False),
        ({}, "日本語", True),
    ],
    "validate_frequency_capital_words": [
        ({"N": 2, "quantifier": MANY}, "NASA and I", True),
        ({"N": 3, "quantifier": MANY}, "NASA and I", False),
        ({"N": 1, "quantifier": MOST}, "NASA and I", False),
        ({"N": 1, "quantifier": ABOUT}, "NASA and I", True),
        ({"N": 4, "quantifier": ABOUT}, "NASA and I", False),
    ],
    "validate_end": [
        ({"end_phrase": "The end."}, "It was so. The end.\n", True),
        ({"end_phrase": "The end."}, "It was so. the end.", False),
        ({"end_phrase": "The end."}, '"The end."', False),
    ],
    "validate_quotation": [
        ({}, '"All of it."', True),
        ({}, '"All" of it.', False),
        ({}, "“All of it.”", False),
    ],
    "validate_no_commas": [
        ({}, "One and two; three.", True),
        ({}, "One, two.", False),
        ({}, "One、two", True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", [constraint.id for constraint in rlvr.TABLE])
def test_cases(name: str, check_cases: CheckCases) -> None:
    check_cases(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_hostile_and_blank_answers(name: str, check_hostile: CheckHostile) -> None:
    check_hostile(name, CASES[name][0][0])
