"""The events whose files `make shape` counts. Each walk runs real parts of the service and returns the files called.

Simulated are the model (`FakeTrainer`, `FakeEngine`), Ray's handles and the queue, which is the one in memory. So the
files of DeepSpeed, vLLM and Redis are not counted. Processes of the run are objects here, but the writer of rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace
from ray.exceptions import RayActorError

from olmorl import config
from olmorl.actors.fake_engine import FakeEngine
from olmorl.actors.weight_follower import WeightFollower
from olmorl.clock import LoopClock, SystemClock, run_simulated
from olmorl.config import QueueSettings
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.processes import run_process
from olmorl.deploy.supervision.learner_supervisor import LearnerSupervisor
from olmorl.deploy.supervision.policies import Context
from olmorl.deploy.supervision.process_list import ProcessList
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.publisher import Publisher
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import TRAIN_LANE, Completion, Group, Prompt, Shard, Span, Version
from olmorl.ports import Row
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.run_dir import RunFiles
from olmorl.verifiers.scorer import VerifierScorer
from tests.paths.tracer import Trace

V0 = Version(1, 0)


def settings(folder: Path, **sections: Any) -> config.Config:
    """A small simulated run in `folder`."""
    return config.build(
        {
            "run": {"directory": folder, "name": "run", "mode": "simulated"},
            "schedule": {"steps": 9, "prompts_per_step": 2, "max_lag": 1},
            "sampling": {"group_size": 2, "max_tokens": 40},
            "learner": {"minibatches": 1},
            "checkpoint": {"every": 100},
            **sections,
        }
    )


def stream() -> PromptStream:
    rows = [Row(f"a.jsonl:{i + 1}", f"{i}", np.array([i], np.int32), ("math",), ("1",), {}, False) for i in range(90)]
    return PromptStream([Source("train", None, rows)], 0)


def completion(index: int, version: Version, reward: float | None = None) -> Completion:
    return Completion(
        index=index,
        token_ids=np.arange(4, dtype=np.int32),
        logprobs=np.full(4, -0.5, np.float32),
        spans=(Span(version, 0, 4),),
        finish_reason="stop",
        text=r"So the answer is $\boxed{4}$.",
        reward=reward,
    )


async def answer(queue: MemoryQueue, number: int, *rewards: float) -> None:
    """Lease prompts and commit a group with these rewards for each, as an actor does."""
    for lease in await queue.lease("a0", number, TRAIN_LANE, 5.0):
        version = lease.prompt.min_version
        completions = tuple(completion(i, version, reward) for i, reward in enumerate(rewards))
        group = Group(prompt=lease.prompt, completions=completions, actor="a0", started_at=0.0, finished_at=1.0)
        await queue.commit(lease, group)


def group_to_batch(folder: Path) -> list[str]:
    """Two groups are in the queue; ends when rank 0 has its shard of their batch and `rollouts/` has the groups.

    The orchestrator's process, with the queue in memory.
    """
    trace = Trace(folder / "trace")

    async def scenario() -> None:
        queue, clock = MemoryQueue(QueueSettings(outage_deadline_s=15.0), 1000, LoopClock()), LoopClock()
        made = settings(folder)
        orchestrator = await Orchestrator.open(made, queue.another(), stream(), clock, num_ranks=1, evaluations={})
        running = asyncio.create_task(orchestrator.run())
        await orchestrator.published(V0, 0.0)
        asking = asyncio.create_task(orchestrator.next(0, 1))
        await answer(queue, 1, 0.0, 0.0)  # has no gradient; starts the process that writes rollouts
        await asyncio.sleep(1.05)
        await answer(queue, 2, 0.0, 1.0)
        with trace.on():
            assert isinstance(await asking, Shard)
            await orchestrator.draws.write_rollouts()
        running.cancel()
        await asyncio.wait([running])

    with trace.installed():
        run_simulated(scenario())
    return trace.files


def boxed_to_reward(folder: Path) -> list[str]:
    """A completion with a boxed number is finished; ends with its reward."""
    trace = Trace(folder / "trace")
    prompt = Prompt(
        draw_id=0,
        lane=TRAIN_LANE,
        attempt=1,
        row="a.jsonl:1",
        messages="What is 2 + 2?",
        token_ids=np.arange(3, dtype=np.int32),
        datasets=("math",),
        ground_truths=("4",),
        columns={},
        thinking_opened=False,
        group_size=1,
        min_version=V0,
    )

    async def scenario() -> None:
        scorer = VerifierScorer(config.Verifiers(workers=1))
        await scorer.start()
        try:
            await scorer.verify(prompt, completion(0, V0))  # what is read once is read
            await asyncio.sleep(0.5)  # a worker that has just started says so, and then waits for its first call
            with trace.on():
                verdicts = await scorer.verify(prompt, completion(0, V0))
                (judged,) = await scorer.combine(prompt, [replace(completion(0, V0), verdicts=verdicts)])
            assert judged.reward == 1.0
        finally:
            await scorer.stop()

    with trace.installed():
        asyncio.run(scenario())
    return trace.files


def version_to_engine(folder: Path) -> list[str]:
    """A rank publishes a snapshot in files; ends when the (simulated) engine runs the version."""
    trace = Trace(folder / "trace")
    made = settings(folder)

    class Told:
        async def published(self, version: Version, seconds: float) -> None: ...

    async def scenario() -> None:
        store, clock, told = wiring.weight_store(made), SystemClock(), Told()
        trainer = FakeTrainer(made.simulation, clock)
        engine = FakeEngine(made.simulation, max_running=4, max_model_len=99)
        at_engine = wiring.weight_store(made)
        follower = WeightFollower(at_engine, engine, clock, owner="a0", poll_s=0.01, deadline_s=20.0, max_lag=1)
        async with Publisher(store, told, clock) as publisher:  # type: ignore[arg-type]
            await publisher.publish(V0, trainer.snapshot())
            await publisher.finish()
            staged = await follower.newest()
            await engine.start(staged)
            with trace.on():
                await publisher.publish(Version(1, 1), trainer.snapshot())
                await follower.next_update()
                assert engine.version == Version(1, 1)

    with trace.installed():
        asyncio.run(scenario())
    wiring.sweep(made)
    return trace.files


class _Handle:
    """A Ray handle of an object in this process: its methods run in the loop of the scenario, or in a thread."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self._loop = asyncio.get_running_loop()
        self.work: asyncio.Future[Any] | None = None

    def __getattr__(self, method: str) -> Any:
        return _Method(self, method)

    def call(self, method: str, *args: Any) -> Any:
        called = getattr(self.made, method)
        if asyncio.iscoroutinefunction(called):
            future = asyncio.run_coroutine_threadsafe(called(*args), self._loop)
            return asyncio.wrap_future(future) if asyncio._get_running_loop() else future
        done = asyncio.get_running_loop().create_future()
        if method == "run":
            self.work = done
            Thread(target=_quietly, args=(called, args), daemon=True).start()
        else:
            done.set_result(called(*args))
        return done


class _Method:
    def __init__(self, handle: _Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *args: Any) -> Any:
        return self._handle.call(self._name, *args)


def _quietly(run: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with suppress(Exception):
        run(*args)


class _Process(RemoteProcess):
    def kill(self, cause: str = "") -> None:
        """Nothing: a rank of an earlier incarnation is refused by the orchestrator, and ends."""


class _Cluster:
    """Starts the processes of the run in this process."""

    def __init__(self, made: config.Config) -> None:
        self.config = made
        self.started: dict[str, _Process] = {}

    def host_of(self, place: object) -> str:
        return "here"

    def lives(self, host: str) -> bool:
        return True

    def start(self, kind: type, name: str, place: object, *args: Any, **_: Any) -> _Process:
        self.started[name] = _Process(name, _Handle(kind(*args)))
        return self.started[name]


class _Trainer(FakeTrainer):
    has_begun = False
    """Whether it has its first step."""

    async def train(self, shard: Shard) -> dict[str, float] | None:
        self.has_begun = True
        return await super().train(shard)


def rank_comes_back(folder: Path) -> list[str]:
    """A rank of two dies after a checkpoint; ends when both new ranks have their first, journaled, step.

    Supervisor, orchestrator and ranks run in this process, with the trainer, the queue and Ray's handles simulated.
    """
    trace = Trace(folder / "trace")
    made = settings(
        folder,
        learner={"minibatches": 1, "ranks_per_node": 2},
        schedule={"steps": 99, "prompts_per_step": 2, "max_lag": 2},
        checkpoint={"every": 2},
        simulation={"train_overhead_s": 0.05},
    )

    async def scenario() -> None:
        queue = MemoryQueue(QueueSettings(outage_deadline_s=15.0), 1000, SystemClock())

        async def join(*_: Any) -> MemoryQueue:
            return queue.another()

        trainers: list[_Trainer] = []

        def trainer(made: config.Config, rank: int, meeting_point: str) -> _Trainer:
            trainers.append(_Trainer(made.simulation, SystemClock(), rank))
            return trainers[-1]

        cluster: Any = _Cluster(made)
        context = Context(made, plan(made), cluster, ProcessList(made.run_dir), lambda _: None)
        learner: Any = LearnerSupervisor(context, [object(), object()], QueueAccess("redis://here", {}))  # type: ignore[list-item]
        with (
            patch.object(wiring, "join_queue", join),
            patch.object(wiring, "trainer", trainer),
            patch.object(run_process, "log_to", lambda *_: None),
        ):
            await learner.open(False, None)
            supervising = asyncio.create_task(learner.supervise())
            for step in (1, 2, 3):
                await answer(queue, 2, 0.0, 1.0)
                await until(partial(has_steps, made, step))
            await asyncio.sleep(0.5)  # the ranks wait for their next step
            num_dead = len(trainers)
            with trace.on():
                cluster.started["learner-1"].handle.work.set_exception(RayActorError())
                await until(lambda: [each.has_begun for each in trainers[num_dead:]] == [True, True])
            supervising.cancel()
            await asyncio.wait([supervising])

    with trace.installed():
        asyncio.run(scenario())
    wiring.sweep(made)
    return trace.files


def has_steps(made: config.Config, number: int) -> bool:
    """Whether the metrics have this many steps."""
    file = RunFiles(made.run_dir).metrics
    return file.exists() and len(file.read_text().splitlines()) == number


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not ready():  # noqa: ASYNC110 - it watches a file and attributes
            await asyncio.sleep(0.01)


class Walk(NamedTuple):
    """A walk, and the number of its files when they were last counted. It must not grow."""

    run: Callable[[Path], list[str]]
    recorded: int


WALKS = {
    "a group becomes part of a batch": Walk(group_to_batch, 31),
    "a rank dies and comes back": Walk(rank_comes_back, 69),
    "a version reaches an engine": Walk(version_to_engine, 18),
    "a boxed number gets its reward": Walk(boxed_to_reward, 8),
}
KEY, KEY_RECORDED = "max_lag", 22
"""A key of the recipe, and the number of files whose code names it."""
