"""What a program prints, in bounded memory. It also runs in the sandbox, so it imports nothing of ours."""

from __future__ import annotations

LONGEST = 10_000
"""Most characters that are kept."""
_HALF = LONGEST // 2


class Output:
    """Keeps the beginning and the end, and counts the characters in between."""

    def __init__(self) -> None:
        self._first = self._last = ""
        self._left_out = 0

    def add(self, part: str) -> None:
        """Take more text."""
        room = _HALF - len(self._first)
        self._first += part[:room]
        last = self._last + part[room:]
        self._last = last[-_HALF:]
        self._left_out += len(last) - len(self._last)

    def text(self) -> str:
        """The text, with a note in place of what was left out."""
        note = f"\n[{self._left_out:,} characters left out]\n" if self._left_out else ""
        return f"{self._first}{note}{self._last}"
