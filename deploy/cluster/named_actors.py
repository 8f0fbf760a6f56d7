"""The processes in the run's namespace of Ray, by name."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import remove_placement_group

_START = "@"
"""The separator between the name of a process and the name of its start."""


def start_of(process: str) -> str:
    """A new name for a start of a process: the name of an earlier start that was killed may not be free yet."""
    return f"{process}{_START}{secrets.token_hex(4)}"


def starts(process: str = "") -> Iterator[tuple[str, Any]]:
    """Name and handle of every living start, of one process or of all."""
    for start in list_named_actors():
        name = start.partition(_START)[0]
        if process in ("", name):
            with contextlib.suppress(ValueError):  # it has died since
                yield name, ray.get_actor(start)


def ask_all(process: str, method: str, timeout_s: float) -> list[Any]:
    """The answers of all living starts of a process. A start that does not answer is left out."""
    answers = []
    for _, handle in starts(process):
        with contextlib.suppress(RayError, TimeoutError):
            answers.append(getattr(handle, method).remote().future().result(timeout_s))
    return answers


def leave() -> None:
    """Free the place of this process, which ends every process in it."""
    if (group := ray.util.get_current_placement_group()) is not None:
        remove_placement_group(group)
