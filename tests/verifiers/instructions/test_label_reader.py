"""Labels as data sets have them, and what is said of broken ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from olmorl.verifiers.instructions.label_reader import MAX_LABEL, read

PAIR = {"instruction_id": ["punctuation:no_comma", "keywords:existence"], "kwargs": [None, {"keywords": ["river"]}]}
BOUND = [("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ("river",)})]
FUNCTION = {"func_name": "validate_word_constraint", "N": 20, "quantifier": "at most", "end_phrase": None}


@pytest.mark.parametrize(
    "label",
    [
        PAIR,
        json.dumps(PAIR),
        repr(PAIR),
        [PAIR],
        repr([PAIR]),
        json.dumps([json.dumps(PAIR)]),
        {"instruction_id_list": PAIR["instruction_id"], "kwargs": PAIR["kwargs"]},
        {**PAIR, "instruction_id_list": None, "key": 1000, "prompt": "Write."},
        {**PAIR, "kwargs": [{"num_words": None, "keywords": None}, {"keywords": ["river"], "relation": None}]},
        {**PAIR, "kwargs": json.dumps(PAIR["kwargs"])},
    ],
)
def test_every_form_of_a_label_with_ids(label: Any) -> None:
    assert read(label) == BOUND


def test_a_label_with_a_function() -> None:
    bound = [("validate_word_constraint", {"N": 20, "quantifier": "at most"})]
    assert read(FUNCTION) == read(json.dumps(FUNCTION)) == read([FUNCTION]) == bound
    assert read([FUNCTION, {"func_name": "validate_no_commas"}]) == [*bound, ("validate_no_commas", {})]


def test_one_id_with_its_parameters() -> None:
    assert read({"instruction_id": "keywords:existence", "kwargs": {"keywords": ["river"]}}) == BOUND[1:]
    assert read({"instruction_id": ["punctuation:no_comma"]}) == BOUND[:1]


def test_a_whole_number_may_come_as_a_float() -> None:
    (bound,) = read({**FUNCTION, "N": 20.0})
    assert bound[1]["N"] == 20


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (None, "the label is a NoneType"),
        (7, "the label is a int"),
        ([], "names no constraint"),
        ({"instruction_id": [], "kwargs": []}, "names no constraint"),
        ({}, "neither instruction_id nor func_name"),
        ("all words in capitals", "neither JSON nor a Python literal"),
        ("__import__('os').getcwd()", "neither JSON nor a Python literal"),
        ("[" * 100_000, "neither JSON nor a Python literal"),
        ("1" * (MAX_LABEL + 1), "longer than"),
        ([[[[PAIR]]]], "layers"),
        ({"instruction_id": ["punctuation:no_coma"]}, "did you mean 'punctuation:no_comma'?"),
        ({"func_name": "validate_no_comma"}, "did you mean 'validate_no_commas'?"),
        ({"func_name": 3}, "func_name must be text, not 3"),
        ({"instruction_id": [None]}, "an instruction_id must be text, not None"),
        ({**PAIR, "kwargs": [None]}, "lists of one length"),
        ({**PAIR, "kwargs": [None, 3]}, "are a int, not an object"),
        ({**PAIR, "kwargs": None}, "keywords:existence needs keywords"),
        ({**PAIR, "kwargs": [None, {"keywords": []}]}, "keywords must be a list of texts that is not empty"),
        ({**PAIR, "kwargs": [None, {"keywords": "river"}]}, "keywords must be a list of texts"),
        ({**FUNCTION, "N": None}, "validate_word_constraint needs N"),
        ({**FUNCTION, "N": -1}, "N must be a whole number from 0, not -1"),
        ({**FUNCTION, "N": True}, "N must be a whole number from 0, not True"),
        ({**FUNCTION, "N": float("nan")}, "N must be a whole number from 0, not nan"),
        ({**FUNCTION, "quantifier": "less than"}, "quantifier must be one of 'at least', 'around', 'at most'"),
        ({"func_name": "validate_paragraphs", "N": 2, "i": 3, "first_word": "A"}, "there is no paragraph 3 of 2"),
        ({"func_name": "validate_response_language", "language": "Elvish"}, "code of a known language"),
        ({"func_name": "verify_letter_frequency", "letter": "ab", "N": 1}, "letter must be one character, not 'ab'"),
    ],
)
def test_what_is_said_of_a_broken_label(label: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        read(label)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 300
