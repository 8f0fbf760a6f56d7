"""Makes the page: one HTML file that needs no network.

Recorded data is never markup: it is in compressed parts, which the script reads and shows as text. The content security
policy allows this one script and this one style sheet, by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from olmorl.deploy.report.columns import Blob

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("data.js", "dom.js", "charts.js", "waste.js", "timeline.js"),
    *("tokens.js", "filter.js", "search.js", "group.js", "browser.js", "main.js"),
)


def manifest(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part that the page reads first: the names of the parts of each run."""
    return {"made_at": round(time.time(), 3), "runs": list(entries)}


def page(title: str, entries: Sequence[Mapping[str, Any]], blobs: Mapping[str, Blob]) -> Iterator[str]:
    """The whole page, in pieces. Every part is inside it."""
    yield _head(title, connect="'none'")
    yield _data("manifest", json.dumps(manifest(entries)).replace("<", "\\u003c"))
    for blob in blobs.values():
        yield _data(blob.name, blob.text)
    yield _end()


def live_page(title: str) -> str:
    """The page of `--serve`: it asks its own server for the parts."""
    return _head(title, connect="'self'") + _end()


def policy(connect: str) -> str:
    """The content security policy."""
    rules = {"default-src": "'none'", "script-src": _hash(_script()), "style-src": _hash(_style())}
    rules |= {"connect-src": connect, "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _head(title: str, connect: str) -> str:
    body = (_ASSETS / "page.html").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy(connect))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n{body}\n"
    )


def _end() -> str:
    return f"<script>{_script()}</script>\n</body>\n</html>\n"


def _data(name: str, text: str) -> str:
    return f'<script type="text/plain" id="blob-{name}">{text}</script>\n'


def _script() -> str:
    parts = [(_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _style() -> str:
    return (_ASSETS / "page.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
