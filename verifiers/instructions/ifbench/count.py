"""IFBench: counts of words, names, numbers and marks."""

from __future__ import annotations

import re

from olmorl.verifiers.instructions.constraint import constraint, positive, whole, word
from olmorl.verifiers.instructions.texts.punctuation import trimmed, without
from olmorl.verifiers.instructions.texts.vocabulary import vocabulary
from olmorl.verifiers.instructions.texts.words import tokens, words

_NUMBER = re.compile(r"\d+")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_INTERROBANGS = ("?!", "!?", "‽")
_MARKS = frozenset(".,!?;:")


def _has_words(answer: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(words(answer)) <= max_words


def _has_distinct_words(answer: str, N: int) -> bool:
    """A word with only marks also counts."""
    return len({trimmed(said) for said in answer.lower().split()}) >= N


def _has_conjunctions(answer: str, small_n: int) -> bool:
    """Different spellings count separately: `and`, `And` and `and,` are three."""
    return (
        len({said for said in answer.split() if trimmed(said).lower() in vocabulary("coordinating_conjunctions")})
        >= small_n
    )


def _has_names(answer: str, N: int) -> bool:
    return len(vocabulary("person_names").intersection(words(answer))) >= N


def _has_numbers(answer: str, N: int) -> bool:
    """`3.14` and `1,000` count as one number each."""
    return len(_NUMBER.findall(without(answer))) == N


def _has_pronouns(answer: str, N: int) -> bool:
    said = tokens(answer.replace("/", " ").lower())
    return sum(token in vocabulary("pronouns") for token in said) >= N


def _has_all_marks(answer: str) -> bool:
    """The answer has an interrobang, and each other mark outside it."""
    for interrobang in _INTERROBANGS:
        if interrobang in answer:
            return set(answer.replace(interrobang, "", 1)) >= _MARKS
    return False


def _has_japanese_words(answer: str, N: int) -> bool:
    """Every N-th word is Japanese, unless it is a number or only marks."""
    placed = (trimmed(said) for said in answer.split()[N - 1 :: N])
    return all(_JAPANESE.search(said) for said in placed if said and not said.isdigit())


def _has_keywords(answer: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur as whole words one, two, three, five and seven times."""
    counts = {1: keyword1, 2: keyword2, 3: keyword3, 5: keyword4, 7: keyword5}
    return all(
        len(re.findall(rf"\b{re.escape(keyword)}\b", answer, re.IGNORECASE)) == count
        for count, keyword in counts.items()
    )


TABLE = (
    constraint("count:word_count_range", _has_words, min_words=whole, max_words=whole),
    constraint("count:unique_word_count", _has_distinct_words, N=whole),
    constraint("count:conjunctions", _has_conjunctions, small_n=whole),
    constraint("count:person_names", _has_names, N=whole),
    constraint("count:numbers", _has_numbers, wordless=True, N=whole),
    constraint("count:pronouns", _has_pronouns, N=whole),
    constraint("count:punctuation", _has_all_marks),
    constraint("count:words_japanese", _has_japanese_words, N=positive),
    constraint(
        "count:keywords_multiple",
        _has_keywords,
        keyword1=word,
        keyword2=word,
        keyword3=word,
        keyword4=word,
        keyword5=word,
    ),
)
