"""Splits text into sentences, in the two ways of the published checkers.

`sentences` splits like Punkt (Kiss and Strunk, 2006) with NLTK's English model. `rough_sentences` splits at every stop
that is not part of a title, an initial, an abbreviation, a number or a web address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from string import whitespace
from typing import NamedTuple

from punkt import LanguageVars, PunktParameters, PunktWordTokenizer, annotate_tokens, load_model

MAX_WORD = 500
"""The most characters of a word. Of a longer word only the end is used."""
_INSIDE_NO_WORD = ")\";}]*:@'({["
_RULES = LanguageVars(non_word_chars=_INSIDE_NO_WORD)
_END = re.compile(rf"[.?!](?=(?P<after>[{re.escape(_INSIDE_NO_WORD)}!?]|\s+(?P<next>\S+)))")
_CLOSING = re.compile(r"""["')\]}]+?(?:\s+|(?=--)|$)""", re.MULTILINE)


class _Candidate(NamedTuple):
    """A position where a sentence may end."""

    end: int
    resume: int
    """The position where the next sentence would start."""
    context: str
    """The word before the mark, the mark, and the text after it."""


def sentences(text: str) -> list[str]:
    """The sentences of English text, with the closing quotes and brackets that belong to them."""
    breaks = cache(_breaks)  # a cache for this text only: repetition stays fast, and no memory is kept
    spans, start = [], 0
    for candidate in _candidates(text):
        if breaks(candidate.context):
            spans.append((start, candidate.end))
            start = candidate.resume
    spans.append((start, len(text.rstrip())))
    return _closed(text, spans)


def _closed(text: str, spans: list[tuple[int, int]]) -> list[str]:
    """The texts of the spans. Closing marks at the start of the next span move to the end of the one before."""
    found, taken = [], 0
    for (start, end), following in zip_longest(spans, spans[1:]):
        start += taken
        taken = 0
        if following and (closing := _CLOSING.match(text[slice(*following)])):
            end = following[0] + len(closing.group().rstrip())
            taken = closing.end()
        if start < end:
            found.append(text[start:end])
    return found


def _candidates(text: str) -> Iterator[_Candidate]:
    """One candidate for each group of marks inside one word."""
    last: _Candidate | None = None
    word = stop = 0
    for mark in _END.finditer(text):
        space = max(text.rfind(character, stop, mark.start()) for character in whitespace)
        word = space + 1 if space > stop else word
        if last is not None and stop <= word:
            yield last
        stop = mark.start()
        resume = mark.start("next") if mark["next"] else mark.end()
        front = text[max(word, stop - MAX_WORD) : mark.end()]
        last = _Candidate(mark.end(), resume, front + mark["after"][:MAX_WORD])
    if last is not None:
        yield last


def _breaks(context: str) -> bool:
    """Whether a word before the last word ends a sentence."""
    tokens = list(annotate_tokens(PunktWordTokenizer(_RULES).tokenize_annotated(context), _english(), _RULES))
    return any(token.sentbreak for token in tokens[:-1])


@cache
def _english() -> PunktParameters:
    model = load_model("english")
    return PunktParameters(
        abbrev_types=model.abbrev_types,
        collocations=model.collocations,
        sent_starters=model.sent_starters,
        ortho_context=model.ortho_context,
    )


_DOT, _STOP = "\ue000", "\ue001"
"""Placeholders: a dot that ends no sentence, and the end of a sentence."""
_STARTS = r"(?=M(?:r|rs|s)|Dr|Prof|Capt|Cpt|Lt|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s|Wherever)"
_FIRM = r"(?<= )(Inc|Ltd|Jr|Sr|Co)\."
_LETTER = r"([A-Za-z])\."
_ROUGH = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?:(?<=Mr|St|Ms|Dr)|(?<=Mrs))\.", _DOT),
        (r"\.(?=com|net|org|io|gov|edu|me)", _DOT),
        (r"([0-9])\.([0-9])", rf"\1{_DOT}\2"),
        (r"\.{2,}", lambda dots: _DOT * len(dots[0]) + _STOP),
        (r"Ph\.D\.", f"Ph{_DOT}D{_DOT}"),
        (r"\s([A-Za-z])\. ", rf" \1{_DOT} "),
        (rf"((?:[A-Z]\.){{2,3}}) {_STARTS}", rf"\1{_STOP} "),
        (_LETTER * 3, rf"\1{_DOT}\2{_DOT}\3{_DOT}"),
        (_LETTER * 2, rf"\1{_DOT}\2{_DOT}"),
        (rf"{_FIRM} {_STARTS}", rf"\1{_STOP} "),
        (_FIRM, rf"\1{_DOT}"),
        (rf"(?<= ){_LETTER}", rf"\1{_DOT}"),
        (r"\.”", "”."),
        (r"\.\"", '".'),
        (r"!\"", '"!'),
        (r"\?\"", '"?'),
        (r"([.?!])", rf"\1{_STOP}"),
    )
)


def rough_sentences(text: str) -> list[str]:
    """The pieces between stops. Each ends with its stop, after any quotes. One piece may be empty."""
    text = f" {text}  ".replace("\n", " ").replace(_DOT, "").replace(_STOP, "")
    for pattern, replacement in _ROUGH:
        text = pattern.sub(replacement, text)
    pieces = [piece.strip() for piece in text.replace(_DOT, ".").split(_STOP)]
    return pieces if pieces[-1] else pieces[:-1]
