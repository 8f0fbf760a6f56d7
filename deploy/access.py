"""How processes reach Redis: an address, and credentials that never stand on a command line, in a log or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class QueueAccess:
    """An address, and the environment with its credentials; its text form shows the address alone."""

    url: str
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_recipe(cls, url: str) -> QueueAccess:
        """The address of the recipe with the credentials of this environment."""
        wanted = ("OLMORL_REDIS_USERNAME", "OLMORL_REDIS_PASSWORD")
        return cls(url, {name: os.environ[name] for name in wanted if name in os.environ})
