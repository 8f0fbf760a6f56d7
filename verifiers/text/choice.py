"""Finds the chosen letter in an answer to a multiple-choice question. Prose or several letters give none."""

from __future__ import annotations

import re

from olmorl.verifiers.math.extraction import TAIL, final_answer

LETTERS = "A-J"
MAX_LINE = 200
"""The most characters of a line, or of a marked answer, that can be a choice."""
_MARKER = re.compile(
    r"\b(?:answer(?:\s+(?:choice|option|letter))?|(?:correct|best|right)\s+(?:option|choice|letter))\b[\s*_]*(?:is\b|:|=)"
    r"|\b(?:i|we)(?:\s+would)?\s+(?:choose|select|pick|go\s+with)\b",
    re.IGNORECASE,
)
_DRESS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|bf|rm)\b|\\[()\[\]]|[*_$`\"“”'{}\\]")
"""Markdown, LaTeX and quotes around a letter."""
_NAMED = re.compile(r"\A[\s:#]*(?:(?:the\s+)?(?:option|choice|letter|answer)\b\s*:?\s*)?", re.IGNORECASE)
_LETTER = re.compile(rf"[(\[]\s*(?P<inside>[{LETTERS}])\s*[)\]]|(?P<bare>[{LETTERS}])(?![\w'’+#-]|\.\w)", re.IGNORECASE)
_OPTION_TEXT = re.compile(r"\s*(?:[.:–—-]\s|\))|[\s.:]*\Z")
"""Follows a letter: the text of the option, or nothing."""
_COMMENT = re.compile(r"\s*[,;(]|[\s.]*(?:because|since|as|which|due)\b")
_PRAISE = r"\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b"
_PRAISED = re.compile(rf"(?<![\w'’])[(\[]?([{LETTERS}])[)\]]?{_PRAISE}")
_JOINED = re.compile(
    rf"\s*(?:[,;/&+]|and\b|or\b)\s*(?:(?:and|or|maybe|perhaps|possibly|also)\s+)*[(\[]?([{LETTERS}])(?![\w'’]|\s[a-z])"
)
_BRACKETED = re.compile(rf"(?<!not )(?<!\w)[(\[]([{LETTERS}])[)\]]")
_DENIED = re.compile(r"\s+(?:is|was)(?:\s+not|n['’]t|\s+wrong|\s+incorrect|\s+false)\b")
_REASON = re.compile(r"\b(?:because|since|as|which|due|while|whereas|unlike)\b", re.IGNORECASE)
_DENIAL = re.compile(r"n[o']t\b|\bwrong\b|\bincorrect\b|\bfalse\b", re.IGNORECASE)


def choice(text: str) -> str | None:
    """The capital letter of the final answer in `text`; None if there is no single one."""
    tail = text[-TAIL:]
    found = final_answer(tail, last_number=False)
    if found is not None and found.how != "marker":
        return _letter(found.text)
    ends = [marker.end() for marker in _MARKER.finditer(tail)]
    marked = _letter(_phrase(tail[ends[-1] : ends[-1] + MAX_LINE])) if ends else None
    return marked or _alone(tail)


def _phrase(rest: str) -> str:
    """The first line that is not blank."""
    return rest.lstrip(" \t\n*_:").partition("\n")[0]


def _alone(text: str) -> str | None:
    """The letter of the first or last line; else the only letter called correct, or the only one in brackets."""
    lines = text.strip().split("\n")
    for letters in (
        {letter for line in {lines[0], lines[-1]} if (letter := _letter(line))},
        set(_PRAISED.findall(text)),
        set() if _DENIAL.search(lines[-1]) else set(_BRACKETED.findall(lines[-1])),
    ):
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def _letter(answer: str) -> str | None:
    """The letter at the start of an answer."""
    if len(answer) > MAX_LINE:
        return None
    plain = " ".join(_DRESS.sub(" ", answer).split())
    found = _LETTER.match(_NAMED.sub("", plain, count=1))
    if found is None:
        return None
    rest = found.string[found.end() :]
    said = found["inside"] or found["bare"]
    if _DENIED.match(rest) or (found["bare"] and not _is_choice(said, rest)):
        return None
    return None if _names_another(said.upper(), rest) else said.upper()


def _is_choice(said: str, rest: str) -> bool:
    """Whether a letter without brackets is a choice, unlike the words in `A dog` and `I think`."""
    if _OPTION_TEXT.match(rest):
        return True
    return said not in "aiI" and bool(_COMMENT.match(rest) or re.match(_PRAISE, rest) or _JOINED.match(rest))


def _names_another(said: str, rest: str) -> bool:
    """Whether the text behind a letter gives another one. A reason may speak of the others."""
    joined, given = _JOINED.match(rest), _REASON.split(rest, maxsplit=1)[0]
    return bool(joined and joined[1] != said) or any(letter != said for letter in _BRACKETED.findall(given))
