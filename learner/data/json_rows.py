"""Reads rows from JSON: one object a line, or one array of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from olmorl.errors import DataError


def read_json(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as `(place, values)`, where place is `file:line`, or `file:number` in an array.

    Raises:
        DataError: the file is not JSON, or cannot be read.
    """
    try:
        is_array = _first_sign(path) == b"["
        yield from _array(path) if is_array else _lines(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}; the file must hold one JSON object a line") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _first_sign(path: Path) -> bytes:
    with path.open("rb") as file:
        while (sign := file.read(1)).isspace():
            pass
    return sign


def _array(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        rows = json.loads(path.read_bytes())
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; write an array of objects, or one object a line") from None
    for number, values in enumerate(rows, 1):
        yield f"{path}:{number}", _object(f"{path}: element {number}", values)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open("rb") as lines:
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
