"""When steps were seen to be done, from outside."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """One line of `metrics.jsonl`."""

    at: float
    """On the monotonic clock."""
    line: dict[str, Any]

    @property
    def key(self) -> tuple[int, int]:
        return self.line["incarnation"], self.line["step"]


class Steps:
    """Every step of every incarnation, once, in the order in which it was seen; also those that a resume did again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = (0, 0)
        self.seen: list[Seen] = []
        self._keys: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self.seen)

    def look(self) -> None:
        """Read the new lines. A resume rewrites the file from its checkpoint on."""
        if not self._path.exists():
            return
        status = self._path.stat()
        if (status.st_mtime_ns, status.st_size) == self._state:
            return
        self._state, now = (status.st_mtime_ns, status.st_size), time.monotonic()
        for text in self._path.read_bytes().split(b"\n")[:-1]:
            step = Seen(now, json.loads(text))
            if step.key not in self._keys:
                self._keys.add(step.key)
                self.seen.append(step)

    def since(self, count: int) -> list[Seen]:
        """The steps after the first `count`."""
        return self.seen[count:]

    def longest_gap_s(self, count: int, begin: float) -> float:
        """The longest time without a step, from `begin` to the last one seen, after the first `count`."""
        times = [begin, *(step.at for step in self.since(count))]
        return max((later - sooner for sooner, later in pairwise(times)), default=0.0)
