"""Loads and calls user reward functions, in a worker of their own pool."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from olmorl.verifiers.worker import describe

_loaded: dict[str, Callable[..., Any]] = {}


def load(specs: list[str]) -> None:
    """Import every function. Raises ImportError with a message for the user."""
    for spec in specs:
        _loaded[spec] = _find(spec)


def _find(spec: str) -> Callable[..., Any]:
    place, _, name = spec.rpartition(":")
    try:
        module = _module(place)
    except BaseException as error:  # user code at import, which may raise anything and even call sys.exit
        raise ImportError(f"{spec}: {place} does not import: {describe(error)}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ImportError(f"{spec}: {place} has no function {name!r}")
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not (takes_any or "completions" in parameters or "solution_str" in parameters):
        raise ImportError(f"{spec}: {name}({', '.join(parameters)}) takes neither completions nor solution_str")
    found: Callable[..., Any] = function
    return found


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise FileNotFoundError(f"{place} is not a file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(args: tuple[str, Any, list[str], dict[str, Any]]) -> list[float | None]:
    """Call one function for one group.

    Args:
        args: the function, the row's prompt, the text of each completion, and the row's columns.
    """
    spec, prompt, texts, columns = args
    function = _loaded[spec]
    parameters = inspect.signature(function).parameters
    if "solution_str" in parameters:
        return [_number(_call(function, _verl(text, columns))) for text in texts]
    chat = not isinstance(prompt, str)
    completions = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    values = _call(
        function,
        {
            "prompts": [prompt] * len(texts),
            "completions": completions,
            **{name: [value] * len(texts) for name, value in columns.items()},
        },
    )
    return [_number(value) for value in values]


def _verl(text: str, columns: dict[str, Any]) -> dict[str, Any]:
    return {
        "data_source": columns.get("data_source", columns.get("dataset")),
        "solution_str": text,
        "ground_truth": columns.get("ground_truth"),
        "extra_info": columns.get("extra_info"),
    }


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call with the arguments that it names, or with all when it takes any."""
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    value = function(**arguments)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def _number(value: Any) -> float | None:
    """A score as a float; a dictionary has it under `score`."""
    if isinstance(value, dict):
        value = value["score"]
    if isinstance(value, str):
        raise TypeError(f"a reward is a number or None, not the text {value[:40]!r}")
    return None if value is None else float(value)
