"""Operators on the program's objects. No operator lets an object decide its own verdict.

- An object that a function returned is data. It is never asked about plain data, and equals none.
- An object that the test made may be used with plain data. The test makes objects by calling a class with a capital
  initial, or by operators on such objects. For a comparison or a number, the object first gives its plain value. Only
  then does it see the other operand. The tester computes with that value. An object that saw an operand gives none.
- The program compares two of its own objects, if the comparison can be believed: see `self_comparison`.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from olmorl.verifiers.code.inside.bridge.remote import MISSING, Remote, apply, handle_of
from olmorl.verifiers.code.inside.bridge.self_comparison import chosen

_NUMBERS = (int, float, complex, Decimal, Fraction)
_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod",
    "pow": "pow", "matmul": "matmul", "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift",
    "divmod": "divmod",
}  # fmt: skip
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "truediv": 1}
"""Operands that do not change a number."""
_SCALING = {"mul", "matmul", "truediv", "imul", "imatmul", "itruediv"}
"""Scaling operators. They do not show an object the value that it is compared with."""
_ORDER = ("lt", "le", "gt", "ge")
_DATA = ("len", "reversed", "str", "repr", "dir")
"""Operators that take no other operand, and whose results are data."""
_OBJECTS = ("neg", "pos", "invert")
_VALUES = ("abs", "int", "float", "complex", "index", "round", "bool", "trunc", "floor", "ceil")


def install() -> None:
    """Give `Remote` its operators."""
    for name in _DATA:
        setattr(Remote, f"__{name}__", _data(name))
    for name in (*_OBJECTS, *_VALUES):
        setattr(Remote, f"__{name}__", _unary(name))
    for name in _ORDER:
        setattr(Remote, f"__{name}__", _ordering(name))
    for name, operation in _BINARY.items():
        setattr(Remote, f"__{name}__", _binary(operation, name, False))
        setattr(Remote, f"__r{name}__", _binary(operation, name, True))
        if name != "divmod":
            setattr(Remote, f"__i{name}__", _binary(f"i{name}", name, False))
    for name, method in (("eq", _equals), ("ne", _differs), ("contains", _contains), ("hash", _hash)):
        setattr(Remote, f"__{name}__", method)


def _equals(self: Remote, other: object) -> Any:
    if self is other and not self._remote_made:
        return True
    if (handle := handle_of(other)) is not None:
        return _believed(self, "eq", handle)
    value = _value(self, other)
    if not self._remote_made or self._remote_base is not MISSING or value is MISSING:
        return NotImplemented if value is MISSING else value == other
    return bool(value == other) and apply(self, "eq", self, other) is True


def _believed(self: Remote, operation: str, other: Remote) -> bool:
    """Whether a comparison of two objects of the program holds. Raises AssertionError if it is not believed."""
    expected = [(each, each._remote_expected) for each in (self, other)]
    if operation in ("lt", "gt"):
        holds = _ordered(self, operation, other)
    else:
        holds = _decided(apply(self, "agreed", operation, self, other))
    for each, number in expected:
        object.__setattr__(each, "_remote_expected", number)
    if holds and operation == "eq" and self is not other:
        self._remote_peer.expected.compared(self, other)
    return holds


def _ordered(self: Remote, operation: str, other: Remote) -> bool:
    """Whether one object comes before another, and the other never before it. Both are asked twice, in random order."""
    backwards = False
    for forward in random.SystemRandom().sample((True, True, False, False), 4):
        pair = (self, other) if forward else (other, self)
        try:
            holds = apply(self, "agreed", operation, *pair) is True
        except Exception:  # the other may have no order
            if forward:
                raise
            holds = False
        if forward and not holds:
            return False
        backwards |= holds and not forward
    return _decided(None if backwards else True)


def _decided(outcome: Any) -> bool:
    if outcome is None:
        raise AssertionError("a comparison that cannot be believed: the class makes it hold for other objects too")
    return outcome is True


def _differs(self: Remote, other: object) -> Any:
    equal = _equals(self, other)
    if equal is NotImplemented or equal:
        return equal if equal is NotImplemented else False
    handle = handle_of(other)
    return handle is None or apply(self, "eq", self, handle) is not True


def _contains(self: Remote, item: Any) -> bool:
    if isinstance(item, Remote):
        return _decided(apply(self, "contains", self, item))
    if self._remote_made and apply(self, "hasattr", self, "__contains__"):
        return _decided(chosen(self, item, lambda container, each: apply(self, "contains", container, each)))
    return any(item is each or item == each for each in self)


def _hash(self: Remote) -> int:
    return int(apply(self, "hash", self))


def _value(remote: Remote, like: Any) -> Any:
    """The plain value that an object gives, of the kind of `like`; MISSING when it gives none."""
    if remote._remote_base is not MISSING:
        return remote._remote_base
    if remote._remote_kind is not None and not remote._remote_told:
        return apply(remote, "plain", remote)
    if not remote._remote_made or remote._remote_told:
        return MISSING
    try:
        if isinstance(like, complex):
            return apply(remote, "complex", remote)
        if isinstance(like, _NUMBERS) and not isinstance(like, bool):
            return _real(remote)
        if isinstance(like, str):
            return apply(remote, "str", remote)
        kind = next((kind for kind in (list, tuple, set, frozenset, dict) if isinstance(like, kind)), None)
        return MISSING if kind is None else kind(remote)
    except Exception:  # its class has no such value
        return MISSING


def _real(remote: Remote) -> Any:
    """The number that an object gives: an integer if it equals the float; MISSING when it gives none."""
    whole = _asked(remote, "int")
    real = _asked(remote, "float")
    return whole if real is MISSING or (whole is not MISSING and whole == real) else real


def _asked(remote: Remote, kind: str) -> Any:
    try:
        return apply(remote, kind, remote)
    except Exception:  # its class has no such value
        return MISSING


def _data(operation: str) -> Callable[..., Any]:
    return lambda self, *args: apply(self, operation, self, *args)


def _unary(operation: str) -> Callable[..., Any]:
    def method(self: Remote, *args: Any) -> Any:
        if operation == "bool" and not self._remote_told:
            return apply(self, operation, self)
        if not self._remote_made:
            raise TypeError(f"bad operand for {operation}(): an object that the program returned")
        if self._remote_told and operation in _VALUES:
            raise TypeError(f"bad operand for {operation}(): an object that has seen the value to compare with")
        return _made(apply(self, operation, self, *args), self._remote_told)

    return method


def _ordering(operation: str) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if (handle := handle_of(other)) is not None:
            return _believed(self, operation, handle)
        value = _value(self, other)
        return NotImplemented if value is MISSING else getattr(operator, operation)(value, other)

    return method


def _binary(operation: str, name: str, reflected: bool) -> Callable[[Remote, Any], Any]:
    """An operator of two operands. `name` is its name without the `i` of in-place operators."""

    def method(self: Remote, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        if (handle := handle_of(other)) is not None:
            return _made(apply(self, operation, *operands), self._remote_told or handle._remote_told)
        if not self._remote_made:
            plain = self._remote_kind is not None
            return _computed(name, apply(self, "plain", self), other, reflected) if plain else NotImplemented
        value = _number(self, operation, name, other, reflected)
        if value is not MISSING:
            return value
        result = apply(self, operation, *operands)
        if isinstance(result, (bool, *_NUMBERS)) or (isinstance(handle_of(result), Remote) and _is_number(result)):
            raise TypeError(f"{name}: the program's own operator against plain data")
        if handle_of(result) is None and not isinstance(result, (str, bytes)) and not _has_content(result):
            raise TypeError(f"{name}: the program's own operator leaves nothing of plain data")
        return _made(result, self._remote_told or operation not in _SCALING)

    return method


def _number(remote: Remote, operation: str, name: str, other: Any, reflected: bool) -> Any:
    """The result of an operator with a number, for an object that acts as a number; MISSING for any other object."""
    base = remote._remote_base
    if isinstance(base, _NUMBERS):
        return _computed(name, base, other, reflected)
    if name not in _NEUTRAL or operation != name or not isinstance(other, _NUMBERS) or remote._remote_told:
        return MISSING
    neutral = type(other)(_NEUTRAL[name])
    try:
        value: Any = apply(remote, operation, *((neutral, remote) if reflected else (remote, neutral)))
    except Exception:  # its class takes no such number
        return MISSING
    if not isinstance(value, _NUMBERS) or handle_of(value) is not None:
        return MISSING
    if not reflected:
        return _compute(name, value, other)
    return _compute("add" if name in ("add", "sub") else "mul", other, value)


def _computed(name: str, own: Any, other: Any, reflected: bool) -> Any:
    return _compute(name, other, own) if reflected else _compute(name, own, other)


def _compute(name: str, first: Any, second: Any) -> Any:
    function = divmod if name == "divmod" else getattr(operator, _BINARY[name])
    return function(first, second)


def _is_number(value: Any) -> bool:
    handle = handle_of(value)
    return handle is not None and isinstance(handle._remote_base, _NUMBERS)


def _has_content(value: Any) -> bool:
    try:
        return len(value) > 0
    except TypeError:
        return value is not None


def _made(result: Any, told: bool) -> Any:
    """Mark a result of operators on objects of the test as made by the test."""
    handle = handle_of(result)
    if handle is None:
        return result
    object.__setattr__(handle, "_remote_made", True)
    if told:
        object.__setattr__(handle, "_remote_told", True)
    return handle
