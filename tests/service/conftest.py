"""The whole service in simulated time: real actors, orchestrator and loop around fake engines and trainers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl import config, metrics
from olmorl.actors import admission
from olmorl.actors.episodes.runner import Play
from olmorl.actors.fake_engine import FakeEngine, FakeScorer
from olmorl.actors.loop import Actor
from olmorl.actors.sampling_params import SamplingRule
from olmorl.clock import Clock, LoopClock
from olmorl.config import QueueSettings
from olmorl.learner import loop
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger import read_ledger
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import Stop
from olmorl.ports import Row, Scorer
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.weights.memory_store import MemoryWeightStore
from tests.waiting import set_deadline

RANKS = 2
LEASE_S = 20.0


def rows(number: int, name: str = "train") -> list[Row]:
    """Usable rows with distinct prompts."""
    return [
        Row(
            row=f"{name}.jsonl:{i + 1}",
            messages=f"{name} {i}",
            token_ids=np.array([i % 97, i // 97, len(name), 5], np.int32),
            datasets=("math",),
            ground_truths=("1",),
            columns={},
            thinking_opened=False,
        )
        for i in range(number)
    ]


@dataclass
class Service:
    """One run. `start` may be called again after `crash`: queue, weights and files survive, as after a power cut."""

    settings: config.Config
    num_actors: int = 4
    num_rows: int = 5000
    evaluations: dict[str, Sequence[Row]] = field(default_factory=dict)
    clock: Clock = field(default_factory=LoopClock)
    seed_attempts: bool = True
    """Without it every attempt of a draw samples the same, so that runs with and without crashes can be compared."""

    trainer: Callable[..., FakeTrainer] = FakeTrainer
    engine: Callable[..., FakeEngine] = FakeEngine
    scorer: Callable[[], Scorer] = FakeScorer
    evaluation_share: float = 0.25
    play: Callable[[], Play] | None = None
    rows: Sequence[Row] | None = None
    """In place of `num_rows` made ones."""
    export: Callable[[int], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.queue = MemoryQueue(QueueSettings(outage_deadline_s=LEASE_S / 1.5), 10_000, self.clock)
        self.store = MemoryWeightStore()
        self.trainers: list[FakeTrainer] = []
        self.actors: list[Actor] = []
        self.orchestrator: Orchestrator | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._actor_tasks: dict[str, asyncio.Task[None]] = {}
        self._actors_made = 0

    @property
    def run_dir(self) -> Path:
        return self.settings.run_dir

    async def start(self, *, resume: bool = False, from_step: int | None = None) -> None:
        """Open the run and start its learner; actors that are alive go on."""
        data = self.settings.data
        stream = PromptStream(
            [Source("train", None, self.rows or rows(self.num_rows))], self.settings.run.seed, data.shuffle, data.epochs
        )
        self.orchestrator = await Orchestrator.open(
            self.settings,
            self.queue.another(),
            stream,
            self.clock,
            num_ranks=RANKS,
            evaluations=self.evaluations,
            resume=resume,
            from_step=from_step,
            export=self.export,
        )
        self.trainers = [self.trainer(self.settings.simulation, self.clock, rank) for rank in range(RANKS)]
        self._tasks = [asyncio.create_task(self.orchestrator.run())]
        self._tasks += [
            asyncio.create_task(loop.run(rank, trainer, self.orchestrator, self.store, self.clock, self.settings))
            for rank, trainer in enumerate(self.trainers)
        ]
        while len(self._actor_tasks) < self.num_actors:
            self.add_actor()

    def add_actor(self) -> str:
        """One more engine; returns the actor's name."""
        name = f"actor-{self._actors_made}"
        self._actors_made += 1
        settings = self.settings
        rule = SamplingRule(settings.sampling, settings.evaluation, settings.run.seed)
        max_span = settings.schedule.max_lag if settings.schedule.over_age == "drop" else None
        actor = Actor(
            name=name,
            engine=self.engine(
                settings.simulation, max_running=settings.actors.max_running, max_model_len=settings.max_model_len
            ),
            queue=self.queue.another(),
            weights=self.store,
            scorer=self.scorer(),
            clock=self.clock,
            sample=lambda prompt, index: rule(
                prompt if self.seed_attempts else type(prompt)(**{**_fields(prompt), "attempt": 1}), index
            ),
            lanes=admission.lanes(settings.sampling, settings.evaluation, list(self.evaluations)),
            settings=settings.actors,
            evaluation_share=self.evaluation_share,
            lease_s=LEASE_S,
            max_lag=settings.schedule.max_lag,
            max_span=max_span,
            play=self.play and self.play(),
        )
        self.actors.append(actor)
        self._actor_tasks[name] = asyncio.create_task(actor.run())
        return name

    @property
    def actor_tasks(self) -> dict[str, asyncio.Task[None]]:
        return self._actor_tasks

    async def kill_actor(self, name: str) -> None:
        """End it like a SIGKILL: it returns no lease."""
        await _end([self._actor_tasks.pop(name)])

    async def until(self, ready: Callable[[], bool]) -> None:
        """Let simulated time pass until `ready`; the error of any part of the learner is raised."""
        while not ready():
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    async def steps(self, number: int) -> None:
        """Wait until the metrics have this many steps."""
        await self.until(lambda: (self.run_dir / "metrics.jsonl").exists() and len(self.lines) >= number)

    async def ended_within(self, seconds: float) -> bool:
        """Whether all parts of the learner end in time."""
        _, going_on = await asyncio.wait(self._tasks, timeout=seconds)
        return not going_on

    async def crash(self, *, actors: bool) -> None:
        """End learner and orchestrator at once, and the actors too if `actors`."""
        await _end(self._tasks)
        if actors:
            await _end(list(self._actor_tasks.values()))
            self._actor_tasks.clear()

    async def finish(self) -> Stop:
        """Wait for the learner's end, then stop the actors; the error of any part is raised."""
        try:
            ends = await asyncio.gather(*self._tasks)
        finally:
            await self.crash(actors=True)
        stop = ends[1]
        assert isinstance(stop, Stop)
        return stop

    async def run(self) -> Stop:
        """A whole run without interruption."""
        await self.start()
        return await self.finish()

    # --- what it left -------------------------------------------------------------------------------

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return list(read_ledger(self.run_dir))

    @property
    def in_flight(self) -> set[int]:
        """Draws without an outcome. At the end of a run they are spares that no step needed."""
        return {record["prompt_id"] for record in self.ledger if record["outcome"] == "in_flight"}

    @property
    def decided_after_the_last_line(self) -> list[dict[str, Any]]:
        """Events of the ledger: outcomes of spares, which no line counts."""
        events = [json.loads(line) for line in (self.run_dir / "ledger" / "000001.jsonl").read_text().splitlines()]
        last = max(n for n, event in enumerate(events) if event["event"] == "trained")
        return [event for event in events[last:] if event["event"] == "decided"]

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        return [record for path in rollout_log.files(self.run_dir / "rollouts") for record in rollout_log.read(path)]

    @property
    def trained(self) -> dict[int, list[int]]:
        """Draws of each step, from the ledger."""
        steps: dict[int, list[int]] = {}
        for record in self.ledger:
            if record["outcome"] == "trained":
                steps.setdefault(record["step"], []).append(record["prompt_id"])
        return steps

    def check_lines(self) -> None:
        """Checks that hold for every metric line of every run."""
        schedule = self.settings.schedule
        for number, line in enumerate(self.lines, 1):
            assert line["step"] == number
            ended = sum(line[f"groups_{o}_total"] for o in ("trained", "zero_gradient", "stale", "failed"))
            assert line["prompts_drawn_total"] == ended + line["groups_in_flight"]
            assert line["groups_trained_total"] == number * schedule.prompts_per_step
            assert line["batch_groups"] == schedule.prompts_per_step
            assert 0 <= line["lag_mean"] <= line["lag_max"] <= schedule.max_lag
            parts = {outcome: line[f"tokens_{outcome}_total"] for outcome in metrics.OUTCOMES}
            assert sum(parts.values()) == line["tokens_generated_total"] + line["tokens_evaluation_total"]
            assert min(parts.values()) >= 0 == line["draws_unaccounted"]


def _fields(prompt: Any) -> dict[str, Any]:
    return {name: getattr(prompt, name) for name in prompt.__struct_fields__}


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Service]:
    """Builds a service from dotted settings and `deadlines.NAME`, on top of small defaults."""

    def build(overrides: dict[str, Any] | None = None, **more: Any) -> Service:
        tree: dict[str, Any] = {
            "run": {"directory": tmp_path, "name": f"run{len(list(tmp_path.iterdir()))}", "mode": "simulated"},
            "schedule": {"steps": 12, "prompts_per_step": 8, "max_lag": 2},
            "sampling": {"group_size": 4, "max_tokens": 400},
            "actors": {"max_running": 32},
            "checkpoint": {"every": 4},
        }
        pauses = {"deadlines.BETWEEN_LOOKS_S": 0.4, "deadlines.BETWEEN_HEARTBEATS_S": 2.0}
        for key, value in (pauses | (overrides or {})).items():
            section, name = key.split(".")
            if section == "deadlines":
                set_deadline(monkeypatch, name, value)
            else:
                tree.setdefault(section, {})[name] = value
        settings = config.build(tree)
        settings.run_dir.mkdir(parents=True)
        return Service(settings, **more)

    return build
