"""Encodes values for the messages between a program and its tests.

Only exact built-in types and a few standard library types are sent. Numbers, text and other immutable values are
copied. A mutable container exists on both sides under one number. Each message updates the containers of the other
side, so the caller sees an argument that was changed in place. All other objects stay in their process and are sent as
handles.

In a message a value is a JSON scalar, or a list of a tag and its parts. Decoding a message never runs code of the peer.
"""

from __future__ import annotations

import itertools
import json
import operator
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

from olmorl.verifiers.code.inside.bridge import copied_values, standard_library

MAX_DEPTH = 100
"""The deepest nesting of tuples. Other containers have no such limit."""
MAX_MESSAGE_BYTES = 64 << 20
MAX_SHARED = 128
"""The most containers that are kept equal on both sides, in addition to the containers of the present call.

Beyond that number the least recently used become separate copies."""
_SCALARS = {type(None), bool, int, float, str}
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict}
_MUTABLE: dict[str, Any] = {
    "list": list, "set": set, "bytearray": bytearray, "deque": deque, "Random": random.Random, **_DICTS,
}  # fmt: skip
_FLAT = (bytearray, random.Random)
"""Containers whose content is sent as bytes."""
_WORDS = struct.Struct("<625I")
"""The state of `random.Random`. A number that it holds back may follow."""
_TAGS = {kind: tag for tag, kind in _MUTABLE.items()}
_FACTORIES = (
    bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, Counter, Decimal, Fraction,
    OrderedDict, defaultdict, deque,
)  # fmt: skip
"""Classes that make the missing values of a defaultdict. The other side calls them where it holds its own secrets."""


class CodecError(Exception):
    """A value cannot be sent, or a message is invalid."""


class Handles(Protocol):
    """Gives handles for objects that are not sent, and resolves the handles of the other side."""

    def name(self, value: Any, encode: Any) -> list[Any]:
        """The handle of a value that stays here. Raises CodecError."""
        ...

    def resolve(self, node: list[Any], decode: Any) -> Any:
        """The object of a handle. Raises CodecError."""
        ...


class _Shared:
    """One mutable container, and its content as last sent or received."""

    __slots__ = ("age", "born", "known", "value")

    def __init__(self, value: Any, age: int) -> None:
        self.value = value
        self.age = self.born = age
        self.known = _content(value)

    def changed(self) -> bool:
        now = self.value if type(self.value) is list else _content(self.value)
        return now != self.known if isinstance(now, bytes) else not _identical(now, self.known)


class Codec:
    """Both ends give a container the same number, because both see the same messages in the same order."""

    def __init__(self, handles: Handles, first: int) -> None:
        """
        Args:
            first: 0 on one side and 1 on the other. Each side numbers its own containers in steps of two.
        """
        self._handles = handles
        self._parity = first
        self._numbers = itertools.count(first, 2)
        self._shared: dict[int, _Shared] = {}
        self._number_of: dict[int, int] = {}
        self._fresh: list[int] = []
        self._used: set[int] = set()
        self._sent: set[int] = set()
        self.messages = 0
        """How many messages both sides have sent: the time."""
        self.actor_born = 0
        """When the object was made that the other side uses now. See `_is_fixed`."""

    def pack(self, kind: str, values: Iterable[Any]) -> bytes:
        """Encode a message. If it raises CodecError, the state of the codec is unchanged."""
        changed = [number for number, shared in self._shared.items() if shared.changed()]
        try:
            nodes = [self._encode(value, 0) for value in values]
            contents = [[number, *self._describe(self._shared[number].value)] for number in changed]
            # Describing a container may add further containers to the end of the list.
            contents += [[number, *self._describe(self._shared[number].value)] for number in self._fresh]
            message = json.dumps([kind, nodes, contents], separators=(",", ":")).encode()
            if len(message) > MAX_MESSAGE_BYTES:
                raise CodecError(f"a value of {len(message)} bytes")
        except Exception as error:
            for number in self._fresh:
                del self._number_of[id(self._shared.pop(number).value)]
            self._fresh.clear()
            self._used.clear()
            raise CodecError(f"a value that cannot be sent: {error}") from None
        for number, *_ in contents:
            self._use(number)
            self._shared[number].known = _content(self._shared[number].value)
        self._fresh.clear()
        self._sent = set(self._used)
        self._forget()
        return message

    def unpack(self, message: bytes) -> tuple[str, list[Any]]:
        """The kind and values of a message. Raises CodecError for a message that `pack` cannot have made."""
        try:
            kind, nodes, contents = json.loads(message)
            for number, tag, extra, _ in contents:
                self._prepare(number, tag, extra)
            for number, _, _, items in contents:
                self._fill(self._shared[number].value, items)
            for number, *_ in contents:
                self._use(number)
                self._shared[number].known = _content(self._shared[number].value)
            values = [self._decode(node, 0) for node in nodes]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"a message that cannot be read: {type(error).__name__}") from None
        if type(kind) is not str:
            raise CodecError("a message of unknown kind")
        self._forget()
        return kind, values

    def _forget(self) -> None:
        """Stop sharing the least recently used containers. Both sides saw the same uses, so both drop the same ones."""
        for number in self._used:
            self._shared[number].age = self.messages
        self._used.clear()
        self.messages += 1
        while len(self._shared) > MAX_SHARED:
            oldest = min(shared.age for shared in self._shared.values())
            if oldest >= self.messages - 2:  # used by this message, or by the call that it answers
                return
            for number in [number for number, shared in self._shared.items() if shared.age == oldest]:
                del self._number_of[id(self._shared.pop(number).value)]

    def _use(self, number: int) -> list[Any]:
        self._used.add(number)
        return ["shared", number]

    def _share(self, number: int, value: Any) -> None:
        self._shared[number] = _Shared(value, self.messages)
        self._number_of[id(value)] = number

    def _encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value if kind is not int or -copied_values.SAFE < value < copied_values.SAFE else ["int", hex(value)]
        if kind in _TAGS:
            number = self._number_of.get(id(value))
            if number is None:
                number = next(self._numbers)
                self._share(number, value)
                self._fresh.append(number)
            return self._use(number)
        if depth > MAX_DEPTH:
            raise CodecError("a value nested too deeply")
        if kind is tuple or kind is frozenset:
            return [kind.__name__, *(self._encode(item, depth + 1) for item in value)]
        return copied_values.node(value) or self._handles.name(value, lambda part: self._encode(part, depth + 1))

    def _describe(self, value: Any) -> tuple[str, Any, Any]:
        """The tag, extra data and items of a container."""
        extra: Any = None
        if type(value) is deque:
            extra = value.maxlen
        elif type(value) is defaultdict and any(value.default_factory is each for each in _FACTORIES):
            extra = standard_library.address(value.default_factory)
        content = _content(value)
        if type(value) in _FLAT:
            return _TAGS[type(value)], extra, content.hex()
        scalars = _SCALARS.issuperset(map(type, content)) and all(
            -copied_values.SAFE < item < copied_values.SAFE for item in content if type(item) is int
        )
        return _TAGS[type(value)], extra, content if scalars else [self._encode(item, 0) for item in content]

    def _prepare(self, number: int, tag: str, extra: Any) -> None:
        """Create the container of that number if it does not exist."""
        kind = _MUTABLE[tag]
        known = self._shared.get(number)
        if known is not None:
            if type(known.value) is not kind:
                raise CodecError("a container changed its type")
            if not self._is_fixed(number, known):
                return
            del self._number_of[id(known.value)]
        if type(number) is not int or number % 2 == self._parity:
            raise CodecError("a container with a number of the wrong side")
        if kind is deque:
            value: Any = deque(maxlen=extra)
        elif kind is defaultdict:
            factory = None if extra is None else standard_library.at(*extra)
            if factory is not None and factory not in _FACTORIES:
                raise CodecError("a defaultdict with a function that makes no plain values")
            value = defaultdict(factory)
        else:
            value = kind()
        self._share(number, value)

    def _is_fixed(self, number: int, known: _Shared) -> bool:
        """Whether a container keeps its content here, because something younger changes it without being given it.

        Its number goes to a new container: an answer must not change while the test makes the object that it expects.
        """
        return number % 2 != self._parity and known.born < self.actor_born and number not in self._sent

    def _fill(self, value: Any, items: Any) -> None:
        if type(value) is bytearray:
            value[:] = bytes.fromhex(items)
            return
        if type(value) is random.Random:
            _restore(value, bytes.fromhex(items))
            return
        parts = [item if type(item) in _SCALARS else self._decode(item, 0) for item in items]
        if type(value) is list:
            value[:] = parts
            return
        value.clear()
        if type(value) is set:
            value.update(parts)
        elif type(value) is deque:
            value.extend(parts)
        else:
            for key, item in zip(parts[::2], parts[1::2], strict=True):
                value[key] = item

    def _decode(self, node: Any, depth: int) -> Any:
        if type(node) is not list:
            if type(node) not in _SCALARS:
                raise CodecError("a value of unknown form")
            return node
        tag, *parts = node
        if tag == "shared":
            self._use(parts[0])
            return self._shared[parts[0]].value
        if depth > MAX_DEPTH:
            raise CodecError("a value nested too deeply")
        if tag in ("tuple", "frozenset"):
            items = (self._decode(part, depth + 1) for part in parts)
            return tuple(items) if tag == "tuple" else frozenset(items)
        if tag in copied_values.READERS:
            return copied_values.READERS[tag](*parts)
        return self._handles.resolve(node, lambda part: self._decode(part, depth + 1))


def _content(value: Any) -> Any:
    """The items of a container in a new list. A mapping gives each key followed by its value."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, random.Random):
        _, words, held = value.getstate()
        return _WORDS.pack(*words) + (b"" if held is None else struct.pack("<d", held))
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(dict.items(value)))
    return list(value)


def _restore(value: random.Random, state: bytes) -> None:
    """Set the state of a generator of random numbers. Raises ValueError."""
    words, held = state[: _WORDS.size], state[_WORDS.size :]
    if len(words) != _WORDS.size or len(held) not in (0, 8):
        raise ValueError("no state of a generator of random numbers")
    value.setstate((3, _WORDS.unpack(words), *(struct.unpack("<d", held) if held else (None,))))


def _identical(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))
