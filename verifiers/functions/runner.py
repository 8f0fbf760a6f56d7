"""Loads and calls user reward functions, inside a worker of their pool."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from olmorl.extension import import_place
from olmorl.verifiers.functions.function_call import FunctionCall, FunctionLog, FunctionResult, TrainerState
from olmorl.verifiers.pool.worker import describe

_PLURALS = {
    "data_source": "data_sources",
    "solution_str": "solution_strs",
    "ground_truth": "ground_truths",
    "extra_info": "extra_infos",
}
"""The arguments of verl's function for one answer, and of its function for a batch."""
_loaded: dict[str, Callable[..., Any]] = {}
_logged: dict[str, set[str]] = {}
"""For each function, the names it has logged in this worker. Their number is bounded."""


def load(setup: tuple[list[str], list[str] | None]) -> None:
    """Import every function. Raises ImportError with a message for the user.

    Args:
        setup: the functions; and the columns of all rows, None if they are not known.
    """
    specs, columns = setup
    for spec in specs:
        _loaded[spec] = _find(spec)
        if columns is not None:
            _refuse_missing(spec, _loaded[spec], columns)


ENVIRONMENTS = "environments"
"""The argument of a function that reads the environments of its episodes."""
_GIVEN = {"prompts", "completions", "completion_ids", "completions_ids", "trainer_state", "log_metric", "log_extra"}
_GIVEN_BY_VERL = {"data_source", "solution_str", "ground_truth", "extra_info"}


def _refuse_missing(spec: str, function: Callable[..., Any], columns: list[str]) -> None:
    """Raises ImportError for a parameter without a default that is no column."""
    parameters = inspect.signature(function).parameters
    given = _GIVEN_BY_VERL if "solution_str" in parameters else _GIVEN.union(columns)
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if is_needed and name == ENVIRONMENTS and name not in given:
            raise ImportError(f"{spec}: the function takes environments: set episodes.environment")
        if is_needed and name not in given:
            raise ImportError(
                f"{spec}: the function takes {name!r}, and no row has such a column (columns: "
                f"{', '.join(columns) or 'none'}); give it a default"
            )


def _find(spec: str) -> Callable[..., Any]:
    place, _, name = spec.rpartition(":")
    try:
        module = import_place(place)
    except BaseException as error:  # user code at import may raise anything, including SystemExit
        raise ImportError(f"{spec}: {place} does not import: {describe(error)}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ImportError(f"{spec}: {place} has no function {name!r}")
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not (takes_any or {"completions", "solution_str", "solution_strs", ENVIRONMENTS} & parameters.keys()):
        raise ImportError(f"{spec}: {name}({', '.join(parameters)}) takes neither completions nor solution_str")
    found: Callable[..., Any] = function
    return found


def takes_environments(spec: str) -> bool:
    """Whether a loaded function is called beside the environment of each episode."""
    return ENVIRONMENTS in inspect.signature(_loaded[spec]).parameters


def score(args: Any, environments: list[Any] | None = None) -> FunctionResult:
    """Call one function for one group.

    Args:
        args: a `FunctionCall` as plain data from the socket.
        environments: those of the completions, if they are in this process.
    """
    call = msgspec.convert(args, FunctionCall)
    function = _loaded[call.spec]
    parameters = inspect.signature(function).parameters
    log = FunctionLog(len(call.texts), _logged.setdefault(call.spec, set()))
    if "solution_str" in parameters:
        values = [_call(function, _verl(text, call.columns)) for text in call.texts]
    elif "solution_strs" in parameters:
        rows = [_verl(text, call.columns) for text in call.texts]
        values = list(_call(function, {plural: [row[name] for row in rows] for name, plural in _PLURALS.items()}))
    else:
        arguments = _trl(function, call, log)
        if environments is not None:
            arguments[ENVIRONMENTS] = environments
        elif takes_environments(call.spec):
            raise ValueError("the function takes environments, and these answers have none: set episodes.environment")
        values = list(_call(function, arguments))
    _log_keys(values, log)
    return FunctionResult([_reward(value) for value in values], log.means(), log.columns)


def _log_keys(values: Sequence[Any], log: FunctionLog) -> None:
    """Log what returned dictionaries have beside the score: numbers as metrics, the rest in the rollouts."""
    returned = [value if isinstance(value, dict) else {} for value in values]
    for key in dict.fromkeys(key for value in returned for key in value if key != "score"):
        column = [value.get(key) for value in returned]
        for number in column:
            if _is_number(number):
                log.metric(str(key), number)
        if not all(value is None or _is_number(value) for value in column):
            log.extra(str(key), column)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_)


def _trl(function: Callable[..., Any], call: FunctionCall, log: FunctionLog) -> dict[str, Any]:
    """The arguments in TRL's convention. A column never replaces one of them."""
    chat, size = not isinstance(call.prompt, str), len(call.texts)
    arguments: dict[str, Any] = {name: [value] * size for name, value in call.columns.items()}
    answers = [[{"role": "assistant", "content": text}] if chat else text for text in call.texts]
    arguments |= {
        "prompts": [call.prompt] * size,
        "completions": answers if call.turns is None else call.turns,
        "trainer_state": TrainerState(call.step, call.max_steps),
        "log_metric": log.metric,
        "log_extra": log.extra,
    }
    if call.token_ids is not None:
        arguments["completion_ids"] = [np.frombuffer(ids, "<i4").tolist() for ids in call.token_ids]
        if "completions_ids" in inspect.signature(function).parameters:  # the name in the examples of TRL's docs
            arguments["completions_ids"] = arguments["completion_ids"]
        return arguments
    for name in ("completion_ids", "completions_ids"):
        arguments.pop(name, None)
        asked = inspect.signature(function).parameters.get(name)
        if asked is None or asked.default is not asked.empty:
            continue
        raise ValueError(
            f"the function takes {name}, and these completions are only text; olmorl-verify takes their "
            "tokens from a column completion_ids"
        )
    return arguments


def _verl(text: str, columns: dict[str, Any]) -> dict[str, Any]:
    return {
        "data_source": columns.get("data_source", columns.get("dataset")),
        "solution_str": text,
        "ground_truth": columns.get("ground_truth"),
        "extra_info": columns.get("extra_info"),
    }


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function with the arguments that it names, or with all if it accepts any."""
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    value = function(**arguments)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def _reward(value: Any) -> float | list[float | None] | None:
    """The reward as a float, or the rewards of the tokens as floats. A dictionary has it under `score`."""
    if isinstance(value, dict):
        if "score" not in value:
            raise ValueError(
                f"a returned dictionary has its reward under score, and has only {', '.join(map(str, value))}"
            )
        value = value["score"]
    if isinstance(value, list | tuple) or getattr(value, "shape", ()) not in ((), (1,)):
        return [_number(one) for one in value]
    return _number(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        raise TypeError(f"a reward must be a number or None, not the text {value[:40]!r}")
    return None if value is None else float(value)
