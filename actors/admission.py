"""Decides how much an actor leases: as much as its engine has room for, with a share for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from olmorl import config
from olmorl.messages import TRAIN_LANE, Lease
from olmorl.ports import Engine, EngineLoad, LeaseQueue

LONGEST_IDLE_S = 0.25
"""How long an actor with room waits for training prompts before it looks at the evaluation lanes again."""
LONGEST_WAIT_S = 1.0
"""How long it waits without evaluation lanes. A command waits as long."""
EVALUATION_SHARE = 0.25
"""Share of an engine's slots that evaluation may take while training prompts wait."""


class Lane(NamedTuple):
    """A lane of the prompt queue, as admission sees it."""

    name: str
    group_size: int
    """Sequences a prompt."""


class HeldSequences(NamedTuple):
    """Sequences of the leases an actor holds."""

    generating: int
    """Not finished by the engine, submitted or not, without the waiting ones."""
    unverified: int
    """Finished, without their verdicts."""
    evaluation: int
    """The part of `generating` that belongs to evaluation lanes."""
    waiting: int = 0
    """Episodes between two turns. Others have their slots, until they go on, before younger ones."""


def lanes(sampling: config.SamplingSettings, evaluation: config.Evaluation, names: Sequence[str]) -> tuple[Lane, ...]:
    """The evaluation lanes `names`, then the training lane."""
    return (*(Lane(name, evaluation.samples) for name in names), Lane(TRAIN_LANE, sampling.group_size))


def slots(load: EngineLoad, kv_headroom: float) -> int:
    """Sequences that can run at the same time: the batch limit, or as many as fit the KV cache at their current length.

    The next sequence is assumed to use as much as the mean of the running ones, which are half grown on average.
    """
    if not load.running or not load.kv_used:
        return load.max_running
    return min(load.max_running, int(load.running * (1 - kv_headroom) / load.kv_used))


def room(load: EngineLoad, held: HeldSequences, max_waiting: int, kv_headroom: float) -> int:
    """Sequences to admit now, 0 or more: first for all slots, then `max_waiting` more.

    So no engine takes prompts to wait while another has free slots for them. Answers that wait for their verdicts
    count from the moment they would fill the engine a second time, so that a slow verifier bounds the number of leased
    groups.
    """
    places = slots(load, kv_headroom)
    bound = places + max_waiting
    occupied = max(held.generating, load.running + load.waiting)
    free = (bound if occupied >= places else places) - occupied
    return max(0, min(free, 2 * bound - held.generating - held.unverified))


def evaluation_room(free: int, load: EngineLoad, held: HeldSequences, share: float) -> int:
    """How many of the `free` sequences evaluation may take while training prompts wait; its share is at least one."""
    return max(0, min(free, ceil(share * load.max_running) - held.evaluation))


def groups(sequences: int, group_size: int) -> int:
    """Prompts that fill `sequences`, rounded up: a slot never stays empty because half a group would not fit."""
    return ceil(max(0, sequences) / group_size)


class Intake:
    """Leases no more than the engine has room for. Evaluation gets its share first, then the rest after training."""

    def __init__(
        self,
        owner: str,
        engine: Engine,
        queue: LeaseQueue,
        lanes: Sequence[Lane],
        settings: config.Actors,
        evaluation_share: float,
    ) -> None:
        self._owner = owner
        self._engine = engine
        self._queue = queue
        *self._evaluation, self._training = lanes
        self._settings = settings
        self._share = evaluation_share

    def room(self, held: HeldSequences) -> int:
        """Sequences to admit now."""
        if self._settings.batching == "static":
            return 0 if held.generating or held.waiting else self._settings.max_running
        return room(self._engine.load(), held, self._settings.max_waiting, config.KV_HEADROOM)

    async def lease(self, held: HeldSequences) -> list[Lease]:
        """Fill the free room. Waits a moment for training prompts when there are no others."""
        free = self.room(held)
        leases = await self._lease_evaluation(evaluation_room(free, self._engine.load(), held, self._share))
        free -= _sequences(leases)
        wanted = groups(free, self._training.group_size)
        if wanted:
            longest_s = LONGEST_IDLE_S if self._evaluation else LONGEST_WAIT_S
            wait_s = 0.0 if leases else longest_s
            training = await self._queue.lease(self._owner, wanted, self._training.name, wait_s)
            leases += training
            if len(training) < wanted:
                leases += await self._lease_evaluation(free - _sequences(training))
        return leases

    async def _lease_evaluation(self, sequences: int) -> list[Lease]:
        leases: list[Lease] = []
        for lane in self._evaluation:
            if limit := groups(sequences - _sequences(leases), lane.group_size):
                leases += await self._queue.lease(self._owner, limit, lane.name, 0.0)
        return leases


def _sequences(leases: Sequence[Lease]) -> int:
    return sum(lease.prompt.group_size for lease in leases)
