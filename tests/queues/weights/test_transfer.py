"""Versions go from one host to the others by vLLM's own code over gloo. Whatever dies, each host gets every version."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl.errors import WeightError
from olmorl.messages import Version
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.weights.deltas import Published
from olmorl.queues.weights.store import StagedWeightStore, store_in_files
from olmorl.queues.weights.transfer import OWN_HOST, HostTransfer
from tests import waiting
from tests.queues.weights import over_gloo
from tests.queues.weights.over_gloo import STALL_S, OverGloo
from tests.waiting import HANG_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
CHUNK_BYTES = 30_000
NUM_BYTES = 400_000
GATHER_S = 300.0
"""For three processes to import vLLM, on a busy machine."""
MOST_S = 60.0
SPLIT = 150_001
"""Between the bytes of two ranks."""


def content(version: Version) -> Any:
    return np.random.default_rng(1000 * version.incarnation + version.number).integers(
        0, 255, NUM_BYTES, dtype=np.uint8
    )


def is_whole(staged: StagedWeights, version: Version) -> bool:
    return staged.manifest.version == version and staged.path.read_bytes() == content(version).tobytes()


class WithoutChunks:
    """A place of publication that shows manifests, and no bytes."""

    def __init__(self, published: Any) -> None:
        self._published = published

    def open(self, version: Version) -> Published:
        found = self._published.open(version)
        return Published(found.manifest, [self._none(version) for _ in found.shards])

    @staticmethod
    def _none(version: Version) -> Iterator[memoryview]:
        raise WeightError(f"version {version} was asked of the store")
        yield memoryview(b"")


class ActorHost:
    """A host with one actor. `fetch_sent` succeeds only if the version came by transfer."""

    def __init__(self, name: str, store: StagedWeightStore, transfer: HostTransfer) -> None:
        self.name = name
        self.transfer = transfer
        self._store: Any = store.helped_by(transfer)
        self._without: Any = store.helped_by(transfer)
        self._without._published = WithoutChunks(self._store._published)

    def fetch(self, version: Version) -> StagedWeights:
        staged: StagedWeights = self._store.fetch(version)
        return staged

    def fetch_sent(self, version: Version) -> StagedWeights:
        staged: StagedWeights = self._without.fetch(version)
        return staged

    @property
    def said(self) -> str:
        """Why the last version did not come by transfer; empty if it did."""
        return self.transfer._said

    def end(self) -> None:
        self._store._stage.release()
        self._without._stage.release()
        self.transfer.sweep()


class Run:
    """A learner of two ranks, and hosts of actors, which are folders here. The first one that fetches sends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = folder.name
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.learner = self._open("learner")()
        self.hosts: dict[str, ActorHost] = {}
        self.version = Version(1, 0)

    def _open(self, host: str) -> partial[StagedWeightStore]:
        memory = self._folder / host
        memory.mkdir()
        published = self._folder / "published"
        return partial(store_in_files, self.name, published, CHUNK_BYTES, shared_memory=memory)

    def host(self, name: str) -> ActorHost:
        open_store, device = self._open(name), OverGloo(host=name, faults=self.faults)
        transfer = HostTransfer(self.name, open_store, MOST_S, device, name)
        self.hosts[name] = ActorHost(name, open_store(), transfer)
        return self.hosts[name]

    def publish(self, version: Version | None = None) -> Version:
        """The next version, or this one."""
        self.version = version or Version(self.version.incarnation, self.version.number + 1)
        values = content(self.version)
        for rank, (start, end) in enumerate([(0, SPLIT), (SPLIT, NUM_BYTES)]):
            piece = NamedBuffer("w", "uint8", values.shape, values[start:end].data, start, NUM_BYTES - end)
            self.learner.publish(self.version, [piece], None, rank, 2)
        assert self.learner.complete(self.version) == []
        self.learner.discard([self.version])
        return self.version

    def fetch(self) -> list[bool]:
        """Every host fetches the latest version; whether each has exactly its bytes."""
        hosts = list(self.hosts.values())
        first = hosts[0].fetch(self.version)  # if there is no sender, this host becomes it
        with ThreadPoolExecutor() as pool:
            others = list(pool.map(lambda host: host.fetch(self.version), hosts[1:]))
        return [is_whole(staged, self.version) for staged in [first, *others]]

    def gather(self) -> None:
        """Publish until all hosts but the sender get a version by transfer; the store serves those before."""
        give_up = time.monotonic() + GATHER_S
        while time.monotonic() < give_up:
            self.publish()
            assert all(self.fetch())
            if [host.said for host in self.hosts.values()] == [OWN_HOST] + [""] * (len(self.hosts) - 1):
                return
            time.sleep(1.0)
        raise AssertionError({name: host.said for name, host in self.hosts.items()})

    def break_at(self, host: str, fault: str) -> None:
        (self.faults / host).write_text(fault)

    def actor(self, kind: str) -> Any:
        import ray

        return ray.get_actor(f"olmorl-{kind}", "olmorl")

    def end(self) -> None:
        for host in self.hosts.values():
            host.end()
        self.learner.sweep()


@pytest.fixture(scope="module")
def by_value(ray_here: None) -> Iterator[None]:
    """Ray's workers cannot import a test: its classes travel as code."""
    import ray

    modules = sys.modules[__name__], over_gloo, waiting
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def run(by_value: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Three hosts that have a group. All tests share it: a process needs seconds for vLLM."""
    made = Run(tmp_path_factory.mktemp("transfer"))
    for name in ("a", "b", "c"):
        made.host(name)
    yield made
    made.end()


@pytest.fixture
def gathered(run: Run) -> Run:
    """All hosts get versions by transfer."""
    run.gather()
    return run


def fetch_sent(run: Run, hosts: Sequence[str]) -> list[Future[StagedWeights]]:
    """Fetches that succeed only by transfer."""
    pool = ThreadPoolExecutor()
    found = [pool.submit(run.hosts[name].fetch_sent, run.version) for name in hosts]
    pool.shutdown(wait=False)
    return found


def test_versions_go_from_host_to_host_and_the_store_serves_one_of_them(gathered: Run) -> None:
    for _ in range(3):
        version = gathered.publish()
        found = fetch_sent(gathered, ["b", "c"])
        assert [is_whole(one.result(HANG_S), version) for one in found] == [True, True]


def test_a_rollback_is_followed(gathered: Run) -> None:
    version = gathered.publish(Version(gathered.version.incarnation + 1, 1))
    found = fetch_sent(gathered, ["b", "c"])
    assert [is_whole(one.result(HANG_S), version) for one in found] == [True, True]


def test_a_version_that_the_sender_cannot_fetch_is_left_to_the_store(gathered: Run) -> None:
    import ray

    unknown = Version(gathered.version.incarnation + 1, 7)
    said = ray.get(gathered.actor(f"sender-{gathered.name}").bring.remote(unknown, "b"), timeout=HANG_S)
    assert said.startswith(f"its sender did not get it: version {unknown} is not in ")


def test_a_newcomer_uses_the_store_until_the_group_has_it(gathered: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")  # as Ray gives them to an actor's process
    newcomer = gathered.host("d")
    version = gathered.publish()
    assert is_whole(newcomer.fetch(version), version)
    assert newcomer.said == "this host was not in the group"
    gathered.gather()
    version = gathered.publish()
    assert all(is_whole(one.result(HANG_S), version) for one in fetch_sent(gathered, ["b", "c", "d"]))
    receiver = gathered.actor(f"receiver-{gathered.name}-d")
    seen = ray.get(receiver.__ray_call__.remote(lambda self: os.environ["CUDA_VISIBLE_DEVICES"]), timeout=HANG_S)
    assert seen == "5,6", "Ray hides all GPUs from a process that asks for none"
    gathered.hosts.pop("d").end()


def test_a_damaged_chunk_is_named_and_its_host_takes_the_version_from_the_store(gathered: Run) -> None:
    gathered.break_at("b", "flip")
    version = gathered.publish()
    with pytest.raises(WeightError, match="was asked of the store"):
        gathered.hosts["b"].fetch_sent(version)
    assert f"version {version}: chunk " in gathered.hosts["b"].said
    assert "is not what was published; the version is not applied" in gathered.hosts["b"].said
    assert is_whole(gathered.hosts["c"].fetch_sent(version), version), "the broadcast went on for the others"
    assert is_whole(gathered.hosts["b"].fetch(version), version)
    version = gathered.publish()
    assert all(is_whole(one.result(HANG_S), version) for one in fetch_sent(gathered, ["b", "c"]))


def test_a_receiver_dies_in_a_broadcast_and_all_hosts_get_the_version(gathered: Run) -> None:
    gathered.break_at("b", "die")
    gathered.publish()
    assert gathered.fetch() == [True, True, True]
    assert not (gathered.faults / "b").exists(), "it died"
    assert gathered.hosts["b"].said and gathered.hosts["c"].said
    gathered.gather()
    version = gathered.publish()
    assert all(is_whole(one.result(HANG_S), version) for one in fetch_sent(gathered, ["b", "c"]))


def test_a_broadcast_that_hangs_ends_by_itself_and_the_learner_publishes_meanwhile(gathered: Run) -> None:
    gathered.break_at("b", "hang")
    hung = gathered.publish()
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(gathered.hosts[name].fetch, hung) for name in ("b", "c")]
        until(lambda: not (gathered.faults / "b").exists())
        gathered.learner.publish(Version(hung.incarnation, hung.number + 1), halves(hung)[0], None, 0, 2)
        assert not any(one.done() for one in waits), "it was published while the broadcast hung"
        assert [is_whole(one.result(HANG_S), hung) for one in waits] == [True, True]
    assert time.monotonic() - started < 5 * STALL_S
    gathered.version = Version(hung.incarnation + 1, 0)
    gathered.gather()


def halves(version: Version) -> list[list[NamedBuffer]]:
    """The shards of the version after this one."""
    values = content(Version(version.incarnation, version.number + 1))
    ends = [(0, SPLIT), (SPLIT, NUM_BYTES)]
    return [[NamedBuffer("w", "uint8", values.shape, values[s:e].data, s, NUM_BYTES - e)] for s, e in ends]


def test_without_its_sender_every_host_uses_the_store_and_another_host_sends(gathered: Run) -> None:
    import ray

    ray.kill(gathered.actor(f"sender-{gathered.name}"))
    version = gathered.publish()
    assert is_whole(gathered.hosts["c"].fetch(version), version)
    assert is_whole(gathered.hosts["b"].fetch(version), version)
    assert "lost" in gathered.hosts["c"].said or gathered.hosts["c"].said == "there was no sender"
    gathered.hosts = {name: gathered.hosts[name] for name in ("c", "a", "b")}  # the next sender is on c
    gathered.gather()
    version = gathered.publish()
    assert all(is_whole(one.result(HANG_S), version) for one in fetch_sent(gathered, ["a", "b"]))


def test_a_sender_that_does_not_answer_is_replaced(gathered: Run) -> None:
    import ray

    sender = gathered.actor(f"sender-{gathered.name}")
    os.kill(ray.get(sender.__ray_call__.remote(lambda self: os.getpid()), timeout=HANG_S), signal.SIGSTOP)
    version, started = gathered.publish(), time.monotonic()
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(gathered.hosts[name].fetch, version) for name in ("b", "a")]
        assert [is_whole(one.result(HANG_S), version) for one in waits] == [True, True]
    assert time.monotonic() - started < 5 * STALL_S
    assert "sender is lost" in gathered.hosts["b"].said
    gathered.gather()
