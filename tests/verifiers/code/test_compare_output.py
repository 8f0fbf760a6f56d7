"""When two outputs are the same."""

from __future__ import annotations

import pytest

from olmorl.verifiers.code.compare_output import same


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("42\n", "42"),
        ("1 2  \n3\n\n", "1 2\n3"),
        ("1\r\n2\r\n", "1\n2\n"),
        ("0.3333333333", "0.33333333"),
        ("x 2.0000001 y", "x 2.0 y"),
        ("100000.0", "1e5"),
        ("", "\n"),
        ("  *\n ***", "  *\n ***\n"),
        ("-0.0", "0.0"),
        ("1000000.004", "1000000.00"),
        ("1.1", "1.10"),
    ],
)
def test_the_same(printed: str, expected: str) -> None:
    assert same((printed, expected))


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("43", "42"),
        ("42.0", "42"),
        ("42\n43", "42"),
        ("", "42"),
        ("4 2", "42"),
        ("*\n***", " *\n***"),
        ("1  2", "1 2"),
        ("nan", "0.5"),
        ("inf", "1e400"),
        ("0.3334", "0.3333"),
        ("1000000.99", "1000000.00"),
        ("1000000.02", "1000000.00"),
        ("Yes", "YES"),
        ("1.5 junk", "1.5"),
        ("1e309", "1.5"),
        ("10000000000000001", "10000000000000000"),
    ],
)
def test_not_the_same(printed: str, expected: str) -> None:
    assert not same((printed, expected))
