"""Handles in the test process: proxies for the program's objects, and numbers for the tests' own functions."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import inspect
import io
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodDescriptorType, MethodType
from typing import Any, cast

from olmorl.verifiers.code.inside.bridge import operators, standard_library
from olmorl.verifiers.code.inside.bridge.codec import CodecError
from olmorl.verifiers.code.inside.bridge.coroutines import Coroutines
from olmorl.verifiers.code.inside.bridge.function_stubs import description
from olmorl.verifiers.code.inside.bridge.peer import Peer
from olmorl.verifiers.code.inside.bridge.remote import (
    MISSING,
    Remote,
    RemoteCallable,
    RemoteClass,
    coroutine,
    generator,
    handle_of,
    with_base,
)

_FUNCTIONS = (
    FunctionType, MethodType, BuiltinFunctionType, BuiltinMethodType, MethodDescriptorType, partial, attrgetter,
    itemgetter, methodcaller, type,
)  # fmt: skip
_MUTABLE: dict[str, type] = {"list": list, "set": set, "dict": dict, "deque": deque}
_KINDS = {"callable": RemoteCallable, "class": RemoteClass}
operators.install()

TEST = "__main__"
"""The module name of classes that a test defines."""


class TesterHandles:
    """Each object of the program has exactly one proxy here."""

    def __init__(self) -> None:
        self.peer: Peer
        self.unsupported = ""
        """The reason why an object of the test could not be sent to the program; empty if all could."""
        self._stand_ins: dict[int, tuple[Remote, Any]] = {}
        self._exceptions: dict[int, type[BaseException]] = {}
        self._numbers: dict[int, int] = {}
        """Numbers of the program's objects whose proxy is no `Remote`, by the id of the proxy."""
        self._own: list[Any] = []
        self.unheard: set[int] = set()
        """Functions with an assertion that the program did not call; -1 if an assertion failed in some function."""
        self.has_assertion: Callable[[Any], bool] = lambda code: False
        self._coroutines = Coroutines()
        self._own_numbers: dict[int, int] = {}

    def call_back(self, number: int, args: Any, kwargs: Any) -> Any:
        """Call a function, or advance an iterator, of the test for the program."""
        own = self._own[number]
        with self._hearing(number):
            return own(*args, **kwargs) if callable(own) else next(own)

    def outcome(self, number: int, cancel: bool) -> tuple[Any, ...]:
        """The outcome of a coroutine of the test, for the program."""
        with self._hearing(number):
            return self._coroutines.outcome(self._own[number], cancel)

    @contextlib.contextmanager
    def _hearing(self, number: int) -> Iterator[None]:
        ran = True
        try:
            yield
        except (AssertionError, TypeError) as error:
            ran = not isinstance(error, TypeError)  # perhaps for the arguments: then no assertion ran
            self.unheard |= {-1} if ran else set()
            raise
        finally:
            self.unheard -= {number} if ran else set()

    def name(self, value: Any, encode: Any) -> list[Any]:
        handle = handle_of(value)
        if handle is not None:
            object.__setattr__(handle, "_remote_expected", frozenset())  # the program may make an answer of it
            return ["yours", handle._remote_number]
        if (number := self._numbers.get(id(value))) is not None:
            return ["yours", number]
        if isinstance(value, BaseException):
            return self._exception(value, encode)
        if isinstance(value, _FUNCTIONS):
            return ["callback", self._kept(value), *description(value, encode)]
        if isinstance(value, (KeysView, ValuesView, ItemsView)):
            return list(encode(list(value)))
        if hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            return ["iterator", self._kept(value)]
        if inspect.iscoroutine(value) or isinstance(value, asyncio.Future):
            return ["awaitable", self._kept(value)]
        problem = f"the test sends the program an object of type {type(value).__name__}, which is not supported"
        # A program can make the test hold objects of the shared modules only. For others the label is at fault.
        if type(value).__module__.lstrip("_") not in ("builtins", *standard_library.MODULES):
            self.unsupported = problem
        raise CodecError(problem)

    def resolve(self, node: list[Any], decode: Any) -> Any:
        tag, *parts = node
        if tag == "handle":
            return self._stand_in(decode, *parts)
        if tag == "yours":
            return self._own[parts[0]]
        if tag == "exception class":
            return self._exception_class(parts[0], parts[1], parts[2], [decode(base) for base in parts[3:]])
        if tag == "exception":
            return self._raised(*(decode(part) for part in parts))
        raise CodecError("a value of unknown form")

    def _kept(self, value: Any) -> int:
        number = self._own_numbers.setdefault(id(value), len(self._own))
        if number == len(self._own):
            self._own.append(value)
            if self.has_assertion(getattr(value, "__code__", None)):
                self.unheard.add(number)
        return number

    def _stand_in(self, decode: Any, number: int, kind: str, *base: Any) -> Any:
        known = self._stand_ins.get(number)
        if known is None:
            plain = decode(base[0]) if base else MISSING
            handle = _KINDS.get(kind, Remote)(self.peer, number, plain, _MUTABLE.get(kind))
            known = handle, self._local(handle, kind)
            self._stand_ins[number] = known
        handle, local = known
        return handle if handle._remote_made else local

    def _local(self, handle: Remote, kind: str) -> Any:
        if kind == "generator":
            stream = generator(handle)
            self._numbers[id(stream)] = handle._remote_number
            return stream
        if kind == "coroutine":
            waiting = coroutine(handle)
            self._numbers[id(waiting)] = handle._remote_number
            return waiting
        return handle if handle._remote_base is MISSING else with_base(handle)

    def _exception(self, error: BaseException, encode: Any) -> list[Any]:
        kind = type(error)
        while kind.__module__ != builtins.__name__:
            kind = kind.__mro__[1]
        return ["exception", encode(kind), encode(error.args)]

    def _exception_class(self, number: int, name: str, home: str, bases: list[Any]) -> type[BaseException]:
        """A local class for an exception class of the program, because `except` accepts only real classes."""
        if (shared := standard_library.exception(home, name)) is not None:
            self._numbers[id(shared)] = number
            return cast(type[BaseException], shared)
        if number not in self._exceptions:
            if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
                bases = [Exception]
            made = type(str(name), tuple(bases), {"__str__": lambda self: self.__dict__.get("_text", "")})
            self._exceptions[number] = made
            self._numbers[id(made)] = number
        return self._exceptions[number]

    def _raised(self, kind: Any, args: Any, attributes: Any, text: Any) -> BaseException:
        if not (isinstance(kind, type) and issubclass(kind, BaseException) and type(args) is tuple):
            raise CodecError("an exception of unknown form")
        error = _instance(kind, args)
        for name, value in attributes:
            if type(name) is str and not name.startswith("__"):
                error.__dict__[name] = value
        if kind in self._exceptions.values():
            error.__dict__["_text"] = str(text)
        return error


def _instance(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    try:
        return kind(*args)
    except TypeError:
        error = kind.__new__(kind)
        error.args = args
        return error
