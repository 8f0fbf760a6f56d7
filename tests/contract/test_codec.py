"""All bytes that are not a message raise ValueError."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from olmorl.codec import SCHEMA, decode, encode
from olmorl.messages import Group, Prompt

BEFORE_EPISODES = bytes.fromhex(
    "4f0186a474797065a547726f7570a670726f6d70748ea474797065a650726f6d7074a7647261775f696403a46c616e65a5747261696ea7"
    "617474656d707401a3726f77a9612e6a736f6e6c3a34a86d65737361676573a13fa9746f6b656e5f696473c4080100000002000000a864"
    "6174617365747391a46d617468ad67726f756e645f74727574687391a131a7636f6c756d6e7380af7468696e6b696e675f6f70656e6564"
    "c2a97175657565645f6174cb0000000000000000aa67726f75705f73697a6501ab6d696e5f76657273696f6e920100ab636f6d706c6574"
    "696f6e73918ba474797065aa436f6d706c6574696f6ea5696e64657800a9746f6b656e5f696473c4080500000006000000a86c6f677072"
    "6f6273c408000000bf000080bea57370616e7391939201000002ad66696e6973685f726561736f6ea473746f70a474657874a137a87665"
    "72646963747381a46d6174688aa474797065a756657264696374a6726577617264cb3ff0000000000000a6776569676874cb3ff0000000"
    "000000a9657874726163746564c0a66d6574686f64a0aa6572726f725f6b696e64c0a664657461696ca0a77365636f6e6473cb00000000"
    "00000000a66c6f6767656480a5657874726180a6726577617264cb3ff0000000000000a6736f6c766564c3ac67656e6572617465645f61"
    "74cb4022000000000000a56163746f72a26130aa737461727465645f6174cb0000000000000000ab66696e69736865645f6174cb3ff000"
    "0000000000"
)
"""A group with one answer, as the code wrote it that knew no episodes."""


def test_a_single_answer_has_the_bytes_that_it_had_before_there_were_episodes() -> None:
    group = decode(BEFORE_EPISODES, Group)
    (answer,) = group.completions
    assert (answer.turns, answer.exit, answer.path_length, answer.text) == ((), "", 2, "7")
    assert encode(group) == BEFORE_EPISODES


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
