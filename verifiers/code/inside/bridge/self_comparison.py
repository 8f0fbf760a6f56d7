"""Decides whether to believe a program's comparison of two of its own objects.

A class can call all its objects equal, or each less than the other. So a true comparison is repeated with decoys:
objects of the same classes made with other arguments, and copies with other attributes. An equality is believed if

- some decoys of either object are unequal to the other object, so both objects matter;
- all decoys but one are, if the objects differ in content and the test did not make both: a loose comparison accepts
  several decoys that are near, have a remainder in common, or begin or end alike, and an exact one at most one by
  chance, as 1/2 is 2/4; such objects are of one class, and both have content;
- no argument with which the test made one object is ignored where the other object differs in it;
- a class that makes one object for different arguments does not compare it with itself;
- neither object was changed by anything that the test made later: a constructor is told the expected value.

An order is believed if it holds in one direction only. A comparison that is not believed is neither true nor false, so
a test that expects either fails. This runs in the program's process, which may patch it. So the test process asks about
plain items and both directions itself, and expects other objects: see `operators` and `expected_objects`.
"""

from __future__ import annotations

import datetime
import enum
import inspect
import itertools
import operator
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterator
from decimal import Decimal
from fractions import Fraction
from types import BuiltinMethodType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, NamedTuple

Steps = tuple[tuple[Any, ...], ...]
STRANGER = "\0stranger"
FAR: Steps = ((11, 4), (1013, 338), (-40961, -13653))
"""The amount by which a decoy's first number differs, and how much more each further one does. The amounts change the
remainder by each number of hours, days, months or letters."""
_HEAD, _TAIL = slice(0, -1), slice(1, None)
_NEAR: Steps = (
    (1, 1), (-1, 0), (2, -3), (0.25, 0.0625), (0.3125, 0.03125),
    (4, 8), (-4, 12), (5, 10), (-5, 15), (6, 12), (-6, 18),
    (17, 6, _HEAD), (-23, 10, _HEAD), (29, 14, _TAIL), (-31, -8, _TAIL),
)  # fmt: skip
"""Small amounts, two multiples of each number to 6, and parts of each text and list to keep."""
_SAME = (0, 0)
_REPEATED = 3
_MAX_PARTS = 2000
_HEAP_TYPE = 1 << 9
_ORDERS = {"lt": operator.lt, "gt": operator.gt, "le": operator.le, "ge": operator.ge}
_EQUAL = operator.eq
PLAIN_BASES = (int, float, complex, str, bytes, tuple, frozenset)
"""Immutable types. A value of a subclass has a plain value, which is set when it is made."""
MUTABLE_BASES: dict[type, Any] = {
    list: list.extend, set: set.update, dict: dict.update, deque: deque.extend, OrderedDict: OrderedDict.update,
    defaultdict: dict.update,
}  # fmt: skip
"""Mutable types, with their methods that add content."""
BASES = (*PLAIN_BASES, *MUTABLE_BASES)
MISSING: Any = object()
_NUMBERS = (int, float, complex, Decimal, Fraction)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
_HOLDERS = (*_SEQUENCES, *_SETS, *_MAPPINGS)

Compare = Callable[[Any, Any], Any]


class _Making(NamedTuple):
    """How the test made an object."""

    call: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def others(self, steps: Steps) -> list[Any]:
        """Objects made with other arguments."""
        given = [*self.args, *self.kwargs.values()]
        changed = [list(map(Altered(step).value, given)) for step in steps]
        if all(alike(given, other) for other in changed):
            changed = [list(map(Altered(step, STRANGER).value, given)) for step in steps]
        return [made for values in changed if given for made in self._made_with(values)]

    def with_other(self, place: int) -> list[Any]:
        """Objects made with another value of one argument."""
        given = [*self.args, *self.kwargs.values()]
        others = [Altered(step).value(given[place]) for step in (*_NEAR, *FAR)]
        changed = [[*given[:place], other, *given[place + 1 :]] for other in others if not alike(given[place], other)]
        return [made for values in changed for made in self._made_with(values)]

    def _made_with(self, values: list[Any]) -> list[Any]:
        """The object made with these arguments; empty if the class takes no such arguments."""
        args, named = values[: len(self.args)], values[len(self.args) :]
        try:
            return [self.call(*args, **dict(zip(self.kwargs, named, strict=True)))]
        except Exception:
            return []

    def still(self, value: Any) -> bool:
        """Whether the object is as the class made it."""
        try:
            return isinstance(self.call, type) and alike(self.call(*self.args, **self.kwargs), value)
        except Exception:  # the class makes it only once
            return False


class Doubt:
    """Remembers how objects were made and what they held, and makes others in the same way."""

    def __init__(self, numbers: dict[int, int], objects: list[Any]) -> None:
        """
        Args:
            numbers: by its id, the place of each object that the test knows in `objects`. Older objects come first.
        """
        self._numbers = numbers
        self._objects = objects
        self._made: dict[int, _Making] = {}
        self.found: set[int] = set()
        """The ids of what the test found by its name."""
        self._ages: list[int] = []
        """The age of each object: its number, or that of the object that gave it to the test."""
        self._actor_age = -1
        self._watched: dict[int, Any] = {}
        """By number, the content of each object with an equality before something younger acted; else MISSING."""

    def plain(self, value: Any) -> Any:
        """The content of an object of a class like list or dict, without using methods of the class."""
        return plain_copy(_base(type(value)), self.unchanged(value))

    def acts(self, actor: Any, arguments: tuple[Any, ...]) -> None:
        """Record the content of what the actor may not change: all that is older than it and was not given to it."""
        for number in range(len(self._ages), len(self._objects)):
            self._ages.append(number if self._actor_age < 0 else min(number, self._actor_age))
            if _is_comparable(type(self._objects[number])):
                self._watched[number] = MISSING
        owner = actor.__self__ if isinstance(actor, MethodType | BuiltinMethodType) else actor
        given = (*arguments, *(self._made[id(owner)].args if id(owner) in self._made else ()))
        reached = {id(part) for each in given for part in (each, *(_listed(each) if type(each) in _HOLDERS else ()))}
        self._actor_age = age = -1 if id(actor) in self.found and not isinstance(actor, type) else self._age(owner)
        for number, content in self._watched.items():
            value = self._objects[number]
            if self._ages[number] >= age or id(value) in reached:
                if self._is_unchanged(number):
                    self._watched[number] = MISSING
            elif content is MISSING:
                self._watched[number] = Altered(_SAME, kept=self._numbers).value(_content(value))

    def _age(self, actor: Any) -> int:
        """A class is the youngest, because it makes what is younger than all."""
        number = None if isinstance(actor, type) else self._numbers.get(id(actor))
        return len(self._objects) if number is None else self._ages[number]

    def unchanged(self, value: Any) -> Any:
        """The object itself. Raises AssertionError if something younger changed it, or an object that it holds."""
        left, seen = [value], set()
        while left:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if not self._is_unchanged(self._numbers.get(id(each), len(self._ages))):
                raise AssertionError("the program changed an object while the test made another")
            if type(each) in _HOLDERS:
                left += _listed(each)
            elif type(each).__flags__ & _HEAP_TYPE and not isinstance(each, type):
                left += _content(each)
        return value

    def saw(self, call: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Record that the test made an object with a class or a class method. The handles keep the object alive."""
        kind = call.__self__ if inspect.ismethod(call) else call
        if _inherits(type(made), kind):
            self._made[id(made)] = _Making(call, tuple(args), dict(kwargs))

    def _is_unchanged(self, number: int) -> bool:
        if number >= len(self._ages):
            return True
        content = self._watched.get(number, MISSING)
        if content is MISSING:  # either it may have changed, or its class got an equality late
            return number in self._watched or not _is_comparable(type(self._objects[number]))
        return alike(content, _content(self._objects[number]))

    def is_shared(self, value: Any) -> bool:
        """Whether a class made an object again: it changed it, or makes the same one for other arguments."""
        making = self._made.get(id(value))
        changed = not self._is_unchanged(self._numbers[id(value)])
        return changed or (making is not None and any(other is value for other in making.others(FAR)))

    def agreed(self, operation: str, first: Any, second: Any) -> bool | None:
        """Whether a comparison holds. None if it holds and is not believed."""
        first, second = self.unchanged(first), self.unchanged(second)
        if operation == "eq":
            return self._equal(first, second)
        compare = _ORDERS[operation]
        holds = bool(compare(first, second))
        if operation in ("lt", "gt") or not holds:
            return holds
        return not _holds(compare, second, first) or self._orders(compare, first, second) or None

    def contains(self, container: Any, item: Any) -> bool | None:
        """Whether an object contains an item. None if it claims to contain everything."""
        if not type(item).__flags__ & _HEAP_TYPE:  # the test asks about other plain items itself
            return operator.contains(container, item)
        return chosen(container, item)

    def is_instance(self, value: Any, kind: Any) -> bool:
        """Whether an object is of a class, without asking the object. An abstract class may claim it, but not all."""
        if _inherits(type(value), kind):
            return True
        if type(kind) is type:
            return False
        try:
            return issubclass(type(value), kind) and not any(issubclass(each, kind) for each in (str, object))
        except TypeError:  # a protocol with attributes
            return isinstance(value, kind) and not isinstance(STRANGER, kind)

    def _equal(self, first: Any, second: Any) -> bool | None:
        makings = [self._made.get(id(each)) for each in (first, second)]
        if first is second:
            return not self.is_shared(first) or None
        is_same = alike(first, second)
        by_test = all(making and making.still(each) for making, each in zip(makings, (first, second), strict=True))
        questions = _Questions(first, second)
        strict = not is_same and not by_test
        if not strict and not _EQUAL(first, second):
            return False
        if strict and type(first) is not type(second):
            return None if _EQUAL(first, second) else False
        steps = (*_NEAR, *FAR) if strict else FAR
        sides = [questions.add(side, making, steps) for side, making in enumerate(makings)]
        if not any(sides) and not questions.known(STRANGER):
            # Objects without state are equal, if there is only one way to make them.
            return (_EQUAL(first, second) and all(_is_alone(each) for each in (first, second))) or None
        believed = questions.believed(strict)
        if not questions.equal and not _EQUAL(first, second):
            return False
        if not believed or questions.known(STRANGER) or (strict and not all(sides)):
            return None
        ignored = not by_test and any(questions.ignored(side, making) for side, making in enumerate(makings) if making)
        return not ignored or None

    def _orders(self, compare: Compare, first: Any, second: Any) -> bool:
        """Whether the order is believable: some decoy is not both before and after the first object."""
        families = [family for each in (first, second) for family in _families(each, self._made.get(id(each)), FAR)]
        decoys = [decoy for family in families for decoy in family]
        return not decoys or any(not (_holds(compare, first, x) and _holds(compare, x, first)) for x in decoys)


def chosen(container: Any, item: Any, contains: Compare = operator.contains) -> bool | None:
    """Whether a container has an item. None if it has all others as well, or changes its mind: all are asked twice."""
    others = [other for step in FAR if (other := Altered(step).value(item)) is not item] or [STRANGER]
    answers: list[dict[int, bool]] = [{}, {}]
    for given in answers:
        for place in random.SystemRandom().sample(range(len(others) + 1), len(others) + 1):
            if place < len(others):
                given[place] = _holds(contains, container, others[place])
            elif contains(container, item) is not True:
                return False
    return (answers[0] == answers[1] and not all(answers[0].values())) or None


class _Questions:
    """Comparisons of two objects with each other and with decoys, in a random order.

    Each is made with fresh copies, because an object may become the one that it is shown.
    """

    def __init__(self, first: Any, second: Any) -> None:
        """Copy the objects before their first comparison."""
        self.families = 0
        self.equal = False
        """Whether the objects were equal each time."""
        pair = _copies(first, second)
        self._copied = all(map(alike, pair, (first, second)))
        self._pair = pair if self._copied else (first, second)
        self._asked: list[tuple[int, int, Any]] = [(0, 0, None)] * _REPEATED

    def known(self, stranger: Any) -> bool:
        """Whether the first object equals something that no object equals."""
        return _holds(_EQUAL, self._fresh(self._pair[0]), stranger)

    def add(self, side: int, making: _Making | None, steps: Steps) -> int:
        """Add decoys in place of the first (0) or second (1) object. Returns their number."""
        before = len(self._asked)
        for decoys in _families(self._pair[side], making, steps):
            if decoys:
                self.families += 1
                self._asked += [(self.families, side, decoy) for decoy in decoys]
        return len(self._asked) - before

    def believed(self, strict: bool) -> bool:
        """Whether the objects are always equal, and some decoys of each family are not; if strict, all but one."""
        random.SystemRandom().shuffle(self._asked)
        answers: dict[int, list[bool]] = {}
        for family, side, decoy in self._asked:
            equal = self._equal(side, decoy) if family else self._repeated()
            if family:
                answers.setdefault(family, []).append(equal)
            elif not equal:
                return False
        self.equal = True
        return all(not all(found) and (sum(found) < 2 or not strict) for found in answers.values())

    def ignored(self, side: int, making: _Making) -> bool:
        """Whether some argument of the test does not matter to the class, and the other object differs in it."""
        return any(self._ignores(side, making, place) for place in range(len(making.args) + len(making.kwargs)))

    def _ignores(self, side: int, making: _Making, place: int) -> bool:
        decoys = making.with_other(place)
        if not decoys or not all(self._equal(side, decoy) for decoy in decoys):
            return False
        own, other, altered = map(_attributes, (self._pair[side], self._pair[1 - side], decoys[0]))
        recorded = [name for name in own if not alike(own[name], altered.get(name))]
        return not recorded or any(not alike(own[name], other.get(name)) for name in recorded)

    def _equal(self, side: int, decoy: Any) -> bool:
        kept = self._fresh(self._pair[1 - side])
        return _holds(_EQUAL, kept, decoy) if side else _holds(_EQUAL, decoy, kept)

    def _repeated(self) -> bool:
        return _holds(_EQUAL, *(_copies(*self._pair) if self._copied else self._pair))

    def _fresh(self, value: Any) -> Any:
        return _copies(value, value)[0] if self._copied else value


def _families(value: Any, making: _Making | None, steps: Steps) -> Iterator[list[Any]]:
    """Objects of its class with other content: first made with other arguments, then with other attributes."""
    if not type(value).__flags__ & _HEAP_TYPE:
        return
    made = making.others(steps) if making is not None else []
    yield _unlike(made, value) or made
    twins = [twin for step in steps if (twin := Altered(step).twin(value)) is not None]
    yield _unlike(twins, value) or [Altered(step, STRANGER).twin(value) for step in steps if twins]


def _unlike(decoys: list[Any], value: Any) -> list[Any]:
    return [decoy for decoy in decoys if not alike(decoy, value)]


def _copies(first: Any, second: Any) -> tuple[Any, Any]:
    """Copies of two objects; None for one without state. What they share, their copies share."""
    same = Altered(_SAME)
    return same.twin(first), same.twin(second)


class Altered:
    """Values of the same shape with other content; each part is changed by another amount."""

    def __init__(self, step: tuple[Any, ...], absent: Any = None, kept: Container[int] = ()) -> None:
        """
        Args:
            step: one of `_NEAR` or `FAR`. `_SAME` makes copies with the same content.
            absent: the value in place of None.
            kept: the ids of objects that are not copied.
        """
        self._same = step == _SAME
        self._absent = absent
        self._uncopied = kept
        self._steps = itertools.count(*step[:2])
        self._kept: slice | None = step[2] if len(step) > 2 else None
        self._parts = 0
        self._known: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            return value
        kind = type(value)
        if kind in (*_SEQUENCES, *_SETS):
            return self._items(kind, value)
        if kind in _MAPPINGS:
            return self._mapping(value)
        if not (kind.__flags__ & _HEAP_TYPE) or isinstance(kind, enum.EnumMeta) or kind in _PLAIN:
            return value if self._same else self._scalar(kind, value)
        twin = None if callable(value) else self.twin(value)
        return value if twin is None else twin

    def _scalar(self, kind: Any, value: Any) -> Any:
        if value is None:
            return self._absent
        if kind is bool:
            return not value
        if kind in _NUMBERS:
            amount = next(self._steps)
            return value + (Decimal(amount) if kind is Decimal else amount)
        if kind is str:
            changed = "".join(self._most(_next, value))
            return changed if changed != value else value + "b"
        if kind in (bytes, bytearray):
            return value + b"b"
        if kind in (datetime.date, datetime.datetime, datetime.timedelta):
            return value + datetime.timedelta(days=next(self._steps))
        if isinstance(kind, enum.EnumMeta):
            members: list[Any] = list(kind)
            return members[(members.index(value) + 1) % len(members)]
        return value

    def _items(self, kind: Any, value: Any) -> Any:
        if not value and not self._same:
            return kind((next(self._steps),))
        items = map(self.value, value) if kind in _SETS else self._most(self.value, value)
        return deque(items, value.maxlen) if kind is deque else kind(items)

    def _most(self, change: Callable[[Any], Any], parts: Any) -> list[Any]:
        """The changed parts, but for those to keep. A single part is never kept."""
        parts = list(parts)
        changed = list(map(change, parts))
        if self._kept is not None and len(parts) > 1:
            changed[self._kept] = parts[self._kept]
        return changed

    def _mapping(self, value: Any) -> Any:
        changed = value.copy()
        for key, item in value.items():
            changed[key] = self.value(item)
        if not changed and not self._same:
            changed[STRANGER] = 0
        return changed

    def twin(self, value: Any) -> Any:
        """A copy of an object with other attributes; None for an object without attributes."""
        if id(value) in self._known or id(value) in self._uncopied:
            return self._known.get(id(value), value)
        kind = type(value)
        attributes = _attributes(value)
        base = _base(kind)
        if not attributes and base not in BASES:
            return None
        try:
            content = () if base not in PLAIN_BASES else (self.value(plain_copy(base, value)),)
            twin = self._known[id(value)] = base.__new__(kind, *content)
            if base in MUTABLE_BASES:
                MUTABLE_BASES[base](twin, self.value(plain_copy(base, value)))
            for name, item in attributes.items():
                object.__setattr__(twin, name, self.value(item))
        except Exception:  # a class that cannot be copied so
            return None
        return twin


_PLAIN = (Decimal, Fraction, datetime.date, datetime.datetime, datetime.timedelta)


def _inherits(kind: type, ancestor: Any) -> bool:
    """Whether a class has an ancestor, without asking either class."""
    return any(each is ancestor for each in type.__dict__["__mro__"].__get__(kind))


def _is_comparable(kind: Any) -> bool:
    """Whether it is a class of the program with an equality of its own."""
    return bool(kind.__flags__ & _HEAP_TYPE) and kind.__eq__ is not object.__eq__ and not issubclass(kind, type)


def _base(kind: type) -> Any:
    """The built-in type that a class extends."""
    return next(each for each in kind.__mro__ if each in BASES or not each.__flags__ & _HEAP_TYPE)


def alike(first: Any, second: Any) -> bool:
    """Whether two values have the same content, without using methods of the program's classes."""
    try:
        return _same(first, second, set())
    except Exception:  # nested too deeply
        return False


def _same(first: Any, second: Any, seen: set[tuple[int, int]]) -> bool:
    kind = type(first)
    if first is second or (id(first), id(second)) in seen:
        return True
    if kind in _NUMBERS and type(second) in _NUMBERS:
        return bool(first == second)
    if kind is not type(second):
        return False
    if kind in (*_SEQUENCES, *_MAPPINGS):
        seen.add((id(first), id(second)))
        return len(first) == len(second) and all(
            _same(a, b, seen) for a, b in zip(_listed(first), _listed(second), strict=True)
        )
    if kind in _SETS:
        if all(type(item) in (*_NUMBERS, str, bytes) for item in first):
            return bool(first == second)
        return len(first) == len(second) and all(any(_same(a, b, set(seen)) for b in second) for a in first)
    if not kind.__flags__ & _HEAP_TYPE or isinstance(kind, enum.EnumMeta) or kind in _PLAIN:
        return kind in (str, bytes, bytearray, bool, *_PLAIN) and bool(first == second)
    seen.add((id(first), id(second)))
    base = _base(kind)
    return (base is object or base in BASES) and _same(_content(first), _content(second), seen)


def _content(value: Any) -> tuple[Any, dict[str, Any]]:
    """The plain value and the attributes of an object."""
    base = _base(type(value))
    return plain_copy(base, value) if base in BASES else None, _attributes(value)


def _listed(value: Any) -> list[Any]:
    return [part for pair in value.items() for part in pair] if isinstance(value, dict) else list(value)


def plain_copy(base: Any, value: Any) -> Any:
    """The plain value of an object of a subclass, without using methods of the subclass."""
    if base in _MAPPINGS:
        return dict(base.items(value))
    if base in (*_SEQUENCES, *_SETS):
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
    for kind in type(value).__mro__[:-1]:
        for name, member in vars(kind).items():
            if type(member) is MemberDescriptorType:
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
            elif name == "__dict__" and type(member) is GetSetDescriptorType:
                found.update(member.__get__(value))
    return found


def _holds(compare: Compare, first: Any, second: Any) -> bool:
    """Whether a comparison is true. A comparison that raises is not."""
    try:
        return bool(compare(first, second))
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
