"""Links between pages lead somewhere, and files that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTES = [ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
PAGES = [ROOT / "README.md", *NOTES, *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (
    "olmorl",
    "learner",
    "actors",
    "queues",
    "verifiers",
    "deploy",
    "benchmarks",
    "tests",
    "docs",
    "requirements",
)


MOST_PAGES, MOST_WORDS = 10, 25_000


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings have."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in headings(to), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"`([\w./-]+)`", page.read_text(encoding="utf-8")):
        if name.partition("/")[0] in FOLDERS and "/" in name:
            assert list(ROOT.glob(name)), f"{page.name} names {name}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose(ROOT / "README.md"))}
    assert {str(page.relative_to(ROOT)) for page in PAGES if page.parent == ROOT / "docs"} <= linked


def test_the_pages_stay_few_and_short() -> None:
    pages = [page for page in PAGES if page not in NOTES]
    assert sum(page.parent.name == "docs" for page in pages) <= MOST_PAGES
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS
