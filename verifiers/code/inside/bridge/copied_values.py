"""Encodes the values that are copied to the other process: standard library types and numpy arrays."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from olmorl.verifiers.code.inside.bridge import standard_library

SAFE = 2**53
"""Every JSON reader keeps integers below this number exact."""
_DTYPE = re.compile(r"[<>|=]?[biufc]\d{1,2}")


def node(value: Any) -> list[Any] | None:
    """The tag and parts of a value; None for a value of another type."""
    found = _standard(value) or _array(value)
    if found is None and (home := standard_library.address(value)) is not None:
        return ["standard", *home]
    return found


def _standard(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is range or kind is slice:
        bounds = value.start, value.stop, value.step
        return [kind.__name__, *bounds] if all(map(_is_small, bounds)) else None
    if kind is Decimal:
        return ["Decimal", str(value)]
    if kind is Fraction:
        return ["Fraction", hex(value.numerator), hex(value.denominator)]
    if kind is datetime.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if kind in (datetime.date, datetime.time, datetime.datetime):
        return [kind.__name__, value.isoformat()]
    if value is Ellipsis or value is NotImplemented:
        return ["constant", str(value)]
    return None


def _is_small(bound: Any) -> bool:
    return bound is None or (type(bound) is int and -SAFE < bound < SAFE)


def _array(value: Any) -> list[Any] | None:
    """The tag and parts of a numpy array or scalar; None without numpy or for another value."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return None
    if not _DTYPE.fullmatch(value.dtype.str):
        return None
    shape = list(value.shape) if type(value) is numpy.ndarray else None
    return ["array", value.dtype.str, shape, value.tobytes().hex()]


def _to_array(dtype: str, shape: list[int] | None, data: str) -> Any:
    numpy = sys.modules["numpy"]
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"no array of type {dtype}")
    flat = numpy.frombuffer(bytes.fromhex(data), dtype) if data else numpy.empty(0, dtype)
    return flat[0] if shape is None else flat.reshape(shape).copy()


READERS: dict[str, Callable[..., Any]] = {
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "complex": complex,
    "range": range,
    "slice": slice,
    "Decimal": Decimal,
    "Fraction": lambda top, bottom: Fraction(int(top, 16), int(bottom, 16)),
    "timedelta": datetime.timedelta,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "constant": {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}.__getitem__,
    "array": _to_array,
    "standard": standard_library.at,
}
"""For each tag, the function that makes a value from its parts."""
