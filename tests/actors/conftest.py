"""A small service around one or more actors: a queue, a shelf of versions, fake engines, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.actors import admission
from olmorl.actors.episodes.runner import Plays
from olmorl.actors.fake_engine import FakeEngine, FakeScorer
from olmorl.actors.loop import Actor
from olmorl.actors.sampling_params import SamplingRule
from olmorl.clock import LoopClock
from olmorl.errors import WeightError
from olmorl.messages import TRAIN_LANE, Probe, Prompt, Result, Version, WeightsReady
from olmorl.ports import NamedBuffer, StagedWeights
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.simulation import Simulation

LEASE_S = 8.0


class Shelf:
    """Versions without bytes. Those in `corrupt` fail when they are fetched."""

    def __init__(self, *versions: Version) -> None:
        self.versions = list(versions)
        self.corrupt: set[Version] = set()
        self.probes: dict[Version, Probe] = {}
        self.fetched: list[Version] = []

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer] = (),
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.versions.append(version)
        if probe is not None:
            self.probes[version] = probe

    def complete(self, version: Version) -> list[int]:
        return []

    def latest(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def fetch(self, version: Version) -> StagedWeights:
        self.fetched.append(version)
        if version in self.corrupt:
            raise WeightError(f"chunk 3 of weights {version} does not match its hash")
        return StagedWeights(self._manifest(version), Path("/nowhere"))

    def discard(self, keep: Iterable[Version]) -> None: ...

    def sweep(self) -> None: ...

    def _manifest(self, version: Version) -> WeightsReady:
        probe = self.probes.get(version)
        return WeightsReady(version=version, buffers=(), num_bytes=0, chunk_bytes=1, shards=(), probe=probe)


def draw(draw_id: int, *, lane: str = TRAIN_LANE, group_size: int = 4, tokens: int = 5, **more: Any) -> Prompt:
    fields: dict[str, Any] = {
        "row": f"data.jsonl:{draw_id + 1}",
        "messages": "?",
        "token_ids": np.arange(tokens, dtype=np.int32) + draw_id,
        "datasets": ("math",),
        "ground_truths": ("1",),
        "min_version": Version(1, 0),
    }
    return Prompt(draw_id=draw_id, lane=lane, group_size=group_size, **(fields | more))


@dataclass
class Service:
    """Everything around the actors of one simulated test."""

    simulation: Simulation = field(default_factory=Simulation)
    settings: config.Actors = field(default_factory=lambda: config.Actors(max_running=16))
    sampling: config.SamplingSettings = field(
        default_factory=lambda: config.SamplingSettings(group_size=4, max_tokens=400)
    )
    evaluation: config.Evaluation = field(default_factory=config.Evaluation)
    evaluation_lanes: tuple[str, ...] = ()
    max_model_len: int = 500
    evaluation_share: float = 0.25
    max_lag: int = 2
    max_span: int | None = None
    shelf: Shelf = field(default_factory=lambda: Shelf(Version(1, 0)))
    scorer: FakeScorer = field(default_factory=FakeScorer)
    clock: LoopClock = field(default_factory=LoopClock)
    queue_kind: type[MemoryQueue] = MemoryQueue
    play: Plays | None = None
    engines: dict[str, FakeEngine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = self.queue_kind(config.QueueSettings(outage_deadline_s=LEASE_S / 1.5), 10_000, self.clock)

    def actor(self, name: str = "a0", engine: FakeEngine | None = None, shelf: Shelf | None = None) -> Actor:
        engine = engine or FakeEngine(
            self.simulation, max_running=self.settings.max_running, max_model_len=self.max_model_len
        )
        self.engines[name] = engine
        return Actor(
            name=name,
            engine=engine,
            queue=self.queue,
            weights=shelf or self.shelf,
            scorer=self.scorer,
            clock=self.clock,
            sample=SamplingRule(self.sampling, self.evaluation, run_seed=7),
            lanes=admission.lanes(self.sampling, self.evaluation, self.evaluation_lanes),
            settings=self.settings,
            evaluation_share=self.evaluation_share,
            lease_s=LEASE_S,
            max_lag=self.max_lag,
            max_span=self.max_span,
            play=self.play,
        )

    async def push(self, *prompts: Prompt) -> None:
        await self.queue.push(prompts)

    async def results(self, num: int, *, lane: str = TRAIN_LANE, within_s: float = 1000) -> list[Result]:
        """The next `num` results of a lane."""
        taken: list[Result] = []
        async with asyncio.timeout(within_s):
            while len(taken) < num:
                taken += [item.result for item in await self.queue.take(num - len(taken), lane, 10.0)]
        return taken

    @asynccontextmanager
    async def running(self, *actors: Actor) -> AsyncIterator[None]:
        """The actors run inside the block, and are stopped at its end; the error of one of them is raised."""
        await self.queue.claim(1)
        async with asyncio.TaskGroup() as tasks:
            for actor in actors:
                tasks.create_task(actor.run())
            yield
            for actor in actors:
                await actor.stop()


@pytest.fixture
def service() -> Callable[..., Service]:
    return Service


@pytest.fixture(name="draw")
def draw_fixture() -> Callable[..., Prompt]:
    return draw


@pytest.fixture
def staged() -> Callable[[Version], StagedWeights]:
    return Shelf().fetch
