"""The tool `search` of an episode: BM25 over texts of the user's. Forked processes share one index.

Trotman, Puurula, Burgess (2014), https://doi.org/10.1145/2682862.2682863, by the library bm25s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from olmorl.errors import ConfigError

LONGEST_PASSAGE = 1000
"""Characters of a passage. Longer texts are several: cut at white space, or within a longer word."""
MOST_PASSAGES = 10
"""The most passages of a result, which so has at most about 10,000 characters."""
_LONGEST_NAME = 100
_PASSAGE = re.compile(rf"\S.{{0,{LONGEST_PASSAGE - 1}}}(?!\S)|\S{{{LONGEST_PASSAGE}}}", re.DOTALL)
_WORD = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]")
"""Each character of Chinese and Japanese is a word, as they have no spaces."""


class Search:
    """Finds passages. All episodes of a process share it: it has no state."""

    def __init__(self, argument: str, settings: Any) -> None:
        """Read the texts, once in a process. Raises ConfigError, with the file and the line that cannot be used.

        Args:
            argument: a JSONL file with a column `text` and, where a row has them, `title` and `id`; or a folder with
                files that end in .txt or .md.
            settings: this tool has none.
        """
        if not argument:
            raise ConfigError("search has no texts: name a file or a folder, as in box:search=docs.jsonl")
        self._corpus = _corpus(argument)

    def start(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...

    def search(self, query: str, k: int = 5) -> str:
        """Search a collection of texts for passages with the words of a query. Rare words count more.

        Args:
            query: The words to search for.
            k: Number of passages to return, from 1 to 10. The best comes first.
        """
        if not isinstance(query, str):
            raise TypeError("query must be a text")
        if not isinstance(k, int) or not 1 <= k <= MOST_PASSAGES:
            raise ValueError(f"k must be a number from 1 to {MOST_PASSAGES}")
        return "\n\n".join(self._corpus.best(query, k)) or "No passage has a word of the query."


def share(argument: str) -> None:
    """Make the index for the processes that this one forks. Raises ConfigError."""
    _ = _corpus(argument).index


def longest_share_s(argument: str) -> float:
    """The deadline of `share`: three times what 50 MB took on one busy core. Texts that are missing take no time."""
    path = Path(argument)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


class _Row(msgspec.Struct):
    """A line of a corpus."""

    text: str
    title: str | None = None
    id: str | int | None = None

    @property
    def name(self) -> str:
        parts = ("" if self.id is None else f"[{self.id}]", self.title or "")
        return " ".join(filter(None, parts))[:_LONGEST_NAME]


class _Corpus:
    """Passages, each with the name of its text."""

    def __init__(self, rows: Iterator[_Row]) -> None:
        import bm25s  # here, because it imports numba

        self._bm25 = bm25s.BM25()
        self._names: list[str] = []
        self._texts: list[str] = []
        for row in rows:
            passages = _PASSAGE.findall(row.text)
            self._texts += passages
            self._names += [row.name] * len(passages)

    def __len__(self) -> int:
        return len(self._texts)

    def has_words(self) -> bool:
        return any(map(_WORD.search, self._texts))

    @cached_property
    def index(self) -> Any:
        """Made by the first who needs it: that takes as long as the texts are."""
        numbers: dict[str, int] = {}
        words = [
            [numbers.setdefault(word, len(numbers)) for word in _WORD.findall(self._shown(one).lower())]
            for one in range(len(self))
        ]
        self._bm25.index((words, numbers), show_progress=False)
        return self._bm25

    def best(self, query: str, k: int) -> list[str]:
        """At most `k` passages with words of the query."""
        words = list(dict.fromkeys(_WORD.findall(query.lower())))
        [found], [scores] = self.index.retrieve([words], k=min(k, len(self)), show_progress=False)
        return [self._shown(one) for one, score in zip(found, scores, strict=True) if score > 0]

    def _shown(self, one: int) -> str:
        return "\n".join(filter(None, (self._names[one], self._texts[one])))


@lru_cache
def _corpus(path: str) -> _Corpus:
    try:
        made = _Corpus(_rows(Path(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"search={path}: cannot be read: {error}") from None
    if not made.has_words():
        raise ConfigError(f"search={path}: it has no text: give JSON lines with a column text, or .txt and .md files")
    return made


def _rows(path: Path) -> Iterator[_Row]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in (".txt", ".md"):
                yield _Row(file.read_text(encoding="utf-8"), title=str(file.relative_to(path)))
        return
    decoder = msgspec.json.Decoder(_Row)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}:{number}: no row with a column text: {error}") from None
