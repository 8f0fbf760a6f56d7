"""Normalizes text to words as SQuAD's evaluation does (arXiv 1606.05250): no case, articles or punctuation.

Marks with a meaning stay: `-5`, `3.14`, `1/2`, `10:30`, `3-5`, `C++` and `A-`. A final `a` is a name and no article, as
in `Vitamin A`.
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

_ARTICLES = {"a", "an", "the"}
_NORMALISED = 4096
"""The most characters of a text whose accents are composed. Composition can take quadratic time."""
_MINUS = str.maketrans("−‐‑", "---")
_NONE = str.maketrans("", "", string.punctuation)
_MEANING = re.compile(r"[\d+#]|-\Z")
"""Matches every word with a mark that may stay."""
_KEPT = re.compile(
    r"(?<=\d)[./:-](?=\d)|(?<!\w)-?\.?(?=\d)|(?<=\d),(?!\d{3}(?!\d))(?=\d)|(?<=\w)(?:\+\+?|#)(?![\w+#])|(?<=\b[a-z])-(?!\w)"
)
"""Marks with a meaning: inside a number, in front of a number, and after a name."""


def words(text: str) -> list[str]:
    """The words of the text in lower case. A text without words gives its marks instead."""
    if len(text) <= _NORMALISED:
        text = unicodedata.normalize("NFC", text)
    found = [word for token in text.translate(_MINUS).lower().split() if (word := _word(token))] or text.split()
    content = [word for word in found if word not in _ARTICLES]
    return [*content, "a"] if found[-1:] == ["a"] else content or found


def _word(token: str) -> str:
    """The word without marks that have no meaning."""
    if token.isalpha():
        return token
    if token.isascii() and not _MEANING.search(token):
        return token.translate(_NONE)
    kept = {place for found in _KEPT.finditer(token) for place in range(*found.span())}
    return "".join(mark for place, mark in enumerate(token) if place in kept or not _is_mark(mark))


@lru_cache(4096)
def _is_mark(character: str) -> bool:
    """Whether a character is punctuation, in ASCII or Unicode. Currency signs outside ASCII are not."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")
