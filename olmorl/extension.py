"""Loads the user's own code that a recipe names: `package.module:function`, or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from olmorl.errors import ConfigError

OwnFunction = Annotated[str, Field(pattern=r"^[^:*]+:[A-Za-z_]\w*$")]
"""The type of a key of a recipe that names a function."""


def load_function(key: str, name: str) -> Callable[..., Any]:
    """Returns the function that the value `name` of a recipe's `key` names.

    Raises:
        ConfigError: the module does not import, or has no such function.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = import_place(place)
    except BaseException as error:  # the user's code may raise anything at import, including SystemExit
        raise ConfigError(f"{key} = {name!r}: {place} does not import: {type(error).__name__}: {error}") from None
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"{key} = {name!r}: {place} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found


@lru_cache
def import_place(place: str) -> ModuleType:
    """Imports a module by its name, or a file by its path, once in each process: its classes are the same everywhere.

    Files beside such a file can be imported by it.
    """
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{place} is not a file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
