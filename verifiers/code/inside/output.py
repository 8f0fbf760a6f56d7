"""What a program prints, in bounded memory. It also runs in the sandbox, so it imports nothing of ours."""

from __future__ import annotations


class Output:
    """Keeps the first and the last half of `most` characters, and counts those in between."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._first = self._last = ""
        self._left_out = 0

    def add(self, part: str) -> None:
        """Take more text."""
        room = self._half - len(self._first)
        self._first += part[:room]
        last = self._last + part[room:]
        self._last = last[-self._half :]
        self._left_out += len(last) - len(self._last)

    def text(self) -> str:
        """The text, with a note in place of what was left out."""
        note = f"\n[{self._left_out:,} characters left out]\n" if self._left_out else ""
        return f"{self._first}{note}{self._last}"
