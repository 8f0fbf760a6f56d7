"""The arguments of a test function: parameters, fixtures of the test, and pytest's `capsys` and `monkeypatch`."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

from olmorl.verifiers.code.inside.bridge.remote import Unsupported


def needed(function: Any) -> list[str]:
    """The required arguments of a function."""
    return [
        name for name, each in inspect.signature(function).parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]  # fmt: skip


class CallArguments:
    """The arguments of one call of a test function. Each fixture runs once per call."""

    def __init__(self, fixtures: dict[str, Any], values: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self._fixtures = fixtures
        self._values = values
        self._stack = stack

    def value(self, name: str) -> Any:
        """The value of one argument. Raises Unsupported if neither a parameter nor a fixture gives it."""
        if name not in self._values:
            made = self._fixtures.get(name) or _BUILT_IN.get(name)
            if made is None:
                raise Unsupported(
                    f"the test function needs {name!r}, which is neither a parameter nor a supported fixture"
                )
            result = made(**{each: self.value(each) for each in needed(made)})
            if inspect.isgenerator(result):
                result = self._stack.enter_context(contextlib.contextmanager(lambda made=result: made)())
            self._values[name] = result
        return self._values[name]


class _Captured:
    """`capsys`: the text printed since the last read."""

    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()

    def readouterr(self) -> Any:
        found = _Pair(self.out.getvalue(), self.err.getvalue())
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return found


class _Pair(tuple[str, str]):
    __slots__ = ()

    def __new__(cls, out: str, err: str) -> _Pair:
        return super().__new__(cls, (out, err))

    @property
    def out(self) -> str:
        return self[0]

    @property
    def err(self) -> str:
        return self[1]


def _capsys() -> Iterator[_Captured]:
    found = _Captured()
    with contextlib.redirect_stdout(found.out), contextlib.redirect_stderr(found.err):
        yield found


class _Patches:
    """`monkeypatch`: replaces objects in the test process, and restores them after the call."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def setattr(self, target: Any, name: Any, value: Any = inspect.Parameter.empty, raising: bool = True) -> None:
        if isinstance(target, str):
            home, _, attribute = target.rpartition(".")
            if home not in sys.modules:
                raise Unsupported(f"the test replaces {target}, which is not supported")
            target, name, value = sys.modules[home], attribute, name
        before = getattr(target, name)
        self._undo.append(lambda: setattr(target, name, before))
        setattr(target, name, value)

    def setitem(self, mapping: Any, key: Any, value: Any) -> None:
        had, before = key in mapping, mapping.get(key)
        self._undo.append(lambda: mapping.__setitem__(key, before) if had else mapping.pop(key, None))
        mapping[key] = value

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _monkeypatch() -> Iterator[_Patches]:
    found = _Patches()
    try:
        yield found
    finally:
        found.undo()


_BUILT_IN: dict[str, Any] = {"capsys": _capsys, "monkeypatch": _monkeypatch}
