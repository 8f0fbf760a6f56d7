"""Functions of the other process, with their real name, parameters and documentation.

A decorator of a program may look at the parameters of a test's function, and a test at those of a program's function.
Default values stay in their process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from olmorl.verifiers.code.inside.bridge.codec import CodecError

_ABSENT: Any = type("Default", (), {"__repr__": lambda self: "..."})()
"""In place of a default value. It is not sent back."""


def description(function: Any, encode: Callable[[Any], Any]) -> list[Any]:
    """The name of a function; of a Python function also its parameters, annotations and documentation."""
    name = str(getattr(function, "__name__", "callback"))
    if type(function) is not FunctionType:
        return [name]
    defaults = len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ())
    documentation = function.__doc__ if type(function.__doc__) is str else None
    sent = described(function.__code__), defaults, documentation, _encodable(function.__annotations__, encode)
    return [name, *map(encode, sent)]


def described(code: CodeType) -> tuple[Any, ...]:
    """The parts of a code object that tell the parameters."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    num_names = code.co_argcount + code.co_kwonlyargcount
    num_names += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return *counts, code.co_flags, code.co_varnames[:num_names], code.co_name


def code(argcount: int, posonly: int, kwonly: int, flags: int, names: tuple[str, ...], name: str) -> CodeType:
    """A code object with parameters, which is never run. Raises ValueError or TypeError for parts of no code object."""
    if any(type(text) is not str for text in (*names, name)):
        raise TypeError("a name that is no text")
    return code.__code__.replace(
        co_argcount=argcount, co_posonlyargcount=posonly, co_kwonlyargcount=kwonly, co_flags=flags,
        co_varnames=names, co_nlocals=len(names), co_cellvars=(), co_freevars=(), co_name=name,
    )  # fmt: skip


def stub(call: Callable[..., Any], name: str, *description: Any) -> Any:
    """A function that forwards its arguments to `call`."""
    if description:
        made = _with_parameters(call, *description)
    else:

        def made(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    made.__name__ = made.__qualname__ = name
    return made


def _with_parameters(
    call: Callable[..., Any], code: tuple[Any, ...], defaults: Any, documentation: Any, annotations: Any
) -> Any:
    argcount, posonly, kwonly, flags, names, _ = code
    num_defaults, named_defaults = defaults
    positional, only_named, rest = names[:argcount], names[argcount : argcount + kwonly], names[argcount + kwonly :]
    parameters = [
        name if place < argcount - num_defaults else f"{name}=_ABSENT" for place, name in enumerate(positional)
    ]
    if posonly:
        parameters.insert(posonly, "/")
    many = f"*{rest[0]}" if flags & inspect.CO_VARARGS else ""
    if many or kwonly:
        parameters.append(many or "*")
    parameters += [f"{name}=_ABSENT" if name in named_defaults else name for name in only_named]
    more = f"**{rest[-1]}" if flags & inspect.CO_VARKEYWORDS else ""
    parameters += [more] if more else []
    given = ", ".join(f"({name!r}, {name})" for name in positional)
    named = ", ".join(f"({name!r}, {name})" for name in only_named)
    forwarded = f"_forward([{given}], [{named}], ({many + ',' if many else ''}), {{{more}}})"
    asynchronous = flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE)
    head, value = ("async def", f"await {forwarded}") if asynchronous else ("def", forwarded)
    scope = {"_ABSENT": _ABSENT, "_forward": lambda *parts: _forward(call, *parts)}
    exec(f"{head} made({', '.join(parameters)}):\n return {value}", scope)
    made: Any = scope["made"]
    made.__doc__ = documentation
    made.__annotations__ = dict(annotations)
    return made


def _forward(call: Callable[..., Any], positional: Any, named: Any, rest: Any, more: dict[str, Any]) -> Any:
    """Call with the given arguments. Those behind one that is absent are given by name."""
    absent = next((place for place, (_, value) in enumerate(positional) if value is _ABSENT), len(positional))
    by_name = {name: value for name, value in [*positional[absent:], *named] if value is not _ABSENT}
    return call(*(value for _, value in positional[:absent]), *rest, **by_name, **more)


def _encodable(annotations: dict[str, Any], encode: Callable[[Any], Any]) -> tuple[tuple[str, Any], ...]:
    kept = []
    for name, value in annotations.items():
        try:
            encode(value)
        except CodecError:
            continue
        kept.append((name, value))
    return tuple(kept)
