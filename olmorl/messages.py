"""The messages that cross processes, grouped by who receives them. Frozen, tagged, encoded by field name.

    assembler -> actor     Prompt (as a Lease)
    learner   -> actors    WeightsReady (the manifest of a published version)
    actor     -> assembler Group | Failure (a Result), ActorStatus
    assembler -> learner   Begin, then Shard after Shard, perhaps a Save between two of them, then Stop
    learner   -> assembler StepReport

Token ids are int32 and log-probabilities float32; both travel as raw little-endian bytes (`codec`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
TRAIN_LANE = "train"


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, eq=False):
    """Base of all messages."""


class Version(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A policy version: `number` learner steps, made by the `incarnation`-th start of the learner.

    Order is for sorting only. What an actor should run is what `WeightStore.latest()` names, not the greater.
    """

    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read the form `incarnation.number`; raises ValueError otherwise."""
        incarnation, _, number = text.partition(".")
        return cls(int(incarnation), int(number))


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Tokens `start <= t < end` of a completion were computed by `version`."""

    version: Version
    start: int
    end: int


# --- to the actor -------------------------------------------------------------------------------


class Prompt(Message, frozen=True, kw_only=True):
    """One draw from the data stream. The unit of all accounting."""

    draw_id: int
    """Unique over the whole run, epochs included; counts from 0 within its lane."""
    lane: str = TRAIN_LANE
    """`train`, or the name of an evaluation set."""
    attempt: int = 1
    row: str
    """Where it came from, `file:line`, for messages to people."""
    messages: list[dict[str, Any]] | str
    """The conversation as the row has it."""
    token_ids: TokenIds
    """After the chat template."""
    datasets: tuple[str, ...]
    """Names of the verifiers, parallel to `ground_truths`."""
    ground_truths: tuple[Any, ...]
    columns: dict[str, Any] = {}
    """Every other column, handed to user reward functions by name."""
    thinking_opened: bool = False
    """True when the chat template already opened the thinking tag."""
    group_size: int
    min_version: Version
    """An engine with an older version updates before it starts this prompt."""


class Lease(Message, frozen=True, kw_only=True):
    """The right of one actor to work on a prompt until a deadline."""

    prompt: Prompt
    lease_id: str
    owner: str
    deadline: float
    """Wall time, seconds."""


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """Where one named tensor lies in a weight file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class WeightsReady(Message, frozen=True, kw_only=True):
    """Manifest of a published version: the buffers' layout and a hash per chunk."""

    version: Version
    buffers: tuple[Buffer, ...]
    num_bytes: int
    chunk_bytes: int
    chunk_hashes: tuple[str, ...]


# --- to the assembler ---------------------------------------------------------------------------


class Verdict(Message, frozen=True, kw_only=True):
    """What one verifier says of one completion. `reward is None` means it could not be scored or does not apply."""

    reward: float | None
    extracted: str | None = None
    method: str = ""
    error_kind: str | None = None
    detail: str = ""
    seconds: float = 0.0


class Completion(Message, frozen=True, kw_only=True):
    """One sampled answer, with what the engine recorded while it sampled."""

    index: int
    token_ids: TokenIds
    """The end-of-sequence token included."""
    logprobs: Floats
    """Of each sampled token, under the distribution it was sampled from."""
    spans: tuple[Span, ...]
    finish_reason: Literal["stop", "length"]
    text: str
    verdicts: dict[str, Verdict] = {}
    reward: float | None = None

    @property
    def oldest(self) -> Version:
        """The version of its first token."""
        return self.spans[0].version


class Group(Message, frozen=True, kw_only=True):
    """All completions of one draw, scored."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    actor: str
    started_at: float
    finished_at: float

    @property
    def rewards(self) -> list[float]:
        return [c.reward for c in self.completions if c.reward is not None]

    @property
    def num_tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.completions)


class Failure(Message, frozen=True, kw_only=True):
    """A draw that ended without a group, with its cause."""

    prompt: Prompt
    cause: str
    """A short stable word: `unscorable`, `over_long`, `attempts`, `total_deadline`, `poison`,
    and `stale`: cancelled by `over_age = "drop"`."""
    detail: str = ""
    actor: str = ""
    num_tokens: int = 0
    """Completion tokens that were generated for it and are lost."""


Result = Group | Failure


class ActorStatus(Message, frozen=True, kw_only=True):
    """An actor's heartbeat. Totals count since the actor started."""

    name: str
    at: float
    version: Version | None = None
    state: str = "starting"
    host: str = ""
    pid: int = 0
    metrics: str = ""
    """`host:port` where Prometheus finds its process."""
    tokens_generated: int = 0
    tokens_wasted: int = 0
    """Generated for attempts that were lost: refused commits, failures, abandoned leases."""
    completions: int = 0
    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    updates: int = 0
    update_failures: int = 0
    """Tries to fetch or apply a version that failed; the version in use stayed."""
    damaged: Version | None = None
    """The published version that could not be fetched whole, time and again."""
    stall_s_total: float = 0.0
    stall_s_max: float = 0.0
    verifier_s_total: float = 0.0
    verifiers: dict[str, dict[str, float]] = {}
    """What each part of the verifiers did: `Scorer.counts`."""
    commits_late: int = 0
    commits_duplicate: int = 0


class StepReport(Message, frozen=True, kw_only=True):
    """What the learner says after a step. `values` uses the names of `metrics`."""

    step: int
    version: Version
    values: dict[str, float]


# --- to the learner -----------------------------------------------------------------------------


class Sample(Message, frozen=True, kw_only=True):
    """One completion as the objective sees it. T is the number of completion tokens."""

    draw_id: int
    prompt_ids: TokenIds
    completion_ids: TokenIds
    behaviour_logprobs: Floats
    """T: of the engine, at sampling."""
    loss_mask: npt.NDArray[np.bool_]
    """T: False for tokens that the over-age policy masks."""
    lags: TokenIds
    """T: versions between the policy that sampled the token and the one that is trained."""
    advantage: float


class Shard(Message, frozen=True, kw_only=True):
    """One rank's share of one step.

    `minibatches[m][r]` are the samples packed into row r of minibatch m. Every rank has the same number of rows in a
    minibatch; a rank with fewer has empty ones, which it runs zero-weighted.
    """

    step: int
    """Counts from 1; trains version `step - 1` and makes version `step`."""
    minibatches: tuple[tuple[tuple[Sample, ...], ...], ...]
    loss_tokens: tuple[float, ...]
    """Loss tokens of each whole minibatch over all ranks: the normaliser of the objective."""
    num_sequences: tuple[int, ...]
    """Sequences of each whole minibatch over all ranks, for per-sequence objectives."""
    checkpoint: bool = False
    """Write a checkpoint after this step."""
    publish: bool = True
    """Publish the version that this step makes."""


STOP_ASKED = "asked to stop"


class Stop(Message, frozen=True, kw_only=True):
    """No further step: the run is over or was asked to stop. A checkpoint of the current state is written before."""

    reason: str
    export: bool = False
    """The policy is what the run was for: leave it as a Hugging Face folder too."""


class Save(Message, frozen=True, kw_only=True):
    """Write a checkpoint of the current state, then ask for the step again."""


Work = Shard | Save | Stop


class Begin(Message, frozen=True, kw_only=True):
    """Where a start of the learner begins."""

    incarnation: int
    step: int
    """Steps already done in the surviving history; the next one is `step + 1`."""
    checkpoint: str | None
    """Folder to restore, or None for the starting policy."""
    publish: bool = True
    """Publish the version it begins with. Not so before a replay: no engine should go back to an older policy."""
