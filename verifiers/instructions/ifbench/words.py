"""IFBench: properties and positions of words, and relations between sentences."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from string import ascii_lowercase, punctuation

import syllapy

from olmorl.verifiers.instructions.constraint import constraint, positive, whole, word
from olmorl.verifiers.instructions.texts.punctuation import plain_words, trimmed, without, word_tokens
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.verbs import starts_with_verb
from olmorl.verifiers.instructions.texts.words import tokens

_CLUSTER = re.compile(r"[b-df-hj-np-tv-z]{2}")
_PRIMES = frozenset(number for number in range(2, 100) if all(number % factor for factor in range(2, number)))
_MARKS = punctuation + " "
_OPENING = 200
"""Only this many characters at the start are tagged."""


def _follows_alphabet(answer: str) -> bool:
    """The first letters follow the alphabet from any letter on. After z comes a."""
    initials = [term[0] for term in plain_words(answer)]
    if not initials or initials[0] not in ascii_lowercase:
        return False
    start = ascii_lowercase.index(initials[0])
    return all(initial == ascii_lowercase[(start + i) % 26] for i, initial in enumerate(initials))


def _has_three_vowels(answer: str) -> bool:
    """One paragraph with at most three different vowels."""
    paragraph = answer.strip().lower()
    return "\n" not in paragraph and len(set("aeiou") & set(paragraph)) <= 3


def _has_palindromes(answer: str) -> bool:
    long = [term for term in plain_words(answer) if len(term) >= 5]
    return sum(term == term[::-1] for term in long) >= 10


def _seldom_repeats(answer: str, small_n: int) -> bool:
    """No word occurs more than `small_n` times."""
    return max(Counter(plain_words(answer)).values(), default=0) <= small_n


def _alternates_syllables(answer: str) -> bool:
    """Words with an odd and an even number of syllables alternate."""
    odd = [syllapy.count(term) % 2 for term in plain_words(answer)]
    return all(one != other for one, other in pairwise(odd))


def _continues_sentences(answer: str) -> bool:
    """Each sentence starts with the last word of the one before it."""
    for one, other in pairwise(sentences(answer)):
        last, first = one.rstrip(_MARKS).lower().split()[-1:], other.lstrip(_MARKS).lower().split()[:1]
        if not last or last != first:
            return False
    return True


def _ends_lines_as_they_start(answer: str) -> bool:
    lines = [trimmed(line.strip()).lower().split() for line in answer.split("\n")]
    return all(line[0] == line[-1] for line in lines if line)


def _changes_initials(answer: str) -> bool:
    """No word has the first letter of the word before it."""
    return all(one[0] != other[0] for one, other in pairwise(plain_words(answer)))


def _has_word_at(answer: str, keyword: str, n: int, m: int) -> bool:
    """Whether word `m` of sentence `n` is the keyword. Both count from 1."""
    parts = sentences(answer)
    terms = word_tokens(parts[n - 1]) if n <= len(parts) else []
    return m <= len(terms) and terms[m - 1].lower() == keyword.lower()


def _has_word_at_both_ends(answer: str, keyword: str) -> bool:
    """The second word and the second last word are the keyword."""
    terms = word_tokens(answer)
    return len(terms) > 1 and terms[1].lower() == terms[-2].lower() == keyword.lower()


def _alliterates_more_and_more(answer: str) -> bool:
    counts = [_alliterating(sentence) for sentence in sentences(answer)]
    return all(one < other for one, other in pairwise(counts))


def _alliterating(sentence: str) -> int:
    """The number of words next to a word with the same first character."""
    initials = [term[0] for term in (word.lstrip(punctuation) for word in sentence.lower().split()) if term]
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
    constraint("words:alphabet", _follows_alphabet),
    constraint("words:vowel", _has_three_vowels),
    constraint("words:consonants", lambda answer: all(_CLUSTER.search(term) for term in answer.lower().split())),
    constraint("words:palindrome", _has_palindromes),
    constraint("words:prime_lengths", lambda answer: all(len(term) in _PRIMES for term in without(answer).split())),
    constraint("words:start_verb", lambda answer: starts_with_verb(tokens(answer.lstrip()[:_OPENING]))),
    constraint("words:repeats", _seldom_repeats, small_n=whole),
    constraint("words:odd_even_syllables", _alternates_syllables),
    constraint("words:last_first", _continues_sentences),
    constraint("words:paragraph_last_first", _ends_lines_as_they_start),
    constraint("words:no_consecutive", _changes_initials),
    constraint("words:keywords_specific_position", _has_word_at, keyword=word, n=positive, m=positive),
    constraint("words:words_position", _has_word_at_both_ends, keyword=word),
    constraint("sentence:alliteration_increment", _alliterates_more_and_more),
    constraint("sentence:keyword", _has_word_in, word=word, N=positive),
    constraint("sentence:increment", _grows, small_n=whole),
)
