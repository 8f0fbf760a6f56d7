"""A version that another host sent, in a real engine: it computes what it computes with the store's own copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.host_cache import TakeChunk
from olmorl.queues.weights.store import StagedWeightStore, store_in_files
from olmorl.queues.weights.vllm_transfer import ReceivedChunks, SentChunks, open_receiver, open_sender
from tests.actors.vllm_engine.test_engine import Case, Weights, untied_case
from tests.queues.weights.over_gloo import Members, free_port, lend

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
V1, V2 = Version(1, 1), Version(1, 2)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    yield untied_case(tmp_path / "model")


def publish(store: StagedWeightStore, version: Version, case: Case, weights: Weights) -> None:
    """Publish as two ranks: each has half of each tensor."""
    for rank in (0, 1):
        shard = []
        for name, dtype, shape, data, *_ in case.buffers(weights):
            half = data.nbytes // 8 * 4
            mine = data[half:] if rank else data[:half]
            shard.append(NamedBuffer(name, dtype, shape, mine, half if rank else 0, 0 if rank else data.nbytes - half))
        store.publish(version, shard, None, rank, 2)
    assert store.complete(version) == []


def send(staged: StagedWeights, store: StagedWeightStore) -> None:
    """From the host that staged it to the host of this store."""
    target = ReceivedChunks(lambda: None)
    receiver = open_receiver("cpu", target)
    source = SentChunks("cpu", lambda: None)
    sender = open_sender("127.0.0.1", free_port(), 1, Members([receiver]), source)
    source.staged = staged

    def transfer(take: TakeChunk) -> None:
        target.take = take
        sender.send_weights()

    store.receive(staged.manifest, transfer)
    sender.shutdown()
    receiver.shutdown()


async def test_an_engine_cannot_tell_who_brought_a_version(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, new = tmp_path / "published", case.perturbed("q_proj")
    by_store = store_in_files("r", published, 10_000, shared_memory=tmp_path / "a")
    by_transfer = store_in_files("r", published, 10_000, shared_memory=tmp_path / "b")
    publish(by_store, V1, case, case.weights)
    publish(by_store, V2, case, new)
    tokens = case.scores(new).token_ids
    engine = case.engine()
    await engine.start(by_store.fetch(V1))
    try:
        old = await engine.score(tokens)
        copied = by_store.fetch(V2)
        await engine.update(copied)
        expected = await engine.score(tokens)
        with monkeypatch.context() as patches:
            lend(patches)
            send(copied, by_transfer)
        sent = by_transfer.fetch(V2)
        assert sent.path != copied.path and sent.path.read_bytes() == copied.path.read_bytes()
        await engine.update(by_store.fetch(V1))
        assert np.array_equal(await engine.score(tokens), old)
        assert (await engine.update(sent)).version == V2
        assert np.array_equal(await engine.score(tokens), expected)
        assert not np.array_equal(old, expected)
        assert np.abs(expected - np.array(case.scores(new).logprobs)).mean() < case.tolerance
    finally:
        await engine.stop()
        by_store.sweep()
        by_transfer.sweep()
