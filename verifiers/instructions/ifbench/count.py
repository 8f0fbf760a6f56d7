"""IFBench: counts of words, names, numbers and marks, and shares of words, sentences and phrases."""

from __future__ import annotations

import re

from olmorl.verifiers.instructions.constraint import constraint, number, positive, text, whole, word
from olmorl.verifiers.instructions.texts.punctuation import plain_words, trimmed, without
from olmorl.verifiers.instructions.texts.sentences import sentences
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
    return len({trimmed(term) for term in answer.lower().split()}) >= N


def _has_conjunctions(answer: str, small_n: int) -> bool:
    """Different spellings count separately: `and`, `And` and `and,` are three."""
    return (
        len({term for term in answer.split() if trimmed(term).lower() in vocabulary("coordinating_conjunctions")})
        >= small_n
    )


def _has_names(answer: str, N: int) -> bool:
    return len(vocabulary("person_names").intersection(words(answer))) >= N


def _has_numbers(answer: str, N: int) -> bool:
    """`3.14` and `1,000` count as one number each."""
    return len(_NUMBER.findall(without(answer))) == N


def _has_pronouns(answer: str, N: int) -> bool:
    terms = tokens(answer.replace("/", " ").lower())
    return sum(token in vocabulary("pronouns") for token in terms) >= N


def _has_all_marks(answer: str) -> bool:
    """The answer has an interrobang, and each other mark outside it."""
    for interrobang in _INTERROBANGS:
        if interrobang in answer:
            return set(answer.replace(interrobang, "", 1)) >= _MARKS
    return False


def _has_japanese_words(answer: str, N: int) -> bool:
    """Every N-th word is Japanese, unless it is a number or only marks."""
    placed = (trimmed(term) for term in answer.split()[N - 1 :: N])
    return all(_JAPANESE.search(term) for term in placed if term and not term.isdigit())


def _has_keywords(answer: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur as whole words one, two, three, five and seven times."""
    counts = {1: keyword1, 2: keyword2, 3: keyword3, 5: keyword4, 7: keyword5}
    return all(
        len(re.findall(rf"\b{re.escape(keyword)}\b", answer, re.IGNORECASE)) == count
        for count, keyword in counts.items()
    )


def _has_few_stop_words(answer: str, percentage: float) -> bool:
    terms = words(answer.lower())
    count = sum(word in vocabulary("stop_words") for word in terms)
    return bool(terms) and 100 * count / len(terms) <= percentage


def _ends(answer: str) -> tuple[int, int, int]:
    """The numbers of sentences that end with a dot, a question mark and an exclamation mark."""
    last = [sentence[-1] for sentence in sentences(answer)]
    return last.count("."), last.count("?"), last.count("!")


def _states_twice_as_often_as_it_asks(answer: str) -> bool:
    stated, asked, _ = _ends(answer)
    return stated == 2 * asked


def _is_balanced(answer: str) -> bool:
    stated, asked, called = _ends(answer)
    return stated == asked == called


def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _overlaps(answer: str, reference_text: str, percentage: float) -> bool:
    """The reference has this percentage of the answer's distinct character trigrams, within 2 points."""
    own = _trigrams(answer)
    return bool(own) and abs(100 * len(own & _trigrams(reference_text)) / len(own) - percentage) <= 2


def _has_three_equal_sentences(answer: str) -> bool:
    """The three sentences have equally many characters, and no word occurs twice."""
    parts = sentences(answer)
    terms = plain_words(" ".join(parts))
    return len(parts) == 3 and len({len(part.strip()) for part in parts}) == 1 and len(terms) == len(set(terms))


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
    constraint("ratio:stop_words", _has_few_stop_words, percentage=number),
    constraint("ratio:sentence_type", _states_twice_as_often_as_it_asks),
    constraint("ratio:sentence_balance", _is_balanced),
    constraint("ratio:overlap", _overlaps, reference_text=text, percentage=number),
    constraint("ratio:sentence_words", _has_three_equal_sentences),
)
