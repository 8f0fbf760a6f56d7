"""Looks up each name of a test: in the test itself, in Python, or in the program.

Python provides its builtins, and modules that the test uses with an attribute (`math.isclose`). Every other name must
come from the program or from an import of the test. A program without such a name fails, even if the test catches the
error. So the standard library never replaces a function that the program did not define.

A program cannot replace `len`, `sorted` or `isclose` in a test of something else. If a test uses a name that is neither
its own nor a builtin, the test is about that name, and builtins are Python's. Only in a test without such a name, like
`assert sum(10, 15) == 6`, is the builtin name looked up in the program.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from olmorl.verifiers.code.inside.bridge import standard_library
from olmorl.verifiers.code.inside.bridge.remote import RemoteClass, apply, handle_of
from olmorl.verifiers.code.inside.testing.name_uses import CALLED, GIVEN, WHOLE, NameUses

_JUDGES = frozenset(
    (
        "abs", "all", "any", "bool", "dict", "enumerate", "float", "frozenset", "int", "isinstance", "len", "list",
        "next", "print", "range", "repr", "round", "set", "sorted", "str", "tuple", "type", "zip",
    )
)  # fmt: skip
"""Builtins that tests often apply to the result of the tested call."""

_ASKS_FIRST = {"AttributeError", "hasattr", "getattr"}
"""A test with one of these names expects that attributes may be missing."""


class NameLookup(dict[str, Any]):
    """The builtins of a test. A name that is missing here is looked up in the program each time."""

    def __init__(self, uses: NameUses, find: Callable[[str], Any]) -> None:
        """
        Args:
            find: looks a name up in the program. Raises NameError.
        """
        super().__init__({**vars(builtins), "type": KindOf})
        self.found: set[str] = set()
        """Names that the program provided."""
        self.fault = ""
        """The missing name, or the function that differs from Python's. A program with a fault never passes."""
        self._uses = uses
        self._find = find
        free = uses.free
        shadowed = {name for name in free - uses.imported if name in vars(builtins)}
        modules = {name: module for name in free - shadowed if (module := self._module(name)) is not None}
        constants = {name: value for name in free - shadowed if (value := self._constant(name)) is not None}
        subjects = free - shadowed - modules.keys() - constants.keys()
        self.update(modules)
        self._exceptions = {name for name in shadowed if _is_exception(vars(builtins)[name])}
        self._compared = {name for name in subjects - uses.imported if self._judges_with(name, subjects)}
        for name in self._exceptions | (uses.imported & self.keys()):
            del self[name]
        if subjects:
            self.update(constants)
        elif tested := _tested(shadowed - self._exceptions):
            del self[tested]

    def __missing__(self, name: str) -> Any:
        if name in self._exceptions:
            return self._exception(name)
        found = self.of_program(name)
        if CALLED in self._uses.read.get(name, ()) and not callable(found):
            self._blame(f"{name!r} is not a function")
        if name in self._compared:
            found = self._agreeing(name, found)
        if callable(found):
            self[name] = found
        return found

    def of_program(self, name: str) -> Any:
        """The program's object of that name. Raises NameError."""
        try:
            found = self._find(name)
        except NameError:
            if not name.startswith("__"):
                self._blame(f"name {name!r} is not defined")
            raise
        if name not in standard_library.PROVIDED:
            self.found.add(name)
        return found

    def lacks(self, method: str) -> None:
        """Record that an object of the program lacks a method that the test calls, so that the program fails."""
        if method in self._uses.methods and not _ASKS_FIRST & self._uses.read.keys():
            self._blame(f"no attribute {method!r}")

    def _blame(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _module(self, name: str) -> ModuleType | None:
        """The Python module of that name, if the test only reads attributes that the module has."""
        uses = self._uses.read.get(name, set())
        return standard_library.module(name, uses) if uses and not uses & {WHOLE, CALLED} else None

    def _constant(self, name: str) -> Any:
        """A constant like `pi`, if the test only reads it. Names that the test calls are never provided."""
        found = standard_library.member(name, standard_library.JUDGING)
        return None if callable(found) or CALLED in self._uses.read.get(name, ()) else found

    def _judges_with(self, name: str, subjects: set[str]) -> bool:
        """Whether Python has a function of that name, and the test passes it the result of another function."""
        found = standard_library.member(name, standard_library.JUDGING)
        uses = self._uses.read.get(name, set())
        return len(subjects) > 1 and callable(found) and bool({GIVEN, WHOLE} & uses)

    def _exception(self, name: str) -> Any:
        """The program's exception of that name if it defines one, else Python's."""
        try:
            found = self._find(name)
        except NameError:
            found = None
        self[name] = found if _is_exception(found) and found.__module__ != "builtins" else vars(builtins)[name]
        return self[name]

    def _agreeing(self, name: str, own: Any) -> Any:
        """The program's function, checked at each call against Python's function of the same name."""
        ours = standard_library.member(name, standard_library.JUDGING)
        if own is ours or not callable(own) or isinstance(own, (type, RemoteClass)):
            return own  # `operators` checks objects of the program's own classes

        def checked(*args: Any, **kwargs: Any) -> Any:
            theirs, error = _outcome(own, args, kwargs)
            expected, expected_error = _outcome(ours, args, kwargs)
            if (error is None) is not (expected_error is None) or (error is None and not _alike(theirs, expected)):
                self._blame(f"the program's own {name} differs from Python's")
                raise AssertionError(self.fault)
            if expected_error is not None:
                raise expected_error
            return expected

        return checked


class _Metaclass(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        handle = handle_of(args[0]) if len(args) == 1 else None
        return type(*args, **kwargs) if handle is None else apply(handle, "type", handle)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (type, RemoteClass))


class KindOf(type, metaclass=_Metaclass):
    """`type` in tests. The type of an object of the program is the program's class."""


def _outcome(function: Any, args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def _alike(theirs: Any, ours: Any) -> bool:
    numbers = (int, float)
    if type(theirs) in numbers and type(ours) in numbers:
        return theirs == ours or math.isclose(theirs, ours, rel_tol=1e-6, abs_tol=1e-9)
    return type(theirs) is type(ours) and bool(theirs == ours)


def _tested(names: set[str]) -> str:
    """The builtin that a test without other names is about; "" if that is unclear."""
    public = {name for name in names if not name.startswith("_")}
    candidates = public if len(public) == 1 else public - _JUDGES
    return candidates.pop() if len(candidates) == 1 else ""


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
