"""The one filter for text from models, functions and files before it is shown: no terminal obeys it."""

from __future__ import annotations

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, marks that change the direction of text, and half characters."""


def printable(text: str) -> str:
    r"""The text with escapes in place of all that a terminal would obey: `\x1b` in place of the character ESC."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
