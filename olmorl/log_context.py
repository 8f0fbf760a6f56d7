"""The facts that belong to every log record of a task: the step it works on, the prompt, the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

Facts = Mapping[str, int | str]
_NONE: Final[Facts] = MappingProxyType({})
_FACTS: ContextVar[Facts] = ContextVar("log_facts", default=_NONE)


def note_facts(**facts: int | str) -> None:
    """Add facts to all later records of this task, and of the tasks and threads that it starts."""
    _FACTS.set({**_FACTS.get(), **facts})


def facts() -> Facts:
    """The facts of the current task."""
    return _FACTS.get()
