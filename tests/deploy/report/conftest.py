"""Runs that were made, and the real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.report.made_runs import MadeRun

Make = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Makes a run directory; returns its path."""

    def make(name: str = "run", **settings: Any) -> Path:
        return MadeRun(tmp_path / name, **settings).folder

    return make


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The real browser, without a network. Skips where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
