"""The one configuration: a TOML recipe, then `--dotted.key value` overrides. Unknown keys are refused.

Each part of the service is given its own section only. This file imports no torch, so that `--help` and
`--dry-run` answer at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from olmorl.errors import ConfigError


class Section(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class Run(Section):
    """Name and place of the run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Also the folder under `directory`, and the name of everything the run leaves in Redis and shared memory."""
    directory: Path = Path("runs")
    """Where run folders are made."""
    seed: int = Field(0, ge=0, lt=2**31)
    """All other seeds derive from it."""
    mode: Literal["real", "simulated"] = "real"
    """`simulated` runs the whole service on an engine and a trainer without a model."""


class Model(Section):
    """The policy."""

    path: str = "runs/cache/demo-model"
    """A Hugging Face folder or hub name."""
    build: Literal["demo", "mixed"] | None = None
    """Make a tiny policy and its problems under `run.directory`/cache, in place of `path` and absent data: `demo` sums,
    `mixed` math, instructions, programs and questions for a judge."""
    tokenizer: str | None = None
    """Default: the model's own."""
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    """Of the forward pass, in learner and engine."""
    chat_template: str | None = None
    """Jinja text, or a file; default: the tokenizer's own."""
    trust_remote_code: bool = False


class Data(Section):
    """Prompts: JSONL, Parquet or hub data sets."""

    train: list[str] = Field(default_factory=list)
    """`path` or hub `name`, each with an optional `:weight` to mix several."""
    system_prompt: str | None = None
    """Put in front of every conversation that has no system turn."""
    max_prompt_tokens: int = Field(2048, ge=1)
    over_long: Literal["filter", "truncate"] = "filter"
    """What to do with prompts over `max_prompt_tokens`; `truncate` keeps their end."""
    default_verifier: str | None = None
    """For rows without a `dataset` column."""
    split: str = "train"
    """Of hub data sets."""
    strict: bool = False
    """A row that cannot be used is an error instead of a report (`--strict-data`)."""
    shuffle: bool = True
    epochs: int | None = Field(None, ge=1)
    """Passes over the data; default: as many as the steps need."""
    no_resample_above: float | None = Field(None, gt=0, le=1)
    """Retire a row once a group of it was solved in at least this share of its samples."""


class Sampling(Section):
    """How completions are sampled."""

    group_size: int = Field(8, ge=2)
    """Completions a prompt. One alone has no baseline."""
    max_tokens: int = Field(2048, ge=1)
    """Completion tokens at most."""
    temperature: float = Field(1.0, gt=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 the sampled distribution is not the trained one: the ratio is biased."""
    top_k: int = Field(0, ge=0)
    """0: off. See top_p."""
    stop: list[str] = Field(default_factory=list)


class Schedule(Section):
    """How much, how far ahead, how stale."""

    steps: int = Field(100, ge=1)
    """Learner steps in the whole run."""
    prompts_per_step: int = Field(64, ge=1)
    """Groups with a gradient in every batch (B)."""
    max_lag: int = Field(1, ge=0, le=1000)
    """Oldest token that may be trained on, in versions. 0: synchronous."""
    depth: int | None = Field(None, ge=0)
    """Batches generated ahead; at most and by default max_lag."""
    over_age: Literal["wait", "mask", "drop"] = "wait"
    """`wait` never lets a group pass its deadline by choice; `mask` leaves old tokens out of the loss; `drop` replaces
    the group (biased: the longest answers are dropped most)."""
    filter_zero_gradient: bool = True
    """Replace groups whose rewards are all equal (active sampling)."""
    max_useless_groups: int = Field(2000, ge=1)
    """This many zero-gradient groups in a row end the run: everything is solved, or nothing is. So do this many draws
    in a row that fail."""

    @model_validator(mode="after")
    def _depth_within_lag(self) -> Schedule:
        if self.depth is not None and self.depth > self.max_lag:
            raise ValueError(
                f"depth = {self.depth} is over max_lag = {self.max_lag}: set depth to {self.max_lag} or less"
            )
        return self

    @property
    def batches_ahead(self) -> int:
        return self.max_lag if self.depth is None else self.depth


Preset = Literal["olmorl", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo_decoupled"]


class Objective(Section):
    """The loss. `preset` sets all switches; a switch given beside it wins."""

    preset: Preset = "olmorl"
    advantage: Literal["mean", "mean_std"] | None = None
    """Baseline only, or also divided by the group's standard deviation."""
    normalize: Literal["token", "sequence", "constant"] | None = None
    """Over all loss tokens of the minibatch; mean per sequence, then over sequences; or a constant length."""
    constant_length: int | None = Field(None, ge=1)
    """The divisor per sequence with `normalize = "constant"`; default: sampling.max_tokens."""
    ratio: Literal["token", "sequence"] | None = None
    """Importance ratio of each token, or the geometric mean of its sequence (GSPO)."""
    clip: Literal["ppo", "cispo"] | None = None
    eps_low: float | None = Field(None, ge=0, lt=1)
    eps_high: float | None = Field(None, ge=0)
    rho: float | Literal["off"] | None = None
    """Cap of the importance weight between engine and learner; "off": no weight."""
    rho_kind: Literal["truncate", "mask", "sequence"] | None = None
    """Clamp each token's weight, mask tokens outside [1/rho, rho], or clamp one weight a sequence."""
    proximal: Literal["old", "behaviour"] | None = None
    """The policy in the denominator of the ratio: the learner at the start of the step, or the engine's."""
    kl_beta: float | None = Field(None, ge=0)
    """Weight of the KL term to the starting policy; above 0 a reference model is loaded."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    reward_scale: float = Field(1.0, gt=0)
    """Multiplies rewards before the advantage; the reference runs use 10, which matters under gradient clipping."""
    overlong_buffer: int | None = Field(None, ge=0)
    """DAPO: the reward falls linearly to -1 over the last this many tokens before sampling.max_tokens; 0: off."""
    mask_truncated: bool = False
    """Leave completions cut off at max_tokens out of the loss."""

    @model_validator(mode="after")
    def _rho_positive(self) -> Objective:
        if isinstance(self.rho, float) and self.rho <= 0:
            raise ValueError('rho must be over 0; to turn the weight off, write rho = "off"')
        return self


class Learner(Section):
    """DeepSpeed, over `nodes` x `ranks_per_node` ranks."""

    nodes: int = Field(1, ge=1)
    """Also `--learner-nodes`."""
    ranks_per_node: int = Field(1, ge=1)
    """One per GPU; on CPU one per core that is to spare."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    zero_stage: int = Field(2, ge=0, le=3)
    learning_rate: float = Field(1e-6, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatches: int = Field(1, ge=1)
    """Optimizer steps a batch; minibatches hold whole groups."""
    epochs: int = Field(1, ge=1)
    """Passes over a batch."""
    row_tokens: int | None = Field(None, ge=1)
    """Tokens packed into one row; default: the longest prompt plus the longest completion."""
    logprob_chunk: int = Field(1024, ge=1)
    """Tokens whose logits exist at one time."""
    gradient_checkpointing: bool = False
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = "auto"
    threads: int = Field(1, ge=1)
    """CPU threads of a rank."""
    cores: list[int] | None = None
    """Pin the ranks to these cores; default: chosen so that no engine shares them, on a cluster left to the system."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in host memory."""
    batch_deadline_s: float = Field(3600, gt=0)
    """A rank waits this long for a batch before it ends the run with the cause."""


class Actors(Section):
    """vLLM engines, one actor each."""

    nodes: int = Field(1, ge=1)
    """Also `--actor-nodes`."""
    engines_per_node: int | None = Field(None, ge=1)
    """Default: GPUs of the node / tensor_parallel; 1 on CPU."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs an engine."""
    max_running: int = Field(256, ge=1)
    """Sequences an engine batches at most."""
    max_waiting: int = Field(16, ge=0)
    """Sequences admitted beyond what runs, so that a slot never waits for the queue."""
    kv_headroom: float = Field(0.1, ge=0, lt=1)
    """Share of the KV cache that admission leaves free for answers still growing."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """On CPU; on a GPU the engine takes gpu_memory_utilization."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    max_model_len: int | None = Field(None, ge=1)
    """Default: longest prompt plus longest completion."""
    max_batched_tokens: int | None = Field(None, ge=1)
    enforce_eager: bool = False
    prefix_caching: bool = True
    cores: list[int] | None = None
    """CPU cores of the engines, one each; default: chosen beside the learner's, on a cluster left to the system."""
    start_deadline_s: float = Field(600, gt=0)
    heartbeat_s: float = Field(1.0, gt=0)
    weight_poll_s: float = Field(0.1, gt=0)
    """How often an actor asks for a newer version."""
    stall_deadline_s: float = Field(300, gt=0)
    """An engine that has work and makes no token for this long, or stays more than schedule.max_lag versions behind for
    this long, ends its actor with the cause; another takes its place."""


class Remote(Section):
    """A model behind HTTP that scores answers."""

    url: str | None = None
    """Its address, as in `http://host:8000` or `https://host/v1`; `local`: one that ships, a rule of thumb for demos,
    started with the verifiers. Without an address the verifiers that need it are off."""
    model: str | None = None
    """Name that the service knows the model by; default: not sent, a server of one model needs none."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable of the actors that holds the key. The key itself is never in a recipe."""
    timeout_s: float = Field(60.0, gt=0)
    """Of one call."""
    concurrency: int = Field(32, ge=1)
    """Calls of one actor at the same time."""
    retries: int = Field(4, ge=0)
    """Of a call that fails while others succeed."""
    breaker_threshold: int = Field(5, ge=1)
    """Failures in a row after which calls wait instead: the service is down."""
    outage_deadline_s: float = Field(600.0, gt=0)
    """How long a call waits for a service that is down, before its group fails."""
    cache_size: int = Field(10_000, ge=0)
    """Scores that are kept, by the whole request."""
    max_answer_chars: int = Field(32_000, ge=1)
    """A longer answer scores 0."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        if url is None or url == "local":
            return url
        # What is refused is not shown: it may hold a secret.
        if set("@?#") & set(url):
            raise ValueError("url: an address alone; name the environment variable of the key in api_key_env")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url of a judge or reward model: write an address such as http://host:8000/v1")
        return url


class Judge(Remote):
    """A language model behind an OpenAI-compatible API."""

    max_reply_tokens: int = Field(512, ge=16)
    template: Path | None = None
    """File with the question to the judge, with {question}, {answer} and, if wanted, {delimiter}; default: built in."""
    reference_template: Path | None = None
    """The same for rows with a reference answer, with {reference} too."""


class RewardModel(Remote):
    """A sequence classifier with one output, behind vLLM's `/classify`."""

    squash: Literal["sigmoid", "clamp"] = "sigmoid"
    """How a score x becomes a reward: with z = (x - center) / scale, 1 / (1 + exp(-z)), or z cut to [0, 1]."""
    center: float = Field(0.0, allow_inf_nan=False)
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)


class Verifiers(Section):
    """Rewards."""

    workers: int = Field(1, ge=1)
    """Processes an actor."""
    timeout_s: float = Field(5.0, gt=0)
    """A check past this is killed."""
    memory_mib: int = Field(1024, ge=64)
    """Of one worker."""
    recycle_after: int = Field(5000, ge=1)
    """Checks before a worker is replaced."""
    retries: int = Field(2, ge=0)
    """Of infrastructure errors, before the group fails."""
    functions: list[str] = Field(default_factory=list)
    """User reward functions, `package.module:function` or `file.py:function`, with an optional `*weight`."""
    function_timeout_s: float = Field(30.0, gt=0)
    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of a verifier's reward by name; default 1."""
    combine: Literal["sum", "mean", "product"] = "sum"
    think_start: str = "<think>"
    think_end: str = "</think>"
    math_last_number: bool = True
    """Without a box or a marker, take the last number of the answer."""
    math_percent: Literal["strict", "lenient"] = "lenient"
    """`lenient`: 50% equals 50; `strict`: 50% equals 0.5 only."""
    math_units: Literal["strict", "lenient", "ignore"] = "lenient"
    """`lenient`: an answer may leave the unit out, but a unit it names must agree; `strict`: it must name the label's;
    `ignore`: numbers only."""
    math_case: Literal["ignore", "exact"] = "ignore"
    """Of answers that are words. Letters in formulas always keep their case."""
    math_tolerance: float = Field(1e-6, ge=0, lt=1)
    """Relative difference that a decimal may have. Fractions, roots and integers are always exact."""
    ifeval_reward: Literal["all", "fraction"] = "all"
    """`all`: 1 when every constraint is satisfied; `fraction`: the share of those that are."""
    code_reward: Literal["fraction", "all"] = "fraction"
    """The share of tests that pass, or 1 only when all do."""
    code_tier: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto"
    """How programs are locked in. `auto`: bubblewrap where it works, else Landlock, else none is run; `unsafe`:
    resource limits only, so that a program can read and delete what its user can."""
    code_test_timeout_s: float = Field(6.0, gt=0)
    """Processor seconds of one test; on the clock it may take twice as long."""
    code_answer_timeout_s: float = Field(60.0, gt=0)
    """Of all tests of one answer; tests that are not reached fail."""
    code_memory_mib: int = Field(1024, ge=64)
    """A program may allocate."""
    code_disk_mib: int = Field(32, ge=1)
    """A program may write to /tmp, under bubblewrap. Elsewhere it can write no file at all."""
    code_output_kib: int = Field(1024, ge=1)
    """A program may print."""
    code_allow_numpy: bool = False
    """Let programs import numpy."""
    judge: Judge = Judge()
    """Of the verifiers `general-quality` and `general-quality_ref`."""
    reward_model: RewardModel = RewardModel()
    """Of the verifier `reward_model`."""


class QueueSettings(Section):
    """Prompts, results, leases."""

    url: str | None = None
    """`redis://host:6379/0`, or the sentinels that know the primary of a service:
    `redis+sentinel://host:26379,host:26379/service/0`; `rediss` for TLS. User and password stand in the environment
    (`OLMORL_REDIS_USERNAME`, `OLMORL_REDIS_PASSWORD`; for sentinels `OLMORL_REDIS_SENTINEL_PASSWORD`), or in files that
    it names (`OLMORL_REDIS_PASSWORD_FILE`). Default: a Redis embedded in the run."""
    fsync: Literal["always", "everysec", "no"] = "everysec"
    """Of the embedded Redis: `always` survives a power loss, `everysec` a process crash only."""
    lease_s: float = Field(60.0, gt=0)
    """An actor that is silent for this long loses its prompts."""
    max_attempts: int = Field(5, ge=1)
    """Of one draw, before it is failed."""
    total_deadline_s: float = Field(24 * 3600, gt=0)
    """From the first lost attempt of a draw on: one that is lost after it is the last, and the draw is failed. What
    a queue has lost with its writes counts anew."""
    connect_deadline_s: float = Field(10.0, gt=0)
    outage_deadline_s: float = Field(120.0, gt=0)
    """How long a Redis that does not answer is waited for, and one that fails over."""

    @field_validator("url")
    @classmethod
    def _no_secrets(cls, url: str | None) -> str | None:
        # Here, before anything shows the recipe.
        if url is not None and any(sign in url for sign in "@?#"):
            raise ValueError(
                "queue.url: a URL ends up in logs and recipes, so it may not hold credentials, nor anything behind a "
                "? or #: set OLMORL_REDIS_USERNAME and OLMORL_REDIS_PASSWORD in the environment, or "
                "OLMORL_REDIS_PASSWORD_FILE; for certificates of your own SSL_CERT_FILE"
            )
        return url


class Weights(Section):
    """How a new version reaches the engines."""

    store: Literal["auto", "file", "ray"] = "auto"
    """Where versions are published: as files, or in Ray's object store, from which each host of a cluster pulls them.
    `auto`: files when the run has one host or `directory` is given, else `ray`."""
    directory: Path | None = None
    """Of the files; all hosts must see it. Default: shared memory when the run has one host, else the run directory."""
    chunk_mib: int = Field(16, ge=1)
    publish_every: int = Field(1, ge=1)
    """Steps between published versions."""

    @model_validator(mode="after")
    def _directory_of_files(self) -> Weights:
        if self.store == "ray" and self.directory is not None:
            raise ValueError('weights.directory is for files: leave it out, or write weights.store = "file"')
        return self


class Checkpoint(Section):
    """What a crash may cost."""

    every: int = Field(50, ge=1)
    """Steps between checkpoints; one is always written at the end."""
    keep: int = Field(3, ge=1)
    """Complete checkpoints that stay."""
    deadline_s: float = Field(1800, gt=0)
    """For a rank's share to be written, and for room on a disk that is full, before the run ends with the cause."""


class Evaluation(Section):
    """Held-out problems through the same actors, in their own lane."""

    data: list[str] = Field(default_factory=list)
    """As `data.train`, each with an optional `name=` in front."""
    every: int = Field(50, ge=1)
    """Steps between evaluations; one is always made before the first step and after the last."""
    limit: int | None = Field(None, ge=1)
    """Prompts of each set at most."""
    samples: int = Field(1, ge=1)
    """Completions a prompt; with k of them pass@k is reported too, unbiased."""
    temperature: float = Field(0.0, ge=0, le=10)
    """0: greedy."""
    max_tokens: int | None = Field(None, ge=1)
    """Default: sampling.max_tokens."""
    share: float = Field(0.25, gt=0, le=1)
    """Of an engine's slots that evaluation may take while training prompts wait."""
    deadline_s: float = Field(1800, gt=0)
    """Of one set for one version, without pauses; what has no answer then is counted as failed."""


class Cluster(Section):
    """Ray."""

    address: str | None = None
    """`host:port` of a cluster, or "auto"; default: start Ray on this machine. Also `--ray-address`."""
    gpus_per_node: int | None = Field(None, ge=0)
    """Default: 8 when the learner's device is cuda, 0 on cpu."""
    wait_s: float = Field(600, gt=0)
    """How long to wait for the resources before saying what is missing."""
    stop_deadline_s: float = Field(30, gt=0)
    """For everything to end after the last checkpoint."""


class Supervision(Section):
    """When a process counts as lost, and how often it is started again."""

    heartbeat_deadline_s: float = Field(8.0, gt=0)
    """An actor at work whose heartbeat did not reach the queue for this long is ended; its prompts go elsewhere."""
    answer_deadline_s: float = Field(30.0, gt=0)
    """A learner rank, the assembler, the embedded Redis or an actor whose engine starts is ended when it gives no sign
    for this long."""
    step_deadline_s: float = Field(3600.0, gt=0)
    """A learner step that takes longer counts as a hang of the learner."""
    restarts: int = Field(5, ge=0)
    """Of one process in a row without any work done in between: then an actor is quarantined, and a learner ends the
    run."""
    backoff_s: float = Field(1.0, gt=0)
    """Before the second restart in a row; doubles with each further one. The first comes at once."""
    longest_backoff_s: float = Field(30.0, gt=0)
    drain_deadline_s: float = Field(1800.0, gt=0)
    """An actor that is asked to leave may finish what it has in hand for this long."""
    no_actor_deadline_s: float = Field(120.0, gt=0)
    """Without any actor at work for this long the run ends; longer only where engines need longer to start."""
    launcher_deadline_s: float = Field(600.0, gt=0)
    """On a cluster a run that lost its launcher trains on. Once it does not train, its processes wait this long for
    another launcher (`--resume`), and end."""


class Simulation(Section):
    """Token times of the fake engine and trainer (`run.mode = "simulated"`)."""

    tokens_per_s: float = Field(50.0, gt=0)
    """Of one sequence alone."""
    batch_slowdown: float = Field(0.01, ge=0)
    """Each further running sequence makes a step this share slower."""
    mean_tokens: float = Field(120.0, gt=0)
    """Of a completion; the length is log-normal."""
    tail: float = Field(0.7, ge=0)
    """Sigma of the log-normal length."""
    solve_rate: float = Field(0.5, ge=0, le=1)
    """Probability that a completion is right, at the start."""
    train_tokens_per_s: float = Field(20000.0, gt=0)
    update_s: float = Field(0.02, ge=0)
    """Stall of an in-flight update."""
    save_s: float = Field(0.5, ge=0)
    """For a rank's share of a checkpoint to be written."""


class Config(Section):
    """A whole recipe."""

    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    sampling: Sampling = Sampling()
    schedule: Schedule = Schedule()
    objective: Objective = Objective()
    learner: Learner = Learner()
    actors: Actors = Actors()
    verifiers: Verifiers = Verifiers()
    queue: QueueSettings = QueueSettings()
    weights: Weights = Weights()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
    cluster: Cluster = Cluster()
    supervision: Supervision = Supervision()
    simulation: Simulation = Simulation()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if self.learner.minibatches > self.schedule.prompts_per_step:
            raise ValueError(
                f"learner.minibatches = {self.learner.minibatches} is over schedule.prompts_per_step = "
                f"{self.schedule.prompts_per_step}: a minibatch holds at least one whole group"
            )
        if self.weights.publish_every > self.schedule.batches_ahead + 1:
            raise ValueError(
                f"weights.publish_every = {self.weights.publish_every} needs schedule.max_lag and depth of at least "
                f"{self.weights.publish_every - 1}: until a version is out nothing may be generated beyond them"
            )
        if self.supervision.heartbeat_deadline_s <= self.actors.heartbeat_s:
            raise ValueError(
                f"supervision.heartbeat_deadline_s = {self.supervision.heartbeat_deadline_s:g} must be over "
                f"actors.heartbeat_s = {self.actors.heartbeat_s:g}, better several times as much"
            )
        return self

    @property
    def weight_store(self) -> Literal["file", "ray"]:
        """Where versions are published, with `auto` decided."""
        if self.weights.store != "auto":
            return self.weights.store
        return "file" if self.cluster.address is None or self.weights.directory is not None else "ray"

    @property
    def run_dir(self) -> Path:
        return self.run.directory / self.run.name

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest prompt with its longest completion, to train on or to evaluate."""
        evaluated = (self.evaluation.max_tokens or 0) if self.evaluation.data else 0
        longest = max(self.sampling.max_tokens, evaluated)
        return self.actors.max_model_len or self.data.max_prompt_tokens + longest

    @property
    def row_tokens(self) -> int:
        trained = self.actors.max_model_len or self.data.max_prompt_tokens + self.sampling.max_tokens
        return self.learner.row_tokens or trained


def load(recipe: Path | None, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Read a recipe, if there is one, and apply `(dotted.key, text)` overrides, in order.

    Raises:
        ConfigError: a file that is missing or malformed, a key that is unknown, a value out of its bounds.
    """
    try:
        tree = tomllib.loads(recipe.read_text(encoding="utf-8")) if recipe else {}
    except FileNotFoundError:
        raise ConfigError(f"{recipe}: no such recipe; the ones that ship are in deploy/recipes/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{recipe}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{recipe}: not TOML: {error}") from None
    for key, text in overrides:
        _set(tree, key, _value(text))
    return build(tree, str(recipe or "command line"))


def build(tree: Mapping[str, Any], source: str = "configuration") -> Config:
    """Validate a nested mapping; `source` is named in the error."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [f"  {_explain(item)}" for item in error.errors()]
        raise ConfigError(f"{source}:\n" + "\n".join(lines)) from None


_NEAR_SECRETS = ("queue", "verifiers.judge", "verifiers.reward_model")
"""Where people may write a password or a key by mistake: what is refused there is not shown."""


def _explain(item: Any) -> str:
    path = [str(part) for part in item["loc"]]
    key = ".".join(path)
    if item["type"] == "extra_forbidden":
        names = _names(path[:-1])
        close = get_close_matches(path[-1], names, 1)
        hint = f"did you mean {close[0]!r}?" if close else "known here: " + ", ".join(names)
        return f"{key}: unknown key; {hint}"
    message: str = item["msg"].removeprefix("Value error, ")
    if not key or item["type"] == "value_error":
        return message
    return f"{key}: {message}" + ("" if key.startswith(_NEAR_SECRETS) else f" (got {item['input']!r})")


def _names(path: Sequence[str]) -> list[str]:
    section: Any = Config
    for part in path:
        field = section.model_fields.get(part)
        section = field.annotation if field else Config
    return list(section.model_fields)


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.replace("-", "_").split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--{dotted}: {part} is a value, not a section")
    tree[leaf] = value


def _value(text: str) -> Any:
    """Read `text` as a TOML value; what is not one is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML, with None left out. `load` reads it back to the same."""
    lines: list[str] = []
    for section, values in config.model_dump(mode="json", exclude_none=True).items():
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        lines += [f"[{section}]", *(f"{key} = {_literal(v)}" for key, v in values.items() if key not in tables), ""]
        for key, table in tables.items():
            lines += [f"[{section}.{key}]", *(f"{_literal(k)} = {_literal(v)}" for k, v in table.items()), ""]
    return "\n".join(lines)


_ESCAPED = {chr(code): f"\\u{code:04x}" for code in (*range(32), 127)} | {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
"""In a TOML string."""


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPED.get(sign, sign) for sign in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return repr(value)


def reference() -> list[tuple[str, str, str]]:
    """Every key as `(dotted.key, default, what it does)`, for `--help` and the docs."""
    return _leaves("", Config)


def _leaves(prefix: str, section: type[BaseModel]) -> list[tuple[str, str, str]]:
    rows = []
    for key, leaf in section.model_fields.items():
        default = leaf.get_default(call_default_factory=True)
        if isinstance(default, Section):
            rows += _leaves(f"{prefix}{key}.", type(default))
            continue
        shown = "" if default is None else str(default)
        rows.append((f"{prefix}{key}", shown, " ".join((leaf.description or "").split())))
    return rows
