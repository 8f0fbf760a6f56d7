"""Functions in place of those of the other process: their parameters, and the calls that they forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.verifiers.code.inside.bridge.codec import CodecError
from olmorl.verifiers.code.inside.bridge.function_stubs import code, described, description, stub


def plain(value: Any) -> Any:
    """Stands for the encoder of a codec, which sends types and texts but not these values."""
    if isinstance(value, (bytes, memoryview)):
        raise CodecError("not sent")
    return value


def many(a, /, b=1, *rest, c, d=2, **more):  # type: ignore[no-untyped-def]
    """Takes many."""
    return a, b, rest, c, d, more


def typed(text: str, count: int = 2, raw: bytes = b"") -> str:
    return text * count


def local(function: Callable[..., Any]) -> Any:
    return stub(function, *description(function, plain))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((0,), {"c": 3}),
        ((0, 5), {"c": 3}),
        ((0, 5, 6, 7), {"c": 3, "d": 4}),
        ((0,), {"b": 5, "c": 3, "e": 6}),
    ],
)
def test_a_stub_forwards_the_arguments_and_leaves_the_defaults_to_the_other_side(args: Any, kwargs: Any) -> None:
    assert local(many)(*args, **kwargs) == many(*args, **kwargs)


def test_a_stub_refuses_what_the_function_would_refuse() -> None:
    with pytest.raises(TypeError):
        local(many)(0)


def test_a_stub_tells_what_the_function_tells_except_its_defaults() -> None:
    made = local(typed)
    assert (made.__name__, made.__doc__, local(many).__doc__) == ("typed", None, "Takes many.")
    assert list(inspect.signature(made).parameters) == ["text", "count", "raw"]
    assert made.__code__.co_argcount == 3 and inspect.signature(made).parameters["count"].default != 2
    assert made.__annotations__["text"] == typed.__annotations__["text"]


def test_a_stub_of_a_coroutine_function_is_one() -> None:
    async def wait() -> int:
        return 3

    assert inspect.iscoroutinefunction(local(wait)) and not inspect.iscoroutinefunction(local(typed))


def test_what_is_no_python_function_gives_its_name_alone() -> None:
    assert description(len, plain) == ["len"]
    assert local(len)([1, 2]) == 2


def test_code_with_the_parameters_of_another_is_read_by_inspect() -> None:
    made = code(*described(many.__code__))
    assert (made.co_argcount, made.co_posonlyargcount, made.co_kwonlyargcount) == (2, 1, 2)
    assert made.co_varnames == ("a", "b", "c", "d", "rest", "more")


@pytest.mark.parametrize("parts", [(3, 0, 0, 0, ("a",), "f"), (0, 0, 0, 0, (1,), "f"), (-1, 0, 0, 0, (), "f")])
def test_hostile_parts_make_no_code(parts: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        code(*parts)
