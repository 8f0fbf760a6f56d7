"""Runs the service in simulated time: real orchestrator, actors and learner loop, fake engines and trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from olmorl.actors import admission
from olmorl.actors.episodes.fake_environments import FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.fake_answers import FakeAnswers
from olmorl.actors.fake_engine import FakeEngine, simulated_scorer
from olmorl.actors.loop import Actor
from olmorl.actors.sampling_params import SamplingRule
from olmorl.clock import Clock, LoopClock, run_simulated
from olmorl.config import Config
from olmorl.learner import loop
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import EpisodeStart, Probe, Version
from olmorl.ports import Row
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.weights.memory_store import MemoryWeightStore

MOST_LIVE = 1_000_000
"""Bound of the queue. The schedule bounds the draws long before."""
NUM_ROWS = 20_000


class DelayedWeightStore(MemoryWeightStore):
    """Shows a version `publish_s` seconds after it was published."""

    def __init__(self, clock: Clock, publish_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._publish_s = publish_s
        self._shown: Version | None = None
        self._coming: list[tuple[float, Version]] = []

    def publish(
        self, version: Version, buffers: Any, probe: Probe | None = None, rank: int = 0, ranks: int = 1
    ) -> None:
        self._coming.append((self._clock.now() + self._publish_s, version))
        super().publish(version, buffers, probe, rank, ranks)

    def latest(self) -> Version | None:
        while self._coming and self._coming[0][0] <= self._clock.now():
            self._shown = self._coming.pop(0)[1]
        return self._shown

    def discard(self, keep: Any) -> None:
        under_way = [version for _, version in self._coming]
        super().discard([*keep, *under_way, *([self._shown] if self._shown else [])])


class SimulatedService:
    """One run without evaluation. Its ranks work in lockstep, so one simulated rank represents all of them.

    Args:
        settings: the recipe. `simulation.train_tokens_per_s` counts all ranks together.
        num_actors: engines.
        answers: the answers that the engines sample; default: random answers.
        num_rows: different prompts. They are drawn in their order when `data.shuffle` is off.
    """

    def __init__(
        self, settings: Config, num_actors: int, answers: FakeAnswers | None = None, num_rows: int = NUM_ROWS
    ) -> None:
        self._settings = settings
        self._num_actors = num_actors
        self._answers = answers
        self._num_rows = num_rows
        self.engines: list[FakeEngine] = []
        self.lines: list[Mapping[str, Any]] = []
        """The metric lines so far."""
        self.slot_s: list[float] = []
        """Seconds that slots of the engines were in use until each line, summed over all slots."""

    def run(self, steps: int | None = None) -> None:
        """Run the service in simulated time, for all its steps or until `steps` of them are recorded."""
        run_simulated(self._run(steps or self._settings.schedule.steps))

    async def _run(self, steps: int) -> None:
        settings, clock = self._settings, LoopClock()
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        queue = MemoryQueue(settings.queue, MOST_LIVE, clock)
        store = DelayedWeightStore(clock, settings.simulation.publish_s)
        stream = PromptStream(
            [Source("simulated", None, simulated_rows(self._num_rows, settings.episodes.environment))],
            settings.run.seed,
            settings.data.shuffle,
            settings.data.epochs,
        )
        enough = asyncio.Event()

        def observe(line: Mapping[str, Any]) -> None:
            self.lines.append(line)
            self.slot_s.append(sum(engine.use().running_s for engine in self.engines))
            if len(self.lines) >= steps:
                enough.set()

        orchestrator = await Orchestrator.open(
            settings, queue.another(), stream, clock, num_ranks=1, evaluations={}, observe=observe
        )
        trainer = FakeTrainer(settings.simulation, clock)
        actors = [self._actor(number, queue, store, clock) for number in range(self._num_actors)]
        learning = [
            asyncio.create_task(orchestrator.run()),
            asyncio.create_task(loop.run(0, trainer, orchestrator, store, clock, settings)),
        ]
        generating = [asyncio.create_task(actor.run()) for actor in actors]
        stopping = asyncio.create_task(enough.wait())
        try:
            await _first_failure_or(stopping, [*learning, *generating], learning)
        finally:
            await _end([stopping, *learning, *generating])

    def _actor(self, number: int, queue: MemoryQueue, store: MemoryWeightStore, clock: Clock) -> Actor:
        settings = self._settings
        engine = FakeEngine(
            settings.simulation,
            max_running=settings.actors.max_running,
            max_model_len=settings.max_model_len,
            answers=self._answers,
            recompute=settings.actors.weight_update == "recompute",
        )
        self.engines.append(engine)
        return Actor(
            name=f"actor-{number}",
            engine=engine,
            queue=queue.another(),
            weights=store,
            scorer=simulated_scorer(settings),
            clock=clock,
            sample=SamplingRule(settings.sampling, settings.evaluation, settings.run.seed),
            lanes=admission.lanes(settings.sampling, settings.evaluation, []),
            settings=settings.actors,
            lease_s=settings.queue.lease_s,
            max_lag=settings.schedule.max_lag,
            max_span=settings.schedule.max_lag if settings.schedule.over_age == "drop" else None,
            play=simulated_play(settings),
        )


def row_number(prompt: Any) -> int:
    """The number of the row that a simulated prompt was made from."""
    return int(prompt[0])


def simulated_play(settings: Config) -> Play | None:
    """Episodes with the turns and the tool time of the simulation; None for single answers."""
    if settings.episodes.environment is None:
        return None
    simulation = settings.simulation
    return Play(
        FakeEnvironments(simulation.turns, simulation.tool_s),
        FakeRenderer(),
        max_turns=max(simulation.turns, settings.episodes.max_turns),
        max_prompt=settings.data.max_prompt_tokens,
        max_tokens=settings.longest_answer,
        max_cache_age=settings.schedule.max_lag,
    )


def simulated_rows(number: int, environment: str | None = None) -> list[Row]:
    """The first rows of the data of simulated runs, each an episode if there is an environment."""
    episode = EpisodeStart(environment=environment) if environment else None
    return [
        Row(f"simulated:{i + 1}", f"{i}", np.array([i, 5, 5], np.int32), ("simulated",), ("",), {}, False, episode)
        for i in range(number)
    ]


async def _first_failure_or(
    stopping: asyncio.Task[Any], tasks: Sequence[asyncio.Task[Any]], learning: Sequence[asyncio.Task[Any]]
) -> None:
    """Wait until `stopping` or all of `learning` are done. Raises the error of the first of `tasks` that fails."""
    waiting = {stopping, *tasks}
    while not stopping.done() and not all(task.done() for task in learning):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
