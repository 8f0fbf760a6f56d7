"""The modules and functions of Python that programs and tests share by name."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

JUDGING = ("math", "collections", "decimal", "fractions", "datetime", "cmath")
"""Modules whose functions tests use to compare results. Without an import a test may read only their constants."""
MODULES = (
    *JUDGING, "itertools", "functools", "operator", "heapq", "bisect", "string", "re", "copy", "statistics", "json",
    "random", "typing",
)  # fmt: skip
"""Pure modules. Both sides share their functions and classes by name."""
PROVIDED = ("ListNode", "TreeNode")
"""Classes that programs for an online judge use without a definition, because the judge defines them."""
EXCEPTIONS = (
    "dataclasses", "json.decoder", "decimal", "statistics", "queue", "asyncio.exceptions", "copy", "struct", "zlib",
    "binascii", "_csv", "csv", "re", "enum", "io", "configparser", "shutil", "string", "zoneinfo", "graphlib",
)  # fmt: skip
"""Modules whose exceptions both sides share by name."""
FORBIDDEN = {
    "exec", "eval", "compile", "open", "input", "__import__", "breakpoint", "exit", "quit", "help", "locals", "globals",
    "vars", "dir", "setattr", "delattr",
}  # fmt: skip
"""Functions that would act on the other process, or read its variables."""
_ALIASES = {"np": "numpy"}
_HOMES = {"_operator": "operator", "_collections": "collections", "_heapq": "heapq", "_bisect": "bisect"}


def member(name: str, modules: Iterable[str]) -> Any:
    """The member `name` of the first of these modules that has it; None if no module has it."""
    for module in modules:
        found = vars(importlib.import_module(module)).get(name)
        if found is not None and not isinstance(found, ModuleType) and not name.startswith("_"):
            return found
    return None


def module(name: str, attributes: set[str]) -> ModuleType | None:
    """The module of that name; None if it lacks one of the attributes or cannot be imported here."""
    name = _ALIASES.get(name, name)
    if name not in sys.stdlib_module_names and name not in sys.modules:
        return None
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if all(hasattr(found, attribute) for attribute in attributes) else None


def exception(home: Any, name: Any) -> Any:
    """The exception class of that name in a module; None if it is not shared."""
    if home not in EXCEPTIONS or type(name) is not str:
        return None
    found = vars(importlib.import_module(home)).get(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def address(value: Any) -> tuple[str, str] | None:
    """Module and name of a shared function or class; None for any other value."""
    if type(value) not in (type, BuiltinFunctionType, FunctionType):
        return None
    home, name = _home(value), value.__name__
    return (home, name) if _lookup(home, name) is value else None


def at(home: str, name: str) -> Any:
    """The shared function or class at an address. Raises LookupError if it is not shared."""
    found = _lookup(home, name)
    if found is None or _home(found) != home:
        raise LookupError(f"{home}.{name}")
    return found


def _home(value: Any) -> Any:
    """The public module that defines a function or class."""
    home: Any = getattr(value, "__module__", None)
    return _HOMES.get(home, home)


def _lookup(home: Any, name: Any) -> Any:
    if type(home) is not str or type(name) is not str or name.startswith("_") or name in FORBIDDEN:
        return None
    if home == "builtins":
        return vars(builtins).get(name)
    return vars(importlib.import_module(home)).get(name) if home in MODULES else None
