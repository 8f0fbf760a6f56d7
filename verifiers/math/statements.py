"""Reads answers in words, and what a sentence says in words: `The winner is Maria`, `so Alice wins`."""

from __future__ import annotations

import re

from olmorl.verifiers.math.notation import TEXT
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.math.words.wording import conclusion, doubtful

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|['./&!?,;])*|\d[\d:.,]*(?:st|nd|rd|th)?,?")
_MATH_WORDS = {
    "pi", "infty", "inf", "alpha", "beta", "theta", "phi", "sqrt", "sin", "cos", "tan", "log", "exp", "and", "or",
}  # fmt: skip
_ANSWERED = re.compile(
    r"(?:(?:(?:so|thus|hence|therefore|then|finally),? )?"
    r"(?:[a-z\d' ]{1,200}(?:\b(?:is|are|was|were|be|falls)|'s)|[a-z' ]{1,100}:)\s+(?:on )?(?:the |an? )?|an? )"
    r"(?=[a-z])",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?:(?:so|thus|hence|therefore|then),? )?([A-Z][a-z]+) (?:is|was) the ([a-z ]{3,60})", re.IGNORECASE
)
"""`Maria is the winner` names Maria."""
_WINS = (
    r"(?:(?:will|can|must|always|alone|also) )*(?:wins?|won|(?:has|have) (?:a|the) winning strategy|is the winner)\b"
)
_LEADING_TO = re.compile(
    r"(?:(?:.*[,;:])?\s*(?:(?:so|thus|hence|therefore|then|and|it|we|this|that|follows|conclude|shows|means|see|is"
    r"|the|player)\b,? ?)*)?",
    re.IGNORECASE,
)
"""In front of the winner's name."""
_DOES = re.compile(r"\b(converg|diverg|increas|decreas)(?:es|ent|ing)\b", re.IGNORECASE)
"""A label that says what the subject does."""
_DOING = re.compile(
    rf"(?:[a-z\d' -]{{1,100}} )?{_DOES.pattern}(?: (?:absolutely|conditionally|to \S+|by the .*|as .*|for .*))?",
    re.IGNORECASE,
)
_CONTRASTED = re.compile(r",?\s(?:not|rather than|instead of) (?:an? |the )?[a-zA-Z]+$")
_SHAPE = re.compile(r" (?:triangle|quadrilateral|trapezoid|angle|polygon|function|number|series|sequence|correlation)$")
"""Behind an adjective."""
_COLON = re.compile(r"[:;]\s")
_NEITHER = re.compile(r"neither .{1,40} nor ", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:the|an?) (?=\w)")
_YES_NO = re.compile(r"(yes|no|true|false)\b(?=\s*[.,;:–—-])", re.IGNORECASE)
_OPPOSITE = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def word(text: str, plain: str) -> str:
    """The text as words, to be compared letter by letter. Empty if its letters may be variables."""
    folded = " ".join(plain.replace("-", " ").split()).strip(" .,!?'")
    tokens = folded.casefold().split()
    if not tokens or not all(map(_TOKEN.fullmatch, tokens)):
        return ""
    marked = text.startswith(TEXT) and len(folded) > 1 and folded.casefold() not in _MATH_WORDS
    return folded if marked or any(map(_is_word, tokens)) else ""


def _is_word(token: str) -> bool:
    letters = token.strip(".,!?';")
    if "/" in letters and letters != "n/a":
        return any(len(part) > 2 for part in letters.split("/"))
    return letters == "no" or (
        len(letters) > 2 and letters[0].isalpha() and letters not in _MATH_WORDS and letters not in _ALPHABET
    )


def same_word(label: str, answer: str, policy: Policy) -> bool:
    if policy.exact_case:
        return label == answer
    return _ARTICLE.sub("", label.casefold()) == _ARTICLE.sub("", answer.casefold())


def says(label: str, answer: str, policy: Policy) -> bool:
    """Whether an answer ends with the label's words, `The winner is Maria`, or begins with its yes or no."""
    whole = answer.strip(" .,!?'")
    plain = whole if _YES_NO.match(whole) else _CONTRASTED.sub("", conclusion(whole))
    if (begins := _YES_NO.match(plain)) and label.casefold() in _OPPOSITE:
        other = _OPPOSITE[begins[1].casefold()]
        return same_word(label, begins[1], policy) and other not in plain.casefold().split()
    named = _NAMED.fullmatch(plain)
    if named and same_word(label, named[1], policy):
        return not doubtful(named[2])
    first = _COLON.split(plain)[0]
    if _ANSWERED.match(first):
        plain = first
    if label.casefold() == "neither":
        return bool(_NEITHER.search(plain))
    if winner := re.search(rf"\b{re.escape(label)} {_WINS}([^,;]*)$", plain, re.IGNORECASE):
        ahead = plain[: winner.start()]
        return bool(_LEADING_TO.fullmatch(ahead)) and not doubtful(ahead.rpartition(",")[2] + winner[1])
    if does := _DOES.fullmatch(label):
        doing = _DOING.fullmatch(plain)
        return doing is not None and doing[1].casefold() == does[1].casefold() and not doubtful(plain)
    subject = _ANSWERED.match(plain)
    if subject is None or doubtful(plain[: subject.end()]) or _ANSWERED.match(label):
        return False
    said = " ".join(plain[subject.end() :].replace("-", " ").split())
    return any(same_word(label, one, policy) for one in (said, _SHAPE.sub("", said)))
