"""Draws the boards of Grafana in a browser, from a live Prometheus through the queries of their panels.

    python -m tests.deploy.grafana.board_page FOLDER ADDRESS RUN MINUTES

writes a picture of each board of a run: its last minutes, as the Prometheus at ADDRESS (host:port) has them.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.deploy.grafana import build
from olmorl.deploy.grafana.panels import BOARDS, GrafanaBoard
from tests.browser import open_browser

PAGE = Path(__file__).with_suffix(".html")
WIDTH = 1232
WINDOW = "120"
"""The value of the variable `window`, seconds: four steps, or two minutes when steps are shorter than 30 s."""
POINTS = 180
"""Most points of a line."""


class DrawnPanel(NamedTuple):
    """What a panel shows."""

    title: str
    empty: list[str]
    """The queries without data."""
    drawn: int
    """Lines and numbers that the browser drew."""
    lines: int
    """Lines that the queries gave."""


class BoardPage:
    """One tab that draws boards. An error of its script, or a message on its console, is an error here."""

    def __init__(self, browser: Any, address: str, run: str) -> None:
        self._tab = browser.new_page(viewport={"width": WIDTH, "height": 800}, timezone_id="UTC")
        self._errors: list[str] = []
        self._tab.on("pageerror", lambda error: self._errors.append(str(error)))
        self._tab.on("console", lambda message: self._errors.append(message.text))
        self._source = {"address": f"http://{address}", "values": {"run": run, "actor": "actor.*", "window": WINDOW}}
        self._tab.goto(PAGE.as_uri())

    def draw(self, board: GrafanaBoard, seconds: float) -> list[DrawnPanel]:
        """Draw the committed JSON of a board over the last seconds."""
        to, step = time.time(), max(seconds / POINTS, 1)
        source = {**self._source, "from": to - seconds, "to": to, "step": step}
        made = json.loads(build.path(board).read_text(encoding="utf-8"))
        panels = self._tab.evaluate("([board, source]) => draw(board, source)", [made, source])
        assert not self._errors, self._errors
        return [DrawnPanel(**panel) for panel in panels]

    def picture(self, path: Path) -> None:
        """Write what is drawn as a WebP without losses."""
        from PIL import Image

        image = Image.open(io.BytesIO(self._tab.screenshot(full_page=True)))
        image.convert("RGB").save(path, "WEBP", lossless=True, method=6)

    def close(self) -> None:
        self._tab.close()


def main(folder: str, address: str, run: str, minutes: str) -> None:
    """Write the pictures, and print what has no data."""
    with open_browser() as browser:
        page = BoardPage(browser, address, run)
        for board in BOARDS:
            for panel in page.draw(board, 60 * float(minutes)):
                if not panel.drawn or panel.empty:
                    print(f"{board.title}: {panel.title}: {panel.drawn} drawn", *panel.empty, sep="\n    no data: ")
            page.picture(Path(folder) / f"{board.uid.removeprefix('olmorl-')}.webp")


if __name__ == "__main__":
    main(*sys.argv[1:])
