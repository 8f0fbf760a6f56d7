"""The console of all commands. Text from models, functions and files reaches the terminal as text only."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from olmorl.printable import printable


class SafeConsole(Console):
    """No text that it prints moves the cursor, changes colours or sets the title; its own styles still do."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
