"""Every format that can be read gives the same rows; every other one is refused by its name."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from olmorl.errors import DataError
from olmorl.learner.data.readers import layout, read

ROWS = [
    {"prompt": "1 + 1? 😀", "ground_truth": "2", "dataset": "math"},
    {"prompt": 'Say "a,b".\u2028Then stop.', "ground_truth": "007", "dataset": "string_match"},
]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n"
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
ARRAY = json.dumps(ROWS, indent=1, ensure_ascii=False)


def values(path: Path, split: str = "train", held_out: bool = False) -> list[dict[str, Any]]:
    return [found for _, found in read(str(path), split, columns=False, held_out=held_out)]


def zstd(data: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as packed:
        packed.write(data)
    return target.getvalue().to_pybytes()  # type: ignore[no-any-return]


def zipped(data: bytes) -> bytes:
    with io.BytesIO() as target:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("rows.jsonl", data)
        return target.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


def arrow(writer: Callable[..., Any]) -> bytes:
    sink, table = io.BytesIO(), pa.Table.from_pylist(ROWS)
    with writer(sink, table.schema) as opened:
        opened.write_table(table)
    return sink.getvalue()


def table(delimiter: str) -> str:
    cells = [["prompt", "ground_truth", "dataset", "empty"], *([*row.values(), ""] for row in ROWS)]
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in cells]
    return "".join(delimiter.join(row) + "\r\n" for row in quoted)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


READ = {
    "rows.jsonl": LINES.encode(),
    "bom.jsonl": LINES.encode("utf-8-sig"),
    "bom.json": ARRAY.encode("utf-8-sig"),
    "utf16.jsonl": LINES.encode("utf-16"),
    "utf16_no_mark.jsonl": LINES.encode("utf-16-be"),
    "utf16.json": ARRAY.encode("utf-16"),
    "utf32.jsonl": LINES.encode("utf-32"),
    "rows.jsonl.gz": gzip.compress(LINES.encode()),
    "packed without saying so.jsonl": gzip.compress(LINES.encode()),
    "utf16.jsonl.gz": gzip.compress(LINES.encode("utf-16")),
    "rows.json.bz2": bz2.compress(ARRAY.encode()),
    "rows.jsonl.xz": lzma.compress(LINES.encode()),
    "rows.jsonl.zst": zstd(LINES.encode()),
    "rows.csv": table(",").encode(),
    "rows.TSV": table("\t").encode(),
    "bom.csv": table(",").encode("utf-8-sig"),
    "utf16.csv": table(",").encode("utf-16"),
    "rows.csv.gz": gzip.compress(table(",").encode()),
    "rows.parquet": parquet(),
    "parquet.jsonl": parquet(),
    "rows.parquet.gz": gzip.compress(parquet()),
    "lines.parquet": LINES.encode(),
    "stream.arrow": arrow(pa.ipc.new_stream),
    "file.arrow": arrow(pa.ipc.new_file),
}


@pytest.mark.parametrize("name", READ)
def test_each_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(READ[name])
    assert values(tmp_path / name) == ROWS


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.arrow", "rows.jsonl.gz"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    assert values(tmp_path / name) == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("lfs.parquet", POINTER, "git-lfs.*git lfs pull"),
        ("lfs.jsonl", POINTER, "git-lfs.*git lfs pull"),
        ("rows.zip", zipped(LINES.encode()), "a zip archive: unpack it"),
        ("rows.jsonl.gz", gzip.compress(LINES.encode())[:-20], "cut off, or damaged"),
        ("flipped.jsonl.gz", flipped(gzip.compress(LINES.encode()), -8), "cut off, or damaged: CRC check failed"),
        ("rows.jsonl.bz2", flipped(bz2.compress(LINES.encode()), 40), "cut off, or damaged: Invalid data stream"),
        ("cut.jsonl.zst", zstd(LINES.encode())[:-5], "cut off, or damaged: Truncated compressed stream"),
        ("rows.jsonl.xz", lzma.compress(LINES.encode())[:-20], "cut off, or damaged"),
        ("rows.jsonl.zst", zstd(LINES.encode())[:9] + b"?" * 99, "rows.jsonl.zst: cut off, or damaged"),
        ("page.jsonl", b"\n<!DOCTYPE html><html></html>", "an HTML page.*download the file itself"),
        ("rows.db", b"SQLite format 3\0 and so on", "an SQLite database; rows are read from JSON"),
        ("photo.jsonl", b"\x89PNG\r\n\x1a\n\0\0", "binary, and of no known format; rows are read from JSON"),
        ("half.parquet", parquet()[:-20], "not readable as Parquet"),
        ("half.arrow", arrow(pa.ipc.new_stream)[:-200], "not readable as Arrow"),
        ("long.csv", b"prompt,dataset\na,math,b\n", r"long.csv:2: more cells than the header"),
        ("open.csv", b'prompt,dataset\n"a,math\n', r"open.csv:1: not a table"),
        ("latin.csv", "prompt\né\n".encode("latin-1"), "not UTF-8 text"),
        ("turns.csv", b"prompt\n\"[{'role': 'user'}]\"\n", "turns.csv:2: prompt is not JSON.*json.dumps"),
    ],
)  # fmt: skip
def test_another_format_is_named_with_what_to_do(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        values(tmp_path / name)


def test_a_cell_may_hold_a_conversation_and_a_long_program(tmp_path: Path) -> None:
    turns, long = [{"role": "user", "content": "Hi, you"}], "x" * 200_000
    cell = '"' + json.dumps(turns).replace('"', '""') + '"'
    (tmp_path / "rows.csv").write_text(f"messages,ground_truth\n{cell},{long}\n")
    assert values(tmp_path / "rows.csv") == [{"messages": turns, "ground_truth": long}]


def test_a_parquet_file_of_another_layout_keeps_its_columns_for_the_message(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"conversations": [{"from": "human", "value": "?"}]}]), tmp_path / "a.parquet")
    (row,) = values(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="ShareGPT"):
        layout(row, "math", False)
