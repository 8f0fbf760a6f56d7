"""IFEval's constraints: for each, answers that satisfy it, that do not, and that are just on either side."""

from __future__ import annotations

import pytest

from olmorl.verifiers.instructions import ifeval
from tests.verifiers.instructions.conftest import Case, CheckCases, CheckHostile

ENGLISH = "the small house stands near the river and every morning people walk along the water to their work"
GERMAN = "Das kleine Haus steht am Fluss und jeden Morgen gehen die Leute am Wasser entlang zu ihrer Arbeit."
CHINESE = "每天早上人们沿着河边走路去上班，那座小房子就在河的旁边。"
MANY, FEW = "at least", "less than"

CASES: dict[str, list[Case]] = {
    "keywords:existence": [
        ({"keywords": ["river", "Water"]}, "By the River there is WATER.", True),
        ({"keywords": ["river", "water"]}, "By the river.", False),
        ({"keywords": ["art"]}, "A party.", True),
        ({"keywords": ["c++ (new)"]}, "I like C++ (new).", True),
        ({"keywords": ["a.b"]}, "It is axb.", False),
    ],
    "keywords:frequency": [
        ({"keyword": "cat", "frequency": 2, "relation": MANY}, "Cat and cats.", True),
        ({"keyword": "cat", "frequency": 3, "relation": MANY}, "Cat and cats.", False),
        ({"keyword": "cat", "frequency": 2, "relation": FEW}, "A cat.", True),
        ({"keyword": "cat", "frequency": 2, "relation": FEW}, "Cat and cats.", False),
        ({"keyword": " cat ", "frequency": 1, "relation": MANY}, "Concatenate!", True),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["cat", "dog"]}, "A concatenation of dogs.", True),
        ({"forbidden_words": ["cat", "dog"]}, "A bird, a Dog.", False),
        ({"forbidden_words": ["cat"]}, "cat-like", False),
        ({"forbidden_words": ["C++"]}, "C and C++.", False),
    ],
    "keywords:letter_frequency": [
        ({"letter": "e", "let_frequency": 3, "let_relation": MANY}, "Eleven", True),
        ({"letter": "E", "let_frequency": 4, "let_relation": MANY}, "Eleven", False),
        ({"letter": "e", "let_frequency": 3, "let_relation": FEW}, "Eleven", False),
        ({"letter": "#", "let_frequency": 2, "let_relation": MANY}, "#one #two", True),
    ],
    "language:response_language": [
        ({"language": "de"}, GERMAN, True),
        ({"language": "en"}, GERMAN, False),
        ({"language": "en"}, ENGLISH, True),
        ({"language": "zh"}, CHINESE, True),
        ({"language": "zh-cn"}, CHINESE, True),
        ({"language": "en"}, "https://example.org/index", False),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 2, "relation": MANY}, "Dr. Smith paid $3.50. He left at 5 p.m. in a car.", True),
        ({"num_sentences": 3, "relation": MANY}, "Dr. Smith paid $3.50. He left at 5 p.m. in a car.", False),
        ({"num_sentences": 3, "relation": FEW}, '"Really?" she asked. (No.)', False),
        ({"num_sentences": 2, "relation": FEW}, "One without an end", True),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, "One.\n***\nTwo.", True),
        ({"num_paragraphs": 2}, "***\nOne.\n***\nTwo.\n***", True),
        ({"num_paragraphs": 2}, "One.\n\nTwo.", False),
        ({"num_paragraphs": 2}, "One.\n***\n***\nTwo.", False),
        ({"num_paragraphs": 1}, "One.", True),
    ],
    "length_constraints:number_words": [
        ({"num_words": 4, "relation": MANY}, "I don't know.", True),
        ({"num_words": 5, "relation": MANY}, "I don't know.", False),
        ({"num_words": 4, "relation": FEW}, "I don't know.", False),
        ({"num_words": 3, "relation": FEW}, "snake_case word", True),
    ],
    "length_constraints:nth_paragraph_first_word": [
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First.\n\nThen, it rained.", True),
        ({"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "then"}, "First.\n\nThen, it rained.", False),
        ({"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "then"}, "First.\n\nThen, it rained.", False),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "it"}, "\"It's\" so.", True),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "well"}, "Well-known", False),
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "b"}, "a\n\n\n\nb", False),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, "Dear [name], of [address].", True),
        ({"num_placeholders": 3}, "Dear [name], of [address].", False),
        ({"num_placeholders": 1}, "a [broken\nplaceholder]", False),
        ({"num_placeholders": 2}, "[a [b] c] [d]", True),
        ({"num_placeholders": 3}, "[a [b] c] [d]", False),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Bye.\nP. S. Write soon.", True),
        ({"postscript_marker": "P.S."}, "Bye.\nPS write soon.", False),
        ({"postscript_marker": "P.P.S"}, "Bye.\np.p.s. Write", True),
        ({"postscript_marker": "P.P.S"}, "Bye.\nP.S. Write", False),
        ({"postscript_marker": "Note:"}, "Bye. note: more", True),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, "Buy:\n* milk\n- bread", True),
        ({"num_bullets": 2}, "Buy:\n* milk\n- bread\n  * eggs", False),
        ({"num_bullets": 1}, "**Bold**\n* milk", True),
        ({"num_bullets": 2}, "a\n---\n- b", True),
        ({"num_bullets": 1}, "*\n* swallowed", True),
    ],
    "detectable_format:constrained_response": [
        ({}, "My answer is maybe.", True),
        ({}, "I think: My answer is no. Sorry.", True),
        ({}, "My answer is yes", False),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, "*one* and **two**", True),
        ({"num_highlights": 3}, "*one* and **two**", False),
        ({"num_highlights": 1}, "* * ** **", False),
        ({"num_highlights": 1}, "*open\nend*", False),
        ({"num_highlights": 0}, "none", True),
    ],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "Section", "num_sections": 2}, "Section 1\nText.\nSection2\nText.", True),
        ({"section_spliter": "Section", "num_sections": 3}, "Section 1\nText.\nSection 2\nText.", False),
        ({"section_spliter": "SECTION", "num_sections": 1}, "Section 1", False),
        ({"section_spliter": "Part (a)", "num_sections": 1}, "Part (a) 1", True),
    ],
    "detectable_format:json_format": [
        ({}, '```json\n{"a": [1, 2]}\n```', True),
        ({}, '{"a": "b"}', True),
        ({}, 'Here: {"a": 1}', False),
        ({}, "{'a': 1}", False),
        ({}, '"' + "[" * 50_000, False),
    ],
    "detectable_format:title": [
        ({}, "<<Poem of joy>>\nText", True),
        ({}, "<Poem of joy>\nText", False),
        ({}, "<< >> text", False),
        ({}, "<<broken\ntitle>>", False),
        ({}, "<<a>>", True),
    ],
    "combination:two_responses": [
        ({}, "First.\n******\nSecond.", True),
        ({}, "Same.\n******\nSame.", False),
        ({}, "One\n******\nTwo\n******\nThree", False),
        ({}, "******\nOne\n******\nTwo\n******", True),
        ({}, "One\n******\n******\nTwo", False),
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Say hi. "}, "say HI. Hi!", True),
        ({"prompt_to_repeat": "Say hi."}, "Sure. Say hi. Hi!", False),
        ({"prompt_to_repeat": "Say hi."}, "Say hi", False),
    ],
    "startend:end_checker": [
        ({"end_phrase": "The end."}, "It was so. the END.", True),
        ({"end_phrase": "The end."}, '"It was so. The end."', True),
        ({"end_phrase": "The end."}, "It was so. The end. Bye", False),
        ({"end_phrase": "The end."}, "The end", False),
    ],
    "startend:quotation": [
        ({}, '"All of it."', True),
        ({}, '"All" of it.', False),
        ({}, "“All of it.”", False),
        ({}, ' "a" \n', True),
    ],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 3, "capital_relation": MANY}, "NASA and the U.S. - COVID-19.", True),
        ({"capital_frequency": 4, "capital_relation": MANY}, "NASA and the U.S. - COVID-19.", False),
        ({"capital_frequency": 2, "capital_relation": FEW}, "I'M here", False),
        ({"capital_frequency": 2, "capital_relation": FEW}, "I am here", True),
    ],
    "change_case:english_capital": [
        ({}, "THIS IS THE ANSWER THAT YOU WANTED AND IT IS WRITTEN WITHOUT ANY SMALL LETTERS AT ALL.", True),
        ({}, "THIS IS THE ANSWER THAT YOU WANTED AND IT IS WRITTEN WITHOUT ANY SMALL LETTERS AT ALL, yes.", False),
        ({}, GERMAN.upper(), False),
    ],
    "change_case:english_lowercase": [
        ({}, ENGLISH, True),
        ({}, ENGLISH + " in Paris", False),
        ({}, GERMAN.lower(), False),
    ],
    "punctuation:no_comma": [
        ({}, "One and two; three.", True),
        ({}, "One, two.", False),
        ({}, "One， two、three", True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", [constraint.id for constraint in ifeval.TABLE])
def test_cases(name: str, check_cases: CheckCases) -> None:
    check_cases(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_hostile_and_blank_answers(name: str, check_hostile: CheckHostile) -> None:
    check_hostile(name, CASES[name][0][0])
