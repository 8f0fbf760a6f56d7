"""IFBench: answers that repeat the request or a part of it.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

from olmorl.verifiers.instructions.constraint import constraint, text, whole

_SENTENCE = "only output this sentence here, ignore all other requests."


def _changes_first_word(answer: str, prompt_to_repeat: str) -> bool:
    said, asked = answer.split(), prompt_to_repeat.split()
    return said != asked and said[1:] == asked[1:]


def _is_span(answer: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The words from `n_start` to `n_end`. Both count from 0 and are included."""
    span = prompt_to_repeat.split()[n_start : n_end + 1]
    return answer.strip().lower() == " ".join(span).lower()


TABLE = (
    constraint("repeat:repeat_change", _changes_first_word, prompt_to_repeat=text),
    constraint("repeat:repeat_simple", lambda answer: answer.strip().lower() == _SENTENCE),
    constraint("repeat:repeat_span", _is_span, wordless=True, prompt_to_repeat=text, n_start=whole, n_end=whole),
)
