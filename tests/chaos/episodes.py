"""A campaign on episodes: faults in the middle of turns of a whole service, in simulated time.

Real are the actors with their players and sessions, the orchestrator, the learner's loop and all files; fake are the
engines, the trainers, the queue's server and what plays the episodes. Every sampled token is counted twice: by the
engines, which know no outcomes, and by the books.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from olmorl import config, metrics
from olmorl.actors.episodes import agent_process
from olmorl.actors.episodes.fake_environments import ADDED
from olmorl.actors.loop import Actor
from olmorl.clock import run_simulated
from olmorl.config import QueueSettings
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import ENVIRONMENT, TRAIN_LANE, ActorStatus, EpisodeStart, Shard
from olmorl.queues.prompts.deliveries import to_result
from olmorl.queues.prompts.memory_queue import MemoryQueue
from tests.chaos.broken_turns import MAX_TOKENS, TIMEOUT_S, Parts
from tests.chaos.episode import Outcome, Record, order
from tests.chaos.history import violations
from tests.service.conftest import LEASE_S, RANKS, Service, rows
from tests.waiting import set_deadline

FAULTS_A_RUN = 20
STEPS = 40
PATIENCE_S = 3600.0
"""Simulated time within which everything ends."""
NUM_ACTORS = 3
Fault = Callable[["Campaign"], Awaitable[str]]
"""Strikes, and returns its victim when the service has again what it needs."""


class Redis(MemoryQueue):
    """A queue whose server may be silent for a while, for all or for one holder. Its clients wait."""

    silent_until: ClassVar[float] = 0.0
    cut_until = 0.0

    def another(self) -> Redis:
        return Redis(self._settings, self._bound, self._clock, self._run)

    async def answers(self) -> None:
        """Wait until the server answers this holder."""
        while (until := max(Redis.silent_until, self.cut_until)) > self._clock.wall():
            await self._clock.sleep(until - self._clock.wall())


def _answered(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: Redis, *args: Any, **named: Any) -> Any:
        await self.answers()
        return await getattr(MemoryQueue, name)(self, *args, **named)

    return call


for _name in ("push", "lease", "extend", "commit", "heartbeat", "take", "trim", "expire", "counts", "statuses"):
    setattr(Redis, _name, _answered(_name))


class Trainer(FakeTrainer):
    """Hangs until a moment, and keeps what it trained."""

    hangs_until: ClassVar[float] = 0.0
    trained: ClassVar[dict[int, Shard]] = {}

    async def train(self, shard: Shard) -> dict[str, float] | None:
        while self.hangs_until > self._clock.wall():
            await self._clock.sleep(self.hangs_until - self._clock.wall())
        self.trained[shard.step * RANKS + self._rank] = shard
        return await super().train(shard)


class RunOver(Exception):
    """The run took its last step before a fault could strike or was noticed: the others work on while a fault lasts."""


class Campaign:
    """One run with many faults. It ends with a list of what was lost, doubled or scored wrongly."""

    def __init__(self, settings: config.Config, seed: int, *, agents: bool) -> None:
        self.random = Random(seed)
        self.parts = Parts(seed)
        self.agents = self.parts.agents()
        self.run = Service(
            settings,
            num_actors=NUM_ACTORS,
            rows=[row._replace(episode=EpisodeStart(environment="" if agents else "fake")) for row in rows(3000)],
            play=(lambda: self.agents) if agents else self.parts.play,  # type: ignore[arg-type, return-value]
            trainer=Trainer,
        )
        self.run.queue = Redis(QueueSettings(outage_deadline_s=LEASE_S / 1.5), 10_000, self.run.clock)
        self.outcome = Outcome(seed)
        self._unheard = 0
        self._dead: set[str] = set()
        self._last: dict[str, ActorStatus] = {}
        Redis.silent_until = Trainer.hangs_until = 0.0
        Trainer.trained = {}

    # --- faults ---------------------------------------------------------------------------------------

    async def break_part(self, cause: str, after_s: float) -> str:
        """A part in the middle of a turn."""
        await self._until(lambda: bool(self.parts.busy()))
        part = self.random.choice(self.parts.busy())
        part.strike(cause, after_s)
        return f"episode {part.number}"

    async def break_all_parts(self) -> str:
        """No part does any work for a while."""
        self.parts.are_down = True
        for part in self.parts.busy():
            part.strike("an outage of all", 0.1)
        await asyncio.sleep(2.0)
        self.parts.are_down = False
        return "all"

    async def kill_actor(self) -> str:
        name = await self._working_actor()
        await self._bury(name)
        return name

    async def hang_engine(self) -> str:
        """The engine makes no token any more, until the actor gives up."""
        name = await self._working_actor()
        engine: Any = self._actor(name)._engine
        engine._advance()
        engine._simulation = engine._simulation.model_copy(update={"tokens_per_s": 1e-9})
        engine._set_timer()
        await self._until(self.run.actor_tasks[name].done)
        await self._bury(name)
        return name

    async def cut_actor(self) -> str:
        """The actor hears nothing for longer than its leases last."""
        name = await self._working_actor()
        queue: Any = self._actor(name)._queue
        queue.cut_until = self.run.clock.wall() + 1.5 * LEASE_S
        return name

    async def silence_redis(self) -> str:
        Redis.silent_until = self.run.clock.wall() + self.random.uniform(1.0, 10.0)
        return "for all"

    async def kill_learner(self) -> str:
        await self.run.crash(actors=False)
        await self.run.start(resume=True)
        return "learner"

    async def hang_rank(self) -> str:
        """A rank makes no step until the supervisor ends the learner."""
        Trainer.hangs_until = PATIENCE_S
        await asyncio.sleep(self.random.uniform(5.0, 40.0))
        Trainer.hangs_until = 0.0
        return await self.kill_learner()

    async def kill_everything(self) -> str:
        names = list(self.run.actor_tasks)
        for name in names:
            await self._stop_counting(name)
        await self.run.crash(actors=True)
        await self.run.start(resume=True)
        for name in names:
            await self._declare_dead(name)
        return "everything"

    async def _working_actor(self) -> str:
        def working() -> list[str]:
            return [
                name
                for name, task in self.run.actor_tasks.items()
                if not task.done() and any(work.num_waiting for work in self._actor(name)._works.values())
            ]

        await self._until(lambda: bool(working()))
        return self.random.choice(working())

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Wait for a part of the run. Raises RunOver."""
        await self.run.until(lambda: ready() or len(self.run.lines) == STEPS)
        if not ready():
            raise RunOver

    async def _bury(self, name: str) -> None:
        """What the supervisor does about an actor that has ended."""
        await self._stop_counting(name)
        await self.run.kill_actor(name)
        self.run.add_actor()
        await self._declare_dead(name)

    async def _declare_dead(self, name: str) -> None:
        assert self.run.orchestrator
        await self.run.orchestrator.declare_dead(name)

    async def _stop_counting(self, name: str) -> None:
        """End an actor.

        Nobody but its engine knows the tokens between its last heartbeat and its death, unless they were stored.
        """
        self._dead.add(name)
        self.run.actor_tasks[name].cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self.run.actor_tasks[name]
        heard = (await MemoryQueue.statuses(self.run.queue)).get(name)
        last = self._actor(name).status()
        known = max(heard.tokens_generated, heard.tokens_wasted + last.tokens_stored) if heard else last.tokens_stored
        self._unheard += last.tokens_generated - known

    def _actor(self, name: str) -> Actor:
        return next(actor for actor in self.run.actors if actor.name == name)

    # --- the story ------------------------------------------------------------------------------------

    async def play(self, dealt: Sequence[str]) -> None:
        """Let the faults strike one after the other, each in another step, while there are steps left."""
        run = self.run
        await run.start()
        with suppress(RunOver):
            for number, fault in enumerate(dealt, 1):
                await run.steps(number)
                await asyncio.sleep(self.random.uniform(0.0, 2.0))
                self.outcome.records.append(Record(fault, await FAULTS[fault](self), ""))
        await run.finish()
        self._last = {actor.name: actor.status() for actor in run.actors}

    def judge(self) -> Iterator[str]:
        """Everything that is wrong, in words."""
        run, schedule = self.run, self.run.settings.schedule
        self.outcome.steps = len(run.lines)
        # Masked tokens may be older.
        oldest = STEPS if schedule.over_age == "mask" else schedule.max_lag
        yield from violations(run.run_dir, schedule.prompts_per_step, oldest)
        if (lag := max(line["lag_max"] for line in run.lines)) > schedule.max_lag:
            yield f"a lag of {lag}"
        yield from self._of_samples()
        yield from self._of_tokens()
        yield from self._of_scores()
        if self.parts.live:
            yield f"episodes {sorted(self.parts.live)} were never closed"

    def _of_samples(self) -> Iterator[str]:
        """The learner's sequences have each sampled token of a trained group once, and no other."""
        sampled = {
            (record["step"], record["prompt_id"]): sum(len(one["token_ids"]) for one in record["completions"])
            for record in self.run.rollouts
            if record["outcome"] == "trained"
        }
        trained: Counter[tuple[int, int]] = Counter()
        for shard in Trainer.trained.values():
            for sample in chain.from_iterable(chain.from_iterable(shard.minibatches)):
                trained[shard.step, sample.draw_id] += int((sample.completion_ids < ADDED).sum())
        if wrong := sorted(key for key in sampled | trained if sampled.get(key) != trained[key]):
            yield f"these steps and draws were trained with other tokens than were sampled: {wrong}"

    def _of_tokens(self) -> Iterator[str]:
        """Each token that an engine sampled has one outcome."""
        run = self.run
        orchestrator: Any = run.orchestrator
        counts, state = orchestrator._metrics, orchestrator.draws.state
        counts.heard({name: last for name, last in self._last.items() if name not in self._dead}, PATIENCE_S)
        waiting = [to_result(stored, TRAIN_LANE) for stored in run.queue._run.lanes[TRAIN_LANE].results.values()]
        later = sum(result.num_tokens for result in waiting) + sum(counts.lost().values())
        found = state.decided_tokens.total() + state.trained.scored + sum(state.lost.values()) + later
        sampled = sum(last.tokens_generated for last in self._last.values())
        if found != sampled - self._unheard:
            yield f"engines sampled {sampled} tokens, {self._unheard} of them unheard of, and the books have {found}"
        for line in run.lines:
            parts = [line[f"tokens_{outcome}_total"] for outcome in metrics.OUTCOMES]
            if min(parts) < 0 or sum(parts) != line["tokens_generated_total"]:
                yield f"step {line['step']}: {line['tokens_generated_total']} tokens, with the outcomes {parts}"

    def _of_scores(self) -> Iterator[str]:
        """What was struck has no score."""
        completions = chain.from_iterable(record["completions"] for record in self.run.rollouts)
        marks = [one["verdicts"][ENVIRONMENT]["reward"] for one in completions if ENVIRONMENT in one["verdicts"]]
        if wrong := sorted(self.parts.struck & set(map(int, marks))):
            yield f"episodes {wrong} were struck, and scored"


def _part(cause: str, after_s: float) -> Fault:
    return partial(Campaign.break_part, cause=cause, after_s=after_s)


OF_ENVIRONMENTS = {
    "environment, tool or sandbox ends": _part("its process ended (signal 9)", 0.0),
    "environment, tool or sandbox hangs": _part("step took longer than episodes.timeout_s", TIMEOUT_S),
}
OF_AGENTS = {"agent ends": _part("killed", 0.0), "agent hangs": _part("hangs", 1e6)}
OF_ALL: dict[str, Fault] = {
    "all environments or agents fail": Campaign.break_all_parts,
    "actor killed": Campaign.kill_actor,
    "engine hangs": Campaign.hang_engine,
    "actor cut off": Campaign.cut_actor,
    "Redis silent": Campaign.silence_redis,
    "learner killed": Campaign.kill_learner,
    "rank hangs": Campaign.hang_rank,
    "everything killed": Campaign.kill_everything,
}
FAULTS = OF_ENVIRONMENTS | OF_AGENTS | OF_ALL


def run(faults: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[Outcome]:
    """Runs with `faults` faults in all, in environments and of agents by turns."""
    outcomes = []
    for number, start in enumerate(range(0, faults, FAULTS_A_RUN), seed):
        agents = bool(number % 2)
        kinds = (OF_AGENTS if agents else OF_ENVIRONMENTS) | OF_ALL
        dealt = [name for name, _ in order(kinds, min(FAULTS_A_RUN, faults - start), Random(number))]
        outcomes.append(play(folder, say, number, dealt, agents=agents))
    return outcomes


def play(folder: Path, say: Callable[[str], None], seed: int, dealt: Sequence[str], *, agents: bool) -> Outcome:
    """One run with the faults `dealt`. A run that kept every promise is removed."""
    place = folder / f"episodes-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    campaign = Campaign(_settings(place, Random(seed)), seed, agents=agents)
    outcome = campaign.outcome
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_process, "running", campaign.agents.running)
        for name, value in {"BETWEEN_LOOKS_S": 0.4, "BETWEEN_HEARTBEATS_S": 0.5}.items():
            set_deadline(patch, name, value)
        try:
            run_simulated(asyncio.wait_for(campaign.play(dealt), PATIENCE_S))
            outcome.violations += campaign.judge()
        except TimeoutError:
            outcome.hung = True
            outcome.violations.append(f"no end within {PATIENCE_S:g} s of simulated time")
    if not outcome.violations:
        shutil.rmtree(place)
    say(
        f"episodes of {'agents' if agents else 'environments'}, seed {seed}: {len(outcome.records)} of {len(dealt)} "
        f"faults, {outcome.steps} steps, {len(outcome.violations)} violation(s)"
        + "".join(f"\n  {violation[:3000]}" for violation in outcome.violations)
    )
    return outcome


def _settings(place: Path, random: Random) -> config.Config:
    settings = config.build(
        {
            "run": {"directory": place, "name": "run", "mode": "simulated"},
            "schedule": {
                "steps": STEPS,
                "prompts_per_step": 4,
                "max_lag": random.choice([1, 2, 4]),
                "over_age": random.choice(["wait", "mask", "drop"]),
            },
            "sampling": {"group_size": 4, "max_tokens": 150},
            "episodes": {"environment": "fake:fake", "max_tokens": MAX_TOKENS},
            "actors": {"max_running": 24, "stall_deadline_s": 15.0},
            "checkpoint": {"every": 5},
            "simulation": {"mean_tokens": 40},
        }
    )
    settings.run_dir.mkdir(parents=True)
    return settings
