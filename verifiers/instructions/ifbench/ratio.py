"""IFBench: shares of words, sentences and phrases."""

from __future__ import annotations

from olmorl.verifiers.instructions.constraint import constraint, number, text
from olmorl.verifiers.instructions.texts.punctuation import plain_words
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.vocabulary import vocabulary
from olmorl.verifiers.instructions.texts.words import words


def _has_few_stop_words(answer: str, percentage: float) -> bool:
    said = words(answer.lower())
    count = sum(word in vocabulary("stop_words") for word in said)
    return bool(said) and 100 * count / len(said) <= percentage


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
    said = _trigrams(answer)
    return bool(said) and abs(100 * len(said & _trigrams(reference_text)) / len(said) - percentage) <= 2


def _has_three_equal_sentences(answer: str) -> bool:
    """The three sentences have equally many characters, and no word occurs twice."""
    parts = sentences(answer)
    said = plain_words(" ".join(parts))
    return len(parts) == 3 and len({len(part.strip()) for part in parts}) == 1 and len(said) == len(set(said))


TABLE = (
    constraint("ratio:stop_words", _has_few_stop_words, percentage=number),
    constraint("ratio:sentence_type", _states_twice_as_often_as_it_asks),
    constraint("ratio:sentence_balance", _is_balanced),
    constraint("ratio:overlap", _overlaps, reference_text=text, percentage=number),
    constraint("ratio:sentence_words", _has_three_equal_sentences),
)
