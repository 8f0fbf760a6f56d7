"""Taking a run over from a launcher that is gone: what goes on without it stops with a checkpoint, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from olmorl.clock import within
from olmorl.config import Config
from olmorl.deploy.cluster import Cluster
from olmorl.deploy.process import Process
from olmorl.errors import OlmoRLError, ProcessLost, first_cause


async def take_over(cluster: Cluster, settings: Config, say: Callable[[str], None]) -> None:
    """Stop what an earlier launcher left at work, for whoever ends it then."""
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
            await survivors["redis"].call("stop", timeout_s=settings.cluster.stop_deadline_s)


async def _stop(survivors: dict[str, Process], settings: Config) -> None:
    ranks = [process for name, process in survivors.items() if name.startswith("learner-")]
    async with within(settings.checkpoint.deadline_s, "the checkpoint of the learner that lost its launcher"):
        if "assembler" not in survivors:
            raise ProcessLost("the assembler is gone")
        await survivors["assembler"].call("stop", timeout_s=settings.supervision.answer_deadline_s)
        await _until_over(ranks, settings.checkpoint.deadline_s)


async def _until_over(ranks: Sequence[Process], deadline_s: float) -> None:
    # A rank does one thing at a time: it answers when it is done with its steps, its checkpoint and its export.
    try:
        async with asyncio.TaskGroup() as tasks:
            for rank in ranks:
                tasks.create_task(rank.call("who", timeout_s=deadline_s))
    except BaseExceptionGroup as group:
        raise first_cause(group) from None
