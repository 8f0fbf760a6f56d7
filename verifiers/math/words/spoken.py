"""Puts answers in words into signs: `all x greater than 4`, `plus or minus 2`, `no solutions`."""

from __future__ import annotations

import re
from functools import lru_cache

from olmorl.verifiers.math.words.spelled import spelled

MAX_WORDS = 200
"""Characters. Nothing longer is put into signs."""

_REALS = r"(?:the set of )?(?:all )?(?:real numbers|reals)"
_SPOKEN: tuple[tuple[str, str], ...] = (
    (r"(?:positive |plus )?inf(?:inity)?", r"\infty"),
    (r"(?:negative |minus )infinity", r"-\infty"),
    (rf"{_REALS}|(?:all|every|any) (?:real )?(?:values?(?: of)? )?[a-z]|all real values of [a-z]", r"\mathbb{R}"),
    (r"all integers|the set of (?:all )?integers", r"\mathbb{Z}"),
    (r"(?:the )?empty(?: set)?", r"\emptyset"),
    (r"(?:there (?:is|are|exists?) )?no (?:(?:real|such|valid|possible) )?(?:solutions?|roots?|values?)(?: exists?)?",
     r"\emptyset"),
    (r"(?:the |its )?(?:solution )?(?:set|intersection|interval|domain)(?: of [a-z ]{1,20})? is (?:the )?empty(?: set)?"
     r"|no (?:(?:real|such|complex|positive|whole) )?(?:numbers?|integers?|values?|solutions?|points?|[a-z])"
     r"(?: of [a-z])? (?:satisf(?:y|ies)|solves?|exists?|works?|fulfils?)(?: (?:this|it|both|all|the)(?: [a-z]+)?)?",
     r"\emptyset"),
    (r"dne|(?:the )?limit does not exist|(?:it )?does not exist", "does not exist"),
    (r"(?:is )?(?:not defined|undefined)", "undefined"),
    (r"(?:there (?:is|are) )?(?:infinitely many|an infinite number(?: of)?|infinite)(?: (?:many )?solutions)?"
     r"|(?:there are )?\\infty\s?-?\s?many(?: solutions)?",
     "infinitely many"),
)  # fmt: skip
_SIGNS = tuple((re.compile(words, re.IGNORECASE), signs) for words, signs in _SPOKEN)
_NAMED = re.compile(
    r"(?:(?:so|thus|hence|therefore),? )?(?:the |its )?(?:[a-z-]+ ){0,2}?"
    r"(?:solution(?: set)?|domain|range|answer|limit|series|sum|equation|system|problem|inequality|function|statement"
    r"|condition|expression)(?: of (?:the )?[a-z]+(?:\([a-z]\))?)?"
    r"(?: (?:holds|is (?:true|satisfied|valid|defined))(?: exactly| precisely| only)?"
    r" (?:for|when|where|iff?|if and only if|whenever)"
    r"| is| are|:| has| diverges to| tends to| consists of) (?=[a-z])",
    re.IGNORECASE,
)
"""In front of a set or a limit that is given in words: `The domain is`."""
_MANY = re.compile(
    r"(?:(?:all|any|every|each|the set of all|the) )?(?:values of )?"
    r"(?:(?P<sign>(?:non-?)?(?:positive|negative)) )?(?:(?P<whole>integers?)|real numbers?|reals?|real|numbers?)?"
    r"\s?(?P<name>[a-zA-Z](?![a-zA-Z]))?"
)
_SUCH = re.compile(r"\s*,?\s*(?:(?:such that|with|where|for which|that|which|satisfying|if|is|are|must be|can be)\s+)*")
_RELATION = re.compile(
    r"(?:[^a-zA-Z]|\\[a-z]+|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))*(?:[<>]|\\(?:le|ge|ne)\s)(?:[^a-zA-Z]|\\[a-z]+|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))*"
)
_AGAIN = re.compile(r"(?:[a-zA-Z] )?(?:(?:is|are|must be) )?")
_VALUE = r"(?:[a-zA-Z]\s?=\s?)?([^\s,;]+)"
_BOUNDS = tuple(
    (re.compile(rf"(?:{words})\s?{_VALUE}"), interval)
    for words, interval in (
        (r"(?:greater|more|larger|bigger) than or equal to|at least|no less than|not less than", r"[{0}, \infty)"),
        (r"(?:less|smaller) than or equal to|at most|no more than|no greater than|not more than|not greater than",
         r"(-\infty, {0}]"),
        (r"(?:strictly )?(?:greater|more|larger|bigger) than|above|exceeding", r"({0}, \infty)"),
        (r"(?:strictly )?(?:less|smaller) than|below|under", r"(-\infty, {0})"),
        (r"except(?: for)?|other than|besides|excluding|but|not equal to|different from|not",
         r"(-\infty, {0}) \cup ({0}, \infty)"),
    )
)  # fmt: skip
_BETWEEN = re.compile(rf"(?:strictly )?between {_VALUE} and {_VALUE}(?:,? ?\(?(inclusive|exclusive)\)?)?")
_CLAUSE = re.compile(r"[:;]\s|\s\(|\s[—–]\s|,?\s(?:because|since|as)\s")
_ROOT = re.compile(r"(?:(\d+) (?:times )?)?(?:the )?(?:square )?root (?:of )?([a-z-]+|\d+)", re.IGNORECASE)
_ROMAN = {
    word: roman
    for roman, words in {"I": "1 i first", "II": "2 ii second", "III": "3 iii third", "IV": "4 iv fourth"}.items()
    for word in words.split()
}
_QUADRANT = re.compile(
    r"(?:(?:it|the point|[A-Z]) (?:lies|is|falls) )?(?:in )?(?:the )?(?:(first|second|third|fourth) quadrant"
    r"|quadrant (iv|i{1,3}|[1-4]))",
    re.IGNORECASE,
)
_SIGNED = {
    "positive": r"(0, \infty)", "negative": r"(-\infty, 0)",
    "nonnegative": r"[0, \infty)", "nonpositive": r"(-\infty, 0]",
}  # fmt: skip
_JOINT = re.compile(r"\s*,?\s*(?:and|but|&)\s+")
_PLUS_MINUS = re.compile(r"\b(?:plus or minus|plus/minus)\s+|\+\s?/\s?-\s?|\+-\s?(?=\d)", re.IGNORECASE)


@lru_cache(4096)
def in_signs(text: str) -> str | None:
    """The signs that mean the same as an answer in words. None if it has none.

    Args:
        text: normalised, without the marks of `\\text{}`.
    """
    text = " ".join(text.split()).rstrip(" .")
    if len(text) > MAX_WORDS or not (text[:1].isalpha() or _PLUS_MINUS.search(text)):
        return None
    plain = text[named.end() :] if (named := _NAMED.match(text)) else text
    if quadrant := _QUADRANT.fullmatch(plain):
        return _ROMAN[(quadrant[1] or quadrant[2]).lower()]
    first = _CLAUSE.split(plain)[0]
    for words, signs in _SIGNS:
        if words.fullmatch(first):
            return signs
    if (root := _ROOT.fullmatch(plain)) and (of := _whole(root[2])):
        return rf"{root[1] or ''}\sqrt{{{of}}}"
    if _PLUS_MINUS.search(text):
        return _PLUS_MINUS.sub(r"\\pm ", text)
    return plain if named and _RELATION.fullmatch(plain) else _set(plain[:1].lower() + plain[1:])


def _whole(word: str) -> str:
    """The digits of a number in words or digits. Empty for any other word."""
    found = None if word.isdigit() else spelled(word)
    return word if word.isdigit() else str(found[0]) if found else ""


def _set(text: str) -> str | None:
    """A set of real numbers in words as the intersection of intervals: `all real numbers except 2`."""
    many = _MANY.match(text)
    if many is None or not many.end():
        return None
    sets = [_SIGNED[many["sign"].replace("-", "")]] if many["sign"] else []
    rest = _SUCH.sub("", text[many.end() :], count=1)
    if _RELATION.fullmatch(rest) and many.end() > 1 and (many["name"] or "x") in rest:
        return rf"\{{{many['name'] or 'x'} \in \mathbb{{Z}} : {rest}\}}" if many["whole"] else rest
    while rest:
        bound = _bound(rest)
        if bound is None:
            return None
        sets.append(bound[0])
        rest = _JOINT.sub("", bound[1], count=1)
        rest = _AGAIN.sub("", rest, count=1) if rest != bound[1] else rest
    joined = r" \cap ".join(f"({one})" if "cup" in one else one for one in sets)
    if many["whole"] and sets:
        return rf"\{{n \in \mathbb{{Z}} : n \in {joined}\}}"
    return (rf"{many['name']} \in " if many["name"] else "") + joined if sets else None


def _bound(text: str) -> tuple[str, str] | None:
    """The interval that `text` begins with in words, and the rest."""
    if between := _BETWEEN.match(text):
        ends = "[]" if between[3] == "inclusive" else "()"
        return f"{ends[0]}{between[1]}, {between[2]}{ends[1]}", text[between.end() :]
    for words, interval in _BOUNDS:
        if bound := words.match(text):
            return interval.format(bound[1]), text[bound.end() :]
    return None
