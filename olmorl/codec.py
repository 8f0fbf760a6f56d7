"""Encodes messages: msgpack by field name, arrays as raw little-endian bytes, schema version first. Never pickle."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

SCHEMA = 1
_HEADER = bytes([0x4F, SCHEMA])
M = TypeVar("M")


@cache
def _little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<")


@cache
def _stored_dtype(kind: Any) -> np.dtype[Any]:
    return _little_endian(np.dtype(get_args(get_args(kind)[1])[0]))


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(_little_endian(value.dtype), copy=False).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message cannot carry a {type(value).__name__}")


def _decode_array(kind: Any, value: Any) -> Any:
    return np.frombuffer(value, _stored_dtype(kind))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(message: Any) -> bytes:
    """Encode one message or a plain structure of them."""
    return _HEADER + _encoder.encode(message)


def decode(data: bytes | memoryview, kind: Any) -> Any:
    """Decode `data` as `kind` (a message type or a union of tagged ones).

    Arrays are read-only views of `data`. Raises ValueError when the bytes are another message, or have another
    schema version. The caller decides whether the message goes to the dead letters.
    """
    if len(data) < len(_HEADER) or data[0] != _HEADER[0]:
        raise ValueError("not an OlmoRL message")
    if data[1] != SCHEMA:
        raise ValueError(f"message of schema {data[1]}, this program reads {SCHEMA}: run one OlmoRL on all hosts")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)
    try:
        return decoder.decode(memoryview(data)[2:])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"malformed message: {error}") from error
