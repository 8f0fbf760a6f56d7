"""Tokens become the pieces of the text, for each kind of tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.report.token_pieces import CutText, read_pieces


def write(folder: Path, **tokenizer: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    return path


@pytest.fixture
def byte_level(tmp_path: Path) -> Path:
    """`Ġ` is a space, `Ã` and `©` are the two bytes of é, `ðŁĺĢ` the four of an emoji."""
    vocabulary = {"so": 0, "Ġit": 1, "Ċ": 2, "Ã": 3, "©": 4, "ðŁĺĢ": 5, "ðŁ": 6}
    return write(
        tmp_path,
        model={"type": "BPE", "vocab": vocabulary},
        decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
        added_tokens=[{"id": 7, "content": "<|end|>", "special": True}, {"id": 8, "content": "<think>"}],
    )


def test_pieces_of_a_byte_level_tokenizer(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([8, 0, 1, 2, 7], "<think>so it\n") == CutText("<think>so it\n<|end|>", bytes([7, 2, 3, 1, 7]))


def test_a_character_of_several_tokens_belongs_to_the_last(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([0, 3, 4], "soé") == CutText("soé", bytes([2, 0, 1]))


def test_a_text_that_ends_within_a_character_has_the_replacement(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([0, 6], "so\ufffd") == CutText("so\ufffd", bytes([2, 1]))


def test_lengths_count_as_a_browser_does(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([5], "😀") == CutText("😀", bytes([2]))


def test_tokens_that_do_not_make_the_text_are_not_cut(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([0, 1], "another text") is None
    assert pieces.cut([0, 99], "so") is None, "a token that the tokenizer does not know"


def test_special_tokens_inside_a_text_may_be_missing_in_it(byte_level: Path) -> None:
    pieces = read_pieces(byte_level)
    assert pieces is not None
    assert pieces.cut([0, 7, 1], "so it") == CutText("so<|end|> it", bytes([2, 7, 3]))


def test_pieces_of_a_metaspace_tokenizer(tmp_path: Path) -> None:
    vocabulary = [["▁so", -1.0], ["<0xC3>", -2.0], ["<0xA9>", -2.0]]
    pieces = read_pieces(write(tmp_path, model={"vocab": vocabulary}, decoder={"type": "Metaspace"}))
    assert pieces is not None
    assert pieces.cut([0, 1, 2], "soé") == CutText(" soé", bytes([3, 0, 1]))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"model": {"vocab": {}}, "decoder": {"type": "WordPiece"}}', '{"model": 3}']
)
def test_what_cannot_be_read_gives_no_pieces(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    assert read_pieces(tmp_path / "tokenizer.json") is None
    assert read_pieces(tmp_path / "missing.json") is None
