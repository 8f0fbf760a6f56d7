"""A row's files are texts inside of a tree, whatever a data set has in its column."""

from __future__ import annotations

import pytest

from olmorl.file_tree import row_files


def test_a_row_may_have_no_files_and_a_table_has_the_paths_of_all_rows() -> None:
    assert row_files(None) == {}
    assert row_files({"a/b c.txt": "x", "é": "", "..a": "z", "of another row": None}) == {
        "a/b c.txt": "x", "é": "", "..a": "z",
    }  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [
        {"../../etc/passwd": "x"}, {"/etc/passwd": "x"}, {"a/../../b": "x"}, {"..": "x"}, {"": "x"}, {".": "x"},
        {"a//b": "x"}, {"a/": "x"}, {"a\0b": "x"}, {"a\nb": "x"}, {"./a": "x"}, {"a": 1}, {"a": b"x"}, {1: "x"}, ["a"],
        "a",
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_name(files: object) -> None:
    with pytest.raises(ValueError, match="its column files has "):
        row_files(files)
