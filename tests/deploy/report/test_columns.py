"""The binary tables are laid out as the page reads them."""

from __future__ import annotations

import json
import zlib

import numpy as np

from olmorl.deploy.report.columns import blob, json_blob, pack


def test_a_table_is_a_header_and_aligned_columns() -> None:
    table = pack({"names": ["a"]}, {"small": np.array([1, 2, 3], "u1"), "wide": np.array([0.5, -1.0], "f8")})
    size = int.from_bytes(table[:4], "little")
    header = json.loads(table[4 : 4 + size])
    assert header == {"names": ["a"], "columns": [["small", "u1", 3], ["wide", "f8", 2]]}
    small = 4 + size + -(4 + size) % 8
    assert list(table[small : small + 3]) == [1, 2, 3]
    assert np.frombuffer(table, "<f8", 2, small + 8).tolist() == [0.5, -1.0]
    assert len(table) == small + 8 + 16


def test_columns_are_little_endian_whatever_they_were() -> None:
    table = pack({}, {"wide": np.array([1], ">i4")})
    assert table.endswith(b"\x01\x00\x00\x00") and b'"i4"' in table


def test_equal_contents_have_equal_names() -> None:
    one, same, other = json_blob([1]), json_blob([1]), blob(b"x")
    assert one == same and one.name != other.name
    assert zlib.decompress(other.data) == b"x"
