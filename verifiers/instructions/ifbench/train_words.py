"""IFBench's training set: keywords, letters, first and last words.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise

from olmorl.verifiers.instructions.constraint import constraint, positive, whole, word
from olmorl.verifiers.instructions.ifeval import has_keyword_often, has_letter_often, letter
from olmorl.verifiers.instructions.relation import meets, relation
from olmorl.verifiers.instructions.texts.sentences import rough_sentences
from olmorl.verifiers.instructions.texts.words import tokens

_LOWERCASE = re.compile(r"\b[a-z]+\b")
_LETTER = re.compile(r"[a-zA-Z]")
_MARK = re.compile(r"[^\w\s]")


def _has_words_once_and_twice(answer: str, keyword1: str, keyword2: str) -> bool:
    return _occurrences(answer, keyword1) == 1 and _occurrences(answer, keyword2) == 2


def _occurrences(answer: str, keyword: str) -> int:
    """The number of occurrences, also inside words and in any case."""
    return answer.lower().count(keyword.lower())


def _leaves_word_out(answer: str, keyword: str) -> bool:
    """The keyword counts only between spaces."""
    return f" {keyword} " not in answer


def _starts_with(text: str, first_word: str) -> bool:
    said = text.split()
    return bool(said) and said[0].lower() == first_word.lower()


def _ends_with(text: str, last_word: str) -> bool:
    said = text.split()
    return bool(said) and _MARK.sub("", said[-1]).lower() == last_word.lower()


def _in_each_sentence(answer: str, holds: Callable[[str], bool]) -> bool:
    parts = rough_sentences(answer)
    return bool(parts) and all(holds(part) for part in parts)


def _starts_each_sentence(answer: str, first_word: str) -> bool:
    return _in_each_sentence(answer, lambda sentence: _starts_with(sentence, first_word))


def _ends_each_sentence(answer: str, last_word: str) -> bool:
    return _in_each_sentence(answer, lambda sentence: _ends_with(sentence, last_word))


def _has_word_at(answer: str, keyword: str, n: int, m: int) -> bool:
    """Whether token `m` of sentence `n` is the keyword. Both count from 1, and a mark is a token."""
    parts = rough_sentences(answer)
    said = tokens(parts[n - 1]) if n <= len(parts) else []
    return m <= len(said) and said[m - 1] == keyword


def _skips_next_letter(answer: str) -> bool:
    initials = [said[0].lower() for said in answer.split()]
    return all(len(one) == len(other) == 1 and ord(other) - ord(one) != 1 for one, other in pairwise(initials))


def _starts_as_it_ends(answer: str) -> bool:
    said = tokens(answer)
    return len(said) > 1 and said[0].lower() == said[-1].lower()


def _never_repeats(answer: str) -> bool:
    """No word and no mark occurs twice."""
    said = tokens(answer)
    return len(said) == len(set(said))


def _has_letters(answer: str, N: int, relation: str) -> bool:
    return meets(_count(_LETTER.finditer(answer)), relation, N)


def _count(found: Iterable[object]) -> int:
    return sum(1 for _ in found)


TABLE = (
    constraint("keywords:no_adjacent_consecutive", _skips_next_letter),
    constraint("keywords:word_once", lambda answer, keyword: _occurrences(answer, keyword) == 1, keyword=word),
    constraint(
        "keywords:word_count_different_numbers", has_keyword_often, keyword=word, frequency=whole, relation=relation
    ),
    constraint("keywords:exclude_word_harder", _leaves_word_out, keyword=word),
    constraint("keywords:keyword_specific_position", _has_word_at, keyword=word, n=positive, m=positive),
    constraint("keywords:palindrome", lambda answer: any(said == said[::-1] for said in answer.split())),
    constraint("keywords:start_end", _starts_as_it_ends),
    constraint("first_word:first_word_sent", _starts_each_sentence, first_word=word),
    constraint("first_word:first_word_answer", _starts_with, first_word=word),
    constraint("last_word:last_word_sent", _ends_each_sentence, last_word=word),
    constraint("last_word:last_word_answer", _ends_with, last_word=word),
    constraint("count:lowercase_counting", lambda answer, N: _count(_LOWERCASE.finditer(answer)) <= N, N=whole),
    constraint("letters:letter_counting", _has_letters, N=whole, relation=relation),
    constraint("letters:letter_counting2", has_letter_often, letter=letter, let_frequency=whole, let_relation=relation),
    constraint("count:count_unique", _never_repeats),
    constraint("count:count_increment_word", _has_words_once_and_twice, keyword1=word, keyword2=word),
)
