"""The binary form of tables that a browser reads without a loop: a JSON header, then one typed array for each column.

    4 bytes    length of the header, little-endian
    header     UTF-8 JSON: {"columns": [[name, type, count], ...], ...}; types as in numpy: u1, u2, i4, f4, f8
    columns    each little-endian, and padded to a multiple of 8 bytes from the start

`unpack` in `assets/data.js` reads it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

_ALIGN = 8


class Blob(NamedTuple):
    """One compressed part of a report. Equal contents have equal names."""

    name: str
    data: bytes
    """zlib-compressed."""

    @property
    def text(self) -> str:
        """The data as base64, for a page."""
        return base64.b64encode(self.data).decode("ascii")


def blob(content: bytes) -> Blob:
    """Compress a part and name it after its content."""
    return Blob(blake2b(content, digest_size=9).hexdigest(), zlib.compress(content, 6))


def json_blob(content: Any) -> Blob:
    """A part that is JSON."""
    return blob(msgspec.json.encode(content))


def pack(header: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The table as bytes. Each column is one-dimensional, of a type that the module's docstring lists."""
    arrays = {name: np.ascontiguousarray(column, column.dtype.newbyteorder("<")) for name, column in columns.items()}
    kinds = [[name, f"{array.dtype.kind}{array.dtype.itemsize}", len(array)] for name, array in arrays.items()]
    head = msgspec.json.encode({**header, "columns": kinds})
    parts = [len(head).to_bytes(4, "little"), head]
    size = 4 + len(head)
    for array in arrays.values():
        parts += [bytes(-size % _ALIGN), array.tobytes()]
        size += -size % _ALIGN + array.nbytes
    return b"".join(parts)
