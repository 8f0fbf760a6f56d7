"""The messages between processes, grouped by receiver. All are frozen, tagged and encoded by field name.

    orchestrator -> actor         Prompt (as a Lease)
    learner      -> actors        WeightsReady (the manifest of a published version)
    actor        -> orchestrator  Group | Failure (a Result), ActorStatus
    orchestrator -> learner       Begin, then a Shard for each step, sometimes a Save before a Shard, then Stop
    learner      -> orchestrator  StepReport
    orchestrator -> launcher      Wait

Token ids are int32 and log-probabilities float32; both travel as raw little-endian bytes (`codec`).

No message is part of a reference cycle, so the garbage collector does not track them (`gc=False`): with many groups in
memory it took a quarter of the CPU of the orchestrator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

TokenIds = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
TRAIN_LANE = "train"
TEACHER = "teacher"
"""The verdict of a teacher, by its name among the verdicts of a completion."""
REFERENCE = "reference"
"""That of a served reference policy."""
ENVIRONMENT = "environment"
"""The verdict of an episode's own environment."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, eq=False, gc=False):
    """Base of all messages."""


class Version(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A policy version: `number` learner steps, made by the `incarnation`-th start of the learner.

    The order is for sorting only. An actor runs the version of `WeightStore.latest()`, which may not be the greatest.
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


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`version` computed the tokens `start <= t < end` of a completion."""

    version: Version
    start: int
    end: int


# --- to the actor -------------------------------------------------------------------------------


class EpisodeStart(Message, frozen=True, kw_only=True):
    """Says how a prompt is played."""

    environment: str = ""
    """`module:factory` of its environment."""
    tools: tuple[dict[str, Any], ...] = ()
    """The schemas of the tools that the chat template has shown."""


class Prompt(Message, frozen=True, kw_only=True):
    """One draw from the data stream. All accounting counts draws."""

    draw_id: int
    """Unique over the whole run, epochs included; counts from 0 within its lane."""
    lane: str = TRAIN_LANE
    """`train`, or the name of an evaluation set."""
    attempt: int = 1
    row: str
    """Source of the row, as `file:line`, for messages."""
    messages: list[dict[str, Any]] | str
    """The conversation, unchanged from the row."""
    token_ids: TokenIds
    """The prompt after the chat template."""
    datasets: tuple[str, ...]
    """Names of the verifiers, parallel to `ground_truths`."""
    ground_truths: tuple[Any, ...]
    columns: dict[str, Any] = {}
    """All other columns. User reward functions get them by name."""
    thinking_opened: bool = False
    """Whether the chat template already opened the thinking tag."""
    queued_at: float = 0.0
    """Wall time, seconds; 0 in prompts of evaluation."""
    group_size: int
    min_version: Version
    """An engine with an older version updates before it starts this prompt."""
    episode: EpisodeStart | UnsetType = UNSET
    """Unset: a single answer is asked for. The encoding then has no such field, as before there were episodes."""


class Lease(Message, frozen=True, kw_only=True):
    """The right of one actor to work on a prompt until a deadline."""

    prompt: Prompt
    lease_id: str
    owner: str
    deadline: float
    """Wall time, seconds."""


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """The position of one named tensor in a weight file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


PROBE_TOKENS = 32
"""Tokens of a `Probe` of the learner."""


class Probe(msgspec.Struct, frozen=True):
    """Fixed tokens, and the log-probabilities that the learner gives them with one version.

    `logprobs[t]` belongs to `token_ids[t + 1]`, given the tokens before it, at temperature 1.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Delta(msgspec.Struct, frozen=True):
    """How a shard is stored that is not stored whole: the changes of each chunk since version `base`, compressed."""

    base: Version
    sizes: tuple[int, ...]
    """Stored bytes of each chunk."""


class WeightShard(msgspec.Struct, frozen=True):
    """The part of a version that one learner rank publishes: a stream of chunks, each with a hash."""

    pieces: tuple[tuple[int, int], ...]
    """Offset in the weight file and number of bytes, in the order of the stream."""
    chunk_hashes: tuple[str, ...]
    """Hashes of the whole chunks."""
    delta: Delta | None = None
    """None if its chunks are stored whole."""


class WeightsReady(Message, frozen=True, kw_only=True):
    """The manifest of a published version: the layout of its buffers, and the shard of each learner rank."""

    version: Version
    buffers: tuple[Buffer, ...]
    num_bytes: int
    chunk_bytes: int
    shards: tuple[WeightShard, ...]
    probe: Probe | None = None
    """The log-probabilities that an engine with this version must compute. None without a proof."""


# --- to the orchestrator ---------------------------------------------------------------------------


class Verdict(Message, frozen=True, kw_only=True):
    """One verifier's result for one completion. `reward` is None if scoring failed or the verifier does not apply."""

    reward: float | None
    weight: float = 1.0
    """Its weight in the reward of the completion."""
    extracted: str | None = None
    method: str = ""
    error_kind: str | None = None
    detail: str = ""
    seconds: float = 0.0
    logged: dict[str, float] = {}
    """Values that a user function logged for the group with `log_metric`, in the first completion alone; or that an
    agent wrote with its reward."""
    extra: dict[str, Any] = {}
    """Values that it logged for this completion with `log_extra`: texts, numbers, booleans or None by column."""
    token_logprobs: Floats | msgspec.UnsetType = msgspec.UNSET
    """Log-probability of each token of the completion under a teacher or a reference. Unset, and not encoded, in other
    verdicts."""
    token_rewards: Floats | msgspec.UnsetType = msgspec.UNSET
    """The parts of `reward` that come with each token, NaN where none does. Unset: the reward is of the whole. The
    rewards of all verdicts are combined in those of the completion."""


class Turn(Message, frozen=True, kw_only=True):
    """One request to the engine within an episode, and its answer.

    Its sequence is `kept` tokens of the parent's sequence, then `added`, then the sampled tokens from `start` to `end`.
    """

    parent: int = -1
    """The turn that it continues; -1: the prompt of the row."""
    kept: int
    """Tokens of the parent's sequence with which this prompt begins."""
    added: TokenIds
    """Tokens after them that the policy did not sample. They are never trained. Without a parent and with `kept` = 0
    they are the prompt: of an environment or an agent, which may also have rewritten the history."""
    start: int
    end: int
    """The part of the completion's `token_ids` that this turn sampled."""
    finish_reason: Literal["stop", "length"]
    messages: list[dict[str, Any]] = []
    """What came in before this answer: results of tools, or the words of a user."""
    reply: dict[str, Any] = {}
    """The answer as a message. In an episode that the tool `submit` ended, the last one has its answer in `submitted`.
    """
    asked_at: float = 0.0
    """Wall time of the request, seconds."""
    ended_at: float = 0.0
    """Wall time of the last token, seconds."""


class Episode(Message, frozen=True, kw_only=True):
    """The turns of a completion, in the order in which they were sampled, and why there are no more."""

    turns: tuple[Turn, ...]
    exit: str
    """`done`, `max_turns`, `too_long`, `bad_call`, or of an agent `out_of_time`."""


class Completion(Message, frozen=True, kw_only=True):
    """One sampled answer, with the log-probabilities and versions that the engine recorded.

    An episode is a completion with turns: its tokens are all sampled tokens of all turns, in the order of the turns.
    """

    index: int
    token_ids: TokenIds
    """Includes the end-of-sequence token."""
    logprobs: Floats
    """Log-probability of each token under the distribution it was sampled from."""
    spans: tuple[Span, ...]
    finish_reason: Literal["stop", "length"]
    text: str
    """Of an episode: the text of the last turn."""
    verdicts: dict[str, Verdict] = {}
    reward: float | None = None
    """None in a scored group: no verifier applies to this completion, and it is not trained on."""
    token_rewards: Floats | UnsetType = UNSET
    """The parts of `reward` that come with each token, NaN where none does. Unset, and not encoded: it comes with the
    last token."""
    solved: bool = False
    """The result of `solved.is_solved`. Set together with the reward."""
    generated_at: float = 0.0
    """Wall time of the last token, seconds; 0: not known."""
    episode: Episode | UnsetType = UNSET
    """Unset: a single answer to the prompt. The encoding then has no such field, as before there were episodes."""

    @property
    def teacher_logprobs(self) -> Floats | None:
        """Log-probability of each token under the teacher of the prompt; None without one."""
        return self._scored(TEACHER)

    @property
    def reference_logprobs(self) -> Floats | None:
        """Log-probability of each token under a served reference; None without one."""
        return self._scored(REFERENCE)

    def _scored(self, name: str) -> Floats | None:
        values = self.verdicts[name].token_logprobs if name in self.verdicts else UNSET
        return None if isinstance(values, UnsetType) else values

    @property
    def submitted(self) -> str | None:
        """The answer that the policy gave to the tool `submit`; None: its last text is its answer."""
        return self.turns[-1].reply.get("submitted") if self.turns else None

    @property
    def oldest(self) -> Version:
        """The oldest version of its tokens. A later turn can be older, where actors went back to an older version."""
        return min(span.version for span in self.spans)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of an episode; none in a single answer."""
        return () if isinstance(self.episode, UnsetType) else self.episode.turns

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The answers of an episode with what came in between them."""
        between = ((*(turn.messages if number else ()), turn.reply) for number, turn in enumerate(self.turns))
        return [message for messages in between for message in messages]

    @property
    def exit(self) -> str:
        """Why an episode ended; empty for a single answer."""
        return "" if isinstance(self.episode, UnsetType) else self.episode.exit

    @property
    def path_length(self) -> int:
        """Tokens after the prompt of the row: the sampled ones, and the added ones; of the longest branch."""
        lengths: list[int] = []
        for turn in self.turns:
            before = lengths[turn.parent] if turn.parent >= 0 else 0
            lengths.append(before + len(turn.added) + turn.end - turn.start)
        return max(lengths, default=len(self.token_ids))


class Group(Message, frozen=True, kw_only=True):
    """All completions of one draw, with their scores."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    actor: str
    started_at: float
    finished_at: float

    @property
    def rewards(self) -> list[float]:
        """The rewards of the completions that have one."""
        return [c.reward for c in self.completions if c.reward is not None]

    @property
    def num_tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.completions)


class Failure(Message, frozen=True, kw_only=True):
    """A draw that ended without a group, and the cause."""

    prompt: Prompt
    cause: str
    """A short stable word: `unscorable`, `over_long`, `attempts`, `total_deadline`, `poison`,
    or `stale` (cancelled by `over_age = "drop"`)."""
    detail: str = ""
    actor: str = ""
    num_tokens: int = 0
    """Completion tokens that were generated for the draw and are lost."""


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
    """`host:port` at which Prometheus scrapes the process."""
    tokens_generated: int = 0
    tokens_wasted: int = 0
    """Tokens of attempts without a result, in all lanes: refused commits and lost leases."""
    tokens_stored: int = 0
    """Tokens of stored results, in all lanes. Tokens of unfinished groups are neither stored nor wasted."""
    completions: int = 0
    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    up_s: float = 0.0
    """Time since the engine started."""
    busy_s: float = 0.0
    """The part of `up_s` with at least one running sequence."""
    running_s: float = 0.0
    """Seconds of all running sequences, summed over them."""
    slots_s: float = 0.0
    """Seconds of all slots of the engine, summed over them. The KV cache limits the slots too."""
    awaiting_weights_s: float = 0.0
    """Seconds of leased sequences that wait for a version, summed over them."""
    awaiting_verdicts_s: float = 0.0
    """Seconds of finished sequences without their verdicts, summed over them."""
    awaiting_group_s: float = 0.0
    """Seconds of verified sequences whose group is not stored, summed over them."""
    awaiting_environment_s: float = 0.0
    """Seconds of episodes that wait for their environment or agent, summed over them."""
    flops: float = 0.0
    """Operations that the tokens of the engine needed."""
    moved_bytes: float = 0.0
    """Bytes of weights and KV cache that the steps of the engine moved."""
    peak_flops_per_s: float = 0.0
    """What all devices of the engine can do at most; 0: not known."""
    peak_bytes_per_s: float = 0.0
    updates: int = 0
    update_failures: int = 0
    """Failed tries to fetch or apply a version. The engine kept its version."""
    damaged: Version | None = None
    """The published version that repeatedly failed its hash check."""
    stall_s_total: float = 0.0
    stall_s_max: float = 0.0
    proofs: int = 0
    """Versions whose log-probabilities of fixed tokens were compared with the learner's."""
    proof_diff_total: float = 0.0
    """Sum over `proofs` of the mean difference, in nats."""
    proof_diff_max: float = 0.0
    proof_s_total: float = 0.0
    scored_s: float = 0.0
    """The part of the time of the engine's steps that went into scoring these tokens."""
    verifier_s_total: float = 0.0
    verifiers: dict[str, dict[str, float]] = {}
    """The counts of each part of the verifiers: `Scorer.counts`."""
    episodes: dict[str, float] = {}
    """The tries of episodes, those that failed, and what `Environments.counts` has."""
    commits_late: int = 0
    commits_duplicate: int = 0


class StepReport(Message, frozen=True, kw_only=True):
    """The learner's report of a step. `values` uses the names of `metrics`."""

    step: int
    version: Version
    values: dict[str, float]


# --- to the learner -----------------------------------------------------------------------------


class Sample(Message, frozen=True, kw_only=True):
    """One completion as input of the objective. T is the number of completion tokens."""

    draw_id: int
    prompt_ids: TokenIds
    completion_ids: TokenIds
    behaviour_logprobs: Floats
    """T: recorded by the engine at sampling."""
    loss_mask: npt.NDArray[np.bool_]
    """T: False for tokens that the over-age policy masks."""
    lags: TokenIds
    """T: versions between the policy that sampled the token and the policy that is trained."""
    advantage: float
    token_advantages: Floats | msgspec.UnsetType = msgspec.UNSET
    """T: what the advantage of each token has beside `advantage`, by a teacher or by rewards of tokens. Unset, and not
    encoded: nothing."""
    reference_logprobs: Floats | msgspec.UnsetType = msgspec.UNSET
    """T: under a served reference. Unset, and not encoded: there is none."""


class Shard(Message, frozen=True, kw_only=True):
    """One rank's share of one step.

    `minibatches[m][r]` are the samples packed into row r of minibatch m. Every rank has the same number of rows in a
    minibatch. Empty rows fill the difference; they run with weight zero.
    """

    step: int
    """Counts from 1. The step trains version `step - 1` and makes version `step`."""
    minibatches: tuple[tuple[tuple[Sample, ...], ...], ...]
    loss_tokens: tuple[float, ...]
    """Loss tokens of each whole minibatch over all ranks: the normaliser of the objective."""
    num_sequences: tuple[int, ...]
    """Sequences of each whole minibatch over all ranks, for per-sequence objectives."""
    checkpoint: bool = False
    """Write a checkpoint after this step."""
    publish: bool = True
    """Publish the version that this step makes."""
    learning_rate: float | None = None
    """`learner.learning_rate` for this step; None: the recipe's."""


STOP_ASKED = "asked to stop"


class Stop(Message, frozen=True, kw_only=True):
    """The run is over or was asked to stop: no further step. The learner first writes a checkpoint."""

    reason: str
    export: bool = False
    """The run is complete: also export the policy as a Hugging Face folder."""


class Save(Message, frozen=True, kw_only=True):
    """Write a checkpoint of the current state, then ask for the step again."""


Work = Shard | Save | Stop


class Begin(Message, frozen=True, kw_only=True):
    """The starting point of one incarnation of the learner."""

    incarnation: int
    step: int
    """Steps already done in the current history. The next step is `step + 1`."""
    checkpoint: str | None
    """Folder to restore. None: the starting policy."""
    publish: bool = True
    """Publish the first version. False before a replay, so that no engine goes back to an older policy."""
    ranks: int = 1
    """Number of learner ranks."""


# --- to the launcher ------------------------------------------------------------------------------


class Owner(StrEnum):
    """The part of the service that has to end a wait."""

    LEARNER = "learner"
    LEARNER_RANKS = "learner's ranks"
    ORCHESTRATOR = "orchestrator"
    RUN_DIRECTORY = "run directory"
    ACTOR = "actor"


class Stage(StrEnum):
    """The stages of the learner's step, in their order."""

    ASKING = "asking"
    """The learner loads, or has reported a step, and has not asked for the next one."""
    BATCH = "batch"
    """The learner has asked, and its batch is not ready."""
    TRAINING = "training"
    """The learner has its batch, and has not reported the step."""


class Wait(NamedTuple):
    """One wait that has not ended."""

    what: str
    owner: Owner
    waited_s: float
    deadline_s: float
    urgent: bool = False
    """It ends only when the user acts."""
    owner_name: str = ""
    """Name of the owner, if the service has several of its kind."""
    stage: Stage | None = None
    """The stage of the learner's step that the wait belongs to, if any."""

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.waited_s > self.deadline_s

    @property
    def owner_text(self) -> str:
        """The owner as text for messages."""
        return self.owner_name or f"the {self.owner}"

    def fields(self) -> dict[str, str | float | bool]:
        """The wait as a table of plain values."""
        return {
            "what": self.what,
            "owner": self.owner_text,
            "waited_s": self.waited_s,
            "deadline_s": self.deadline_s,
            "urgent": self.urgent,
        }
