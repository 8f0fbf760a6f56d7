"""Reads an answer once: as a number, a choice letter, a word, a time of day or a numeral of some base.

`settle` compares two readings in microseconds and says None when it takes algebra to decide.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from olmorl.verifiers.math import spoken
from olmorl.verifiers.math.notation import END_TEXT, TEXT, folded, key, last_side, normalise, unmark
from olmorl.verifiers.math.numbers import Policy, Quantity, equal, quantity
from olmorl.verifiers.math.prose import stated
from olmorl.verifiers.math.spelled import clock as spelled_clock
from olmorl.verifiers.math.wording import doubtful

_NUMERIC = frozenset("+-.0123456789")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_CHOICE_LABEL = re.compile(r"\(?([A-J])\)?\.?")
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s+)?"
    r"(?:\(([A-J])\)|([A-J])(?=[.):]|$|,?\s+(?:not|rather than|instead of|[-–—])\s"
    r"|\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b))",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"(?:(?:.*,\s*)?(?i:so|thus|hence|therefore|then)\b,? ?)?"
    r"(?:(?:I|we) (?:would |will )?(?:choose|pick|select|chose|picked|go with)|[Oo]nly|[Ii]t(?: is|'s)|[Tt]hat leaves|leaving|[Tt]his is)?\s*"
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
_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|['./&!?,;])*|\d[\d:.,]*(?:st|nd|rd|th)?,?")
_MATH_WORDS = {
    "pi", "infty", "inf", "alpha", "beta", "theta", "phi", "sqrt", "sin", "cos", "tan", "log", "exp", "and", "or",
}  # fmt: skip
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16,
}  # fmt: skip
_BASE = re.compile(rf"\(?([0-9A-Fa-f]+)\)?_\{{?\s*\(?(\d{{1,2}}|{'|'.join(_BASES)})\)?\s*\}}?")
_CLOCK = re.compile(r"(\d{1,2})(?:\s*(?::|\.(?=\d\d\s?[ap]))\s*(\d{2}))?(?:\s*:\s*(\d{2}))?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_HALF_OF_DAY = re.compile(r"\s+(?:in the (?:(morning)|afternoon|evening)|at night)$", re.IGNORECASE)
_AT = re.compile(r"^(?:[A-Za-z' ]{1,100}\s)?(?:at|is|by|was|shows|reads)\s+(?:exactly )?(?=[a-z\d ]+(?:past|to|clock)|\d+:\d\d|\d+ [ap]\.?m)", re.IGNORECASE)
"""In front of the time of day that a sentence ends with."""
_MONTH = "(January|February|March|April|May|June|July|August|September|October|November|December)"
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?\b", re.IGNORECASE)
_BRACKETED = re.compile(r"\s*\([^()]*\)$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}/\d{1,2}/\d{4}")
_SUMMED = re.compile(r"(?:[\d\s.,()+\-*/]|\\times|\\cdot)+")
_BINARY = re.compile(r"[\d)]\s*(?:[+\-*]|\\times|\\cdot)\s*[\d(+\-]")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,\d+|\d{1,3}(?:[ .]\d{3})+,\d+|\d+,(?!\d{3}(?!\d))\d+)(?![\d,.]*\d)[^\d,]*")
"""A decimal comma: it does not group thousands."""
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
_WINS = r"(?:(?:will|can|must|always|alone|also) )*(?:wins?|won|(?:has|have) (?:a|the) winning strategy|is the winner)\b"
_LEADING_TO = re.compile(
    r"(?:(?:.*[,;:])?\s*(?:(?:so|thus|hence|therefore|then|and|it|we|this|that|follows|conclude|shows|means|see|is|the|player)\b,? ?)*)?",
    re.IGNORECASE,
)
"""In front of the winner's name."""
_DOES = re.compile(r"\b(converg|diverg|increas|decreas)(?:es|ent|ing)\b", re.IGNORECASE)
"""A label that says what the subject does."""
_DOING = re.compile(rf"(?:[a-z\d' -]{{1,100}} )?{_DOES.pattern}(?: (?:absolutely|conditionally|to \S+|by the .*|as .*|for .*))?", re.IGNORECASE)
_CONCLUSION = re.compile(r"^.*(?:[,;:]\s*(?:and )?(?:so|thus|hence|therefore|then)\b,?|\s[—–-])\s*", re.IGNORECASE)
"""In front of what follows from it."""
_CONTRASTED = re.compile(r",?\s(?:not|rather than|instead of) (?:an? |the )?[a-zA-Z]+$")
_SHAPE = re.compile(r" (?:triangle|quadrilateral|trapezoid|angle|polygon|function|number|series|sequence|correlation)$")
"""Behind an adjective."""
_COLON = re.compile(r"[:;]\s")
_NEITHER = re.compile(r"neither .{1,40} nor ", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:the|an?) (?=\w)")
_NOT = re.compile(r"\b(?:not|or|neither|either|maybe)\b|n't", re.IGNORECASE)
_NAMED_OPTION = re.compile(
    r"(?i:\b(?:statement|option|choice|answer|opción|opção|opzione|optie|antwort|réponse|respuesta|resposta|risposta)|选项?|選ぶ)"
    r"\s*(?i:(?:correct\s)?is\s(?:the\s)?)?\(?([A-J])\)?(?![\w'])"
)
_YES_NO = re.compile(r"(yes|no|true|false)\b(?=\s*[.,;:–—-])", re.IGNORECASE)
_OPPOSITE = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_ODDS = re.compile(r"\bodds\b.*\d\s*(?::|to)\s*\d", re.IGNORECASE)
_RATIO = re.compile(r":|\bto\b|\bodds\b")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![a-zA-Z])|\\frac\s*\{\s*(?:d|\\partial)\s*\}")


class Reading(NamedTuple):
    """One answer. At most one field after `key` is set, except that a sentence may be words and state a number."""

    text: str
    """Normalised."""
    key: str
    """Equal keys are the same spelling."""
    number: Quantity | None = None
    """A plain number, or the number that a sentence states."""
    stated: Quantity | None = None
    """The number of a sentence, even if the words in front name a thing, as in `Row 3`. Such a label is no number."""
    choice: str = ""
    word: str = ""
    clock: tuple[int, int, int, str] | None = None
    """Hour, minute, second, and `a`, `p` or nothing."""
    numeral: tuple[str, str] | None = None
    """Digits and base."""
    is_choice_label: bool = False


def read(answer: str) -> Reading:
    """Read one answer. If it has none of the simple forms, only `text` and `key` are set."""
    if answer.isdigit() and answer.isascii():
        return Reading(answer, answer, Quantity(Fraction(answer), None))
    text = normalise(answer)
    plain = unmark(text).strip()
    if plain[:1] == "{" and plain[-1:] == "}" and "{" not in plain[1:]:
        plain = plain[1:-1].strip()
    if signs := spoken.in_signs(plain):
        text = plain = normalise(signs)
    if "_" in plain and (numeral := _BASE.fullmatch(plain.rpartition("=")[2].strip())):
        return Reading(text, key(text), numeral=(numeral[1].lower().lstrip("0"), _base(numeral[2])))
    if _DATE.fullmatch(plain):
        return Reading(text, key(text), word=plain)
    if date := _date(plain):
        return Reading(text, key(text), word=date)
    if clock := _time(plain):
        return Reading(text, key(text), clock=clock)
    is_label = bool(_CHOICE_LABEL.fullmatch(plain))
    number = quantity(text) or _number_as_text(text)
    if number is not None:
        return Reading(text, key(text), number, is_choice_label=is_label)
    letter = _letter(plain)
    said, named = (None if letter else stated(text)) or (None, False)
    word = _word(text, plain)
    return Reading(text, key(text), None if named else said, said, letter, word, is_choice_label=is_label)


def in_signs(answer: str) -> str:
    """The answer, with signs in place of words that mean the same: `\\mathbb{R}` for `all real numbers`."""
    return spoken.in_signs(unmark(normalise(answer)).strip()) or answer


def of_option(answer: str, label: Reading) -> str:
    """The answer without the letter of its option, unless the label names one."""
    if label.choice or label.is_choice_label:
        return answer
    return _CHOICE_BEHIND.sub("", _CHOICE_MARK.sub("", answer, count=1))


def odds_for_probability(label: str, answer: str) -> bool:
    """Whether an answer gives odds where the label has none. Odds of 1 to 4 are a probability of 1/5."""
    return bool(_ODDS.search(answer)) and not _RATIO.search(label)


def _number_as_text(text: str) -> Quantity | None:
    """The number in `\\text{64}`."""
    inside = text.removeprefix(TEXT).removesuffix(END_TEXT)
    whole = len(inside) == len(text) - 2 and TEXT not in inside
    return quantity(inside.strip()) if whole and inside.strip()[:1] in {*_NUMERIC, "("} else None


read_label = lru_cache(65536)(read)
"""Cached: every completion of a group has the same label."""


def settle(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    """Whether they agree and by which rule, or None when only algebra can tell."""
    if not answer.key:
        return False, "blank"
    if label.key == answer.key:
        return True, "identical"
    if label.is_choice_label:
        return label.choice == answer.choice, "choice"
    for compare in (_as_numbers, _as_numerals, _as_words):
        if (verdict := compare(label, answer, policy)) is not None:
            return verdict
    if not policy.exact_case and folded(label.text) == folded(answer.text):
        return True, "identical"
    return None


def _as_numbers(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    if decimals := _decimals(label, answer):
        return equal(*decimals, policy), "number"
    if label.word and answer.word and _same_word(label.word, answer.word, policy):
        return True, "word"
    given = answer.number or answer.stated
    if label.number is None or given is None or label.number.bare_letter:
        return None
    return equal(label.number, given, policy), "number"


def _as_numerals(label: Reading, answer: Reading, _: Policy) -> tuple[bool, str] | None:
    """Compare numerals of a base and times of day, and refuse an answer that only repeats the question."""
    if restated(label, answer):
        return False, "restated"
    if label.numeral or answer.numeral:
        return _same_numeral(label, answer), "numeral"
    if label.clock and answer.clock:
        return _same_time(label.clock, answer.clock), "time"
    if label.clock and label.clock[3] and answer.number:
        return False, "time"
    return None


def _as_words(label: Reading, answer: Reading, policy: Policy) -> tuple[bool, str] | None:
    if label.word:
        return _says(label.word, answer, policy), "word"
    return (False, "word") if label.number and answer.word else None


def _decimals(label: Reading, answer: Reading) -> tuple[Quantity, Quantity] | None:
    """Both as decimals, if one is written with a comma and the other with a point."""
    if "," not in label.text and "," not in answer.text:
        return None
    comma, point = (label, answer) if _DECIMAL_COMMA.fullmatch(label.text) else (answer, label)
    if point.number is None or point.number.step is None or not _DECIMAL_COMMA.fullmatch(comma.text):
        return None
    number = quantity(comma.text.replace(".", "").replace(",", "."))
    if number is None:
        return None
    return (number, point.number) if comma is label else (point.number, number)


def restated(label: Reading, answer: Reading) -> bool:
    """Whether the answer repeats the question without computing it: a sum of numbers, a `\\sum` or an integral."""
    if _UNDONE.search(last_side(answer.text)[2]) and not _UNDONE.search(label.text):
        return True
    return bool(label.number) and bool(_SUMMED.fullmatch(answer.text) and _BINARY.search(answer.text))


def _letter(plain: str) -> str:
    """The letter of a multiple choice. Empty if there is none, or more than one."""
    plain = _CONCLUSION.sub("", plain)
    choice = _CHOICE.match(plain)
    if choice is None:
        chosen = _CHOSEN.fullmatch(plain)
        if chosen:
            return chosen[1] if not doubtful(plain.rpartition(",")[2]) else ""
        named = set(_NAMED_OPTION.findall(plain))
        return named.pop() if len(named) == 1 and not _NOT.search(plain) else ""
    rest = plain[choice.end() :].strip()
    return "" if rest and _SEVERAL_CHOICES.fullmatch(rest) else (choice[1] or choice[2]).upper()


def _word(text: str, plain: str) -> str:
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


def _same_word(label: str, answer: str, policy: Policy) -> bool:
    if policy.exact_case:
        return label == answer
    return _ARTICLE.sub("", label.casefold()) == _ARTICLE.sub("", answer.casefold())


def _says(label: str, answer: Reading, policy: Policy) -> bool:
    """Whether an answer ends with the label's words, `The winner is Maria`, or begins with its yes or no."""
    whole = unmark(answer.text).strip(" .,!?'")
    plain = whole if _YES_NO.match(whole) else _CONTRASTED.sub("", _CONCLUSION.sub("", whole))
    if (first := _YES_NO.match(plain)) and label.casefold() in _OPPOSITE:
        other = _OPPOSITE[first[1].casefold()]
        return _same_word(label, first[1], policy) and other not in plain.casefold().split()
    named = _NAMED.fullmatch(plain)
    if named and _same_word(label, named[1], policy):
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
        said = _DOING.fullmatch(plain)
        return said is not None and said[1].casefold() == does[1].casefold() and not doubtful(plain)
    subject = _ANSWERED.match(plain)
    if subject is None or doubtful(plain[: subject.end()]) or _ANSWERED.match(label):
        return False
    said = " ".join(plain[subject.end() :].replace("-", " ").split())
    return any(_same_word(label, one, policy) for one in (said, _SHAPE.sub("", said)))


def _date(plain: str) -> str:
    """The day and month that a text names, if they are all the numbers in it: `the 14th of February`."""
    named = _DAY_FIRST.findall(plain) + [(day, month) for month, day in _MONTH_FIRST.findall(plain)]
    if len(named) != 1 or len(re.findall(r"\d+", _BRACKETED.sub("", plain))) != 1 or doubtful(plain):
        return ""
    return f"{named[0][1].capitalize()} {int(named[0][0])}"


def _time(plain: str) -> tuple[int, int, int, str] | None:
    """A time of day: `3:30 p.m.`, `15:30`, `3 PM`."""
    if half := _HALF_OF_DAY.search(plain):
        plain = f"{plain[: half.start()]} {'a' if half[1] else 'p'}m"
    plain = _AT.sub("", _BRACKETED.sub("", plain))
    found = _CLOCK.fullmatch(plain)
    if found is None:
        return spelled_clock(plain) if plain[-1:].isalpha() else None
    if not (found[2] or found[4]):
        return None
    hour, minute, second = (int(part or 0) for part in found.groups()[:3])
    return (hour, minute, second, (found[4] or "").lower()) if hour < 25 and minute < 60 and second < 60 else None


def _same_time(label: tuple[int, int, int, str], answer: tuple[int, int, int, str]) -> bool:
    """Whether hours and minutes agree, and also a.m. and p.m. if both sides tell them."""
    if label[1:3] != answer[1:3]:
        return False
    if (label[3] and answer[3]) or not (label[3] or answer[3]):
        return label == answer
    return label[0] == answer[0] or _hour(label) == _hour(answer)


def _hour(time: tuple[int, int, int, str]) -> int:
    """Of the day, from 0 to 23."""
    return time[0] % 12 + 12 * (time[3] == "p") if time[3] else time[0]


def _base(text: str) -> str:
    return str(_BASES.get(text, text))


def _same_numeral(label: Reading, answer: Reading) -> bool:
    """Whether digits and base agree. A plain answer is in the label's base; a plain label is in base 10."""
    if label.numeral and answer.numeral:
        return label.numeral == answer.numeral
    if label.numeral:
        return label.numeral[0] == answer.key.lower().lstrip("0")
    return answer.numeral is not None and answer.numeral == (label.key, "10")
