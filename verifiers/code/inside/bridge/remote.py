"""The proxies that tests use in place of the program's objects.

A test may call a proxy, read and set attributes, index and iterate. The results are data. Operators need more care,
because `==` and `abs(x - y)` would let an object decide its own verdict. See `operators`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, cast

from olmorl.verifiers.code.inside.bridge.coroutines import awaited
from olmorl.verifiers.code.inside.bridge.function_stubs import code
from olmorl.verifiers.code.inside.bridge.peer import Peer

MISSING: Any = object()
_SEND_STOPS = ("__next__", "send", "throw")
"""Methods that may raise StopIteration. From any other call it would silently end a loop of the caller."""
_VERDICTS = frozenset(
    (
        "startswith", "endswith", "issubset", "issuperset", "isdisjoint", "isalpha", "isalnum", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "is_integer",
    )
)  # fmt: skip
"""Methods of built-in types that judge a value. A proxy of a returned object refuses them."""


class Unsupported(TypeError):
    """The test uses the program's objects in a way that the proxies do not support."""


class Remote:
    """A proxy of one object of the program. Every operation on it runs in the program process."""

    __slots__ = (
        "__weakref__", "_remote_base", "_remote_born", "_remote_expected", "_remote_kind", "_remote_made",
        "_remote_name", "_remote_number", "_remote_peer", "_remote_told",
    )  # fmt: skip

    def __init__(self, peer: Peer, number: int, base: Any, kind: type | None = None) -> None:
        born = min(peer.codec.messages, peer.codec.actor_born or sys.maxsize)  # what an object gives is as old as it is
        values: Any = base, born, frozenset(), kind, False, "", number, peer, False
        for key, value in zip(Remote.__slots__[1:], values, strict=True):
            object.__setattr__(self, key, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For `isinstance`: the mutable or immutable built-in type that the class of the object extends."""
        return self._remote_kind or (type(self) if self._remote_base is MISSING else type(self._remote_base))

    def __getattr__(self, name: str) -> Any:
        if name in _VERDICTS and not self._remote_made:
            if self._remote_kind is not None:
                return getattr(apply(self, "plain", self), name)
            raise AttributeError(f"{name!r} of an object that the program returned")
        try:
            found = apply(self, "getattr", self, name)
        except AttributeError:
            self._remote_peer.missed(name)
            raise
        if isinstance(found, Remote):
            object.__setattr__(found, "_remote_name", name)
            if type(found) is RemoteCallable:  # a method is as old as its object
                object.__setattr__(found, "_remote_born", self._remote_born)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        apply(self, "setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        apply(self, "delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return apply(self, "getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        apply(self, "setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        apply(self, "delitem", self, key)

    def __iter__(self) -> Any:
        return apply(self, "iter", self)

    def __next__(self) -> Any:
        return apply(self, "next", self)

    def __enter__(self) -> Any:
        return apply(self, "__enter__", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return apply(self, "__exit__", self, kind, error, None) is True and not self._judges(kind, trace)

    def __await__(self) -> Any:
        return coroutine(self).__await__()

    def __aiter__(self) -> Any:
        return apply(self, "aiter", self)

    def __anext__(self) -> Any:
        return apply(self, "anext", self)

    def __aenter__(self) -> Any:
        return apply(self, "__aenter__", self)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return await apply(self, "__aexit__", self, kind, error, None) is True and not self._judges(kind, trace)

    def _judges(self, kind: Any, trace: Any) -> bool:
        """Whether an assertion failed, or did not run for an error. No object of the program may suppress that."""
        failed = isinstance(kind, type) and issubclass(kind, AssertionError)
        return failed or (trace is not None and self._remote_peer.skips(trace.tb_lineno))

    def __format__(self, spec: str) -> str:
        return str(apply(self, "format", self, spec))

    def __copy__(self) -> Any:
        return apply(self, "copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return apply(self, "deepcopy", self)


class RemoteCallable(Remote):
    """A proxy of a function, a method or another callable object of the program."""

    __slots__ = ()

    @property
    def __code__(self) -> Any:
        """For `inspect`: the parameters of a function, and whether it is a coroutine function."""
        return code(*apply(self, "code", self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            found = self._remote_peer.ask("call", self, args, kwargs, actor_born=self._remote_born)
        except StopIteration as stop:
            if self._remote_name in _SEND_STOPS:
                raise
            raise RuntimeError("the program raised StopIteration") from stop
        if self._remote_born == 0:
            self._remote_peer.expected.answered(found)
        return found


class RemoteClass(RemoteCallable):
    """A proxy of a class of the program. Exception classes have local copies instead: see `tester_handles`."""

    __slots__ = ()

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        object.__setattr__(self, "_remote_born", sys.maxsize)  # a class makes what is younger than all

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = self._remote_peer.codec.messages
        expected, args, kwargs = self._remote_peer.expected.arguments(args, kwargs)
        found = super().__call__(*args, **kwargs)
        if self._remote_name[:1].isupper() and (handle := handle_of(found)) is not None:
            if not handle._remote_made and handle._remote_born <= now and apply(handle, "is_shared", handle):
                # A list takes a proxy to be equal to itself without a question.
                base, kind = handle._remote_base, handle._remote_kind
                handle = type(handle)(handle._remote_peer, handle._remote_number, base, kind)
            object.__setattr__(handle, "_remote_made", True)
            object.__setattr__(handle, "_remote_expected", expected)
            return handle
        return found

    def __instancecheck__(self, instance: Any) -> bool:
        handle = handle_of(instance)
        return handle is not None and apply(self, "is_instance", handle, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Remote) and apply(self, "issubclass", subclass, self) is True

    def __mro_entries__(self, bases: Any) -> Any:
        raise Unsupported("a test cannot derive a class from one of the program's")


def handle_of(value: Any) -> Remote | None:
    """The proxy behind a value; None for a value of the test itself."""
    if type(value) in _based_types:
        return cast(Remote, value._remote_handle)
    return value if isinstance(value, Remote) else None


def generator(handle: Remote) -> Generator[Any, Any, Any]:
    """A local generator that advances a generator of the program."""
    sent = None
    try:
        while True:
            try:
                item = next(handle) if sent is None else handle.send(sent)
            except StopIteration as stop:
                return stop.value
            sent = yield item
    except GeneratorExit:
        handle.close()
        raise


async def coroutine(handle: Remote) -> Any:
    """A local coroutine that runs an awaitable of the program."""
    handle._remote_peer.turns.keep()
    return await awaited(handle._remote_peer.ask, handle)


def with_base(handle: Remote) -> Any:
    """A local int, str, tuple or other plain value for an object of a subclass, with the program's attributes."""
    base = handle._remote_base
    value = _based(type(base))(base)
    value._remote_handle = handle
    return value


_based_on: dict[type, type] = {}
_based_types: set[type] = set()


def _based(base: type) -> type:
    if base not in _based_on:
        forward: dict[str, Any] = {
            "__getattr__": lambda self, name: getattr(self._remote_handle, name),
            "__str__": lambda self: str(self._remote_handle),
            "__repr__": lambda self: repr(self._remote_handle),
            "__format__": lambda self, spec: format(self._remote_handle, spec),
        }
        _based_on[base] = type(base.__name__, (base,), forward)
        _based_types.add(_based_on[base])
    return _based_on[base]


def apply(remote: Remote, operation: str, *operands: Any) -> Any:
    """Run an operation in the program process."""
    return remote._remote_peer.ask("apply", operation, *operands, actor_born=remote._remote_born)


for _proxy in (Remote, RemoteCallable, RemoteClass):
    setattr(_proxy, "__doc__", property(lambda self: apply(self, "getattr", self, "__doc__")))  # noqa: B010
