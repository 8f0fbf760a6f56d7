"""What each process of a run is: built from the recipe where it runs, and called over Ray. `assembler_host` beside.

Every host takes the recipe as plain data, so that nothing but text and numbers crosses processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from olmorl import config
from olmorl.deploy import lifeline, semaphores, wiring
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.lifeline import Lifeline
from olmorl.deploy.plan import Plan
from olmorl.deploy.process import Identity, RayBatchSource
from olmorl.deploy.rundir import log_to
from olmorl.deploy.telemetry import Telemetry

log = logging.getLogger(__name__)
Tree = Mapping[str, Any]
LOOK_S = 0.25
"""Between two looks at the embedded Redis."""
ANSWER_S = 60.0
"""For the assembler to answer once it can."""
PULSE_S = 1.0
"""Between two signs of life of a rank."""


class Host:
    """A process of the run: its recipe, its log, its metrics, where it is, and how long it waits for a launcher."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.settings = config.build(tree)
        self.name = name
        log_to(self.settings.run_dir, name)
        self.telemetry = telemetry_of(self.settings, name)
        if self.settings.cluster.address is not None:
            sweep_here = partial(wiring.sweep_here, self.settings)
            Lifeline(self.settings.supervision, lifeline.needed, partial(lifeline.end, sweep=sweep_here)).start()

    def who(self) -> Identity:
        """Where it is. An answer at all is a sign of life."""
        return Identity(socket.gethostname(), os.getpid(), self.telemetry.address)


class RedisHost(Host):
    """The embedded Redis: it lives and dies with this process, which starts it again when it dies alone."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, "redis")
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()

    async def start(self, access: QueueAccess | None, password: str | None) -> QueueAccess:
        """Start it on the append-only file of an earlier start, if there is one; `access` is what that was known by.

        Without that it gets `password`, by default one of its own.
        """
        self._server = await asyncio.to_thread(wiring.embedded_redis, self.settings, access, password)
        await asyncio.to_thread(self._server.start)
        return QueueAccess(self._server.url, self._server.environment)

    async def run(self) -> None:
        """Keep it answering until `stop`. Raises ResourceError when it cannot be started again."""
        while not self._over.is_set():
            async with self._turn:
                await asyncio.to_thread(self._server.keep, self.settings.supervision.answer_deadline_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), LOOK_S)

    async def server(self) -> Identity | None:
        """Where the server itself is; None while it has to be started again."""
        pid = self._server.pid
        return None if pid is None else Identity(socket.gethostname(), pid)

    async def stop(self) -> None:
        """Stop the server; its data stays."""
        self._over.set()
        async with self._turn:
            await asyncio.to_thread(self._server.close)


class RankHost(Host):
    """One rank of the learner."""

    def __init__(self, tree: Tree, rank: int, core: int | None) -> None:
        super().__init__(tree, f"learner-{rank}")
        self._rank = rank
        if core is not None:
            os.sched_setaffinity(0, {core})

    def meeting_point(self) -> str:
        """`host:port`, a free one, for the ranks to find each other; asked of rank 0."""
        host = wiring.own_address(self.settings)
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def run(self, meeting_point: str, assembler: Any, incarnation: int) -> str:
        """Train until the assembler, by its Ray handle, says stop; returns why."""
        # Its answer may wait for a batch, or for room on the disk.
        longest_s = max(self.settings.learner.batch_deadline_s, self.settings.checkpoint.deadline_s)
        source = RayBatchSource(assembler, incarnation, longest_s + ANSWER_S, self.telemetry.record)
        over = threading.Event()
        # A thread of its own: model code may keep the event loop for minutes.
        pulse = threading.Thread(target=self._pulse, args=(assembler, incarnation, over), daemon=True)
        pulse.start()
        try:
            return asyncio.run(wiring.learn(self.settings, self._rank, meeting_point, source)).reason
        finally:
            over.set()
            semaphores.unlink_own()

    def _pulse(self, assembler: Any, incarnation: int, over: threading.Event) -> None:
        while not over.wait(PULSE_S):
            assembler.pulse.remote(incarnation, self.name)
            semaphores.unlink_own()  # at the end it is too late for one that is killed


class ActorHost(Host):
    """One engine and its actor. The name of the actor is that of this start; `name` is that of its place."""

    def __init__(self, tree: Tree, name: str, actor: str, core: int | None, access: QueueAccess) -> None:
        super().__init__(tree, name)
        self._actor_name = actor
        self._core = core
        self._access = access

    async def run(self) -> str:
        """Serve until asked to stop."""
        queue = await wiring.join_queue(self.settings, self._access)
        self._actor = wiring.actor(self.settings, self._actor_name, self._core, queue, self.telemetry.address)
        watch = asyncio.create_task(self._publish_metrics())
        try:
            await self._actor.run()
        finally:
            watch.cancel()
            self.telemetry.close()
            await queue.close()
            semaphores.unlink_own()
        return "was asked to leave"

    async def _publish_metrics(self) -> None:
        while True:
            self.telemetry.record_actor(self._actor.status())
            await asyncio.sleep(self.settings.actors.heartbeat_s)

    async def drain(self) -> None:
        """Finish what is in hand and leave."""
        await self._actor.drain()

    async def stop(self) -> None:
        """Give back what is in hand and leave."""
        await self._actor.stop()


def sweep(tree: Tree) -> None:
    """Remove what the run left in shared memory of this host."""
    wiring.sweep(config.build(tree))


def telemetry_of(settings: config.Config, process: str) -> Telemetry:
    """The metrics of one process of the run, served where the other hosts of the run reach it, and nowhere else."""
    return Telemetry(process, settings.run.name, wiring.own_address(settings))


def learner_environment(settings: config.Config, plan: Plan) -> dict[str, str]:
    """What a rank's process must find before it imports torch."""
    threads = str(settings.learner.threads)
    accelerator = {} if plan.on_gpu else {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", **accelerator}


def actor_environment(plan: Plan) -> dict[str, str]:
    """What an engine's process must find before it imports vLLM."""
    threads = {} if plan.on_gpu else {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {"TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", **threads}
