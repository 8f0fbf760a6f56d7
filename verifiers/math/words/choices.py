"""Reads the letter of a multiple choice: `(B)`, `B. 12`, `so I choose B`, `option B is correct`."""

from __future__ import annotations

import re

from olmorl.verifiers.math.words.wording import conclusion, doubtful

_CHOICE_LABEL = re.compile(r"\(?([A-J])\)?\.?")
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s+)?"
    r"(?:\(([A-J])\)|([A-J])(?=[.):]|$|,?\s+(?:not|rather than|instead of|[-–—])\s"
    r"|\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b))",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"(?:(?:.*,\s*)?(?i:so|thus|hence|therefore|then)\b,? ?)?"
    r"(?:(?:I|we) (?:would |will )?(?:choose|pick|select|chose|picked|go with)|[Oo]nly|[Ii]t(?: is|'s)"
    r"|[Tt]hat leaves|leaving|[Tt]his is)?\s*"
    r"(?:the )?(?:(?:option|choice|answer) (?:is )?)?\(?([A-J])\)?"
    r"(?: (?:works?|fits?|remains?|is (?:true|(?:the )?(?:correct|right|best|only|valid)\b.*)))?",
)
"""A sentence that picks an option: `so I choose B`, `only (B) works`."""
_SEVERAL_CHOICES = re.compile(r"(?:and|or|,|;|/|&|\))?\s*\(?[A-J]\)?\.?", re.IGNORECASE)
_CHOICE_MARK = re.compile(
    r"\s*(?:\\(?:text(?:bf|rm)?|math(?:bf|rm))\s*\{\s*\([A-Ja-j]\)\s*\}(?:\\[ ,;]|\\quad|~|\s)*"
    r"|(?:(?:choice|option)\s+)?(?:\([A-Ja-j]\),?|[A-J][).])(?:\\[ ,;]|\\quad|~|\s)+)"
    r"(?=\d|-\d|\$|\\(?:[dt]?frac|sqrt|pi|text)(?![a-z])|[a-z])"
)
"""The letter in front of an option: `(A) 12`."""
_CHOICE_BEHIND = re.compile(r"(?<=[\d})])(?:\s*\\text\s*\{\s*\([A-J]\)\s*\}|\s+\([A-J]\))$")
_NOT = re.compile(r"\b(?:not|or|neither|either|maybe)\b|n't", re.IGNORECASE)
_NAMED_OPTION = re.compile(
    r"(?i:\b(?:statement|option|choice|answer|opción|opção|opzione|optie|antwort|réponse|respuesta|resposta|risposta)|选项?|選ぶ)"
    r"\s*(?i:(?:correct\s)?is\s(?:the\s)?)?\(?([A-J])\)?(?![\w'])"
)


def is_label(plain: str) -> bool:
    """Whether text is the letter of an option and nothing else."""
    return bool(_CHOICE_LABEL.fullmatch(plain))


def without_letter(answer: str) -> str:
    """An answer without the letter of its option: `(A) 12` is 12."""
    return _CHOICE_BEHIND.sub("", _CHOICE_MARK.sub("", answer, count=1))


def letter(plain: str) -> str:
    """The letter of a multiple choice. Empty if there is none, or more than one."""
    plain = conclusion(plain)
    choice = _CHOICE.match(plain)
    if choice is None:
        if chosen := _CHOSEN.fullmatch(plain):
            return chosen[1] if not doubtful(plain.rpartition(",")[2]) else ""
        named = set(_NAMED_OPTION.findall(plain))
        return named.pop() if len(named) == 1 and not _NOT.search(plain) else ""
    rest = plain[choice.end() :].strip()
    return "" if rest and _SEVERAL_CHOICES.fullmatch(rest) else (choice[1] or choice[2]).upper()
