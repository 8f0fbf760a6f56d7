"""Caches rewards, so that the same question is not asked twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec


class Cache:
    """Holds the `size` most recently used rewards."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rewards: OrderedDict[bytes, float] = OrderedDict()

    def get(self, key: bytes) -> float | None:
        if key in self._rewards:
            self._rewards.move_to_end(key)
        return self._rewards.get(key)

    def put(self, key: bytes, reward: float) -> None:
        self._rewards[key] = reward
        while len(self._rewards) > self._size:
            self._rewards.popitem(last=False)


def fingerprint(request: Mapping[str, Any]) -> bytes:
    """A hash of a request. Two requests have the same hash only if their contents are equal."""
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).digest()
