"""Reads the rows of one file: JSON, CSV, TSV, Parquet or Arrow, packed or not. Its content decides, not its name.

Rows come as `(place, values)`. The place is `file:line`; in an array, Parquet and Arrow `file:number`, counted from 1.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError

Rows = Iterator[tuple[str, dict[str, Any]]]
TABLES = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow", *TABLES)
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
CONVERSATION = ("messages", "prompt")
LABELS = ("ground_truth", "reward_model", "dataset", "data_source")
_HEAD_BYTES = 4096
_ARROW_STREAM = b"\xff\xff\xff\xff"
_KNOWN_FORMATS = "rows are read from JSON, CSV, TSV, Parquet and Arrow"


class Packing(NamedTuple):
    """A kind of compression."""

    kind: str
    command: str
    """Unpacks a file to standard output."""
    open: Callable[[Path], Any] | None
    """None for an archive of several files."""


def _open_zstd(path: Path) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(str(path), "zstd")


PACKED = {
    b"\x1f\x8b": Packing("gzip", "gzip -dc", gzip.open),
    b"\x28\xb5\x2f\xfd": Packing("zstd", "zstd -dc", _open_zstd),
    b"BZh": Packing("bzip2", "bzip2 -dc", bz2.open),
    b"\xfd7zXZ": Packing("xz", "xz -dc", lzma.open),
    b"PK\x03\x04": Packing("zip", "unzip -p", None),
}
"""Kinds of compression by the first bytes."""
_OTHERS = {
    b"version https://git-lfs": "a pointer of git-lfs, and not the data: fetch the file with git lfs pull",
    b"<!doctype html": "an HTML page, and not the data: download the file itself, not its page",
    b"<html": "an HTML page, and not the data: download the file itself, not its page",
    b"sqlite format 3": f"an SQLite database; {_KNOWN_FORMATS}",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it first",
    b"\x93numpy": f"a NumPy array; {_KNOWN_FORMATS}",
}
"""Formats that are not read, by the first bytes in lower case."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def suffix_of(path: Path) -> str:
    """The ending that names the format, in lower case: `.csv` of `rows.CSV.gz`."""
    inner = path.with_suffix("") if path.suffix.lower() in PACKED_SUFFIXES else path
    return inner.suffix.lower()


def read_file(path: Path, columns: bool) -> Rows:
    """The rows of a file.

    Args:
        columns: also read columns that are neither conversation nor label, where the format allows to leave them out.

    Raises:
        DataError: the file cannot be read, or is of a format that is not read. The message names the format.
    """
    try:
        with _unpacked(path) as file:
            head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
            if reason := _not_rows(head):
                raise DataError(f"{path}: it is {reason}")
            yield from _rows(path, file, head, columns)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text: {error}; write a table, or one JSON object a line, as UTF-8"
        ) from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        # The libraries that unpack raise OSError too, without a number.
        raise DataError(f"{path}: cut off, or damaged: {error}; pack it again, or download it again") from None


def _unpacked(path: Path) -> AbstractContextManager[io.BufferedReader]:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    packing = next((packing for magic, packing in PACKED.items() if head.startswith(magic)), None)
    if packing is None:
        return path.open("rb")
    if packing.open is None:
        raise DataError(f"{path}: it is a {packing.kind} archive: unpack it, and name the file or folder of rows")
    return io.BufferedReader(packing.open(path))


def _not_rows(head: bytes) -> str:
    """The format of a file that holds no rows, with what to do; empty when it may hold rows."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    named = next((reason for magic, reason in _OTHERS.items() if start.startswith(magic)), "")
    if named or head.startswith((b"PAR1", b"ARROW1", _ARROW_STREAM, *_UTF_16)):
        return named
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it, and name the file or folder of rows"
    return "" if b"\0" not in head or _is_wide_text(head) else f"binary, and of no known format; {_KNOWN_FORMATS}"


def _is_wide_text(head: bytes) -> bool:
    """Whether it is UTF-16 or UTF-32, in which plain letters have zero bytes."""
    encoding = json.detect_encoding(head)
    try:
        codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return not encoding.startswith("utf-8")


def _rows(path: Path, file: io.BufferedReader, head: bytes, columns: bool) -> Rows:
    suffix = suffix_of(path)
    is_json = head.lstrip()[:1] in (b"{", b"[")
    if head.startswith((b"ARROW1", _ARROW_STREAM)):
        return _arrow(path, file, columns)
    if head.startswith(b"PAR1") or (suffix == ".parquet" and head and not is_json):
        return _parquet(path, file, columns)
    if suffix in TABLES:
        return _table(path, file, json.detect_encoding(head), TABLES[suffix])
    first = (
        head.removeprefix(b"\xef\xbb\xbf").decode(json.detect_encoding(head), errors="ignore").lstrip("\ufeff \t\r\n")
    )
    return _array(path, file) if first.startswith("[") else _lines(path, file, json.detect_encoding(head))


# --- text -----------------------------------------------------------------------------------------


def _array(path: Path, file: io.BufferedReader) -> Rows:
    try:
        rows = json.loads(file.read())
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; write an array of objects, or one object a line") from None
    for number, values in enumerate(rows, 1):
        yield f"{path}:{number}", _object(f"{path}: element {number}", values)


def _lines(path: Path, file: io.BufferedReader, encoding: str) -> Rows:
    in_utf_8 = encoding in ("utf-8", "utf-8-sig")
    lines: Any = file if in_utf_8 else io.TextIOWrapper(file, encoding, newline="\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = json.loads(line)
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON: {error}; the file must hold one JSON object a line") from None
        yield place, _object(place, values)


def _object(place: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise DataError(f"{place}: not a JSON object but a {type(values).__name__}; write one object a line")
    return values


def _table(path: Path, file: io.BufferedReader, encoding: str, delimiter: str) -> Rows:
    """Rows of a table with a header. All values are text; an empty cell is an absent value."""
    csv.field_size_limit(2**31 - 1)  # a cell may hold the tests of a program
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    reader = csv.DictReader(io.TextIOWrapper(file, encoding, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            place = f"{path}:{reader.line_num}"
            if None in cells:
                raise DataError(f"{place}: more cells than the header has columns: put quotes around texts with commas")
            yield place, {name: _cell(place, name, text) for name, text in cells.items() if text}
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a table: {error}; write it again, or give JSONL") from None


def _cell(place: str, name: str, text: str) -> Any:
    """A cell with turns of a conversation is JSON."""
    if name not in CONVERSATION or not text.lstrip().startswith("[{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: {name} is not JSON: {error}; write turns with json.dumps, or give JSONL") from None


# --- columns --------------------------------------------------------------------------------------


def _parquet(path: Path, source: io.BufferedReader, columns: bool) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(source) as file:
            names = None if columns else known(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=1024, columns=names):
                for values in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", values
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}:{number + 1}: not readable as Parquet: {str(error).rstrip('.')}; write it again, or give JSONL"
        ) from None


def _arrow(path: Path, source: io.BufferedReader, columns: bool) -> Rows:
    import pyarrow as pa

    number = 0
    try:
        is_stream = source.peek(len(_ARROW_STREAM)).startswith(_ARROW_STREAM)
        table = pa.ipc.open_stream(source).read_all() if is_stream else pa.ipc.open_file(source).read_all()
        names = table.column_names if columns else known(table.column_names)
        for batch in table.select(names).to_batches(max_chunksize=1024):
            for values in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", values
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}:{number + 1}: not readable as Arrow: {str(error).rstrip('.')}; write it again, or give JSONL"
        ) from None


def known(names: Sequence[str]) -> list[str]:
    """The columns that the layouts read. All columns, when none holds a conversation: the error names them."""
    found = [name for name in names if name in (*CONVERSATION, *LABELS)]
    return found if set(CONVERSATION).intersection(found) else list(names)
