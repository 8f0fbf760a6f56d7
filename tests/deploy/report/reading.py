"""Reads the parts of a report as the page does."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from olmorl.deploy.report.columns import Blob


def unpack(data: bytes) -> dict[str, Any]:
    """The inverse of `columns.pack`; columns as arrays."""
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    at, columns = 4 + size, {}
    for name, kind, count in header["columns"]:
        at += -at % 8
        columns[name] = np.frombuffer(data, f"<{kind}", count, at)
        at += columns[name].nbytes
    return {**header, "columns": columns}


class Parts:
    """The parts of one run by their names."""

    def __init__(self, entry: Mapping[str, Any], blobs: list[Blob]) -> None:
        self._entry = entry
        self._blobs = {blob.name: zlib.decompress(blob.data) for blob in blobs}

    @property
    def about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(self._blobs[self._entry["about"]])
        return about

    @property
    def index(self) -> dict[str, Any]:
        return unpack(self._blobs[self._entry["index"]])

    def chunk(self, number: int) -> tuple[Any, dict[str, Any]]:
        """The texts and the tokens of a chunk."""
        texts, tokens = self._entry["chunks"][number]
        return json.loads(self._blobs[texts]), unpack(self._blobs[tokens])
