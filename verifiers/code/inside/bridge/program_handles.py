"""Handles in the program process: numbers for the program's objects, and stubs for functions of the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from olmorl.verifiers.code.inside.bridge import standard_library
from olmorl.verifiers.code.inside.bridge.codec import CodecError
from olmorl.verifiers.code.inside.bridge.coroutines import awaited
from olmorl.verifiers.code.inside.bridge.function_stubs import stub
from olmorl.verifiers.code.inside.bridge.self_comparison import MUTABLE_BASES, PLAIN_BASES, plain_copy


class ProgramHandles:
    """Every object with a handle stays alive under its number."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        """
        Args:
            ask: sends a request to the tests.
        """
        self._ask = ask
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self._callbacks: dict[int, Any] = {}
        self._callback_numbers: dict[int, int] = {}

    def name(self, value: Any, encode: Any) -> list[Any]:
        if (number := self._callback_numbers.get(id(value))) is not None:
            return ["yours", number]
        if isinstance(value, BaseException):
            return self._exception(value, encode)
        number = self._number(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            home, name = value.__module__, value.__name__
            shared = standard_library.exception(home, name) is value
            return ["exception class", number, name, home if shared else "", *map(encode, value.__bases__)]
        for base in PLAIN_BASES:
            if isinstance(value, base):
                return ["handle", number, "value", encode(plain_copy(base, value))]
        return ["handle", number, _kind(value)]

    def resolve(self, node: list[Any], decode: Any) -> Any:
        tag, *parts = node
        if tag == "yours":
            return self.objects[parts[0]]
        if tag in ("callback", "iterator", "awaitable"):
            return self._stub(tag, parts[0], *map(decode, parts[1:]))
        if tag == "exception":
            return decode(parts[0])(*decode(parts[1]))
        raise CodecError(f"a value of unknown form: {tag}")

    def _number(self, value: Any) -> int:
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return number

    def _exception(self, error: BaseException, encode: Any) -> list[Any]:
        """The class, arguments, attributes and text of an exception. Parts that cannot be sent are left out."""
        try:
            arguments = encode(error.args)
        except CodecError:
            arguments = encode(())
        try:
            attributes = encode(tuple(vars(error).items()))
        except CodecError:
            attributes = encode(())
        try:
            text = str.__str__(str(error))[:2000]
        except BaseException:  # a class of the program may raise anything here; then the text stays empty
            text = ""
        return ["exception", encode(type(error)), arguments, attributes, text]

    def _stub(self, tag: str, number: int, *description: Any) -> Any:
        """A local function, iterator or coroutine in place of one of the tests."""
        if number not in self._callbacks:

            def call(*args: Any, **kwargs: Any) -> Any:
                return self._ask("call back", number, args, kwargs)

            made: Any
            if tag == "callback":
                made = stub(call, *description)
            else:
                made = _items(call) if tag == "iterator" else awaited(self._ask, number)
            self._callbacks[number] = made
            self._callback_numbers[id(made)] = number
        return self._callbacks[number]


def _items(advance: Callable[[], Any]) -> Any:
    while True:
        try:
            item = advance()
        except StopIteration:
            return
        yield item


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    if mutable := next((kind for kind in MUTABLE_BASES if isinstance(value, kind)), None):
        return mutable.__name__
    if inspect.isgenerator(value):
        return "generator"
    if inspect.iscoroutine(value):
        return "coroutine"
    return "callable" if callable(value) else "value"
