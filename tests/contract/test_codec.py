"""All bytes that are not a message raise ValueError."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from olmorl.codec import SCHEMA, decode, encode
from olmorl.messages import Prompt


def test_no_beginning_of_a_message_is_one(make_prompt: Callable[..., Prompt]) -> None:
    data = encode(make_prompt(1))
    assert decode(data, Prompt).draw_id == 1
    for size in range(len(data)):
        with pytest.raises(ValueError):
            decode(data[:size], Prompt)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"damaged", "not an OlmoRL message"),
        (bytes([0x4F, SCHEMA + 1]), f"message of schema {SCHEMA + 1}, this program reads {SCHEMA}"),
        (bytes([0x4F, SCHEMA]) + b"\x91" * 100_000, "malformed message"),
    ],
)
def test_what_is_no_message_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(data, list)
