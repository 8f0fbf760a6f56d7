"""IFBench's constraints on words, sentences and counts: answers on either side of each."""

from __future__ import annotations

from typing import Any

import pytest

from olmorl.verifiers.instructions.constraint_table import find
from olmorl.verifiers.instructions.ifbench import count, words
from olmorl.verifiers.instructions.texts.vocabulary import listed
from tests.verifiers.instructions.conftest import Case, CheckCases, CheckHostile

KEYWORDS = {"keyword1": "ant", "keyword2": "bee", "keyword3": "cow", "keyword4": "dog", "keyword5": "eel"}
ANIMALS = "Ant" + " bee" * 2 + " cow" * 3 + " dog" * 5 + " eel" * 7
PALINDROMES = "Racecar, radar, level, madam, civic, refer, tenet, kayak, rotor"
FOX = "the quick brown fox jumps over the lazy dog"

CASES: dict[str, list[Case]] = {
    "count:word_count_range": [
        ({"min_words": 3, "max_words": 4}, "I don't know", True),
        ({"min_words": 3, "max_words": 3}, "I don't know", False),
        ({"min_words": 5, "max_words": 9}, "I don't know", False),
    ],
    "count:unique_word_count": [
        ({"N": 3}, "One two, three.", True),
        ({"N": 3}, "One one, ONE two.", False),
        ({"N": 3}, "One - two", True),
    ],
    "count:conjunctions": [
        ({"small_n": 3}, "This and that but not so.", True),
        ({"small_n": 3}, "This and that and more but less.", False),
        ({"small_n": 2}, "And this and that", True),
        ({"small_n": 1}, "Sand for", True),
        ({"small_n": 1}, "Sandy norm", False),
    ],
    "count:person_names": [
        ({"N": 2}, "Emma's friend (Liam)", True),
        ({"N": 2}, "Emma and Emma and emma", False),
        ({"N": 1}, "Emmanuel and Leonard", False),
        ({"N": 50}, ", ".join(listed("person_names")), True),
        ({"N": 50}, ", ".join(listed("person_names")[1:]), False),
    ],
    "count:numbers": [
        ({"N": 2}, "From 3.14 to 1,000.", True),
        ({"N": 2}, "Just 3.14", False),
        ({"N": 3}, "1 2 3", True),
        ({"N": 0}, "None of them", True),
        ({"N": 1}, "10-20", True),
    ],
    "count:pronouns": [
        ({"N": 4}, "My pronouns are she/her/hers.", True),
        ({"N": 5}, "My pronouns are she/her/hers.", False),
        ({"N": 1}, "That's right", True),
        ({"N": 1}, "Cats eat fish", False),
    ],
    "count:punctuation": [
        ({}, "All of them: a, b; c. Yes! No? What?!", True),
        ({}, "All of them: a, b; c. Yes! No?", False),
        ({}, "All of them: a, b; c. What?!", False),
        ({}, "All of them: a, b; c. Yes! No? What‽", True),
    ],
    "count:words_japanese": [
        ({"N": 2}, "My 猫 is ねこ too", True),
        ({"N": 2}, "My cat is ねこ", False),
        ({"N": 2}, "Only 3 of カナ", True),
        ({"N": 9}, "Too few words", True),
    ],
    "count:keywords_multiple": [
        (KEYWORDS, ANIMALS, True),
        (KEYWORDS, ANIMALS + " antler", True),
        (KEYWORDS, ANIMALS + " ant-like", False),
        (KEYWORDS, ANIMALS.removesuffix(" eel"), False),
    ],
    "ratio:stop_words": [
        ({"percentage": 50}, "The cat and mouse", True),
        ({"percentage": 49.9}, "The cat and mouse", False),
        ({"percentage": 50}, "Don't run", False),
        ({"percentage": 0}, "Cats chase mice", True),
    ],
    "ratio:sentence_type": [
        ({}, "It is. I am not sure. Is it?", True),
        ({}, "It is. Is it?", False),
        ({}, "It is. It was. Is it? Really!", True),
    ],
    "ratio:sentence_balance": [
        ({}, "It is. Is it? It is!", True),
        ({}, "It is. Is it? Is it? It is!", False),
        ({}, "It is. Is it?", False),
    ],
    "ratio:overlap": [
        ({"reference_text": FOX, "percentage": 100}, FOX, True),
        ({"reference_text": FOX, "percentage": 100}, "the quick brown fox", True),
        ({"reference_text": FOX, "percentage": 100}, "the quick brown fox jumps over the lazy cat", False),
        # Characters, white space and case included, each trigram once: of `abc bcd` half, of `abca` half.
        ({"reference_text": "abc", "percentage": 50}, "abcd", True),
        ({"reference_text": "abc", "percentage": 52}, "abcd", True),
        ({"reference_text": "abc", "percentage": 52.1}, "abcd", False),
        ({"reference_text": "abc", "percentage": 47.9}, "abcd", False),
        ({"reference_text": "abc", "percentage": 25}, "abcdabcdabcd", True),
        ({"reference_text": "a b", "percentage": 100}, "a  b", False),
        ({"reference_text": "ABC", "percentage": 0}, "abc", True),
        # No trigram of words is shared, nearly every one of characters is.
        ({"reference_text": "one two. three four.", "percentage": 100}, "one two", True),
        ({"reference_text": FOX, "percentage": 0}, "zz", False),
    ],
    "ratio:sentence_words": [
        ({}, "This is one. Now it's 22. On to three.", True),
        ({}, "This is one. This is two. This is six.", False),
        ({}, "This is one. Now it's 2. On to three.", False),
        ({}, "This is one. Now it's 22.", False),
    ],
    "sentence:alliteration_increment": [
        ({}, "No way. Some silly thing. Big bad bears go.", True),
        ({}, "No way. Some silly thing. Big bad cats go.", False),
        ({}, "Some silly thing. No way.", False),
        ({}, "So so it is is. Big bad bold brown bear.", False),
        ({}, "So so it is is. Big bad bold brown bear bites.", True),
    ],
    "sentence:keyword": [
        ({"word": "it", "N": 2}, "I am. Is It me?", True),
        ({"word": "it", "N": 2}, "It is. I am an item.", False),
        ({"word": "it", "N": 3}, "It is. It is.", False),
    ],
    "sentence:increment": [
        ({"small_n": 2}, "It is so. This one has five words. That one - now has seven words there.", True),
        ({"small_n": 1}, "It is so. This one has five words.", False),
        ({"small_n": 2}, "It is so. This one has six words now.", False),
        ({"small_n": 5}, "Only one sentence.", True),
    ],
    "words:alphabet": [
        ({}, "Xenial youths zip across", True),
        ({}, "A big dog", False),
        ({}, "A b. . . c", True),
        ({}, "1 a b", False),
    ],
    "words:vowel": [
        ({}, "the eel eek eked out", True),
        ({}, "the eel is out", False),
        ({}, "the eel\neked out", False),
        ({}, "dry sky", True),
    ],
    "words:consonants": [
        ({}, "This employs clusters", True),
        ({}, "This is clustered", False),
        ({}, "Try rhythm - now", False),
        ({}, "BEST", True),
    ],
    "words:palindrome": [
        ({}, PALINDROMES + ", deified.", True),
        ({}, PALINDROMES, False),
        ({}, PALINDROMES + ", noon, Anna", False),
        ({}, "abcba " * 10, True),
    ],
    "words:prime_lengths": [
        ({}, "Prime aren't hy-phens", True),
        ({}, "Composite", False),
        ({}, "I am", False),
        ({}, "a" * 97, True),
        ({}, "a" * 98, False),
    ],
    "words:start_verb": [
        ({}, "Does this start with one?", True),
        ({}, "This does not.", False),
        ({}, "Answer the question.", True),
        ({}, "Answer: yes.", False),
        ({}, "**Create** it", False),
        ({}, "Planning helps", True),
    ],
    "words:repeats": [
        ({"small_n": 2}, "This is one. This is two.", True),
        ({"small_n": 1}, "This is one. this was two.", False),
        ({"small_n": 1}, "Well, we'll go", False),
        ({"small_n": 1}, "Well, we will go", True),
    ],
    "words:odd_even_syllables": [
        ({}, "Children have little to regret", True),
        ({}, "Children little have", False),
        ({}, "Alone", True),
    ],
    "words:last_first": [
        ({}, "This feels unnatural. Unnatural is this test.", True),
        ({}, "This feels unnatural. This is.", False),
        ({}, 'He said "no". No!', False),
        ({}, 'He said no". "No way!', True),
        ({}, "Hello world. ... Next.", False),
    ],
    "words:paragraph_last_first": [
        ({}, "This one ends with this.\n\n- Another one has another!", True),
        ({}, "This one ends with this.\nAnother does not.", False),
        ({}, "Alone\n***", True),
    ],
    "words:no_consecutive": [
        ({}, "This words, though", True),
        ({}, "This thing", False),
        ({}, "one - Out", False),
    ],
    "words:keywords_specific_position": [
        ({"keyword": "cat", "n": 2, "m": 3}, 'Well. "Oh, the Cat."', True),
        ({"keyword": "cat", "n": 2, "m": 4}, 'Well. "Oh, the Cat."', False),
        ({"keyword": "cat", "n": 3, "m": 1}, "Cat. Cat.", False),
        ({"keyword": "cat", "n": 1, "m": 9}, "Cat.", False),
    ],
    "words:words_position": [
        ({"keyword": "sun"}, '"The Sun set over the sun again!"', True),
        ({"keyword": "sun"}, "The sun set over the sea", False),
        ({"keyword": "sun"}, "Sun", False),
        ({"keyword": "sun"}, "A sun here", True),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [constraint.id for module in (count, words) for constraint in module.TABLE],
)
def test_cases(name: str, check_cases: CheckCases) -> None:
    check_cases(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_hostile_and_blank_answers(name: str, check_hostile: CheckHostile) -> None:
    check_hostile(name, CASES[name][0][0])


@pytest.mark.parametrize(
    ("name", "parameters", "problem"),
    [
        ("count:words_japanese", {"N": 0}, "N must be a whole number from 1"),
        ("count:numbers", {"N": -1}, "N must be a whole number from 0"),
        ("count:keywords_multiple", KEYWORDS | {"keyword5": None}, "needs keyword5"),
        ("ratio:overlap", {"reference_text": " ", "percentage": 50}, "reference_text must be text"),
        ("ratio:stop_words", {"percentage": "50"}, "percentage must be a number"),
        ("sentence:keyword", {"word": "a", "N": None}, "needs N"),
        ("words:repeats", {"small_n": 1.5}, "small_n must be a whole number"),
    ],
)
def test_labels_that_cannot_be_used(name: str, parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find(name).bind(parameters)
