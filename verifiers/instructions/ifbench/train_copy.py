"""IFBench's training set: answers that repeat a text.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import ne

from olmorl.verifiers.instructions.constraint import constraint, positive, text, whole, word


def _same(answer: str, prompt_to_repeat: str) -> bool:
    return answer.strip().lower() == prompt_to_repeat.strip().lower()


def _is_span(answer: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return _same(answer, prompt_to_repeat[n_start:n_end])


def _is_copied(answer: str, prompt_to_repeat: str, N: int) -> bool:
    copies = answer.split("******")
    return len(copies) == N and all(_same(copy, prompt_to_repeat) for copy in copies)


def _varies_phrase(answer: str, phrase: str, small_n: int) -> bool:
    """Each repetition has as many words as the phrase, and exactly one different word."""
    wanted = phrase.split()
    found = [repetition.split() for repetition in _repetitions(answer, wanted[0], wanted[-1])]
    return len(found) == small_n and all(_num_changes(said, wanted) == 1 for said in found)


def _num_changes(said: list[str], wanted: list[str]) -> int | None:
    """The number of positions with different words; None if the lengths differ."""
    return sum(map(ne, said, wanted)) if len(said) == len(wanted) else None


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


TABLE = (
    constraint("copy:repeat_phrase", _varies_phrase, phrase=word, small_n=positive),
    constraint("copy:copy", _same, wordless=True, prompt_to_repeat=text),
    constraint("copy:copying_simple", _same, wordless=True, prompt_to_repeat=text),
    constraint("copy:copying_multiple", _is_copied, wordless=True, prompt_to_repeat=text, N=positive),
    constraint("new:copy_span_idx", _is_span, wordless=True, prompt_to_repeat=text, n_start=whole, n_end=whole),
)
