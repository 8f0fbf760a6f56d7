"""Finds the one final answer in a completion, in linear time for every text.

Order: the last balanced `\\boxed{}`, or the boxes that end the text as a list, else `####`, else `<answer>` tags, else
"the (final) answer is", else, as an option, the last formula or number. Only that one answer counts.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

from olmorl.verifiers.math.notation import normalise
from olmorl.verifiers.math.units import SCALES, is_known, measured
from olmorl.verifiers.math.words import (
    changed_ahead,
    changed_behind,
    changed_nearby,
    doubtful,
    hedged_behind,
    imagined,
    retracts,
    unsure,
)

MAX_ANSWER = 2048
"""Characters of an answer. Nothing longer is one."""
TAIL = 65536
"""Characters at the end of a completion that are searched."""
MAX_BOXES, MAX_SENTENCE = 32, 300

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s${}\\]{1,64}))")
_CONNECTOR = re.compile(
    r"(?:[\s,;&$~]|\\[,;:!()\[\]\\ ]|\\q?quad(?![a-zA-Z])|\b(?:and|or)\b"
    r"|\\(?:text|textrm|mathrm|mbox)\s*\{[\s,;]*(?:(?:and|or)[\s,]*)?\}){1,40}"
)
"""The text that is allowed between the boxes of one list."""
_MARKER = re.compile(
    r"\b(?:answer|(?:correct|best|right)\s+(?:option|choice))\b[\"\s*_]*(?:is\b|:|=|->|[—–→])[\s*_:]*"
    r"(?:(?:therefore|thus|simply|just)\s)?",
    re.IGNORECASE,
)
_PERIOD = r"(?<!\.)(?<!\bapprox)(?<!\bsq)(?<!\bcu)(?<!\bi\.e)(?<!\be\.g)(?<!\b[ap]\.m)\.(?=\s|$)"
_STOP = re.compile(rf"{_PERIOD}|\n|,?\s(?:because|since|which|where|as)\s|,\s*so\s", re.IGNORECASE)
"""What ends an answer inside a sentence."""
_SENTENCE = re.compile(rf"(?:{_PERIOD}|(?<!\\)[!?](?=\s|$))[*_\"'”)]*\s+|\n+")
CLAUSE = re.compile(r"[.,;:!?\n—=]|\b(?:so|thus|hence|therefore|then|gives?|get|is|are|was|means)\b", re.IGNORECASE)
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\$(?!\s*\d[^$]*\s\$)((?:\\text\s*\{[^{}]*\}|(?!(?<![\\a-zA-Z{])[a-z]{2,}\s+[a-z]{2,})[^$\n])+?(?<![\s=]))\$"
    r"|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?<![\w\\.^_{])(?:(?<![\w)])[-−+](?=[\s$€£¥₹]{0,2}\.?\d|\\frac))?\s?(?:US)?\\?[$€£¥₹]?\s?"
    r"(?:\\frac\s*\{\d+\}\s*\{\d+\}|\\frac\d\d|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
    r"(?:\s?/\s?\d+|\s\d+/\d+)?|\.\d+)%?"
)
_JOINT = re.compile(
    r"[\s$*.]*(?:[,;]|\b(?:and|or)\b|\s)[\s$*]*(?:(?:and|or|(?<=, )then)\b[\s$*]*)?(?:[a-zA-Z]\s*=\s*)?"
)
"""Between the items of a list."""
_SUM = re.compile(r"[\d\s.,()$*/+×÷-]*[+*/×÷-]\s*\$?$")
_FRAME = re.compile(
    r",?\s(?:because|since)\s(?!.*(?:\bso\b|\bthen\b|therefore|thus))"
    r"|^(?:\s\w+)?\s(?:out )?of (?:the |his |her |these )?$",
    re.DOTALL,
)
"""Between the number that a sentence states and one of its reason, or the whole that it is a part of."""
_BEFORE_CONTEXT = frozenset(
    ("in", "for", "of", "from", "after", "per", "by", "when", "every", "each", "over", "with", "at")
)
"""In front of a number that is not what the sentence states."""
_BEFORE_DOMAIN = frozenset(("for", "all", "every", "any", "each", "where", "with", "when", "if", "at", "constants"))
_REMARK = re.compile(r"\s\(([^()]*[a-z]{3}[^()]*)\)[.*\s]*$")
_RESULT = re.compile(r"\b(?:is|are|so|gives|get)\s|:\s")
_NO_FORMULA = re.compile(
    r"(?<![\\a-zA-Z{])(?!sqrt|infinity|sin|cos|tan|log|and|pi)[a-zA-Z]{3,}|\?|^$|^(?:at|by|to|of|in|on|an?)\s"
    r"|(?![\x00-\xbf\u0370-\u03ff\u2070-\u218f])[^\W\d_]"
)
"""Words, a question, or a letter that is neither Latin, Greek nor a sign such as `ℝ`."""
_IMPLIES = ("\\implies", "\\Rightarrow", "\\Longrightarrow", "=>", "⇒", "⟹")
_MARKS = "".join(map(chr, (*range(0x2600, 0x27C0), *range(0x1F300, 0x1FB00), 0xFE0F))) + "□∎■ \t\r\n\f\v\u00a0"
"""Space and emoji behind an answer."""
_ENDINGS = ("</s>", "<eos>", "$\\square$", "\\square", "$\\blacksquare$", "\\blacksquare")
MAX_TOKEN = 40


class Extracted(NamedTuple):
    """The final answer as written, and how it was found."""

    text: str
    how: str
    wholes: tuple[str, ...] = ()
    """The texts around the answer, from the longest: the answer is right if one of them is the label."""


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
    """The final answer, or None. `text` is without thinking. An answer that is taken back is empty."""
    tail = _trimmed(text[-TAIL:])
    found = _boxed(tail) or _hashes(tail) or _tagged(tail) or _marked(tail)
    if found is None and last_number and "\\boxed" not in tail:
        found = _last_value(tail)
    return found if found is not None and len(found.text) <= MAX_ANSWER else None


class _Box(NamedTuple):
    start: int
    end: int
    content: str


def _boxed(text: str) -> Extracted | None:
    """The content of the last closed box. Boxes with only `and`, `or` and commas between them are one list."""
    boxes: list[_Box] = []
    end = len(text)
    for _ in range(MAX_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        box = _box_at(text, start)
        if box is not None:
            between = text[box.end : boxes[-1].start] if boxes else ""
            if boxes and not (len(between) <= MAX_SENTENCE and _CONNECTOR.fullmatch(between)):
                break
            boxes.append(box)
        elif boxes:
            break
        end = start
    if not boxes:
        return None
    ahead, behind = text[max(0, boxes[-1].start - MAX_SENTENCE) : boxes[-1].start], text[boxes[0].end :]
    # A question mark right behind a box is no doubt: the box says which answer is meant.
    if len(boxes) == 1 and _taken_back(ahead, behind.lstrip(" $?")):
        return Extracted("", "boxed")
    contents = dict.fromkeys(_one_formula(box.content) or box.content.strip() for box in reversed(boxes))
    return Extracted(", ".join(filter(None, contents)), "boxed")


def _box_at(text: str, start: int) -> _Box | None:
    opening = _BOX.match(text, start)
    if opening is None or opening["bare"]:
        return _Box(start, opening.end(), opening["bare"]) if opening else None
    depth = 1
    for token in _BRACE.finditer(text, opening.end(), min(len(text), opening.end() + MAX_ANSWER + 1)):
        depth += (token[0] == "{") - (token[0] == "}")
        if depth == 0:
            return _Box(start, token.end(), text[opening.end() : token.start()])
    return None


def _taken_back(ahead: str, behind: str) -> bool:
    """Whether the words right around an answer, or the next sentence, take it back."""
    near = CLAUSE.split(ahead)[-1].split()[-3:]
    return doubtful(" ".join(near)) or retracts(behind[:MAX_SENTENCE].lstrip(" $)]}\\.*,\n"))


def _hashes(text: str) -> Extracted | None:
    """The answer after GSM8K's `####`, on the last line, or on a line that is a number. Further up it is a heading."""
    _, marker, rest = text.rpartition("####")
    line, _, after = rest.strip(" \t").partition("\n")
    line = _undress(line)
    if not marker or not line or (after.strip() and not _NUMBER.fullmatch(line.split(" ")[0])):
        return None
    if after.strip() and (_tagged(after) or _marked(after) or line.split(" ")[0] + "." in rest.split("\n")[0]):
        return None
    marked = _MARKER.search(line)
    return Extracted(_undress(line[marked.end() :]) if marked else line, "hashes", (line,))


def _tagged(text: str) -> Extracted | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    if start < 0 or end < 0:
        return None
    inner = text[start + len("<answer>") : end]
    marked = _marked(inner)
    return Extracted(_undress(inner) if marked is None else marked.text, "tags", (inner,))


def _marked(text: str) -> Extracted | None:
    last = _last(_MARKER, text) if any(word in text.casefold() for word in ("answer", "option", "choice")) else None
    if last is None:
        return None
    rest = text[last.end() : last.end() + MAX_ANSWER].lstrip()
    stop = _STOP.search(rest)
    lead = _SENTENCE.split(text[max(0, last.start() - MAX_SENTENCE) : last.start()])[-1]
    formula = _FORMULA.match(rest)
    if formula and (stop is None or stop.start() < formula.end()):
        stop = _STOP.search(rest, formula.end())
    phrase, after = (rest[: stop.start()], rest[stop.start() :]) if stop else (rest, "")
    if doubtful(lead.rpartition(",")[2]) or imagined(lead) or retracts(after.lstrip(" .*\n")):
        return Extracted("", "marker")
    answer = _undress(_one_formula(phrase) or phrase)
    return Extracted(answer, "marker", (_undress(rest), _undress(rest.partition("\n")[0]), phrase)) if answer else None


def _one_formula(phrase: str) -> str:
    """The only formula of a sentence, with the words behind it. Empty if words or numbers around it change it."""
    formulas = list(_FORMULA.finditer(phrase))
    if len(formulas) != 1:
        return ""
    ahead, behind = phrase[: formulas[0].start()], phrase[formulas[0].end() :]
    if _NUMBER.search(ahead + behind) or changed_ahead(ahead) or changed_behind(behind):
        return ""
    return _content(formulas[0]) + _words_behind(behind)


def _content(formula: re.Match[str]) -> str:
    return _conclusion(next(filter(None, formula.groups())).strip())


def _conclusion(formula: str) -> str:
    """What a formula implies at its end."""
    for sign in _IMPLIES:
        formula = formula.rpartition(sign)[2]
    return formula.strip()


def _words_behind(behind: str) -> str:
    """Words behind a formula as text."""
    plain = behind.strip(" .,;:*$\n")
    return rf"\text{{ {plain}}}" if plain and not any(sign in plain for sign in "\n\\{") else ""


def _last_value(text: str) -> Extracted | None:
    """The formula or the number that ends a text, or the list that it ends."""
    end = text.rstrip("`*-_ \n")[-4 * MAX_SENTENCE :]
    remark = _REMARK.search(end)
    if remark and _NUMBER.search(_SENTENCE.split(end[: remark.start()])[-1]) and not doubtful(remark[1]):
        end = end[: remark.start()]
    *above, line = [_undress(one) for one in end.split("\n") if one.strip()] or [""]
    sentence = next((one for one in reversed(_SENTENCE.split(end)) if one.strip(" *_$`")), "")
    wholes = (text.strip()[-MAX_ANSWER:], line, _undress(sentence))
    formulas, numbers = list(_FORMULA.finditer(end)), list(_NUMBER.finditer(end))
    displayed = formulas and "\n" in formulas[-1][0] and not end[formulas[-1].end() :].strip(" .")
    for bare in () if displayed else (_undress(_RESULT.split(sentence)[-1]), line):
        head = sentence[: -len(bare) - 1]
        whole = bare.count("$") % 2 == 0 and bare.count("{") == bare.count("}")
        if whole and not (_NO_FORMULA.search(bare.strip("$")) or changed_nearby(head) or imagined(head)):
            listed = bare == line and above and above[-1] != bare and _NUMBER.fullmatch(above[-1])
            return Extracted(f"{above[-1]}, {bare}" if listed else _conclusion(bare), "line", wholes)
    if formulas and not (numbers and numbers[-1].start() >= formulas[-1].end()):
        domain = len(formulas) > 1 and len(_content(formulas[-2])) > 1
        domain = domain and not _BEFORE_DOMAIN.isdisjoint(end[: formulas[-1].start()].split()[-1:])
        return _of_item(end, formulas, formulas[-2 if domain else -1], wholes)
    if numbers:
        return _of_item(end, numbers, _stated(end, numbers), wholes)
    return Extracted(_undress(sentence), "closing", wholes) if sentence else None


def _stated(text: str, numbers: list[re.Match[str]]) -> re.Match[str]:
    """The last number, unless it is only a part of the frame or of the reason of one ahead: `= 15 liters of the 24`."""
    last = numbers[-1]
    ahead = [one for one in text[: last.start()].rstrip(" =").split()[-3:] if one not in ("the", "a", "x", "n", "all")]
    framed = not _BEFORE_CONTEXT.isdisjoint(ahead[-1:])
    for number in reversed(numbers[:-1]):
        between = text[number.end() : last.start()]
        if _SENTENCE.search(between):
            break
        calculated = text[: number.start()].rstrip().endswith("=") and not CLAUSE.search(between)
        claimed = framed and text[: number.start()].rstrip().endswith(("=", " is", " are", " was"))
        if _FRAME.search(between) or calculated or claimed:
            return number
    return last


def _of_item(text: str, items: list[re.Match[str]], last: re.Match[str], wholes: tuple[str, ...]) -> Extracted:
    """The last item, with those in front of it that are of the same list. Empty if the words around take it back."""
    first = last
    for item in reversed(items[: items.index(last)]):
        between = text[item.end() : first.start()]
        if not _JOINT.fullmatch(between) and _rest(between).removesuffix("and").strip(" ,"):
            break
        first = item
    ahead, behind = _SENTENCE.split(text[: first.start()])[-1], text[last.end() :]
    near, clause = CLAUSE.split(ahead)[-1], _STOP.split(behind)[0]
    taken_back = changed_nearby(near, ahead.rpartition(",")[2]) or hedged_behind(clause) or _taken_back(ahead, behind)
    if taken_back or imagined(ahead) or unsure(behind):
        return Extracted("", "denied", wholes[:1])
    if last.re is _FORMULA and first is last:
        return Extracted(_content(last) + _words_behind(_SENTENCE.split(behind)[0]), "last_formula", wholes)
    unit = clause[: len(clause) - len(_rest(clause))]
    if first is not last:
        return Extracted(text[first.start() : last.end()] + unit, "last_list", wholes)
    start, end = _token(text, last)
    minus = "-" if near.rstrip().lower().endswith(("negative", "minus")) else ""
    part = _SUM.search(ahead) if start == last.start() else None
    number = text[start:end].strip(" .,;:") + (unit if end == last.end() else "")
    return Extracted(minus + (part[0] if part else "") + number, "last_number", wholes)


def _token(text: str, number: re.Match[str]) -> tuple[int, int]:
    """The bounds of a number with the signs that touch it, `12π` or `2:3`, behind the last equals sign."""
    start, end = number.span()
    depth = 0
    while end < len(text) and (depth or not (text[end].isspace() or text[end] in "()*$,;")):
        depth += (text[end] == "{") - (text[end] == "}")
        end += 1
    while start > 0 and not text[start - 1].isspace() and text[start - 1] not in "(=*$,;":
        start -= 1
    return start, end


def _rest(behind: str) -> str:
    """What is left of the words behind a number without the unit or the scale at their start."""
    first = behind.split(maxsplit=1)[:1]
    if first and (first[0] in SCALES or first[0] == "percent"):
        return behind.lstrip()[len(first[0]) :]
    found = measured(normalise(f"1 {behind.strip()}")[1:]) if first else None
    return found.remark if found is not None and is_known(found.unit) else behind or "-"


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _trimmed(text: str) -> str:
    """The text without space, emoji, the tokens that end a text, and the square that ends a proof."""
    text = text.rstrip(_MARKS)
    for _ in range(MAX_BOXES):
        token = text.rfind("<|", max(0, len(text) - MAX_TOKEN)) if text.endswith("|>") else -1
        ending = next((one for one in _ENDINGS if text.endswith(one)), "")
        if token < 0 and not ending:
            break
        text = (text[:token] if token >= 0 else text.removesuffix(ending)).rstrip(_MARKS)
    return text


def _undress(text: str) -> str:
    """The text without Markdown, full stop and quotation marks around it."""
    text = _trimmed(text).strip().strip("*_`").strip()
    text = text if text.endswith("...") and not text.endswith("....") else text.removesuffix(".")
    if (text.endswith(")") and "(" not in text and "[" not in text) or (text.endswith("}") and "{" not in text):
        text = text[:-1].rstrip()
    return text.strip("\"'“” *") if text[:1] in "\"'“*" or text[-1:] in '"*' else text.strip()
