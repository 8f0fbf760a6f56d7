"""Finds the one number that a sentence states: `Kylar needs to pay $64 for them`, `8 apples (2 per child)`.

A sentence that denies a number, leaves it open, or does arithmetic with it states none. A sentence with several numbers
states one only if it names the answer: `3 boxes of 4 are 12 pens` states 12.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import prod

from olmorl.verifiers.math.notation import DOLLAR, unmark
from olmorl.verifiers.math.numbers import Policy, Quantity, equal, leading, quantity
from olmorl.verifiers.math.units import NO_UNIT, Unit, is_known
from olmorl.verifiers.math.words.spelled import A_UNIT, NUMBER_WORD
from olmorl.verifiers.math.words.wording import (
    doubtful,
    harmless_ahead,
    harmless_behind,
    imagined,
    plain,
    refuted,
    taken_back,
    words,
)

MAX_SENTENCE = 300
"""Characters. Nothing longer is read as a sentence."""
MAX_NUMBERS = 12
_PART = r"(?:half|third|quarter|(?:four|fif|six|seven|eigh|nin|ten|twelf)th)"
_PROSE = re.compile(r"(?<![\\a-zA-Z_{])(?:[a-zA-Z]{2,}|i\.e\.)")
_REMARK = re.compile(r"(?:\s+|(?<=[^\W\d]))\(([^()]{0,200})\)|\(([^()]{0,200})\)")
_BRACKETS = re.compile(r"\d\S*\s\([^()]*\)$")
_INSTEAD_OF = re.compile(
    r",?\s+(?:rather than|instead of)\s+(?=[\d$\\])[^,]*$"
    r"|(?:,|,?\s+(?:and|but))\s*not\s+(?=[\d$\\])[^,]*$|,\s*not (?:counting|including)\b[^,]*$"
    r"|,?\s+(?:and|with|leaving)\s+(?:no|none|nothing|0|zero)\b[^\d?]*$",
    re.IGNORECASE,
)
_NOT_BUT = re.compile(r"\bnot\s+(?=[\d$\\-])[^,;.]{1,40},?\s+but\s+(?:rather\s+)?(?=[\d$\\-])", re.IGNORECASE)
"""`not 12 but 13` is 13."""
_DENIED = re.compile(
    r"(?:and |but )?(?:not|reject(?:ing|ed)?|discard(?:ing|ed)?|exclud(?:ing|ed)|ignoring|dismissing|eliminating)\s+"
    r"(?:[a-zA-Z]\s*=\s*)?(?=-?[\d$\\])",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_REASONS = re.compile(r"\s*(?:because|since|as|given|see|from|i\.?e\.?|e\.?g\.?|that is|where|which)\b", re.IGNORECASE)
_SUM = re.compile(r"(?:[\d\s.,+*/()-]|\\times|\\cdot)+")
_PRODUCT = re.compile(r"\s*(?:\*|\\times(?![a-z])|\\cdot(?![a-z]))\s*")
_DIVIDED = re.compile(
    r"(?<=\d),?\s+(?:when|if|after|upon)\s+(?:(?:it|that|[a-z\d^]+) is )?(?:divided|dividing|division)"
    r" by [\d^]+(?=\W*$)",
    re.IGNORECASE,
)
"""Behind a remainder."""
_REMAINDER_OF = re.compile(r"\b(leav\w+|giv\w+|has)\s+a remainder of (?=-?\d+\W*$)", re.IGNORECASE)
_POWER = re.compile(r"(\d{1,6})\^(?:\{(\d{1,2})\}|(\d{1,2}))")
_PARTS = re.compile(r":\s+([^:]*)$")
"""The parts of a total: `11 apples: 5 red and 6 green`."""
_ALSO = re.compile(r"^(?:or|=|about|approximately|approx\.?|\\approx|also|exactly|i\.e\.)\s*", re.IGNORECASE)
_OR = re.compile(r",?\s+(?:i\.e\.|that is|in other words),?\s+")
_IN_OTHER_WORDS = re.compile(
    r"[^\d]*[a-z)}]\s*[,;(–—-]*\s*\b(?:i\.\s?e\.,?|that is(?: to say)?,|in other words,)\s+", re.IGNORECASE
)
_REASON = re.compile(
    r"(?<=[\w%)}])\s*(?:,|—|–|;|:)?\s+(?:\w+ of (?:which|whom)|because"
    r"|since|as (?!much|many|well|long|far|old|tall|big|fast|a\b)|given that"
    r"|where|which|who|due to|so (?:that|the answer)|thanks to)\b.*",
    re.IGNORECASE | re.DOTALL,
)
_ROUNDED = re.compile(
    r",?\s*\b(?:(?:when|if|after|once)\s+)?(?:(?:rounded|rounding|correct|accurate)\b[a-z0-9 .]*"
    r"|to\s+(?:the\s+nearest|(?:one|two|three|four|five|\d)\s+(?:decimal|significant|d\.?p|s\.?f))\b[a-z0-9 .]*)$",
    re.IGNORECASE,
)
_SHOUT = re.compile(r"(?<=[a-zA-Z])!+$")
_SETTING = re.compile(
    r"(?:after|in|for|at|on|during|over|with|by|within|of)\s[^,]{0,80}\d[^,]{0,80},\s+(?=[^,]*\d)", re.IGNORECASE
)
"""`After 3 days, ` in front of a statement."""
_SENTENCE_END = re.compile(r"(?<=[\w)%\"])[.!]\s+(?=[A-Z])")
_FILLERS = (
    r"(?:(?:the|an?|about|approximately|approx\.?|roughly|around|exactly|only|just|now|then|also|therefore|thus|still"
    r"|hence|simply|precisely|equal to|equivalent to|given by|going to be|found to be|(?:total|sum|value) of"
    r"|indeed)\s+)*"
)
_FILLED = re.compile(rf"\s*{_FILLERS}", re.IGNORECASE)
_CLAIM = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|becomes?|totals?|(?:comes?|amounts?|adds? up|rounds?(?: up| down)?) to"
    r"|(?:leaves?|gives?|makes?)"
    rf"(?: (?:her|him|them|us|you|it))?)\b|(?<=[a-z]):(?=\s)|=|\\approx|\b(?:thus|hence|so"
    rf"|therefore)(?=\s[\d$]))\s*{_FILLERS}",
    re.IGNORECASE,
)
_START = re.compile(
    rf"(?<![\w.^_\\{{'])(?:[-+]?(?:US)?[{DOLLAR}€£¥₹]\s?)?(?:(?<![\w)])[-+])?(?:\.?\d|\\frac\s?[{{\d])"
    rf"|\b(?!one\b){NUMBER_WORD}\b"
    rf"|\bone (?:in|out of) {NUMBER_WORD}\b|\bone[\s-]{_PART}\b(?!\s+of\s+(?!the\b|an?\b))"
    r"|\b(?:a\s+)?(?:half|third|quarter)\s+(?:of\s+)?(?:an?|the|his|her|its|their)\s+(?=[a-z])"
    rf"|\b{A_UNIT}",
    re.IGNORECASE,
)
_ADJECTIVE = re.compile(
    rf"\d+(?:-[a-zA-Z]|(?:st|nd|rd|th)\b)|[a-z]+-(?!{NUMBER_WORD}\b|{_PART}s?\b)[a-z]", re.IGNORECASE
)
"""`a 3-digit number`, `the 2nd day`."""
_FRAME = re.compile(
    r"\s*\b(?:in|for|after|over|during|at|with|every|on|(?<=\w\s)out of"
    r"|(?:out )?of (?:the|these|those|all|her|his|their)"
    r"|(?:back|left|over) from|is the (?:\w+ ){1,3}(?:factor|divisor|multiple) of"
    r"|(?:divisors|factors|multiples|subsets|partitions|digits) (?:of|in))\b",
    re.IGNORECASE,
)
"""Between the answer and a number of its context: `540 meters in 7 days`."""
_JOINED = re.compile(r"\b(?:and|each|every)\b", re.IGNORECASE)
"""Between two numbers of equal rank: neither is the context of the other."""
_GOES_ON = re.compile(r"(?:[,;:]|\b(?:so|thus|hence|therefore|total|and)\b).*\d", re.IGNORECASE)
_CONCLUDING = re.compile(r"\b(?:so|thus|hence|therefore|total|altogether|then|sum|answer)\b", re.IGNORECASE)
"""Between a claim and its conclusion."""
_SEVERAL = re.compile(r"\d.*(?:\b(?:and|or)\b|[,;])")
_CONCLUSION = re.compile(r"[,;.]\s*(?:and\s+)?(?:so|thus|hence|therefore|then)\b", re.IGNORECASE)
_MAY = {"can", "could", "may", "might"}
_EXACT = Policy(tolerance=0.0)


def stated(text: str, reasons: bool = True) -> tuple[Quantity, bool] | None:
    """The number that normalised text states in words, and whether words in front of it name a thing, `Row 3`.

    Args:
        reasons: words after `because` and the like are no part of the statement.
    """
    if len(text) > MAX_SENTENCE or not (_PROSE.search(text) or (text.endswith(")") and _BRACKETS.search(text))):
        return None
    bare = _without_remarks(unmark(text))
    if bare is None or imagined(bare):
        return None
    if (other := _IN_OTHER_WORDS.match(bare)) and not doubtful(other[0]) and (same := quantity(bare[other.end() :])):
        return same, False
    if "remainder" in bare:
        bare = _REMAINDER_OF.sub(r"\1 ", _DIVIDED.sub("", bare))
    bare = _without_parts(_NOT_BUT.sub("", bare, count=1))
    first = _START.search(bare)
    if reasons and first is not None:
        reason = _REASON.search(bare, first.end())
        if reason and refuted(reason[0]):
            return None
        bare = _INSTEAD_OF.sub("", bare[: reason.start()] if reason else bare)
    bare, unit = _one_of_two(_ROUNDED.sub("", bare.strip(" .,;:")))
    sentences = [part for part in _SENTENCE_END.split(bare) if _START.search(part)]
    found = _sentence(_SHOUT.sub("", sentences[0].strip(" .,;:"))) if len(sentences) == 1 else None
    return (found[0]._replace(finest=unit), found[1]) if found and unit.dimensions else found


def _one_of_two(text: str) -> tuple[str, Unit]:
    """The first of two spellings of one number, `3/8, or 37.5%`, and the unit of the second."""
    first, _, second = _OR.sub(" or ", text).rpartition(" or ")
    other = quantity(same := _ALSO.sub("", second, count=1)) if first else None
    if other is None:
        return text, NO_UNIT
    start = _START.search(first)
    main = leading(first[start.start() :]) if start else None
    alike = main and (equal(main[0], other, _EXACT) or (same != second and _rounded(main[0], other)))
    return (first, other.unit) if main and alike and harmless_behind(main[1]) else (text, NO_UNIT)


def _without_parts(text: str) -> str:
    """The text without the parts of a total, if they add up to it: `11 apples in total: 5 red and 6 green`."""
    listed = _PARTS.search(text)
    start = _START.search(text)
    total = leading(text[start.start() :]) if listed and start and start.start() < listed.start() else None
    if listed is None or total is None or len(list(_START.finditer(text, 0, listed.start()))) > 1:
        return text
    found = [leading(listed[1][part.start() :]) for part in _START.finditer(listed[1])]
    parts = [part[0].value for part in found if part is not None]
    return text[: listed.start()] if len(parts) > 1 and total[0].value in (sum(parts), prod(parts)) else text


def _without_remarks(text: str) -> str | None:
    """The text without remarks in brackets. None if a remark denies the number in front, or gives another."""
    kept, position = [], 0
    for remark in _REMARK.finditer(text):
        if not remark.start() or remark[1] is None or not _agrees(remark[1].strip(), text[: remark.start()]):
            return None
        kept.append(text[position : remark.start()])
        position = remark.end()
    return "".join((*kept, text[position:]))


def _agrees(remark: str, ahead: str) -> bool:
    """Whether a remark in brackets does not change the number in front: a reason, the same number, a few words."""
    main = leading(_FILLED.sub("", ahead.rpartition("=")[2].strip(), count=1)) or _last_number(ahead)
    if denied := _DENIED.match(remark):
        other = quantity(remark[denied.end() :])
        return main is not None and other is not None and not equal(main[0], other, _EXACT)
    if _REASONS.match(remark) or (main and _calculated(remark) == main[0].value):
        return True
    same = _ALSO.sub("", remark, count=1)
    if not same:
        return bool(remark)
    sides = [quantity(side.strip()) for side in same.split("=")]
    others = [side for side in sides if side is not None]
    counts = bool(others) and bool(others[0].unit.dimensions) and not is_known(others[0].unit)
    if main and main[0].unit.dimensions and not main[0].percent and [one.percent for one in others] == [True]:
        return True  # a share of the total: `13 girls (65%)`
    if others and (len(sides) > 1 or same != remark or not counts):
        return main is not None and any(equal(main[0], other, _EXACT) or _rounded(main[0], other) for other in others)
    if remark.startswith("=") or (_SUM.fullmatch(remark) and ahead.rstrip()[-1:].isalpha()):
        return True
    return bool(_PROSE.search(remark)) and same == remark and not doubtful(remark) and plain(_DIGITS.sub("", remark))


def _last_number(text: str) -> tuple[Quantity, str] | None:
    """The number that text ends with, if only harmless words follow it."""
    found, position = None, 0
    for start in _START.finditer(text):
        if start.start() >= position and (read := leading(text[start.start() :])):
            found, position = read, len(text) - len(read[1])
    return found if found is not None and harmless_behind(found[1]) else None


def _calculated(remark: str) -> Fraction | None:
    """The value of a sum of products of plain numbers and their powers. None for anything else."""
    total = Fraction(0)
    terms = remark.split("+")
    for term in terms:
        texts = _PRODUCT.split(term.strip())
        factors = list(map(_factor, texts))
        if (len(terms) + len(factors) < 3 and "^" not in remark) or None in factors:  # one number is no calculation
            return None
        total += prod(factor for factor in factors if factor is not None)
    return total


def _factor(text: str) -> Fraction | None:
    if power := _POWER.fullmatch(text):
        return Fraction(int(power[1]) ** int(power[2] or power[3]))
    number = quantity(text)
    return number.value if number else None


def _rounded(main: Quantity, other: Quantity) -> bool:
    """Whether one is the other rounded to its last digit."""
    if other.percent and not main.percent and other.step:
        other = other._replace(value=other.value / 100, step=other.step / 100)
    step = max(main.step or 0, other.step or 0)
    return bool(step) and 2 * abs(main.value - other.value) <= step


def _sentence(text: str) -> tuple[Quantity, bool] | None:
    if (setting := _SETTING.match(text)) and not doubtful(setting[0]):
        text = text[setting.end() :]
    claims = list(_CLAIM.finditer(text))[-MAX_NUMBERS:]
    claimed = [(claim, found) for claim in claims if (found := leading(text[claim.end() :]))]
    if not claimed:
        return _only_number(text, bool(claims))
    last, (number, behind) = claimed[-1]
    ahead = text[: last.start()]
    asked = last[0].startswith("be") and not _MAY.isdisjoint(words(ahead))
    parts = last[0].startswith(":") and _START.match(ahead)
    if asked or parts or taken_back(ahead) or not _ends(behind):
        return None
    if last[0][0] == "=":
        return (number, False) if _agree(_CONCLUSION.split(ahead)[-1].split("="), number) else None
    others = [found[0] for _, found in claimed[:-1]]
    alike = all(equal(other, number, _EXACT) for other in others)
    return (number, False) if alike or _CONCLUDING.search(ahead) else None


def _agree(segments: list[str], claimed: Quantity) -> bool:
    """Whether each side in front of an equals sign is a name, a sum, or the same number."""
    others = (quantity(segment.strip()) for segment in segments)
    return not any(map(_SEVERAL.search, segments)) and all(
        other is None or equal(other, claimed, _EXACT) for other in others
    )


def _ends(rest: str) -> bool:
    """Whether the text after a number does not change it: harmless words, or context with other numbers."""
    start = _START.search(rest)
    if start is None:
        return harmless_behind(rest)
    words = rest[: start.start()]
    if _JOINED.search(words) or _CONCLUSION.search(words) or _GOES_ON.search(rest, start.end()):
        return False
    return bool(plain(words) and _FRAME.search(words) and not doubtful(words)) and harmless_behind(words)


def _only_number(text: str, claimed: bool) -> tuple[Quantity, bool] | None:
    """The number of a sentence with a single number."""
    ahead, start = "", _START.search(text)
    while start is not None and (adjective := _ADJECTIVE.match(text, start.start())):
        start = _START.search(text, adjective.end())
    if start is None:
        return None
    ahead = text[: start.start()]
    found = leading(text[start.start() :])
    lead = re.sub(r"\d+", "", ahead)
    if found is None or not harmless_ahead(lead):
        return None
    named = not _FILLED.fullmatch(ahead) and not claimed and len(ahead.split()) <= 2
    if _START.search(found[1]):
        return (found[0], named) if found[0].unit.dimensions and _ends(found[1]) else None
    return (found[0], named) if harmless_behind(found[1]) else None
