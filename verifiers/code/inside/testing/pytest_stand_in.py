"""Replaces pytest in the sandbox, with `raises`, `approx`, marks, parameters and fixtures.

The sandbox has no packages. A label that uses another part of pytest is reported as a label that cannot be used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

from olmorl.verifiers.code.inside.bridge.remote import Unsupported


def __getattr__(name: str) -> Any:
    """Refuse every other name of pytest. Raises Unsupported."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"the test uses pytest.{name}, which is not supported")


class Skipped(Unsupported):
    """The test skips itself, so it checks nothing."""


class TestFailure(AssertionError):
    """The test called `fail`, or `raises` saw no exception."""


def fail(reason: str = "", pytrace: bool = True, **options: Any) -> None:
    raise TestFailure(reason or options.get("msg", ""))


def skip(reason: str = "", **options: Any) -> None:
    raise Skipped(f"the test skips itself: {reason}")


def main(*args: Any, **options: Any) -> int:
    """Do nothing. The functions of a test run at the end of its module."""
    return 0


def unittest_main(*args: Any, **options: Any) -> Any:
    """The same for `unittest`. Some tests ask for the result."""
    return SimpleNamespace(result=sys.modules["unittest"].TestResult())


class ExceptionInfo:
    """The exception that `raises` caught."""

    value: Any = None
    type: Any = None
    tb: Any = None

    def match(self, pattern: str) -> bool:
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{str(self.value)!r} does not match {pattern!r}")
        return True


class _Raises:
    def __init__(self, expected: Any, match: Any) -> None:
        self._expected = expected
        self._match = match
        self._info = ExceptionInfo()

    def __enter__(self) -> ExceptionInfo:
        return self._info

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is None:
            raise TestFailure(f"did not raise {self._expected}")
        if not issubclass(kind, self._expected):
            return False
        self._info.value, self._info.type, self._info.tb = error, kind, trace
        if self._match is not None:
            self._info.match(self._match)
        return True


def raises(expected_exception: Any, *args: Any, match: Any = None, **options: Any) -> Any:
    context = _Raises(expected_exception, match)
    if not args:
        return context
    function, *rest = args
    with context as info:
        function(*rest, **options)
    return info


class approx:
    """Equal to numbers within a tolerance, also in lists, tuples and mappings."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:  # noqa: A002
        self.expected = expected
        self._rel, self._abs, self._nan_ok = rel, abs, nan_ok

    def __eq__(self, actual: object) -> bool:
        return self._same(self.expected, actual)

    def __ne__(self, actual: object) -> bool:
        return not self == actual

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def _same(self, expected: Any, actual: Any) -> bool:
        if isinstance(expected, Mapping):
            found = isinstance(actual, Mapping) and expected.keys() == actual.keys()
            return found and all(self._same(expected[key], actual[key]) for key in expected)
        if isinstance(expected, (list, tuple)) or hasattr(expected, "tolist"):
            wanted, given = (x.tolist() if hasattr(x, "tolist") else x for x in (expected, actual))
            if not isinstance(wanted, (list, tuple)):
                return self._same(wanted, given)
            found = isinstance(given, (list, tuple)) and len(given) == len(wanted)
            return found and all(map(self._same, wanted, given))
        return self._close(expected, actual)

    def _close(self, expected: Any, actual: Any) -> bool:
        if type(expected) is bool or not isinstance(expected, (int, float, complex, Decimal, timedelta)):
            return bool(actual == expected)
        if expected != expected:
            return self._nan_ok and bool(actual != actual)
        if actual == expected:
            return True
        try:
            return bool(abs(actual - expected) <= self._tolerance(expected))
        except TypeError:
            return False

    def _tolerance(self, expected: Any) -> Any:
        if isinstance(expected, timedelta):
            return self._abs
        exact = Decimal if isinstance(expected, Decimal) else float
        absolute = exact("1e-12") if self._abs is None else self._abs
        if abs(expected) == float("inf"):
            return exact(0)
        if self._rel is None and self._abs is not None:
            return absolute
        return max((exact("1e-6") if self._rel is None else exact(self._rel)) * abs(expected), absolute)


class Parameters(NamedTuple):
    """One `mark.parametrize`: the names, and the values of each case."""

    names: tuple[str, ...]
    cases: list[tuple[Any, ...]]


class _Case(NamedTuple):
    values: tuple[Any, ...]


def param(*values: Any, id: Any = None, marks: Any = ()) -> _Case:  # noqa: A002 - pytest's name
    if marks:
        raise Unsupported("the test marks one of its cases, which is not supported")
    return _Case(values)


class _Marks:
    def parametrize(self, names: Any, values: Iterable[Any], **options: Any) -> Callable[[Any], Any]:
        if options.get("indirect"):
            raise Unsupported("the test gives parameters to a fixture, which is not supported")
        split = tuple(re.split(r"[\s,]+", names.strip(" ,"))) if isinstance(names, str) else tuple(names)
        cases = [
            value.values if isinstance(value, _Case) else tuple(value) if len(split) > 1 else (value,)
            for value in values
        ]
        if any(len(case) != len(split) for case in cases) or not cases:
            raise Unsupported("the test's parameters do not fit their names")

        def decorate(function: Any) -> Any:
            function.parameters = [Parameters(split, cases), *vars(function).get("parameters", [])]
            return function

        return decorate

    def __getattr__(self, name: str) -> Any:
        if name in ("skip", "skipif", "xfail"):
            raise Unsupported(f"the test is marked {name}, so it checks nothing")

        def mark(*args: Any, **options: Any) -> Any:
            return args[0] if len(args) == 1 and callable(args[0]) and not options else lambda function: function

        return mark


mark = _Marks()


def fixture(function: Any = None, **options: Any) -> Any:
    if options.get("params"):
        raise Unsupported("the test has a fixture with parameters, which is not supported")

    def decorate(made: Any) -> Any:
        made.fixture_name = options.get("name") or made.__name__
        made.is_automatic = bool(options.get("autouse"))
        return made

    return decorate if function is None else decorate(function)
