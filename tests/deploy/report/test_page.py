"""The page asks for nothing, and nothing that a run recorded is markup."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from pathlib import Path

from olmorl.deploy.report.page import live_page, page
from olmorl.deploy.report.run_reader import RunReader
from olmorl.deploy.report.server import read_all
from tests.deploy.report.conftest import Make

ASSETS = Path(__file__).resolve().parents[3] / "deploy" / "report" / "assets"
HOSTILE = "</script><script>globalThis.pwned = 1</script><img src=x onerror='globalThis.pwned = 1'>"


def html(*runs: Path) -> str:
    entries, blobs = read_all([RunReader(run, 1 << 30) for run in runs])
    return "".join(page("a report", entries, blobs))


def test_the_policy_allows_this_script_and_style_and_no_connection(make_run: Make) -> None:
    text = html(make_run())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split("; "))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_nothing_is_loaded_from_elsewhere(make_run: Make) -> None:
    text = html(make_run())
    assert not re.findall(r"<(?:link|img|iframe|object|embed|base)\b|\bsrc=|@import|url\(", text)
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_script_makes_no_markup_from_text() -> None:
    for path in sorted(ASSETS.glob("*.js")):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", path.read_text()
        )
        assert not found, f"{path.name}: {found}"


def test_what_a_run_recorded_is_only_in_compressed_parts(make_run: Make) -> None:
    text = html(make_run(hostile=HOSTILE))
    assert "pwned" not in text and "onerror" not in text
    parts = re.findall(r'<script type="text/plain" id="blob-[\w]+">([^<]*)</script>', text)
    assert len(parts) >= 4
    assert text.count("<script") == len(parts) + 1


def test_a_title_is_text() -> None:
    live = live_page("<b>")
    assert "<title>&lt;b&gt;</title>" in live and "connect-src &#x27;self&#x27;" in live
