"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables inside. Afterwards each has its old value again; all others are as they were left."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def not_set(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that the operator has not set."""
    return {name: value for name, value in variables.items() if name not in os.environ}
