"""The ports: the interfaces between the parts. The folders hold the adapters, with a fake of each port.

orchestrator ── PromptQueue ──>  actor          orchestrator <── ResultQueue ── actor
learner      ── WeightStore ──>  actor          orchestrator ── BatchSource ──> learner ranks
actor        ── Engine, Scorer, Environments    learner      ── Trainer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from olmorl.config import SamplingSettings
from olmorl.messages import (
    ActorStatus,
    Begin,
    Completion,
    EpisodeStart,
    Floats,
    Lease,
    Probe,
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
"""Addresses a command to all actors."""


class CommitOutcome(StrEnum):
    """The outcome of a commit. Only `STORED` stores the result. The other outcomes are counted."""

    STORED = "stored"
    LATE = "late"
    """The lease had expired."""
    DUPLICATE = "duplicate"
    """The draw was already done."""


class QueuePlace(StrEnum):
    """The place of a draw in the queue."""

    QUEUED = "queued"
    LEASED = "leased"
    RESULTS = "results"


class Counts(NamedTuple):
    """One consistent read of one lane, in draws."""

    queued: int
    leased: int
    results: int
    """Committed and not yet trimmed, whether taken or not."""
    late: int
    """Commits refused so far because the lease had expired."""
    duplicates: int
    """Commits refused so far because the draw was done."""

    @property
    def live(self) -> int:
        return self.queued + self.leased + self.results


class Taken(NamedTuple):
    """A result that the orchestrator has taken and not yet trimmed."""

    entry: str
    draw_id: int
    result: Result


MOST_DEAD_LETTERS = 1000
"""Dead letters that a lane keeps. As in `lane.lua`."""
LETTER_CAUSES = frozenset({"poison", "attempts", "total_deadline"})
"""Causes of the failures that leave a dead letter."""


class DeadLetter(NamedTuple):
    """The unchanged bytes of a message that could not be decoded, or of a prompt with too many attempts or too old."""

    draw_id: int
    reason: str
    payload: bytes


class PromptQueue(Protocol):
    """The orchestrator's side of the prompts. Every call raises Superseded after a newer incarnation's claim."""

    async def claim(self, incarnation: int) -> None:
        """Take over the run, or confirm an earlier claim of `incarnation`.

        Raises Superseded if another claim has the same or a newer incarnation.
        """
        ...

    async def push(self, prompts: Sequence[Prompt]) -> None:
        """Queue all prompts or none. A draw that is already queued, leased or done is not queued twice.

        Raises QueueFull when first attempts would pass the bound. The bound does not apply to later attempts.
        """
        ...

    async def expire(self) -> int:
        """Requeue the prompts of expired leases with `attempt + 1`. Returns their number.

        A draw becomes a Failure among the results, and a dead letter, after its last attempt or after the total
        deadline since its first lost attempt.
        """
        ...

    async def release_dead_actor(self, owner: str) -> int:
        """Expire all leases of a dead `owner` now, so that it stores no more. Returns the number of leases."""
        ...

    async def forget_actor(self, owner: str) -> None:
        """Forget the heartbeat of an actor, and what it has stored."""
        ...

    async def inventory(self, lane: str) -> dict[int, QueuePlace]:
        """The place of each draw of the lane, in one consistent read. For reconciliation."""
        ...

    async def queued(self, lane: str) -> list[int]:
        """The draws of the lane that no actor holds: first those to be attempted again, then in their order."""
        ...

    async def withdraw(self, draw_ids: Iterable[int], lane: str) -> None:
        """Remove these draws if they are queued or leased. Their later results are refused."""
        ...

    async def forget_done(self, draw_ids: Iterable[int], lane: str) -> None:
        """Clear the done marks of draws whose group was lost, so that the draws can be pushed again."""
        ...

    async def flush(self, lane: str) -> None:
        """Empty the lane. After a rollback the orchestrator draws again."""
        ...


class LeaseQueue(Protocol):
    """The actor's side: lease, extend, commit. Prompts are delivered at least once; each draw is committed once."""

    async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
        """Up to `limit` prompts. An empty list after `wait_s` seconds without a prompt.

        An owner that is told to drain gets none.
        """
        ...

    async def extend(self, leases: Sequence[Lease]) -> set[str]:
        """Move the deadlines forward. Returns the ids of lost leases; the actor must stop their work."""
        ...

    async def give_back(self, leases: Sequence[Lease]) -> None:
        """Return prompts without counting an attempt, because the actor leaves."""
        ...

    async def commit(self, lease: Lease, result: Result) -> CommitOutcome:
        """Store the result, acknowledge the prompt and mark the draw done, in one atomic step."""
        ...

    async def heartbeat(self, status: ActorStatus) -> str:
        """Report that the actor is alive, with its totals. Returns the current command: `run`, `pause` or `drain`."""
        ...


class ResultQueue(Protocol):
    """The orchestrator's side of the results."""

    async def take(self, limit: int, lane: str, wait_s: float) -> list[Taken]:
        """Results that this incarnation has not taken, oldest first. Empty after `wait_s` seconds without a result.

        After a new claim the queue returns all untrimmed results again, from the oldest. These include the results of
        a call that runs during the claim. A result that cannot be decoded goes to the dead letters and arrives as a
        Failure with cause `poison`.
        """
        ...

    async def trim(self, taken: Sequence[Taken]) -> None:
        """Remove results whose outcome is already on disk."""
        ...

    async def counts(self, lane: str) -> Counts:
        """The counts of the lane, in one consistent read."""
        ...

    async def dead_letters(self, lane: str) -> list[DeadLetter]:
        """The newest dead letters, oldest first. Their draws have failed."""
        ...

    async def drop_dead_letters(self, draw_ids: Iterable[int], lane: str) -> None:
        """Remove the dead letters of these draws."""
        ...

    async def statuses(self) -> dict[str, ActorStatus]:
        """The last heartbeat of every known actor, with all tokens that it has stored by now."""
        ...

    async def set_control(self, owner: str, order: str) -> None:
        """Tell an actor, or EVERYONE, to `run`, `pause` or `drain`. A command to all replaces single ones."""
        ...


class Queue(PromptQueue, LeaseQueue, ResultQueue, Protocol):
    """All three sides of the queue. One adapter implements them over the same state."""

    async def epoch(self) -> str:
        """An id of the back end's start. A new id means a restart, which may have lost the last writes."""
        ...

    async def close(self) -> None:
        """Close the connections and keep the state."""
        ...


# --- weights ------------------------------------------------------------------------------------


class NamedBuffer(NamedTuple):
    """A tensor as bytes, or a piece of one. `data` is contiguous and little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    data: memoryview
    start: int = 0
    """Bytes of the tensor before `data`."""
    after: int = 0
    """Bytes of the tensor after `data`."""


class StagedWeights(NamedTuple):
    """A version in shared memory of this host. Every chunk was checked against its hash."""

    manifest: WeightsReady
    path: Path
    """One file. The manifest has the position of each tensor."""
    on_followers: tuple[str, ...] = ()
    """The signature of this file on each other node of the engine, in the order of their numbers."""


class WeightSource(Protocol):
    """Where an actor gets versions. All calls block. Callers on an event loop use a thread."""

    def latest(self) -> Version | None:
        """The version that actors should run now. Raises WeightError when the store does not answer."""
        ...

    def fetch(self, version: Version) -> StagedWeights:
        """Stage a version on this host, once for all its engines. Frees the other staged versions that no engine uses.

        Raises WeightError when the version is gone or its chunks do not match their hashes.
        """
        ...


class WeightStore(WeightSource, Protocol):
    """Moves named byte buffers. Readers pull, so no reader can block the writer or another reader.

    All calls block. Callers on an event loop use a thread.
    """

    def publish(
        self,
        version: Version,
        buffers: Iterable[NamedBuffer],
        probe: Probe | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Store the shard of one learner rank. With those of all `ranks` it makes `version` the latest.

        All ranks name the same tensors in the same order, with their own pieces, which may be empty. Together the
        pieces are all bytes. The manifest has the `probe` of rank 0.

        Raises Superseded in an older incarnation, and ValueError if the shard exists.
        """
        ...

    def complete(self, version: Version) -> list[int]:
        """Make `version` the latest if the shards of all ranks are there. Returns the ranks whose shards are missing.

        Rank 0 calls this after its `publish`, until none is missing. Readers see the version before until then.

        Raises Superseded in an older incarnation, and WeightError if the pieces are not all bytes.
        """
        ...

    def discard(self, keep: Iterable[Version]) -> None:
        """Keep `keep`, the latest version and newer ones published. Each rank calls this from time to time.

        Other versions are freed, unless a reader uses them or a kept version is stored as the changes since them. A
        kept shard that the store lost is published again.
        """
        ...

    def sweep(self) -> None:
        """Remove everything of this run: at the start the remains of a dead run, at the stop all versions."""
        ...


# --- actor --------------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sampling parameters of one completion.

    `top_p` is for evaluations outside a run: the learner assumes that every token could be sampled.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class EngineLoad(NamedTuple):
    """The current load of an engine."""

    running: int
    waiting: int
    """Requests that are admitted and not yet scheduled."""
    kv_used: float
    """Share of the KV cache in use, 0 to 1."""
    max_running: int
    """Largest number of sequences that run together."""


class EngineUse(NamedTuple):
    """How long an engine worked since its start."""

    busy_s: float
    """Time with at least one running sequence."""
    running_s: float
    """The same for each sequence, summed: seconds that slots were in use."""
    flops: float = 0.0
    """Operations that its tokens needed; 0 where they are not counted."""
    num_bytes: float = 0.0
    """Bytes of weights and KV cache that its steps moved; 0 where they are not counted."""
    scored_s: float = 0.0
    """The part of the time of its steps that `score` took, by tokens."""


class Update(NamedTuple):
    """The cost of an in-flight update, measured by the engine."""

    version: Version
    stall_s: float
    """Time from the end of the last step before the update until the next step could begin."""


class EngineNode(NamedTuple):
    """One of the nodes of an engine that has several."""

    number: int
    """0 is the node of the actor."""
    nodes: int
    meeting_point: str
    """A free `host:port` of node 0, where all of them meet."""


class EngineFollower(Protocol):
    """The part of an engine on another node than its actor's."""

    async def run(self) -> None:
        """Work until the engine cannot go on. Raises the cause: it has no other end."""
        ...


class Engine(Protocol):
    """One inference engine. The fake one is `actors.fake_engine.FakeEngine`."""

    async def start(self, weights: StagedWeights | None) -> None:
        """Load the model and begin to serve, at the version of `weights` if given."""
        ...

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> Completion:
        """Sample one completion (index 0, no verdicts). Cancelling the task aborts the request.

        Of the requests that wait, those with the lowest `priority` begin first, equal ones in the order in which they
        came. When the KV cache is full, the engine stops those with the highest. It is 0 or more.

        Requests of one `salt` share their prefix cache; without one it is the version at submission.

        Raises PromptRefused if it can never answer.
        """
        ...

    async def update(self, staged: StagedWeights) -> Update:
        """Apply a version between two engine steps.

        Requests continue. They keep their KV cache, unless `actors.weight_update` is `recompute`. Each token is
        labelled with the version that computed it.
        """
        ...

    def drained(self) -> AbstractAsyncContextManager[None]:
        """No sequence begins until the block ends. The block begins when no sequence runs.

        That has no deadline of its own: the actor ends when the engine makes no token for too long.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Log-probabilities at temperature 1 of each token but the first, by the version in use.

        Returns fewer values if the engine takes fewer tokens. Requests continue. No counter counts these tokens.
        """
        ...

    def load(self) -> EngineLoad:
        """The current load. Does not wait for the engine."""
        ...

    def use(self) -> EngineUse:
        """How long it worked so far. Does not wait for the engine."""
        ...

    @property
    def version(self) -> Version:
        """The version that computes the next token."""
        ...

    @property
    def tokens_generated(self) -> int:
        """Completion tokens sampled since the start, unfinished requests included."""
        ...

    @property
    def tokens_aborted(self) -> int:
        """The part of `tokens_generated` whose request was cancelled."""
        ...

    async def stop(self) -> None:
        """End all processes of the engine."""
        ...


class Scorer(Protocol):
    """Verifies completions in other processes. Implemented by `verifiers.scorer`."""

    async def start(self) -> None: ...

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        """Each verifier's verdict on one finished completion. Retries during outages."""
        ...

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        """Run the user functions on the group, then combine all verdicts into `reward` and `solved`.

        Raises Unscorable when the group cannot be scored. The group then fails and is counted.
        """
        ...

    def counts(self) -> dict[str, dict[str, float]]:
        """Totals since the start and current waits of each part: numbers by name, by part."""
        ...

    async def stop(self) -> None: ...


class EnvironmentStep(NamedTuple):
    """The reply of an environment to an answer of the policy."""

    messages: list[dict[str, Any]]
    """What the policy reads next."""
    done: bool
    """The episode is over, and the policy reads nothing more."""
    truncated: bool = False
    """It is over because the environment has a limit of steps."""
    submitted: str | None = None
    """It is over because the policy submitted its answer."""


class Environment(Protocol):
    """The environment of one episode. Every call raises EnvironmentFailed for what the policy cannot have caused."""

    async def reset(self, prompt: Prompt, index: int) -> list[dict[str, Any]] | None:
        """Begin. Returns the conversation that the policy begins with; None: that of the row."""
        ...

    async def step(self, reply: dict[str, Any]) -> EnvironmentStep:
        """React to an answer of the policy."""
        ...

    async def reward(self, episode: Completion) -> dict[str, Verdict]:
        """The verdicts by name on an episode that has ended: its own, and of reward functions that take it."""
        ...

    async def close(self) -> None:
        """End everything that the episode started. It may be called at any time, and does not fail."""
        ...


class Environments(Protocol):
    """Makes the environments of an actor's episodes. The fake is `actors.episodes.fake_environments`."""

    async def start(self) -> None:
        """Start what the environments share. Raises ConfigError or DeadlinePassed, with the cause."""
        ...

    def open(self) -> Environment:
        """A new environment. It starts with its first call."""
        ...

    def counts(self) -> dict[str, float]:
        """`processes` that run now; and totals since the start, by name: `tool_calls.NAME` of each tool, `tool_errors`,
        `tool_s`."""
        ...

    async def stop(self) -> None: ...


class Renderer(Protocol):
    """Writes messages as tokens by the chat template of the policy. It never writes what the policy sampled."""

    def prompt(self, messages: Sequence[dict[str, Any]]) -> TokenIds:
        """The tokens of a conversation up to the policy's answer.

        Raises:
            EnvironmentFailed: the template refuses the messages.
            PromptRefused: they are longer than any episode.
        """
        ...

    def reply(self, answer: Completion) -> dict[str, Any]:
        """An answer of the policy as a message."""
        ...

    def added(
        self,
        conversation: Sequence[dict[str, Any]],
        reply: dict[str, Any],
        messages: Sequence[dict[str, Any]],
        answer: Completion,
    ) -> TokenIds:
        """The tokens that follow those of `answer`, up to the policy's next answer. Raises as `prompt`.

        Args:
            conversation: everything before the answer.
            reply: the answer as a message.
            messages: those that the policy reads next.
        """
        ...


# --- learner ------------------------------------------------------------------------------------


class BatchSource(Protocol):
    """The orchestrator's interface for the learner ranks. Every call has a deadline that names the orchestrator."""

    async def begin(self, rank: int) -> Begin:
        """The starting point of this learner: its incarnation and the checkpoint to restore."""
        ...

    async def next(self, rank: int, step: int) -> Work:
        """This rank's shard of `step`, or a `Stop`. A repeated call gets the same. At most one `Save` comes first."""
        ...

    async def report(self, report: StepReport) -> None:
        """Report a step after the optimizer step. Rank 0 calls this."""
        ...

    async def published(self, version: Version, seconds: float) -> None:
        """Report that actors can fetch `version` and that publishing took `seconds`. Rank 0 calls this."""
        ...

    async def stop_asked(self) -> bool:
        """Whether a stop was requested. Waits some time before it answers no. Rank 0 calls this."""
        ...

    async def given_up(self, step: int) -> None:
        """Report that a stop interrupted `step`; the policy is unchanged since the previous step. Rank 0 calls this."""
        ...

    async def saved(self, rank: int, step: int) -> None:
        """Report that the share of `rank` is on disk. The last share completes the checkpoint. Every rank calls."""
        ...


class Trainer(Protocol):
    """The trained policy on one rank. All ranks call each method together.

    The real one is `learner.trainer.deepspeed_trainer.DeepSpeedTrainer`, the fake one is
    `learner.trainer.fake_trainer.FakeTrainer`.
    """

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """Run one learner step. Returns values named as in `metrics.LEARNER`, over all ranks.

        Returns None on every rank when the step was interrupted. No step may follow it.
        """
        ...

    def interrupt(self) -> None:
        """End the step after its current micro-batch, unless the first optimizer step has begun. Any rank may call."""
        ...

    def snapshot(self) -> list[NamedBuffer]:
        """A copy of this rank's shard of the weights for `WeightStore.publish`, named as in the model's checkpoint.

        It is valid until the next call, which writes into the same memory.
        """
        ...

    def probe(self) -> Probe | None:
        """The log-probabilities of fixed tokens with the current weights. None except on rank 0."""
        ...

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy this rank's model, optimizer and random state. The returned function writes the copy to `folder`.

        The write must end before the next call. It may raise ResourceError, and can be repeated.
        """
        ...

    def restore(self, folder: Path) -> None:
        """Restore a checkpoint that `save` wrote on any number of ranks. Training continues as if it had not ended."""
        ...

    def export(self, folder: Path, sampling: SamplingSettings) -> None:
        """Write a Hugging Face folder that transformers and vLLM load, with the sampling of training."""
        ...

    def close(self) -> None: ...


class Row(NamedTuple):
    """One usable row of a data set, before it is drawn."""

    row: str
    messages: list[dict[str, Any]] | str
    token_ids: npt.NDArray[np.int32]
    datasets: tuple[str, ...]
    ground_truths: tuple[Any, ...]
    columns: Mapping[str, Any]
    thinking_opened: bool
    episode: EpisodeStart | None = None
    """None: a single answer is asked for."""
    ease: float | None = None
    """The number of `data.curriculum`; None: without a curriculum, or unknown."""


class LabelCheck(Protocol):
    """Checks labels for verifiers. Implemented by `verifiers.label_check`."""

    def check_many(self, labels: Sequence[tuple[str, Any]]) -> list[str | None]:
        """For each `(verifier, label)` the reason why it cannot be used, or None if it can."""
        ...
