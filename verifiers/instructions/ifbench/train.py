"""IFBench's training set: words and letters, repeated texts, brackets, hyphens and paragraphs.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import ne

from olmorl.verifiers.instructions.constraint import constraint, meets, positive, relation, text, whole, word
from olmorl.verifiers.instructions.ifeval import DIVIDER, has_keyword_often, has_letter_often, has_paragraphs, letter
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
    terms = text.split()
    return bool(terms) and terms[0].lower() == first_word.lower()


def _ends_with(text: str, last_word: str) -> bool:
    terms = text.split()
    return bool(terms) and _MARK.sub("", terms[-1]).lower() == last_word.lower()


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
    terms = tokens(parts[n - 1]) if n <= len(parts) else []
    return m <= len(terms) and terms[m - 1] == keyword


def _skips_next_letter(answer: str) -> bool:
    initials = [term[0].lower() for term in answer.split()]
    return all(len(one) == len(other) == 1 and ord(other) - ord(one) != 1 for one, other in pairwise(initials))


def _starts_as_it_ends(answer: str) -> bool:
    terms = tokens(answer)
    return len(terms) > 1 and terms[0].lower() == terms[-1].lower()


def _never_repeats(answer: str) -> bool:
    """No word and no mark occurs twice."""
    terms = tokens(answer)
    return len(terms) == len(set(terms))


def _has_letters(answer: str, N: int, relation: str) -> bool:
    return meets(_count(_LETTER.finditer(answer)), relation, N)


def _count(matches: Iterable[object]) -> int:
    return sum(1 for _ in matches)


def _same(answer: str, prompt_to_repeat: str) -> bool:
    return answer.strip().lower() == prompt_to_repeat.strip().lower()


def _is_span(answer: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return _same(answer, prompt_to_repeat[n_start:n_end])


def _is_copied(answer: str, prompt_to_repeat: str, N: int) -> bool:
    copies = answer.split("******")
    return len(copies) == N and all(_same(copy, prompt_to_repeat) for copy in copies)


def _varies_phrase(answer: str, phrase: str, small_n: int) -> bool:
    """Each repetition has as many words as the phrase, and exactly one different word."""
    words = phrase.split()
    repetitions = [repetition.split() for repetition in _repetitions(answer, words[0], words[-1])]
    return len(repetitions) == small_n and all(_num_changes(repetition, words) == 1 for repetition in repetitions)


def _num_changes(words: list[str], others: list[str]) -> int | None:
    """The number of positions with different words; None if the lengths differ."""
    return sum(map(ne, words, others)) if len(words) == len(others) else None


def _repetitions(answer: str, first: str, last: str) -> Iterator[str]:
    """The texts from `first` to the next `last`, each within one line."""
    for line in answer.split("\n"):
        start = line.find(f"{first} ")
        while start >= 0:
            end = line.find(f" {last}", start + len(first) + 1)
            if end < 0:
                break
            stop = end + 1 + len(last)
            yield line[start:stop]
            start = line.find(f"{first} ", stop)


def _hyphens_join_sentences(answer: str) -> bool:
    """Hyphens separate the sentences. Only pairs of pieces are compared, so extra pieces are ignored."""
    expected = rough_sentences(answer.replace("-", " "))
    pieces = answer.split("-")
    return bool(expected) and all(one == other for one, other in zip(pieces, expected, strict=False))


def _is_bracketed(answer: str) -> bool:
    return all(word.startswith("[") and word.endswith("]") for word in answer.split())


def _wraps_bigrams(answer: str) -> bool:
    """Each pair of words is in double angle brackets. A last word without a partner may be anything."""
    terms = answer.split()
    return all(
        one.startswith("<<") and other.endswith(">>") for one, other in zip(terms[::2], terms[1::2], strict=False)
    )


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
    constraint("keywords:no_adjacent_consecutive", _skips_next_letter),
    constraint("keywords:word_once", lambda answer, keyword: _occurrences(answer, keyword) == 1, keyword=word),
    constraint(
        "keywords:word_count_different_numbers", has_keyword_often, keyword=word, frequency=whole, relation=relation
    ),
    constraint("keywords:exclude_word_harder", _leaves_word_out, keyword=word),
    constraint("keywords:keyword_specific_position", _has_word_at, keyword=word, n=positive, m=positive),
    constraint("keywords:palindrome", lambda answer: any(term == term[::-1] for term in answer.split())),
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
    constraint("copy:repeat_phrase", _varies_phrase, phrase=word, small_n=positive),
    constraint("copy:copy", _same, wordless=True, prompt_to_repeat=text),
    constraint("copy:copying_simple", _same, wordless=True, prompt_to_repeat=text),
    constraint("copy:copying_multiple", _is_copied, wordless=True, prompt_to_repeat=text, N=positive),
    constraint("new:copy_span_idx", _is_span, wordless=True, prompt_to_repeat=text, n_start=whole, n_end=whole),
    constraint("detectable_format:sentence_hyphens", _hyphens_join_sentences),
    constraint("detectable_format:square_brackets", _is_bracketed),
    constraint("detectable_format:bigram_wrapping", _wraps_bigrams),
    constraint("paragraphs:paragraphs", lambda answer: has_paragraphs(answer, 2)),
    constraint("paragraphs:paragraphs2", _has_two_paragraphs),
    constraint("punctuation:punctuation_dot", lambda answer: "." not in answer),
    constraint("punctuation:punctuation_exclamation", lambda answer: "!" not in answer),
    constraint("count:counting_composition", _has_composition, n_sent=positive, n_words=positive),
)
