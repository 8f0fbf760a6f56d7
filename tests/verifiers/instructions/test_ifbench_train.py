"""The constraints of IFBench's training set: answers on either side of each."""

from __future__ import annotations

from typing import Any

import pytest

from olmorl.verifiers.instructions.constraint_table import find
from olmorl.verifiers.instructions.ifbench import train
from tests.verifiers.instructions.conftest import Case, CheckCases, CheckHostile

MANY, FEW = "at least", "less than"
BIRD = {"phrase": "The early bird catches worms", "small_n": 2}
HI = {"prompt_to_repeat": " Say hi. "}

CASES: dict[str, list[Case]] = {
    "copy:repeat_phrase": [
        (BIRD, "The early cat catches worms. The late bird catches worms.", True),
        (BIRD, "The early bird catches worms. The early cat catches worms.", False),
        (BIRD, "The early cat catches worms. The early bird catches worms.", False),
        (BIRD, "The early bird catches worms. The early bird catches worms.", False),
        (BIRD, "The early cat catches worms. The late bird catches worms. The early dog catches worms.", False),
        (BIRD, "1. The early cat catches worms\n2. The early dog catches worms", True),
        (BIRD, "The early Bird catches worms. The early bird sees worms.", True),
        (BIRD, "the early cat catches worms. The late bird catches worms.", False),
        (BIRD, "The very early cat catches worms. The late bird catches worms.", False),
        (BIRD, "The early cat catches worms.", False),
        (BIRD, "The late cat catches worms. The early cat catches worms.", False),
        (BIRD, "The cat catches worms. The early cat catches worms.", False),
        (BIRD, "The early\ncat catches worms. The early cat catches worms.", False),
        ({"phrase": "a (b c", "small_n": 1}, "a [b c", True),
    ],
    "copy:copy": [
        (HI, "say HI.", True),
        (HI, "Say hi", False),
        (HI, "Sure: Say hi.", False),
        ({"prompt_to_repeat": "2 + 2"}, "2 + 2", True),
    ],
    "copy:copying_simple": [(HI, "Say hi.\n", True), (HI, "Hi.", False), (HI, "Say  hi.", False)],
    "copy:copying_multiple": [
        (HI | {"N": 2}, "Say hi.\n******\nsay hi.", True),
        (HI | {"N": 2}, "Say hi.", False),
        (HI | {"N": 2}, "Say hi.******Say hi.******Say hi.", False),
        (HI | {"N": 2}, "Say hi.*****Say hi.", False),
        (HI | {"N": 1}, "Say hi.", True),
    ],
    "new:copy_span_idx": [
        ({"prompt_to_repeat": "Name a city.", "n_start": 5, "n_end": 11}, "A city", True),
        ({"prompt_to_repeat": "Name a city.", "n_start": 5, "n_end": 11}, "a city.", False),
        ({"prompt_to_repeat": "Name a city.", "n_start": 0, "n_end": 4}, "name", True),
        ({"prompt_to_repeat": "Name a city.", "n_start": 0, "n_end": 99}, "Name a city.", True),
        ({"prompt_to_repeat": "Name a city.", "n_start": 4, "n_end": 4}, "Name", False),
    ],
    "detectable_format:sentence_hyphens": [
        ({}, "One is here.-Two is there.", True),
        ({}, "One is here.-  Two is there.", False),
        ({}, "One is here. Two is there.", False),
        ({}, "Only one.", True),
        ({}, "A well-known fact.", False),
    ],
    "keywords:no_adjacent_consecutive": [
        ({}, "Apples can fall", True),
        ({}, "Apples become red", False),
        ({}, "become apples", True),
        ({}, "1 2 go", False),
        ({}, "Zebra animals", True),
    ],
    "detectable_format:square_brackets": [
        ({}, "[Each] [word].", False),
        ({}, "[Each] [word.]", True),
        ({}, "[Each word]", False),
    ],
    "keywords:word_once": [
        ({"keyword": "cat"}, "A Cat.", True),
        ({"keyword": "cat"}, "A dog.", False),
        ({"keyword": "cat"}, "A cat to concatenate.", False),
        ({"keyword": ["cat"]}, "A cat.", True),
        ({"keyword": "c++"}, "I write C++", True),
    ],
    "keywords:word_count_different_numbers": [
        ({"keyword": "cat", "frequency": 2, "relation": MANY}, "Cat and cats.", True),
        ({"keyword": "cat", "frequency": 3, "relation": MANY}, "Cat and cats.", False),
        ({"keyword": "cat", "frequency": 2, "relation": FEW}, "Cat and cats.", False),
        ({"keyword": "cat", "frequency": 2, "relation": FEW}, "One cat.", True),
    ],
    "keywords:exclude_word_harder": [
        ({"keyword": "cat"}, "A dog and a bird.", True),
        ({"keyword": "cat", "instruction": "Tell me of a cat."}, "A cat is here.", False),
        ({"keyword": "cat"}, "A cat.", True),
        ({"keyword": "cat"}, "A Cat is here.", True),
    ],
    "keywords:keyword_specific_position": [
        ({"keyword": "cat", "n": 2, "m": 3}, "Well. See the cat run.", True),
        ({"keyword": "cat", "n": 2, "m": 3}, "Well. See the Cat run.", False),
        ({"keyword": "cat", "n": 2, "m": 3}, "Well. Oh, the cat.", False),
        ({"keyword": "cat", "n": 2, "m": 4}, "Well. Oh, the cat.", True),
        ({"keyword": "cat", "n": 3, "m": 1}, "cat. cat.", False),
        ({"keyword": "cat", "n": 1, "m": 9}, "cat.", False),
    ],
    "keywords:palindrome": [
        ({}, "Look at noon today", True),
        ({}, "Nothing of the kind", False),
        ({}, "Look at Noon today", False),
        ({}, "Do I", True),
    ],
    "keywords:start_end": [
        ({}, "Rain is only rain", True),
        ({}, "Rain is only rain.", False),
        ({}, "Rain", False),
        ({}, '"Rain', False),
    ],
    "first_word:first_word_sent": [
        ({"first_word": "we"}, "We run. We sit!", True),
        ({"first_word": "we"}, "We run. They sit.", False),
        ({"first_word": ["we"]}, "We, too.", False),
        ({"first_word": "we"}, "We saw Dr. Who run.", True),
    ],
    "first_word:first_word_answer": [
        ({"first_word": "Yes"}, "yes of course", True),
        ({"first_word": "Yes"}, "Yes, of course", False),
        ({"first_word": "Yes"}, "Of course yes", False),
    ],
    "last_word:last_word_sent": [
        ({"last_word": "sea"}, "I like the Sea. You fear the sea!", True),
        ({"last_word": "sea"}, "I like the sea. You fear it.", False),
        ({"last_word": "sea"}, "I like the (sea).", True),
        ({"last_word": "sea"}, "I like the sea-sea.", False),
    ],
    "last_word:last_word_answer": [
        ({"last_word": "sea"}, "All of it is SEA!", True),
        ({"last_word": "sea"}, "The sea is all.", False),
        ({"last_word": "sea"}, "The sea .", False),
    ],
    "detectable_format:bigram_wrapping": [
        ({}, "<<I am>> <<at home>>", True),
        ({}, "<<I am>> at home", False),
        ({}, "<<I am>> <<at home now>>", False),
        ({}, "<<I am>> home", True),
    ],
    "paragraphs:paragraphs": [
        ({}, "One.\n***\nTwo.", True),
        ({}, "One.\n\nTwo.", False),
        ({}, "***\nOne. *** Two.\n***", True),
        ({}, "One.\n***\nTwo.\n***\nThree.", False),
        ({}, "One.\n***\n***\nTwo.", False),
    ],
    "paragraphs:paragraphs2": [
        ({}, "One.\nStill one.\n\nTwo.", True),
        ({}, "One.\n\nTwo.\n\nThree.", False),
        ({}, "One.\n\n\n\nTwo.", False),
        ({}, "One.\n\n\nTwo.", True),
        ({}, "One.", False),
    ],
    "punctuation:punctuation_dot": [({}, "No dot here!", True), ({}, "One here.", False), ({}, "3.5 of them", False)],
    "punctuation:punctuation_exclamation": [({}, "None.", True), ({}, "One!", False), ({}, "Full width！", True)],
    "count:lowercase_counting": [
        ({"N": 2}, "ONE two three", True),
        ({"N": 2}, "one two three", False),
        ({"N": 1}, "Don't", True),
        ({"N": 0}, "Don't", False),
        ({"N": 0}, "snake_case x1 École", True),
    ],
    "letters:letter_counting": [
        ({"N": 3, "relation": MANY}, "a1 B-c", True),
        ({"N": 4, "relation": MANY}, "a1 B-c", False),
        ({"N": 3, "relation": FEW}, "abc", False),
        ({"N": 3, "relation": FEW}, "abé", True),
    ],
    "letters:letter_counting2": [
        ({"letter": "E", "let_frequency": 3, "let_relation": MANY}, "Eleven", True),
        ({"letter": "e", "let_frequency": 4, "let_relation": MANY}, "Eleven", False),
        ({"letter": "e", "let_frequency": 3, "let_relation": FEW}, "Eleven", False),
    ],
    "count:counting_composition": [
        ({"n_sent": 2, "n_words": 3}, "I run. You sit.\n***\nWe eat. They go.\n***\nIt is. He was.", True),
        ({"n_sent": 2, "n_words": 2}, "I run. You sit.\n***\nWe eat. They go.\n***\nIt is. He was.", False),
        ({"n_sent": 2, "n_words": 3}, "I run. You sit.\n***\nWe eat. They go.\n***\nIt is.", False),
        ({"n_sent": 2, "n_words": 3}, "I run. You sit.\n***\nWe eat. They go.", False),
        ({"n_sent": 1, "n_words": 4}, "I, too.\n***\nDon't go.\n***\nYes we can", False),
        ({"n_sent": 1, "n_words": 4}, "I, too.\n***\nDon't go.\n***\nYes we can.", True),
    ],
    "count:count_unique": [
        ({}, "Each word differs here.", True),
        ({}, "Each word is a word", False),
        ({}, "The cat saw the dog", True),
        ({}, "One, two, three", False),
    ],
    "count:count_increment_word": [
        ({"keyword1": "cat", "keyword2": "dog"}, "A cat, a dog, a Dog.", True),
        ({"keyword1": "cat", "keyword2": "dog"}, "A cat, a dog.", False),
        ({"keyword1": "cat", "keyword2": "dog"}, "Cats, a cat, a dog, a dog.", False),
        ({"keyword1": "cat", "keyword2": "dog"}, "A cat, dogs, a dog, a dogma.", False),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [constraint.id for constraint in train.TABLE],
)
def test_cases(name: str, check_cases: CheckCases) -> None:
    check_cases(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_hostile_and_blank_answers(name: str, check_hostile: CheckHostile) -> None:
    check_hostile(name, CASES[name][0][0])


@pytest.mark.parametrize(
    ("name", "parameters", "problem"),
    [
        ("copy:copy", {"prompt_to_repeat": None}, "needs prompt_to_repeat"),
        ("copy:repeat_phrase", {"phrase": "a b c", "small_n": 0}, "small_n must be a whole number from 1"),
        ("new:copy_span_idx", {"prompt_to_repeat": "a", "n_start": 0}, "needs n_end"),
        ("keywords:exclude_word_harder", {"keyword": None, "instruction": "Tell me."}, "needs keyword"),
        ("keywords:keyword_specific_position", {"keyword": "a", "n": 0, "m": 1}, "n must be a whole number from 1"),
        ("letters:letter_counting", {"N": 3, "relation": "around"}, "relation must be one of"),
        ("letters:letter_counting2", {"letter": "ab", "let_frequency": 1, "let_relation": MANY}, "one character"),
        ("first_word:first_word_sent", {"first_word": []}, "first_word must be text"),
    ],
)
def test_labels_that_cannot_be_used(name: str, parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find(name).bind(parameters)
