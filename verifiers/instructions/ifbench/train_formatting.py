"""IFBench's training set: brackets, hyphens, paragraphs and marks."""

from __future__ import annotations

from olmorl.verifiers.instructions.constraint import constraint, positive
from olmorl.verifiers.instructions.ifeval import DIVIDER, has_paragraphs
from olmorl.verifiers.instructions.texts.sentences import rough_sentences
from olmorl.verifiers.instructions.texts.words import tokens


def _hyphens_join_sentences(answer: str) -> bool:
    """Hyphens separate the sentences. Only pairs of pieces are compared, so extra pieces are ignored."""
    expected = rough_sentences(answer.replace("-", " "))
    pieces = answer.split("-")
    return bool(expected) and all(one == other for one, other in zip(pieces, expected, strict=False))


def _is_bracketed(answer: str) -> bool:
    return all(word.startswith("[") and word.endswith("]") for word in answer.split())


def _wraps_bigrams(answer: str) -> bool:
    """Each pair of words is in double angle brackets. A last word without a partner may be anything."""
    said = answer.split()
    return all(one.startswith("<<") and other.endswith(">>") for one, other in zip(said[::2], said[1::2], strict=False))


def _has_two_paragraphs(answer: str) -> bool:
    """A blank line separates the two paragraphs. A blank line may also be first or last."""
    blank = [not part.strip() for part in answer.split("\n\n")]
    return not any(blank[1:-1]) and blank.count(False) == 2


def _has_composition(answer: str, n_sent: int, n_words: int) -> bool:
    """Three parts, each with so many sentences of so many tokens. A mark is a token."""
    parts = DIVIDER.split(answer)
    if len(parts) != 3:
        return False
    composed = [rough_sentences(part) for part in parts]
    return all(len(part) == n_sent for part in composed) and all(
        len(tokens(sentence)) == n_words for part in composed for sentence in part
    )


TABLE = (
    constraint("detectable_format:sentence_hyphens", _hyphens_join_sentences),
    constraint("detectable_format:square_brackets", _is_bracketed),
    constraint("detectable_format:bigram_wrapping", _wraps_bigrams),
    constraint("paragraphs:paragraphs", lambda answer: has_paragraphs(answer, 2)),
    constraint("paragraphs:paragraphs2", _has_two_paragraphs),
    constraint("punctuation:punctuation_dot", lambda answer: "." not in answer),
    constraint("punctuation:punctuation_exclamation", lambda answer: "!" not in answer),
    constraint("count:counting_composition", _has_composition, n_sent=positive, n_words=positive),
)
