"""The tool `search`: it finds the best passages, a bad query is a text for the policy, and forks share one index."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from olmorl.config import Episodes, Verifiers
from olmorl.errors import ConfigError
from olmorl.verifiers.box import search_tool
from olmorl.verifiers.box.search_tool import LONGEST_PASSAGE, Search
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from olmorl.verifiers.environments.tools import schemas_of
from tests.verifiers.environments.test_forked_environments import calls, prompt

ROWS = [
    {"id": 7, "title": "Paris", "text": "Paris is the capital of France. It lies on the Seine.", "more": [1]},
    {"title": "Rome", "text": "Rome is the capital of Italy, on the Tiber."},
    {"id": "b", "text": "The Seine flows from Burgundy to the sea."},
    {"id": None, "title": None, "text": "東京は日本の首都です。"},
]


def corpus(folder: Path, *rows: Any) -> str:
    path = folder / "docs.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_the_best_passage_comes_first_with_its_id_and_title(tmp_path: Path) -> None:
    search = Search(corpus(tmp_path, *ROWS, ""), None).search
    first, second = search("capital, SEINE!", k=2).split("\n\n")
    assert first == "[7] Paris\nParis is the capital of France. It lies on the Seine."
    assert second == "[b]\nThe Seine flows from Burgundy to the sea."
    assert search("tiber") == "Rome\nRome is the capital of Italy, on the Tiber."
    assert search("rome") == search("tiber"), "a title has words too"
    assert search("首都") == "東京は日本の首都です。"


def test_the_first_start_may_take_longer_the_more_texts_there_are(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name, size in (("a.txt", 2_000_000), ("b.md", 500_000)):
        (tmp_path / "texts" / name).write_bytes(b"x" * size)
    assert search_tool.longest_share_s(str(tmp_path / "texts")) == 2.5
    assert search_tool.longest_share_s(str(tmp_path / "texts" / "a.txt")) == 2.0
    assert search_tool.longest_share_s(str(tmp_path / "none.jsonl")) == 0.0


def test_a_query_that_finds_nothing_or_is_none_is_a_text_for_the_policy(tmp_path: Path) -> None:
    search: Any = Search(corpus(tmp_path, *ROWS), None).search
    for query in ("", "?!", "zebra"):
        assert search(query) == "No passage has a word of the query."
    for query in (None, 7, ["capital"]):
        with pytest.raises(TypeError, match="query must be a text"):
            search(query)
    for number in (0, 11, 2.0, "3", None):
        with pytest.raises(ValueError, match="k must be a number from 1 to 10"):
            search("capital", k=number)
    assert len(search("the", k=10).split("\n\n")) == 3


def test_each_part_of_a_long_text_is_found_and_a_result_is_bounded(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(2000))
    search = Search(corpus(tmp_path, {"title": "long" * 100, "text": f"{words}\n\n" + "x" * 2500}), None).search
    for word in ("word0", "word123", "word1999"):
        (passage,) = search(word).split("\n\n")
        assert re.search(rf"\b{word}\b", passage)
    found = search("long" * 25, k=10).split("\n\n")
    assert len(found) == 10 and all(len(one) <= LONGEST_PASSAGE + 101 for one in found)
    parts = search_tool._PASSAGE.findall(words + " " + "x" * 2500)
    assert "".join(parts).replace(" ", "") == (words + "x" * 2500).replace(" ", ""), "nothing is left out"


def test_a_folder_of_texts_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "docs" / "more").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("apples and pears")
    (tmp_path / "docs" / "more" / "b.txt").write_text("apples and plums")
    (tmp_path / "docs" / "c.png").write_bytes(b"\xff\xfe apples")
    search = Search(str(tmp_path / "docs"), None).search
    assert search("apples").split("\n\n") == ["a.md\napples and pears", "more/b.txt\napples and plums"]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (('{"text": "a"}', '{"title": "b"}'), "docs.jsonl:2: .*required field `text`"),
        (('{"text": "a"}', "", "no json"), "docs.jsonl:3: .*JSON is malformed"),
        (('{"text": 7}',), r"docs.jsonl:1: .*Expected `str`, got `int` - at `\$.text`"),
        (('{"text": ""}',), "docs.jsonl: it has no text"),
        (('{"text": "?!"}',), "docs.jsonl: it has no text"),
        ((), "docs.jsonl: it has no text"),
    ],
)
def test_a_corpus_of_no_use_is_named_at_the_start(tmp_path: Path, lines: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Search(corpus(tmp_path, *lines), None)


def test_a_missing_corpus_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"search=/nowhere/docs.jsonl: cannot be read: .*No such file"):
        Search("/nowhere/docs.jsonl", None)
    with pytest.raises(ConfigError, match="search has no texts: name a file"):
        Search("", None)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=f"search={tmp_path}: cannot be read: .*decode"):
        Search(str(tmp_path), None)


def test_forked_processes_use_the_index_of_their_parent(tmp_path: Path) -> None:
    path = corpus(tmp_path, *ROWS)
    search_tool.share(path)
    Path(path).unlink()
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        found = Search(path, None)
        os.write(writes, f"{'index' in vars(found._corpus)} {found.search('tiber')}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reads, 1000).decode() == "True Rome\nRome is the capital of Italy, on the Tiber."
    os.close(reads)
    os.close(writes)


async def test_episodes_of_the_box_search_an_index_that_their_processes_share(tmp_path: Path) -> None:
    path = corpus(tmp_path, *ROWS)
    settings = Episodes(environment=f"box:search={path}")
    [schema] = schemas(settings)
    assert schema["function"]["name"] == "search"
    made = ForkedEnvironments(settings, Verifiers(memory_mib=256))
    await made.start()
    await asyncio.to_thread(Path(path).unlink)  # later processes have what the first one read
    try:
        episodes = [made.open() for _ in range(2)]
        for one in episodes:
            assert await one.reset(prompt(), 0) is None
        for one in episodes:
            step = await one.step(calls(("search", {"query": "tiber"}), ("search", {"query": None})))
            assert [message["content"] for message in step.messages] == [
                "Rome\nRome is the capital of Italy, on the Tiber.",
                "Error: TypeError: query must be a text",
            ]
            await one.close()
    finally:
        await made.stop()


async def test_a_missing_corpus_is_named_at_the_start_of_the_box() -> None:
    settings = Episodes(environment="box:search=/nowhere/docs.jsonl")
    with pytest.raises(ConfigError, match=r"search=/nowhere/docs\.jsonl: cannot be read"):
        schemas(settings)
    made = ForkedEnvironments(settings, Verifiers())
    try:
        with pytest.raises(ConfigError, match=r"search=/nowhere/docs\.jsonl: cannot be read"):
            await made.start()
    finally:
        await made.stop()


def test_the_policy_reads_what_the_tool_is_for(tmp_path: Path) -> None:
    [schema] = schemas_of([Search(corpus(tmp_path, *ROWS), None).search])
    described = schema["function"]
    assert described["name"] == "search" and "passages" in described["description"]
    assert described["parameters"]["required"] == ["query"]
    assert {name: one["type"] for name, one in described["parameters"]["properties"].items()} == {
        "query": "string",
        "k": "integer",
    }
