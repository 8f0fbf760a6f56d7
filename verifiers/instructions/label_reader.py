"""Reads labels of the instruction-following verifier: the constraints on an answer, with their parameters.

    {"instruction_id": [id, ...], "kwargs": [{...} or None, ...]}      also `instruction_id_list`
    {"func_name": id, parameter: value, ...}

A label is an object, JSON text, a Python literal, or a list of these. Parameters that are None count as missing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from olmorl.verifiers.instructions.constraint_table import find

MAX_LABEL = 1 << 20
"""The most characters of a label that is text."""
MAX_DEPTH = 3
"""The most nested lists and texts around a label."""
_IDS = ("instruction_id", "instruction_id_list")

Bound = tuple[str, dict[str, Any]]
"""The id of a constraint and its parameters."""


def read(label: Any) -> list[Bound]:
    """The constraints of a label, at least one. Raises ValueError with the reason if it is unusable."""
    bound = [(name, find(name).bind(given)) for name, given in _entries(label, MAX_DEPTH)]
    if not bound:
        raise ValueError("the label names no constraint")
    return bound


def _entries(label: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth == 0 and not isinstance(label, dict):
        raise ValueError(f"the label has more than {MAX_DEPTH} layers of lists and texts around it")
    if isinstance(label, str):
        yield from _entries(_parsed(label), depth - 1)
    elif isinstance(label, (list, tuple)):
        for item in label:
            yield from _entries(item, depth - 1)
    elif not isinstance(label, dict):
        raise ValueError(f"the label is a {type(label).__name__}, not an object with instruction_id or func_name")
    elif label.get("func_name") is not None:
        yield _text(label["func_name"], "func_name"), label
    else:
        yield from _pairs(label)


def _pairs(label: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    ids = next((label[name] for name in _IDS if label.get(name) is not None), None)
    if ids is None:
        raise ValueError("the label has neither instruction_id nor func_name")
    ids = [ids] if isinstance(ids, str) else ids
    given = label.get("kwargs")
    given = _parsed(given) if isinstance(given, str) else given
    given = [given] * len(ids) if given is None or isinstance(given, dict) else given
    if not isinstance(ids, (list, tuple)) or not isinstance(given, (list, tuple)) or len(ids) != len(given):
        raise ValueError("instruction_id and kwargs must be lists of one length")
    for name, parameters in zip(ids, given, strict=True):
        if not isinstance(parameters, (dict, type(None))):
            raise ValueError(f"the kwargs of {name!r:.80} are a {type(parameters).__name__}, not an object")
        yield _text(name, "an instruction_id"), parameters or {}


def _parsed(text: str) -> Any:
    """Decode JSON or a Python literal. This runs no code."""
    if len(text) > MAX_LABEL:
        raise ValueError(f"the label is longer than {MAX_LABEL} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"the label is neither JSON nor a Python literal: {text!r:.80}") from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be text, not {value!r:.80}")
    return value
