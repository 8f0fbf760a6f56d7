"""The ports: what each part asks of the others. Adapters live in the folders, fakes of each always ship.

assembler  ── PromptQueue ──>  actor           assembler <── ResultQueue ── actor
learner    ── WeightStore ──>  actor           assembler ── BatchSource ──> learner ranks
actor      ── Engine, Scorer                   learner   ── Trainer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from olmorl.messages import (
    ActorStatus,
    Begin,
    Completion,
    Lease,
    Prompt,
    Result,
    Shard,
    StepReport,
    TokenIds,
    Verdict,
    Version,
    WeightsReady,
    Work,
)

# --- queues -------------------------------------------------------------------------------------

EVERYONE = "*"
"""All actors, as the addressee of an order."""


class CommitOutcome(StrEnum):
    """What became of a commit. Only `STORED` stores anything; the others are counted."""

    STORED = "stored"
    LATE = "late"
    """The lease had expired."""
    DUPLICATE = "duplicate"
    """The draw is done already."""


class Place(StrEnum):
    """Where the queue holds a draw."""

    QUEUED = "queued"
    LEASED = "leased"
    RESULTS = "results"


class Counts(NamedTuple):
    """One consistent read of one lane, in draws."""

    queued: int
    leased: int
    results: int
    """Committed and not yet trimmed, taken or not."""
    late: int
    """Commits refused so far because their lease had expired."""
    duplicates: int
    """Commits refused so far because their draw was done."""

    @property
    def live(self) -> int:
        return self.queued + self.leased + self.results


class Taken(NamedTuple):
    """A result that the assembler has taken and not yet trimmed."""

    entry: str
    draw_id: int
    result: Result


class DeadLetter(NamedTuple):
    """A message that could not be decoded, or a prompt that was attempted too often or for too long, as it was."""

    draw_id: int
    reason: str
    payload: bytes


class PromptQueue(Protocol):
    """The assembler's end of the prompts. Every call is refused with Superseded after a newer incarnation's claim."""

    async def claim(self, incarnation: int) -> None:
        """Take the run over, or make sure of one's own claim.

        Raises Superseded unless `incarnation` is newer than every earlier claim of others.
        """
        ...

    async def push(self, prompts: Sequence[Prompt]) -> None:
        """Queue all or none. Also requeues: a draw that is queued, leased or done is not queued twice.

        Raises QueueFull when first attempts would pass the bound: what is queued again has been there before.
        """
        ...

    async def expire(self) -> int:
        """Requeue what expired leases hold with `attempt + 1`; returns how many.

        A draw past its last attempt, or the total deadline since its first lost attempt, becomes a Failure among the
        results and a dead letter instead.
        """
        ...

    async def release(self, owner: str) -> int:
        """Expire every lease of `owner` now (it is known to be dead) and forget its heartbeat; returns how many."""
        ...

    async def inventory(self, lane: str) -> dict[int, Place]:
        """Where each draw of the lane is, in one consistent read. For reconciliation."""
        ...

    async def withdraw(self, draw_ids: Iterable[int], lane: str) -> None:
        """Remove those of these draws that are queued or leased; what still comes of them is refused."""
        ...

    async def forget_done(self, draw_ids: Iterable[int], lane: str) -> None:
        """Clear done marks whose group was lost, so that the draws may be pushed again."""
        ...

    async def flush(self, lane: str) -> None:
        """Drop everything the lane holds: a rollback draws anew."""
        ...


class LeaseQueue(Protocol):
    """The actor's end: lease, extend, commit. At-least-once delivery made exactly-once in effect."""

    async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
        """Up to `limit` prompts; an empty list after `wait_s` seconds without any.

        An owner that `control` tells to leave gets none.
        """
        ...

    async def extend(self, leases: Sequence[Lease]) -> set[str]:
        """Move the deadlines on; returns the ids of the leases that are lost (stop working on those)."""
        ...

    async def give_back(self, leases: Sequence[Lease]) -> None:
        """Return prompts unharmed (same attempt): the actor is leaving."""
        ...

    async def commit(self, lease: Lease, result: Result) -> CommitOutcome:
        """Store the result, acknowledge the prompt and mark its draw done, in one atomic step."""
        ...

    async def heartbeat(self, status: ActorStatus) -> None:
        """Say that the actor lives, and its totals."""
        ...

    async def control(self, owner: str) -> str:
        """What the actor is asked to do: `run`, `pause` or `drain`."""
        ...


class ResultQueue(Protocol):
    """The assembler's end of the results."""

    async def take(self, limit: int, lane: str, wait_s: float) -> list[Taken]:
        """Results not taken before by this incarnation, oldest first; empty after `wait_s` seconds without any.

        A new claim sees untrimmed results again from the oldest, also those that a call under way meanwhile returns.
        A result that cannot be decoded goes to the dead letters and arrives as a Failure with cause `poison`.
        """
        ...

    async def trim(self, taken: Sequence[Taken]) -> None:
        """Forget results whose outcome is durable elsewhere."""
        ...

    async def counts(self, lane: str) -> Counts:
        """One consistent read."""
        ...

    async def dead_letters(self, lane: str) -> list[DeadLetter]:
        """The newest of them, oldest first; their draws have failed."""
        ...

    async def drop_dead_letters(self, draw_ids: Iterable[int], lane: str) -> None:
        """Forget the dead letters of these draws."""
        ...

    async def statuses(self) -> dict[str, ActorStatus]:
        """The last heartbeat of every actor that was heard of."""
        ...

    async def set_control(self, owner: str, order: str) -> None:
        """Ask an actor, or EVERYONE, to `run`, `pause` or `drain`; an order to all replaces those to single ones."""
        ...


class Queue(PromptQueue, LeaseQueue, ResultQueue, Protocol):
    """One adapter implements all three ends over the same state."""

    async def epoch(self) -> str:
        """Another one than before means that the back end started anew, and may have lost what was written last."""
        ...

    async def close(self) -> None:
        """Close connections; the state stays."""
        ...


# --- weights ------------------------------------------------------------------------------------


class NamedBuffer(NamedTuple):
    """A tensor as bytes. `data` is contiguous, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class StagedWeights(NamedTuple):
    """A version that lies in shared memory of this host, every chunk checked against its hash."""

    manifest: WeightsReady
    path: Path
    """One file; the manifest says where each tensor lies in it."""


class WeightStore(Protocol):
    """Moves named byte buffers and knows nothing of tensors. Pull: no reader can block the writer or another reader.

    All calls block; callers on an event loop use a thread.
    """

    def publish(self, version: Version, buffers: Iterable[NamedBuffer]) -> WeightsReady:
        """Make `version` the latest. Raises Superseded from an older incarnation, ValueError for one that exists."""
        ...

    def latest(self) -> Version | None:
        """What actors should run now. Raises WeightError when the place of publication does not answer."""
        ...

    def fetch(self, version: Version) -> StagedWeights:
        """Stage a version on this host, once for all engines of the host; others that nobody uses are freed here.

        Raises WeightError when it is gone or its chunks do not match their hashes.
        """
        ...

    def discard(self, keep: Iterable[Version]) -> None:
        """From the publisher, now and then: what is published is `keep`, and the latest.

        Others are freed unless a reader uses them, and a place that lost what it had gets it again.
        """
        ...

    def sweep(self) -> None:
        """Remove everything of this run: at start what a dead run left, at stop all."""
        ...


# --- actor --------------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one completion is sampled. At training temperature 1, top_p 1, no top_k keep the ratio unbiased."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_tokens: int
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class EngineLoad(NamedTuple):
    """What the engine really has room for."""

    running: int
    waiting: int
    """Admitted, not yet scheduled."""
    kv_used: float
    """Share of the KV cache in use, 0 to 1."""
    max_running: int
    """Sequences the engine batches at most."""


class Update(NamedTuple):
    """What an in-flight update cost as the engine saw it."""

    version: Version
    stall_s: float
    """Between the last step before and the first chance of a step after."""


class Engine(Protocol):
    """One generating engine. Fakes: `actors.fake.FakeEngine`."""

    async def start(self, weights: StagedWeights | None) -> None:
        """Load the model and come up; with `weights`, at that version."""
        ...

    async def generate(self, request_id: str, prompt: TokenIds, sampling: Sampling) -> Completion:
        """Sample one completion (index 0, no verdicts). Cancelling the task aborts the request.

        The prefix cache is salted with the version at submission. Raises ValueError for a prompt that cannot fit.
        """
        ...

    async def update(self, staged: StagedWeights) -> Update:
        """Apply a version between two engine steps: nothing aborted, no KV dropped, labels exact at the boundary."""
        ...

    def load(self) -> EngineLoad:
        """The load now, without waiting for the engine."""
        ...

    @property
    def version(self) -> Version:
        """The version that computes the next token."""
        ...

    @property
    def tokens_generated(self) -> int:
        """Completion tokens sampled since start, unfinished requests included."""
        ...

    @property
    def tokens_aborted(self) -> int:
        """Those of `tokens_generated` whose request was cancelled before it finished."""
        ...

    async def stop(self) -> None:
        """End all processes of the engine."""
        ...


class Scorer(Protocol):
    """Verifies completions in other processes. Implemented by `verifiers.combine`."""

    async def start(self) -> None: ...

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        """Each verifier's verdict on one completion, as soon as it is finished. Outages are retried inside."""
        ...

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        """Run the group-wise user functions, then weigh all verdicts into `reward`.

        Raises Unscorable when the group cannot be scored; the group then fails and is counted.
        """
        ...

    def counts(self) -> dict[str, dict[str, float]]:
        """What each part of it did since it was made, and what waits there: numbers by name, by part."""
        ...

    async def stop(self) -> None: ...


# --- learner ------------------------------------------------------------------------------------


class BatchSource(Protocol):
    """The assembler as a learner rank sees it. Every call has a deadline that names the assembler."""

    async def begin(self, rank: int) -> Begin:
        """Where this start of the learner begins: its incarnation, and the checkpoint to restore."""
        ...

    async def next(self, rank: int, step: int) -> Work:
        """This rank's shard of `step`; the same again when asked again. At most once before it: a word to save."""
        ...

    async def report(self, report: StepReport) -> None:
        """From rank 0, after the optimizer step."""
        ...

    async def published(self, version: Version, seconds: float) -> None:
        """From rank 0: actors can fetch `version`; publishing took `seconds`."""
        ...

    async def stop_asked(self) -> bool:
        """From rank 0: whether people asked the run to stop; answered when they do, or after a while."""
        ...

    async def given_up(self, step: int) -> None:
        """From rank 0: the stop came in the middle of `step`; the policy is that of the step before."""
        ...

    async def saved(self, rank: int, step: int) -> None:
        """From every rank: its share of the checkpoint is on disk. After the last one the checkpoint is complete."""
        ...


class Trainer(Protocol):
    """The policy being trained, on one rank. All ranks call each method together.

    The real one is `learner.engine.DeepSpeedTrainer`, the fake one `learner.fake.FakeTrainer`.
    """

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """One learner step; returns values named as in `metrics.LEARNER`, global over all ranks.

        None on every rank when the step was given up: nothing may be trained after that.
        """
        ...

    def interrupt(self) -> None:
        """Give the step up after its present micro-batch, unless its first optimizer step has begun. Of any rank."""
        ...

    def snapshot(self) -> list[NamedBuffer]:
        """The weights as a checkpoint of the model names them, copied; empty except on rank 0."""
        ...

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy this rank's share of model, optimizer and random state; what is returned writes the copy to `folder`.

        One copy at a time: its writing must be over before the next call. Writing raises ResourceError, and may be
        tried again.
        """
        ...

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote on any number of ranks; training goes on as if it had never stopped."""
        ...

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder that transformers and vLLM load."""
        ...

    def close(self) -> None: ...


class Row(NamedTuple):
    """One usable row of a data set, before it becomes a draw."""

    row: str
    messages: list[dict[str, Any]] | str
    token_ids: npt.NDArray[np.int32]
    datasets: tuple[str, ...]
    ground_truths: tuple[Any, ...]
    columns: Mapping[str, Any]
    thinking_opened: bool


class LabelCheck(Protocol):
    """Says whether verifiers can use labels. Implemented by `verifiers.labels`."""

    def check_many(self, labels: Sequence[tuple[str, Any]]) -> list[str | None]:
        """For each `(verifier, label)` why it cannot be used, or None when it can."""
        ...
