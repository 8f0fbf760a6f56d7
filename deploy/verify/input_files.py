"""Checks the files on a command line: the input holds rows, and the output can be written."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from olmorl.errors import DataError
from olmorl.learner.data.row_files import PACKED

STANDARD = "-"
"""Names standard input, and standard output."""
HEAD_BYTES = 1 << 16


def check_readable(name: str) -> None:
    """Raises DataError for a missing input, or one whose beginning cannot be rows."""
    if name == STANDARD:
        return
    if not name:
        raise DataError("the name of the input is empty: give a file")
    try:
        mode = Path(name).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return  # a pipe can be read only once
        with Path(name).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot be read: {_reason(error)}") from None
    check_rows(name, head)


def check_rows(name: str, head: bytes) -> None:
    """Raises DataError when a file that begins with `head` cannot hold one JSON object a line, or Parquet."""
    if not head:
        raise DataError(f"{name}: it is empty; write one row a line")
    parquet = head.startswith(b"PAR1")
    if name.endswith(".parquet") != parquet:
        raise DataError(f"{name}: it is Parquet: name it .parquet" if parquet else f"{name}: it is not Parquet")
    if not parquet and (reason := _not_lines(name, head)):
        raise DataError(f"{name}: {reason}")


def _not_lines(name: str, head: bytes) -> str:
    """Why the file is not one JSON object a line, with the fix; empty when no reason is known."""
    name = "FILE" if name == STANDARD else name
    for magic, packing in PACKED.items():
        if head.startswith(magic):
            return f"it is packed with {packing.kind}: unpack it first, as in {packing.command} {name} > rows.jsonl"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"it is UTF-16: convert it first, as in iconv -f utf-16 -t utf-8 {name} > rows.jsonl"
    if b"\0" in head:
        return "it is binary; rows are one JSON object a line, or Parquet"
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().splitlines()[:1]
    if first and re.match(rb"\[\s*(\{|$)", first[0]):
        return f"it is a JSON array; write one object a line, as in jq -c '.[]' {name} > rows.jsonl"
    if first and first[0].strip() == b"{":
        return f"its JSON goes over several lines; write one object a line, as in jq -c . {name} > rows.jsonl"
    return ""


def check_writable(name: str, replace: bool) -> None:
    """Raises DataError for an output that exists and must stay, or that cannot be written."""
    if name == STANDARD:
        return
    if not name:
        raise DataError("the name of the output is empty: give a file")
    path = Path(name)
    try:
        if path.is_dir():
            raise DataError(f"{name}: cannot be written: it is a folder; give a file")
        if path.is_file() and not replace:
            raise DataError(f"{name} exists: --force replaces it, or give another -o")
        if path.exists() and not os.access(path, os.W_OK):
            raise DataError(f"{name}: cannot be written: Permission denied")
        if not path.parent.is_dir():
            raise DataError(f"{name}: cannot be written: there is no folder {path.parent}")
        if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
            raise DataError(f"{name}: cannot be written: the folder {path.parent} is not writable")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: cannot be written: {_reason(error)}") from None


def same(one: str | int, other: str | int) -> bool:
    """Whether two paths or open files are the same regular file."""
    try:
        first, second = os.stat(one), os.stat(other)  # noqa: PTH116  a descriptor has no Path
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(first.st_mode) and os.path.samestat(first, second)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
