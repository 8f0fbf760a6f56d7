"""Takes a run over from a launcher that is gone: its processes stop with a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from olmorl.clock import within
from olmorl.config import Config
from olmorl.deploy.cluster.ray_cluster import RayCluster
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.errors import OlmoRLError, ProcessLost, first_cause


async def take_over(cluster: RayCluster, settings: Config, say: Callable[[str], None]) -> None:
    """Stop the processes that an earlier launcher has left. The caller ends them afterwards."""
    survivors = {process.name: process for process in cluster.processes()}
    if not survivors:
        return
    say(f"{len(survivors)} processes of this run go on without a launcher: they stop now, with a checkpoint")
    try:
        await _stop(survivors, settings)
        say("they have stopped")
    except OlmoRLError as error:
        say(f"they could not ({error}): the run goes on from its last checkpoint")
    if "redis" in survivors:
        with suppress(OlmoRLError):
            await survivors["redis"].call("stop", timeout_s=settings.supervision.deadlines.stop_s)


async def _stop(survivors: dict[str, RemoteProcess], settings: Config) -> None:
    ranks = [process for name, process in survivors.items() if name.startswith("learner-")]
    deadlines = settings.supervision.deadlines
    async with within(deadlines.checkpoint_s, "the checkpoint of the learner that lost its launcher"):
        if "orchestrator" not in survivors:
            raise ProcessLost("the orchestrator is gone")
        await survivors["orchestrator"].call("stop", timeout_s=deadlines.answer_s)
        await _until_over(ranks, deadlines.checkpoint_s)


async def _until_over(ranks: Sequence[RemoteProcess], deadline_s: float) -> None:
    # A rank does one thing at a time: it answers after its steps, its checkpoint and its export.
    try:
        async with asyncio.TaskGroup() as tasks:
            for rank in ranks:
                tasks.create_task(rank.call("identity", timeout_s=deadline_s))
    except BaseExceptionGroup as group:
        raise first_cause(group) from None
