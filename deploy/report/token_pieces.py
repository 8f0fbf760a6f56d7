"""The text of each single token, from a model's `tokenizer.json`, without loading the tokenizer's library."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

_LONGEST = 255
"""The most UTF-16 units of one token. A completion with a longer token is not cut."""


class CutText(NamedTuple):
    """A text, and the length of each of its tokens in UTF-16 units, as a browser counts."""

    text: str
    lengths: bytes


class TokenPieces:
    """Cuts a completion into its tokens. A character that several tokens make belongs to the last of them."""

    def __init__(self, pieces: Mapping[int, bytes], special: frozenset[int]) -> None:
        """`special`: the tokens that an engine leaves out of the text."""
        self._bytes = pieces
        self._special = special
        self._texts: dict[int, str] = {}
        self._lengths: dict[int, int] = {}
        for token, piece in pieces.items():
            with suppress(UnicodeDecodeError):
                self._texts[token] = text = piece.decode()
                self._lengths[token] = _units(text)

    def cut(self, token_ids: Sequence[int], text: str) -> CutText | None:
        """The completion with its special tokens; None unless its tokens make the recorded `text`."""
        try:
            parts = [self._texts[token] for token in token_ids]
            lengths = [self._lengths[token] for token in token_ids]
        except KeyError:
            if (decoded := self._decode(token_ids)) is None:
                return None
            parts, lengths = decoded, [_units(part) for part in decoded]
        whole = "".join(parts)
        if text not in whole:
            plain = (part for part, token in zip(parts, token_ids, strict=True) if token not in self._special)
            if "".join(plain).strip() != text.strip():
                return None
        return CutText(whole, bytes(lengths)) if max(lengths, default=0) <= _LONGEST else None

    def _decode(self, token_ids: Sequence[int]) -> list[str] | None:
        """The text that each token completes; None for an unknown token."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            parts = [decoder.decode(self._bytes[token]) for token in token_ids]
        except KeyError:
            return None
        parts[-1] += decoder.decode(b"", final=True)
        return parts


def read_pieces(path: Path) -> TokenPieces | None:
    """The pieces of a `tokenizer.json`; None if it is missing, damaged, or not of a known kind."""
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        model, added = tokenizer["model"], tokenizer.get("added_tokens") or []
        decoder = _kinds(tokenizer.get("decoder"))
        found = model["vocab"]
        vocabulary = found if isinstance(found, dict) else {piece: i for i, (piece, _) in enumerate(found)}
        if "ByteLevel" in decoder:
            pieces = {token: _of_byte_level(piece) for piece, token in vocabulary.items()}
        elif decoder & {"Metaspace", "ByteFallback"}:
            pieces = {token: _of_metaspace(piece) for piece, token in vocabulary.items()}
        else:
            return None
        pieces |= {each["id"]: each["content"].encode() for each in added}
        return TokenPieces(pieces, frozenset(each["id"] for each in added if each.get("special")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder and of the decoders that it is made of."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder.get("type"))}.union(*map(_kinds, decoder.get("decoders") or []))


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level vocabularies write for bytes.

    A printable byte is its own character. The others are the characters from U+0100 on, in order (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


def _of_byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in piece])
    except KeyError:
        return piece.encode()


def _of_metaspace(piece: str) -> bytes:
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("▁", " ").encode()


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)
