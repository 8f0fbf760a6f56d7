"""Decides whether to believe a program's comparison of two of its own objects.

A class can call all its objects equal, or each less than the other. So a true comparison is repeated with decoys:
objects of the same classes made with other arguments, and copies with other attributes. It is believed if it is false
for some decoys, and true each time that it is made between them. A comparison that is not believed is neither true nor
false, so a test that expects either fails. Runs in the program's process, where the test does not see it.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

STRANGER = "\0stranger"
_DECOYS = 3
_REPEATED = 3
_STEPS = (7, 1013, 40961)
_MAX_PARTS = 2000
_HEAP_TYPE = 1 << 9
_ORDERS = {"lt": operator.lt, "gt": operator.gt, "le": operator.le, "ge": operator.ge}
_EQUAL = operator.eq
PLAIN_BASES = (int, float, complex, str, bytes, tuple, frozenset)
"""Immutable types. A value of a subclass has a plain value, which is set when it is made."""
_FILLED: dict[type, Any] = {list: list.extend, set: set.update, dict: dict.update}

Compare = Callable[[Any, Any], Any]


class Doubt:
    """Remembers how objects were made, and makes others in the same way."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any, Any]] = {}

    def saw(self, kind: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Record that the test made an object by calling a class. The handles keep the object alive."""
        self._made[id(made)] = kind, tuple(args), dict(kwargs)

    def agreed(self, operation: str, first: Any, second: Any) -> bool | None:
        """Whether a comparison holds. None if it holds and is not believed."""
        compare = _EQUAL if operation == "eq" else _ORDERS[operation]
        if compare(first, second) is not True:
            return False
        if operation == "eq":
            return self._distinguishes(first, second) or None
        backwards = _holds(compare, second, first)
        if operation in ("lt", "gt"):
            return (not backwards and _holds(compare, first, second)) or None
        return not backwards or self._orders(compare, first, second) or None

    def contains(self, container: Any, item: Any) -> bool | None:
        """Whether an object contains an item. None if it claims to contain everything."""
        if operator.contains(container, item) is not True:
            return False
        others = [other for step in _STEPS if (other := _Altered(step).value(item)) is not item]
        return not all(_holds(operator.contains, container, other) for other in others or [STRANGER]) or None

    def is_instance(self, value: Any, kind: Any) -> bool:
        """Whether an object is of a class. False for a class that claims every object."""
        return isinstance(value, kind) and not isinstance(STRANGER, kind)

    def _distinguishes(self, first: Any, second: Any) -> bool:
        if _holds(_EQUAL, first, STRANGER):
            return False
        families = [decoys for each in (first, second) for decoys in self._decoys(each) if decoys]
        if not families:
            # Objects without state are equal, if there is only one way to make them.
            return all(_is_alone(each) for each in (first, second))
        questions: list[tuple[int | None, Any]] = [
            (number, decoy) for number, decoys in enumerate(families) for decoy in decoys
        ]
        questions += [(None, second)] * _REPEATED
        random.SystemRandom().shuffle(questions)
        answers = [(number, _holds(_EQUAL, first, other)) for number, other in questions]
        differs = {number for number, holds in answers if not holds}
        return differs == set(range(len(families)))

    def _orders(self, compare: Compare, first: Any, second: Any) -> bool:
        """Whether the order is believable: some decoy is not both before and after the first object."""
        decoys = [decoy for each in (first, second) for family in self._decoys(each) for decoy in family]
        return not decoys or any(not (_holds(compare, first, x) and _holds(compare, x, first)) for x in decoys)

    def _decoys(self, value: Any) -> Iterator[list[Any]]:
        """Objects of its class with other content: first made with other arguments, then with other attributes."""
        if not type(value).__flags__ & _HEAP_TYPE:
            return
        kind, args, kwargs = self._made.get(id(value), (None, (), {}))
        found: list[Any] = []
        for step in _STEPS[: _DECOYS if args or kwargs else 0]:
            altered = _Altered(step)
            try:
                named = {name: altered.value(item) for name, item in kwargs.items()}
                found.append(kind(*map(altered.value, args), **named))
            except Exception:  # the class takes no such arguments
                continue
        yield found
        yield [twin for step in _STEPS if (twin := _Altered(step).twin(value)) is not None]


class _Altered:
    """Values of the same shape with other content; each part is changed by another amount."""

    def __init__(self, step: int) -> None:
        self._steps = itertools.count(step, step // 3 + 1)
        self._parts = 0
        self._known: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        kind = type(value)
        self._parts += 1
        if self._parts > _MAX_PARTS:
            return value
        if kind is bool:
            return not value
        if kind in (int, float, complex):
            return value + next(self._steps)
        if kind is str:
            return "".join(map(_next, value)) or "b"
        if kind is bytes:
            return value + b"b"
        if kind in (list, tuple, set, frozenset):
            return kind(map(self.value, value)) if value else kind((next(self._steps),))
        if kind is dict:
            return {key: self.value(item) for key, item in value.items()} or {STRANGER: 0}
        twin = self.twin(value) if kind.__flags__ & _HEAP_TYPE and not callable(value) else None
        return value if twin is None else twin

    def twin(self, value: Any) -> Any:
        """A copy of an object with other attributes; None for an object without attributes."""
        if id(value) in self._known:
            return self._known[id(value)]
        kind = type(value)
        attributes = _attributes(value)
        base = next(each for each in kind.__mro__ if not each.__flags__ & _HEAP_TYPE)
        if not attributes and base not in PLAIN_BASES and base not in _FILLED:
            return None
        try:
            content = () if base not in PLAIN_BASES else (self.value(plain_copy(base, value)),)
            twin = self._known[id(value)] = base.__new__(kind, *content)
            if base in _FILLED:
                _FILLED[base](twin, self.value(base(value)))
            for name, item in attributes.items():
                object.__setattr__(twin, name, self.value(item))
        except Exception:  # a class that cannot be copied so
            return None
        return twin


def plain_copy(base: Any, value: Any) -> Any:
    """The plain value of an object of a subclass, without using methods of the subclass."""
    if base in (tuple, frozenset):
        return base(base.__iter__(value))
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    return str.__str__(value) if base is str else base.__pos__(value)


def _next(letter: str) -> str:
    """The next character of the same kind: a class may parse digits and letters."""
    if letter.isascii() and letter.isalnum():
        return {"9": "0", "z": "a", "Z": "A"}.get(letter, chr(ord(letter) + 1))
    return letter


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, without using methods of its class."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if inspect.ismemberdescriptor(member):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
            elif name == "__dict__" and inspect.isgetsetdescriptor(member):
                found.update(member.__get__(value))
    return found


def _holds(compare: Compare, first: Any, second: Any) -> bool:
    """Whether a comparison is true. A comparison that raises is not."""
    try:
        return compare(first, second) is True
    except Exception:
        return False


def _is_alone(value: Any) -> bool:
    """Whether all objects of its class are made in the same way, because it takes no arguments."""
    kind = type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return True
    try:
        return not inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return False
