"""Derives all random seeds from the run's seed, so that a draw has the same seeds on every actor."""

from __future__ import annotations

from hashlib import blake2b


def derive(run_seed: int, *parts: int | str) -> int:
    """A seed of 31 bits for `parts`, e.g. `(lane, draw_id, attempt, index)`. Equal arguments give equal seeds."""
    text = "/".join(map(str, (run_seed, *parts)))
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") & 0x7FFFFFFF
