"""Which bytes of a weight file a part of a shard's stream is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from olmorl.messages import WeightShard
from olmorl.queues.weights.chunks import Extent, sizes
from olmorl.queues.weights.pieces import within

PIECES = [(100, 10), (200, 5), (300, 20)]


@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [
        (0, 10, [(100, 10)]),
        (0, 12, [(100, 10), (200, 2)]),
        (3, 4, [(103, 4)]),
        (8, 20, [(108, 2), (200, 5), (300, 13)]),
        (12, 3, [(202, 3)]),
        (15, 20, [(300, 20)]),
        (34, 1, [(319, 1)]),
        (35, 0, []),
    ],
)
def test_a_part_of_the_stream_lies_in_these_places(start: int, size: int, expected: Iterable[Extent]) -> None:
    assert within(PIECES, start, size) == expected


def test_only_the_last_chunk_of_a_shard_is_shorter() -> None:
    assert sizes(WeightShard(tuple(PIECES), ()), 16) == [16, 16, 3]
    assert sizes(WeightShard(((0, 32),), ()), 16) == [16, 16]
    assert sizes(WeightShard((), ()), 16) == [], "a rank without a piece"
