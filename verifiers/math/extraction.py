"""Finds the one final answer in a completion, in linear time for every text.

Order: the last balanced `\\boxed{}`, or the boxes that end the text as a list, else `####`, else `<answer>` tags, else
"the (final) answer is", else, as an option, the last number, or the formula or the sentence around it.
Only that one answer counts, so a completion gains nothing by giving several.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

from olmorl.verifiers.math.boxes import MAX_CONTENT, boxed
from olmorl.verifiers.math.last_value import closing_sentence, last_value
from olmorl.verifiers.math.notation import normalise
from olmorl.verifiers.math.numbers import quantity
from olmorl.verifiers.math.prose import MAX_SENTENCE
from olmorl.verifiers.math.units import with_unit
from olmorl.verifiers.math.words.languages import in_english
from olmorl.verifiers.math.words.wording import doubtful, refuted, taken_back

MAX_ANSWER = MAX_CONTENT
"""Characters of an answer. Nothing longer is one."""
TAIL = 65536
"""Characters at the end of a completion that are searched."""

_MARKER = re.compile(
    r"\b(?:answer|(?:correct|best|right)\s+(?:option|choice))\b[\"\s*_]*(?:is\b|:|=)[\s*_:]*", re.IGNORECASE
)
_MARKING = ("answer", "option", "choice")
"""Every marker has one of these words."""
_REASON = re.compile(
    r"(?<!\bapprox)(?<!\bca)(?<!\bsq)(?<!\bcu)(?<!\bNo)(?<!\bi\.e)(?<!\be\.g)(?<!\.)\.(?=\s|$)|\n|,\s+\w+\s+of\s+(?:which|whom)\b|,?\s(?:because|since|which|where|as)\s|,\s*so\s",
    re.IGNORECASE,
)
"""The words that end an answer inside a sentence."""
_CONFIRMED = re.compile(
    r"\s*(?:indeed |therefore |also )?(?:correct|right|reasonable|valid|verified|confirmed|consistent|plausible)\b"
    r"[^\d\n?]{0,80}",
    re.IGNORECASE,
)
_BOLD_ENDS = re.compile(r"(?<=\w)\*\*(?=[\s.,;:)]|$)")
_EMOJI = "".join(map(chr, (*range(0x2600, 0x27C0), *range(0x1F300, 0x1FB00), 0xFE0F))) + " "
_DIGIT = re.compile(r"\d")
_HTML = re.compile(r"</?(p|br|b|i|em|strong|span|div|u|sup|sub|h\d|li|ul|ol)(?:\s[^<>]{0,100})?/?>")
_RETRACTION = re.compile(r"\s*(?:no|actually|wait|oops|sorry|correction|scratch that)\b", re.IGNORECASE)
_ADVERBS = re.compile(r"(?:(?:so|therefore|thus|then|hence|simply|just|exactly|equal to|given by)\s+)+", re.IGNORECASE)
_CLAUSE = re.compile(r"[.,;:!?\n—]")
_CONTRAST = re.compile(r"^\s*(?:but|however|instead)\b", re.IGNORECASE)
"""The start of a clause that takes back the clause before it."""
_SENTENCE = re.compile(r"[A-Za-z](?:[^()]|\(\w{1,3}\))*\s(?:is|are|equals)\s+(?=\S)", re.DOTALL)
"""The words between a marker and its answer, if a sentence follows the marker."""
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_GOES_ON = re.compile(
    r"[\s*]*(?:(?:,|;|&|\band\b|\bor\b|\\text\{[^{}]{0,20}\}|\s)*(?:\$|\\[(\[]|-?\d)"
    r"|(?:less|more|fewer|greater|times|plus|minus|over|out|of|to|through)\b[^.\n]*\d)",
    re.IGNORECASE,
)
"""After a formula: another formula, or words that compute with it."""
_STEP = re.compile(r"\d+[.):]\s+\S")
_COPULA_AT_END = re.compile(r"\s(?:is|are|equals)\s+$")


class Extracted(NamedTuple):
    """The final answer as written, and how it was found."""

    text: str
    how: str
    num_items: str = ""
    """The number of items of a list, if the text says it."""
    closing: str = ""
    """The last sentence of a text that marks no answer: it counts if the label is words or a choice."""
    whole: str = ""
    """The sentence behind a marker, if the answer is only its end: it counts if it is the label."""
    ending: str = ""
    """The end of such a text: if the label is a list, the values count that are named there."""


def strip_thinking(text: str, start: str, end: str, opened: bool) -> str | None:
    """The text without its thinking. None if thinking was opened and never closed.

    Args:
        opened: the prompt already opened the tag.

    A closing tag without an opening one closes thinking that was open from the start.
    """
    kept: list[str] = []
    position, inside = 0, opened
    if start not in text and end not in text:
        return None if opened else text
    for tag in re.finditer(f"{re.escape(start)}|{re.escape(end)}", text):
        if tag[0] == end:
            if not inside:
                kept.clear()
            position, inside = tag.end(), False
        elif not inside:
            kept.append(text[position : tag.start()])
            inside = True
    return None if inside else "".join((*kept, text[position:]))


def final_answer(text: str, last_number: bool = True) -> Extracted | None:
    """The final answer, or None. `text` is without thinking."""
    tail = _unconfirmed(_untagged(text[-TAIL:]))
    box = boxed(tail)
    found = _hashes(tail) or _tagged(tail) if box is None else Extracted(box, "boxed")
    if found is None:
        tail = in_english(tail)
        found = _marked(tail)
    if found is None and last_number and "\\boxed" not in tail:
        closing = closing_sentence(tail)
        value = last_value(tail)
        found = None
        if value or closing:
            found = Extracted(*(value or (closing, "closing", "")), closing, ending=tail[-MAX_SENTENCE:])
    return found if found is not None and len(found.text) <= MAX_ANSWER else None


def _untagged(text: str) -> str:
    """The text without HTML's tags for style; a raised place as a power."""
    return (
        _HTML.sub(lambda tag: "^" if tag[1] == "sup" else "\n" if tag[1] in ("p", "br") else "", text)
        if "</" in text
        else text
    )


def _unconfirmed(text: str) -> str:
    """The text without a last sentence that only says that the answer is correct."""
    marker = _last(_MARKER, text) if "answer" in text[-MAX_SENTENCE:].casefold() else None
    if marker is None or not _CONFIRMED.fullmatch(text, marker.end()):
        return text
    lead = _CLAUSE.split(text[max(0, marker.start() - MAX_SENTENCE) : marker.start()])[-1]
    before = text[: marker.start() - len(lead)]
    return before if not taken_back(lead) and (_MARKER.search(before) or _DIGIT.search(before)) else text


def _hashes(text: str) -> Extracted | None:
    """The answer after GSM8K's `####`, on the last line. Further up it is a heading, unless it is a number.

    It is a heading too if it is the number of a step, or if the text behind it marks an answer.
    """
    _, marker, rest = text.rpartition("####")
    if not marker:
        return None
    line, _, after = rest.strip(" \t").partition("\n")
    line = _undress(line)
    if not line:
        return None
    if after.strip():
        is_number = not _STEP.match(line) and quantity(normalise(line[:MAX_SENTENCE]))
        if not is_number or _tagged(after) or _marked(in_english(after)):
            return None
    return Extracted(line, "hashes")


def _tagged(text: str) -> Extracted | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    if start < 0 or end < 0:
        return None
    return Extracted(_marked_text(text[start + len("<answer>") : end]), "tags")


def _marked_text(text: str) -> str:
    """The answer inside answer tags, which may be a sentence."""
    found = _marked(text)
    return _undress(text) if found is None else found.text


def _marked(text: str) -> Extracted | None:
    folded = text.casefold()
    last = _last(_MARKER, text) if any(word in folded for word in _MARKING) else None
    if last is None:
        return None
    rest = _ADVERBS.sub("", text[last.end() : last.end() + MAX_ANSWER], count=1)
    lead = _CLAUSE.split(text[max(0, last.start() - MAX_SENTENCE) : last.start()])[-1]
    lead = _CONTRAST.sub("", lead, count=1)
    if taken_back(lead):
        return Extracted(_sentence_end(text[last.start() - len(lead) : last.end() + MAX_SENTENCE]), "marker")
    formula = _delimited(rest)
    if formula is not None:
        return Extracted(formula, "marker")
    answer = _undress(_sentence_end(rest))
    if (sentence := _SENTENCE.match(answer)) and not taken_back(_COPULA_AT_END.sub("", sentence[0])):
        return Extracted(answer[sentence.end() :], "marker", whole=answer)
    return Extracted(answer, "marker") if answer else None


def _delimited(rest: str) -> str | None:
    """The formula at the start of `rest`. None if the answer goes on after it, or if the dollars are prices."""
    for opening, closing in _DELIMITERS:
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            formula, behind = rest[len(opening) : end], rest[end + len(closing) :]
            price = (
                opening == "$" and formula[:1].isdigit() and formula[-1:].isspace() and formula[:-1].strip() != formula
            )
            stop = _REASON.search(behind)
            retracted = stop is not None and _RETRACTION.match(behind, stop.end())
            goes_on = retracted or _GOES_ON.match(behind) or doubtful(_sentence_end(behind))
            if goes_on or (price and " " in formula.strip()):
                return None
            return with_unit(formula.strip(), behind)
    return None


def _sentence_end(text: str) -> str:
    """The text up to the end of the sentence or to a reason in it. Includes the next words if they take it back."""
    stop = _REASON.search(text)
    if stop is None:
        return text
    wrong = _RETRACTION.match(text, stop.end()) or refuted(text[stop.start() : stop.end() + MAX_SENTENCE])
    return text[: stop.end() + MAX_SENTENCE] if wrong else text[: stop.start()]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _undress(text: str) -> str:
    """The text without Markdown, emoji, full stop and quotation marks around it."""
    text = text.rstrip(_EMOJI).strip().strip("*_`").strip()
    if text.endswith("}") and "{" not in text:
        text = text.rstrip("} \n")
    if text.count("**") == 1:
        text = _BOLD_ENDS.sub("", text)
    if not text.endswith("...") or text.endswith("...."):
        text = text.removesuffix(".")
    if text.endswith(")") and not any(bracket in text for bracket in "([]"):
        text = text[:-1].rstrip()
    return text.strip("\"'“” ") if text.startswith(('"', "'", "“")) else text.strip()
