"""The 25 constraints of IFEval.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import json
import re
from typing import Any

from olmorl.verifiers.instructions.constraint import constraint, meets, positive, relation, text, texts, whole, word
from olmorl.verifiers.instructions.texts.language import is_language, language_code
from olmorl.verifiers.instructions.texts.markup import enclosed
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.words import tokens, words

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")
_STAR_BULLET = re.compile(r"^[^\S\n]*+\*[^*].*$", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*+-", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_STRONG = re.compile(r"\*\*([^\n*]*)\*\*")
DIVIDER = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = re.compile(r"""[.,?!'"]""")
_POSTSCRIPTS = {"P.S.": re.compile(r"p\.\s?s\."), "P.P.S": re.compile(r"p\.\s?p\.\s?s")}


def has_keywords(answer: str, keywords: tuple[str, ...]) -> bool:
    """Whether all keywords occur. They may be inside words and in any case."""
    lower = answer.lower()
    return all(keyword.lower() in lower for keyword in keywords)


def has_keyword_often(answer: str, keyword: str, frequency: int, relation: str) -> bool:
    """Whether the keyword occurs so often. It may be inside words and in any case."""
    return meets(answer.lower().count(keyword.lower()), relation, frequency)


def _forbids(answer: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", answer, re.IGNORECASE) for term in forbidden_words)


def has_letter_often(answer: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """Whether the letter occurs so often, in either case."""
    return meets(answer.lower().count(letter.lower()), let_relation, let_frequency)


def _has_sentences(answer: str, num_sentences: int, relation: str) -> bool:
    return meets(len(sentences(answer)), relation, num_sentences)


def _has_words(answer: str, num_words: int, relation: str) -> bool:
    return meets(len(words(answer)), relation, num_words)


def has_paragraphs(answer: str, num_paragraphs: int) -> bool:
    """Whether dividers separate so many paragraphs. A divider may also be first or last."""
    parts = DIVIDER.split(answer)
    blank = [not part.strip() for part in parts]
    return not any(blank[1:-1]) and len(parts) - sum(blank) == num_paragraphs


def _starts_paragraph(answer: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = answer.split("\n\n")
    if sum(bool(part.strip()) for part in parts) != num_paragraphs or not (start := parts[nth_paragraph - 1].split()):
        return False
    first = start[0].lstrip("'").lstrip('"')
    return _FIRST_WORD_ENDS.split(first, maxsplit=1)[0].lower() == first_word.lower()


def _beyond_last(num_paragraphs: int, nth_paragraph: int, **_: Any) -> str | None:
    return f"there is no paragraph {nth_paragraph} of {num_paragraphs}" if nth_paragraph > num_paragraphs else None


def _has_placeholders(answer: str, num_placeholders: int) -> bool:
    return sum(1 for _ in enclosed(answer, "[", "]")) >= num_placeholders


def _has_postscript(answer: str, postscript_marker: str) -> bool:
    lower = answer.lower()
    pattern = _POSTSCRIPTS.get(postscript_marker)
    return bool(pattern.search(lower)) if pattern else postscript_marker.lower() in lower


def _has_bullets(answer: str, num_bullets: int) -> bool:
    return len(_STAR_BULLET.findall(answer)) + len(_DASH_BULLET.findall(answer)) == num_bullets


def _has_highlights(answer: str, num_highlights: int) -> bool:
    """Both `*one*` and `**one**` are highlights."""
    highlights = [part.strip("*") for part in _HIGHLIGHT.findall(answer)] + _STRONG.findall(answer)
    return sum(bool(part.strip()) for part in highlights) >= num_highlights


def _has_sections(answer: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", answer)) >= num_sections


def is_json(answer: str) -> bool:
    """Whether the whole text is one JSON value."""
    try:
        json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return True


def _is_json_in_fences(answer: str) -> bool:
    for fence in _FENCES:
        answer = answer.removeprefix(fence)
    return is_json(answer.removesuffix("```").strip())


def _has_title(answer: str) -> bool:
    for line in answer.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def _has_two_responses(answer: str) -> bool:
    parts = [part.strip() for part in answer.split("******")]
    responses = [part for part in parts if part]
    return all(parts[1:-1]) and len(responses) == 2 and responses[0] != responses[1]


def _repeats_prompt(answer: str, prompt_to_repeat: str) -> bool:
    return answer.lower().startswith(prompt_to_repeat.strip().lower())


def _ends_with(answer: str, end_phrase: str) -> bool:
    return answer.strip('"').lower().endswith(end_phrase.strip().lower())


def _has_capital_words(answer: str, capital_frequency: int, capital_relation: str) -> bool:
    return meets(sum(token.isupper() for token in tokens(answer)), capital_relation, capital_frequency)


def has_no_comma(answer: str) -> bool:
    """Whether the answer has no comma."""
    return "," not in answer


def letter(value: Any) -> str:
    """One character."""
    if not isinstance(value, str) or len(value.strip()) != 1:
        raise ValueError("must be one character")
    return value.strip()


TABLE = (
    constraint("keywords:existence", has_keywords, keywords=texts),
    constraint("keywords:frequency", has_keyword_often, keyword=word, frequency=whole, relation=relation),
    constraint("keywords:forbidden_words", _forbids, forbidden_words=texts),
    constraint(
        "keywords:letter_frequency", has_letter_often, letter=letter, let_frequency=whole, let_relation=relation
    ),
    constraint("language:response_language", is_language, language=language_code),
    constraint("length_constraints:number_sentences", _has_sentences, num_sentences=whole, relation=relation),
    constraint("length_constraints:number_paragraphs", has_paragraphs, num_paragraphs=whole),
    constraint("length_constraints:number_words", _has_words, num_words=whole, relation=relation),
    constraint(
        "length_constraints:nth_paragraph_first_word",
        _starts_paragraph,
        _beyond_last,
        num_paragraphs=positive,
        nth_paragraph=positive,
        first_word=word,
    ),
    constraint("detectable_content:number_placeholders", _has_placeholders, num_placeholders=whole),
    constraint("detectable_content:postscript", _has_postscript, postscript_marker=word),
    constraint("detectable_format:number_bullet_lists", _has_bullets, num_bullets=whole),
    constraint("detectable_format:constrained_response", lambda answer: any(option in answer for option in _OPTIONS)),
    constraint("detectable_format:number_highlighted_sections", _has_highlights, num_highlights=whole),
    constraint("detectable_format:multiple_sections", _has_sections, section_spliter=word, num_sections=whole),
    constraint("detectable_format:json_format", _is_json_in_fences),
    constraint("detectable_format:title", _has_title),
    constraint("combination:two_responses", _has_two_responses),
    constraint("combination:repeat_prompt", _repeats_prompt, prompt_to_repeat=text),
    constraint("startend:end_checker", _ends_with, end_phrase=word),
    constraint("startend:quotation", lambda answer: len(answer) > 1 and answer[0] == answer[-1] == '"'),
    constraint(
        "change_case:capital_word_frequency",
        _has_capital_words,
        capital_frequency=whole,
        capital_relation=relation,
    ),
    constraint("change_case:english_capital", lambda answer: answer.isupper() and is_language(answer, "en")),
    constraint("change_case:english_lowercase", lambda answer: answer.islower() and is_language(answer, "en")),
    constraint("punctuation:no_comma", has_no_comma),
)
