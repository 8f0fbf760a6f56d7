"""IFBench: relations between sentences."""

from __future__ import annotations

import re
from itertools import pairwise
from string import punctuation

from olmorl.verifiers.instructions.constraint import constraint, positive, whole, word
from olmorl.verifiers.instructions.texts.punctuation import without
from olmorl.verifiers.instructions.texts.sentences import sentences


def _alliterates_more_and_more(answer: str) -> bool:
    counts = [_alliterating(sentence) for sentence in sentences(answer)]
    return all(one < other for one, other in pairwise(counts))


def _alliterating(sentence: str) -> int:
    """The number of words next to a word with the same first character."""
    initials = [said[0] for said in (word.lstrip(punctuation) for word in sentence.lower().split()) if said]
    count, in_row = 0, False
    for one, other in pairwise(initials):
        count += (1 if in_row else 2) if one == other else 0
        in_row = one == other
    return count


def _has_word_in(answer: str, word: str, N: int) -> bool:
    """Whether sentence `N`, counted from 1, has the word."""
    parts = sentences(answer)
    return len(parts) >= N and bool(re.search(rf"\b{re.escape(word)}\b", parts[N - 1], re.IGNORECASE))


def _grows(answer: str, small_n: int) -> bool:
    """Each sentence has `small_n` more words than the one before it."""
    lengths = [len(without(sentence).split()) for sentence in sentences(answer)]
    return all(other - one == small_n for one, other in pairwise(lengths))


TABLE = (
    constraint("sentence:alliteration_increment", _alliterates_more_and_more),
    constraint("sentence:keyword", _has_word_in, word=word, N=positive),
    constraint("sentence:increment", _grows, small_n=whole),
)
