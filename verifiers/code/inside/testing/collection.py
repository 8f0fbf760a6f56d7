"""Runs the test functions and classes that a test only defines, for pytest and for `unittest`.

A label with only `def test_add(): ...` or a `TestCase` would check nothing when it runs. So a function or class with a
name that pytest would collect is called at the end of the test, if the test does not call it itself. A `TestCase` is
always called: a test that runs it with a runner of its own often ignores the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from olmorl.verifiers.code.inside.bridge.remote import Remote, RemoteCallable, Unsupported
from olmorl.verifiers.code.inside.testing.fixtures import CallArguments, needed
from olmorl.verifiers.code.inside.testing.name_uses import CALLED, WHOLE, NameUses


def run(names: dict[str, Any], uses: NameUses) -> int:
    """Call every collected test. Returns their number. Raises the exception of a test, or Unsupported."""
    fixtures = {
        made.fixture_name: made for made in names.values() if inspect.isfunction(made) and hasattr(made, "fixture_name")
    }
    cases = sys.modules.get("unittest")  # a large module, so only the test imports it
    count = 0
    for name, value in list(names.items()):
        if isinstance(value, Remote):
            if type(value) is RemoteCallable and name[:4] == "test" and name not in uses.imported | uses.read.keys():
                value()  # a decorator of the program made it of a test function
            continue
        if isinstance(value, type) and cases is not None and issubclass(value, cases.TestCase):
            count += _case(value, cases)
        elif {CALLED, WHOLE} & uses.read.get(name, set()):
            continue
        elif isinstance(value, type) and name.startswith("Test"):
            count += _class(value, fixtures)
        elif inspect.isfunction(value) and name.startswith("test"):
            count += _calls(value, fixtures)
    return count


def _case(kind: Any, unittest: Any) -> int:
    names = unittest.TestLoader().getTestCaseNames(kind)
    if not names:
        return 0
    kind.setUpClass()
    if getattr(kind, "__unittest_skip__", False):
        raise Unsupported("the test skips itself: it judges nothing")
    for name in names:
        try:
            kind(name).debug()
        except unittest.SkipTest:
            raise Unsupported("the test skips itself: it judges nothing") from None
    kind.tearDownClass()
    kind.doClassCleanups()
    return len(names)


def _class(kind: type, fixtures: dict[str, Any]) -> int:
    methods = [name for name in dir(kind) if name.startswith("test") and callable(getattr(kind, name))]
    if any(hasattr(made, "fixture_name") for made in vars(kind).values()):
        raise Unsupported("the test has fixtures in a class, which are not supported")
    count = 0
    if methods and (prepare := getattr(kind, "setup_class", None)):
        prepare()
    for name in methods:
        instance = kind()
        for prepare in (getattr(instance, "setup_method", None), getattr(instance, "setup", None)):
            if prepare is not None:
                prepare(*(None,) * len(inspect.signature(prepare).parameters))
        count += _calls(getattr(instance, name), fixtures)
        if (finish := getattr(instance, "teardown_method", None)) is not None:
            finish(*(None,) * len(inspect.signature(finish).parameters))
    return count


def _calls(function: Any, fixtures: dict[str, Any]) -> int:
    """Call a test function once for each combination of its parameters."""
    count = 0
    for parameters in _cases(function):
        with contextlib.ExitStack() as stack:
            given = CallArguments(fixtures, parameters, stack)
            for name, made in fixtures.items():
                if made.is_automatic:
                    given.value(name)
            result = function(**{name: given.value(name) for name in needed(function)})
            if inspect.iscoroutine(result):
                asyncio.run(result)
        count += 1
    return count


def _cases(function: Any) -> Iterator[dict[str, Any]]:
    marks = getattr(function, "parameters", [])
    for combination in itertools.product(*(each.cases for each in marks)):
        yield {
            name: value
            for each, values in zip(marks, combination, strict=True)
            for name, value in zip(each.names, values, strict=True)
        }
