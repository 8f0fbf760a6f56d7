"""The 25 constraints of labels with `func_name`, from the RLVR-IFeval set.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import re
from typing import Any

from olmorl.verifiers.instructions.constraint import constraint, meets, positive, quantifier, text, texts, whole, word
from olmorl.verifiers.instructions.ifeval import has_keywords, has_no_comma, is_json, letter
from olmorl.verifiers.instructions.texts.language import is_language, language_code
from olmorl.verifiers.instructions.texts.markup import enclosed
from olmorl.verifiers.instructions.texts.words import words

_SENTENCE_END = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=[.?!])\s")
_CAPITALS = re.compile(r"\b[A-Z]+\b")


def _has_word_times(answer: str, word: str, N: int) -> bool:
    return words(answer.lower()).count(word.lower()) == N


def _forbids(answer: str, forbidden_words: tuple[str, ...]) -> bool:
    """A forbidden word counts also inside other words."""
    lower = answer.lower()
    return not any(term.lower() in lower for term in forbidden_words)


def _has_letter_times(answer: str, letter: str, N: int) -> bool:
    """Upper and lower case differ."""
    return answer.count(letter) == N


def _has_paragraphs(answer: str, N: int) -> bool:
    parts = answer.split("* * *")
    return len(parts) == N and all(part.strip() for part in parts)


def _has_words(answer: str, N: int, quantifier: str) -> bool:
    return meets(len(answer.split()), quantifier, N, _tenth(N))


def _has_sentences(answer: str, N: int, quantifier: str) -> bool:
    return meets(len(_SENTENCE_END.findall(answer)) + 1, quantifier, N, tolerance=1)


def _has_capital_words(answer: str, N: int, quantifier: str) -> bool:
    return meets(len(_CAPITALS.findall(answer)), quantifier, N, _tenth(N))


def _tenth(threshold: int) -> int:
    """The tolerance of `around`: a tenth, and at least one."""
    return max(round(threshold * 0.1), 1)


def _starts_paragraph(answer: str, N: int, first_word: str, i: int) -> bool:
    parts = answer.split("\n\n")
    return len(parts) == N and parts[i - 1].strip().startswith(first_word)


def _beyond_last(N: int, i: int, **_: Any) -> str | None:
    return f"there is no paragraph {i} of {N}" if i > N else None


def _has_postscript(answer: str, postscript_marker: str) -> bool:
    """The postscript needs text after its mark."""
    start = answer.find(postscript_marker)
    return start >= 0 and len(answer) - start > len(postscript_marker)


def _has_bullets(answer: str, N: int) -> bool:
    return sum(line.strip().startswith(("*", "-")) for line in answer.split("\n")) == N


def _has_option(answer: str, options: tuple[str, ...]) -> bool:
    return any(option in answer for option in options)


def _has_highlights(answer: str, N: int) -> bool:
    return sum(1 for _ in enclosed(answer, "*", "*")) >= N


def _has_sections(answer: str, N: int, section_splitter: str) -> bool:
    """A section is a mark with a number. Upper and lower case differ."""
    return len(re.findall(rf"{re.escape(section_splitter)}\s?\d+", answer)) >= N


def _repeats_prompt(answer: str, original_prompt: str) -> bool:
    return answer.startswith(original_prompt.strip())


def _has_two_responses(answer: str) -> bool:
    parts = [part.strip() for part in answer.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _options(value: Any) -> tuple[str, ...]:
    """A list of texts, or one text with slashes between the options."""
    return texts([part.strip() for part in value.split("/")] if isinstance(value, str) else value)


TABLE = (
    constraint("verify_keywords", lambda answer, keyword_list: has_keywords(answer, keyword_list), keyword_list=texts),
    constraint("verify_keyword_frequency", _has_word_times, word=word, N=whole),
    constraint("validate_forbidden_words", _forbids, forbidden_words=texts),
    constraint("verify_letter_frequency", _has_letter_times, letter=letter, N=whole),
    constraint("validate_response_language", is_language, language=language_code),
    constraint("verify_paragraph_count", _has_paragraphs, N=whole),
    constraint("validate_word_constraint", _has_words, N=whole, quantifier=quantifier),
    constraint("verify_sentence_constraint", _has_sentences, N=whole, quantifier=quantifier),
    constraint("validate_paragraphs", _starts_paragraph, _beyond_last, N=positive, first_word=word, i=positive),
    constraint("verify_postscript", _has_postscript, postscript_marker=word),
    constraint("validate_placeholders", lambda answer, N: sum(1 for _ in enclosed(answer, "[", "]")) >= N, N=whole),
    constraint("verify_bullet_points", _has_bullets, N=whole),
    constraint("validate_title", lambda answer: any(True for _ in enclosed(answer, "<<", ">>"))),
    constraint("validate_choice", _has_option, options=_options),
    constraint("validate_highlighted_sections", _has_highlights, N=whole),
    constraint("validate_sections", _has_sections, N=whole, section_splitter=word),
    constraint("validate_json_format", is_json),
    constraint("validate_repeat_prompt", _repeats_prompt, original_prompt=text),
    constraint("validate_two_responses", _has_two_responses),
    constraint("validate_uppercase", lambda answer: answer == answer.upper()),
    constraint("validate_lowercase", lambda answer: answer == answer.lower()),
    constraint("validate_frequency_capital_words", _has_capital_words, N=whole, quantifier=quantifier),
    constraint("validate_end", lambda answer, end_phrase: answer.endswith(end_phrase), end_phrase=word),
    constraint("validate_quotation", lambda answer: answer[0] == answer[-1] == '"'),
    constraint("validate_no_commas", has_no_comma),
)
