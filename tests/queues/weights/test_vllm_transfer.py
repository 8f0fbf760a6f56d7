"""vLLM's own sender and receivers, in one process: what they send is a version in chunks, and arrives byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.store import store_in_files
from olmorl.queues.weights.vllm_transfer import ReceivedChunks, SentChunks, open_receiver, open_sender
from tests.queues.weights.over_gloo import Members, free_port, lend

V1 = Version(1, 1)
CHUNK_BYTES = 30_000


def staged(folder: Path) -> StagedWeights:
    """A version of two ranks with several chunks each, the last ones shorter."""
    store = store_in_files("r", folder / "published", CHUNK_BYTES, shared_memory=folder)
    content = np.random.default_rng(1).integers(0, 255, 250_000, dtype=np.uint8)
    for rank, (start, end) in enumerate([(0, 100_001), (100_001, len(content))]):
        piece = NamedBuffer("w", "uint8", content.shape, content[start:end].data, start, len(content) - end)
        store.publish(V1, [piece], None, rank, 2)
    assert store.complete(V1) == []
    return store.fetch(V1)


def test_vllm_broadcasts_the_chunks_of_a_version_to_all_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend(monkeypatch)
    sent, moved = staged(tmp_path), []
    found: list[dict[tuple[int, int], bytes]] = [{}, {}]

    def receiver(into: dict[tuple[int, int], bytes]) -> Any:
        target = ReceivedChunks(lambda: None)
        target.take = lambda rank, number, chunk: into.__setitem__((rank, number), bytes(chunk))
        return open_receiver("cpu", target)

    source = SentChunks("cpu", lambda: moved.append(1))
    receivers = [receiver(into) for into in found]
    members = Members(receivers)
    engine = open_sender("127.0.0.1", free_port(), 2, members, source)
    engine.send_weights()
    assert found == [{}, {}], "nothing is staged yet"
    source.staged = sent
    engine.send_weights()

    content = sent.path.read_bytes()
    shards = sent.manifest.shards
    expected = {}
    for rank, shard in enumerate(shards):
        stream = b"".join(content[offset : offset + size] for offset, size in shard.pieces)
        expected |= {
            (rank, start // CHUNK_BYTES): stream[start : start + CHUNK_BYTES]
            for start in range(0, len(stream), CHUNK_BYTES)
        }
    assert found == [expected, expected]
    assert len(moved) == len(expected) == 9, "four chunks of the first rank, five of the second"
    assert members.updates[1]["dtype_names"] == ["uint8"] * 9
    engine.shutdown()
    for one in receivers:
        one.shutdown()


def test_dropped_chunks_are_counted_as_movement() -> None:
    import torch

    moved = []
    target = ReceivedChunks(lambda: moved.append(1))
    target.load_weights([("0/0", torch.zeros(3, dtype=torch.uint8)), ("0/1", torch.ones(3, dtype=torch.uint8))])
    assert len(moved) == 2
