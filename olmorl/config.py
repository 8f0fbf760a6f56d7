"""Defines the configuration: a TOML recipe, then `--dotted.key value` overrides. Unknown keys are refused.

Each part of the service gets its own section only. This file does not import torch, so that `--help` and `--dry-run`
answer at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from olmorl import deadlines, removed_keys, toml
from olmorl.deadlines import Deadlines
from olmorl.errors import ConfigError
from olmorl.extension import OwnFunction
from olmorl.keys import Key, Section, describe, keys
from olmorl.simulation import Simulation


class Run(Section):
    """Name and place of the run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name of the run, of its folder under `directory`, of its keys in Redis and of its files in shared memory."""
    directory: Path = Path("runs")
    """Folder that holds the folders of the runs."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Root of all random seeds."""
    mode: Literal["real", "simulated"] = "real"
    """`simulated` runs the whole service with a fake engine and a fake trainer, without a model."""


class Lora(Section):
    """Adapters that are trained and published in place of the model's weights."""

    rank: int = Field(0, ge=0, le=1024)
    """Rank of the adapters (LoRA), which are the only weights that are trained. 0: no adapters."""
    alpha: float = Field(32.0, gt=0)
    """What an adapter adds to its layer's output is multiplied by alpha / rank."""
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Linear layers that get an adapter, by the last part of their names."""

    @property
    def scale(self) -> float:
        """The factor of what an adapter adds; 0 without adapters."""
        return self.alpha / self.rank if self.rank else 0.0


class Model(Section):
    """The policy."""

    path: str = "runs/cache/demo-model"
    """A Hugging Face folder or hub name."""
    build: Literal["demo", "mixed", "calculator"] | None = None
    """Make a tiny model under `run.directory`/cache and use it instead of `path`. Make its problems too, if the recipe
    names no data: `demo` makes sums, `mixed` makes math, instructions, programs and questions for a judge, `calculator`
    makes sums for a policy with a calculator."""
    tokenizer: str | None = None
    """A tokenizer's folder or hub name. Default: the model's own."""
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    """Number format of the forward pass, in the learner and in the engines."""
    fp32_head: bool = False
    """Compute logits in fp32, in the learner and in the engines. In bfloat16 they are rounded to 8 bits, and
    log-probabilities of learner and engine differ by 0.01 to 0.1 where a few tokens take most of the probability."""
    chat_template: str | None = None
    """Jinja text, or a file with it. Default: the tokenizer's own."""
    trust_remote_code: bool = False
    """Run the Python code in a model's folder."""
    lora: Lora = Lora()


TEMPLATE_ARGUMENTS = (
    "conversation", "messages", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message",
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs", "processor_kwargs", "self",
)  # fmt: skip
"""Arguments of `apply_chat_template` that a recipe cannot set: OlmoRL sets them, or no template reads them."""


class Data(Section):
    """Prompts: files, folders or hub data sets."""

    train: list[str] = Field(default_factory=list)
    """Files, folders or hub names. An optional `:weight` behind each sets its share of the mix."""
    system_prompt: str | None = None
    """System turn for every conversation that has none."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Values for the chat template by name, for instance `enable_thinking = false`."""
    max_prompt_tokens: int = Field(2048, ge=1)
    """Longest prompt in tokens, chat template included."""
    over_long: Literal["filter", "truncate"] = "filter"
    """`filter` leaves out prompts over `max_prompt_tokens`; `truncate` keeps their end."""
    reader: OwnFunction | None = None
    """`module:function` or `file.py:function` that turns a row as it is read into one with the columns of a layout."""
    default_verifier: str | None = None
    """Verifier of rows without a `dataset` column."""
    split: str = "train"
    """Split of hub data sets, and of folders that have several."""
    strict: bool = False
    """Stop at the first unusable row instead of reporting it (`--strict-data`)."""
    shuffle: bool = True
    """Draw the rows of each pass in a random order. When off: in the order of the files."""
    curriculum: str | None = Field(None, min_length=1)
    """Column of numbers, such as `pass_rate`: each pass of a set begins with the largest."""
    epochs: int | None = Field(None, ge=1)
    """Passes over the data. Default: as many as the steps need."""
    no_resample_above: float | None = Field(None, gt=0, le=1)
    """Stop drawing a row once this share of one of its groups is solved."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _left_to_us(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if name in TEMPLATE_ARGUMENTS or not name.isidentifier():
                raise ValueError(
                    f"data.chat_template_kwargs: {name} cannot be set here: OlmoRL sets it, or no template can read "
                    "it; remove it"
                )
        return values


KV_HEADROOM = 0.1
"""Share of an engine's KV cache that stays free for growing answers."""
LEAST_TEMPERATURE = 0.01
"""Smallest temperature of an engine. Below it vLLM samples at this temperature, or greedily."""


class SamplingSettings(Section):
    """Sampling of completions."""

    group_size: int = Field(8, ge=1)
    """Completions for each prompt. 1 only where the group gives no baseline: advantage `gae` or `whiten`."""
    max_tokens: int = Field(2048, ge=1)
    """Longest completion in tokens."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=10)
    """Divisor of the logits, in the engine and in the learner."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a completion. The text is part of it, for the verifiers too."""


BOX_TOOLS = ("python", "bash", "search", "submit")


def box_tools(environment: str | None) -> dict[str, str]:
    """The built-in tools in a value of `episodes.environment`, each with what follows its `=`. None in any other value.

    Raises:
        ValueError: there is no such tool, or it is named twice.
    """
    kind, _, names = (environment or "").partition(":")
    tools: dict[str, str] = {}
    for name, _, argument in (one.partition("=") for one in names.split(",") if kind == "box"):
        if name not in BOX_TOOLS or name in tools:
            fault = "names it twice" if name in tools else f"has only {', '.join(BOX_TOOLS)}"
            raise ValueError(f"{name!r} is no tool of {environment}: box {fault}")
        tools[name] = argument
    return tools


class Episodes(Section):
    """Answers of several turns: the policy acts, an environment replies."""

    environment: str | None = Field(None, pattern=r"^((gymnasium|mcp|box):.+|[^:*]+:[A-Za-z_]\w*)$")
    """`module:factory` or `file.py:factory` of the environment, `gymnasium:ID`, `mcp:COMMAND` (or a URL), or
    `box:python,submit`: built-in tools. Default: single answers."""
    agent: str | None = Field(None, min_length=1)
    """Or a shell command for each episode, which asks the policy over HTTP."""
    host: str = Field("127.0.0.1", pattern=r"^[\d.]+$")
    """Where agents reach the policy. `0.0.0.0`: from containers and other hosts too, with their episode's key."""
    max_turns: int = Field(8, ge=1)
    """Most answers of an episode."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest episode after its prompt, replies included. Default: sampling.max_tokens, the bound of one answer."""
    timeout_s: float = Field(60.0, gt=0)
    """Deadline of each call; for an agent the longest time between two requests."""
    tool_parser: str | None = None
    """vLLM's parser of calls, such as `hermes`, for episodes with tools."""
    tool_role: str = Field("tool", min_length=1)
    """Role of a tool's result in the chat template, such as `environment`."""

    @field_validator("environment")
    @classmethod
    def _known_tools(cls, environment: str | None) -> str | None:
        box_tools(environment)
        return environment

    @property
    def player(self) -> str | None:
        """What plays the episodes: the environment or the agent. None: single answers."""
        return self.environment or self.agent


class Schedule(Section):
    """Steps, batch size and staleness."""

    steps: int = Field(100, ge=1)
    """Learner steps in the whole run."""
    prompts_per_step: int = Field(64, ge=1)
    """Groups with a gradient in every batch."""
    max_lag: int = Field(1, ge=0, le=1000)
    """Age in versions of the oldest token that may be trained on. 0: synchronous training."""
    depth: int | None = Field(None, ge=0)
    """Batches generated ahead. Default and upper bound: max_lag."""
    draw_ahead: Literal["fixed", "adaptive"] = "adaptive"
    """When prompts are drawn. `fixed`: as soon as `depth` allows; `adaptive`: only when a later draw could make the
    learner wait, by the measured times of draws and steps and by how busy the engines are."""
    over_age: Literal["wait", "mask", "drop"] = "wait"
    """Groups with tokens older than max_lag. `wait`: the learner waits for slow groups, so that no group grows too old;
    `mask`: old tokens leave the loss; `drop`: the group is replaced, which drops the longest answers most."""
    filter_zero_gradient: Literal["without_refill"] | bool = True
    """Groups with equal rewards: `true` replaces them (active sampling), `"without_refill"` makes the batch smaller,
    `false` trains them."""
    max_useless_groups: int = Field(2000, ge=1)
    """The run ends after so many groups in a row without a gradient, and after so many failed draws."""

    @model_validator(mode="after")
    def _depth_within_lag(self) -> Schedule:
        if self.depth is not None and self.depth > self.max_lag:
            raise ValueError(
                f"schedule.depth = {self.depth} is over schedule.max_lag = {self.max_lag}: set depth to {self.max_lag} "
                "or less"
            )
        return self

    @property
    def batches_ahead(self) -> int:
        return self.max_lag if self.depth is None else self.depth


Positive = Annotated[float, Field(gt=0)]


class HttpService(Section):
    """A model behind HTTP that scores answers."""

    url: str | None = None
    """Address, as in `http://host:8000` or `https://host/v1`. Of a judge or a reward model: `local` starts a built-in
    heuristic for demos; without an address they are off."""
    model: str | None = None
    """Name of the model at the service. Default: no name is sent, which suits a server with one model."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the key, read by the actors. A recipe never holds the key itself."""
    timeout_s: float = Field(60.0, gt=0)
    """Deadline of one call. For a service that is down a call waits ten times as long. Then its group fails."""
    concurrency: int = Field(32, ge=1)
    """Most calls of one actor at one time."""
    gpus: int = Field(0, ge=0)
    """GPUs of a node outside of Ray that serves `model` for this run. `deploy/slurm` starts the server, and
    `deploy/kubernetes` that of a judge; the plan counts its GPUs, and the launcher waits for it. 0: none is started."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        if url is None or url == "local":
            return url
        # The error does not show the refused value: it may hold a secret.
        if set("@?#") & set(url):
            raise ValueError("an address alone; name the environment variable of the key in api_key_env")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write an address such as http://host:8000/v1")
        return url

    @property
    def outage_deadline_s(self) -> float:
        """Longest wait of a call for a service that is down. Then its group fails."""
        return 10 * self.timeout_s


Preset = Literal[
    "olmorl", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo_decoupled",
    "rloo", "reinforce_pp", "reinforce_pp_baseline", "gdpo", "ppo", "trl", "verl",
]  # fmt: skip


Advantage = Literal["mean", "mean_std", "mean_sample_std", "leave_one_out", "whiten", "mean_whiten", "gdpo", "gae"]
_ADVANTAGES: dict[Preset, Advantage] = {"ppo": "gae", "reinforce_pp": "whiten", "gdpo": "gdpo"}
"""The advantages of presets on which rules of the configuration depend."""


class Objective(Section):
    """The loss. Switches without a default take their value from `preset`; `docs/algorithms.md` explains them."""

    preset: Preset = "olmorl"
    """Published objective; it sets all switches of this section. A switch in the recipe overrides it."""
    advantage: Advantage | None = None
    """`mean`: reward minus the mean of its group; `mean_std`: also divided by the group's standard deviation;
    `mean_sample_std`: by that of a sample; `leave_one_out`: reward minus the mean of the others (RLOO); `whiten` and
    `mean_whiten`: reward, or reward minus the mean of its group, normalized over the tokens of the batch (REINFORCE++);
    `gdpo`: each verifier's reward normalized in its group, then their weighted sum over the batch; `gae`: by a critic,
    see [critic]."""
    gamma: float = Field(1.0, gt=0, le=1)
    """With `advantage = "gae"`: discount of a reward for each token that it comes later."""
    lam: float = Field(1.0, ge=0, le=1)
    """With `advantage = "gae"`: weight of later estimates; 1: rewards alone, 0: the critic's next value alone."""
    normalize: Literal["token", "sequence", "constant"] | None = None
    """`token`: mean over all loss tokens of the minibatch; `sequence`: mean over each sequence, then over sequences;
    `constant`: sum over each sequence divided by a constant length, then mean over sequences."""
    constant_length: int | None = Field(None, ge=1)
    """Divisor of each sequence with `normalize = "constant"`. Default: sampling.max_tokens."""
    ratio: Literal["token", "sequence"] | None = None
    """`token`: importance ratio of each token; `sequence`: geometric mean over its sequence (GSPO)."""
    clip: Literal["ppo", "dual", "cispo"] | OwnFunction | None = None
    """`ppo`: minimum of the plain and the clipped objective; `dual`: with a bound for negative advantages; `cispo`: the
    clipped ratio is a weight without gradient; `module:function`: a surrogate of your own."""
    eps_low: float | None = Field(None, ge=0, le=1)
    """Lower clip of the ratio, at 1 - eps_low."""
    eps_high: float | None = Field(None, ge=0)
    """Upper clip of the ratio, at 1 + eps_high."""
    rho: Annotated[float, Field(gt=0)] | Literal["off", "uncapped"] | None = None
    """Cap of the importance weight between engine and learner. `off`: no weight; `uncapped`: no cap."""
    rho_kind: Literal["auto", "two_factor", "truncate", "mask", "sequence", "sequence_mask"] | None = None
    """`auto`: clamp the weight of each token times that of the outliers among the other stale tokens of its answer;
    `two_factor`: the same by the learner's own numerics, with one more forward pass, for noisy engines;
    `truncate`: clamp the weight of each token (the published formula); `mask`: mask tokens outside [1/rho, rho];
    `sequence`: clamp one weight for each sequence; `sequence_mask`: mask sequences with a weight above rho."""
    proximal: Literal["old", "behaviour"] | None = None
    """Policy in the denominator of the ratio. `old`: the learner at the start of the step; `behaviour`: the engine."""
    kl_beta: float | None = Field(None, ge=0)
    """Weight of the KL term to the starting policy. Above 0 the learner loads a reference model."""
    kl_in: Literal["loss", "reward"] | None = None
    """Place of the KL term: the loss, or the reward of each token, which its earlier tokens also answer for."""
    kl_target: float | None = Field(None, gt=0)
    """With `kl_in = "reward"`: kl_beta adapts so that the divergence of an answer is this many nats a token."""
    kl_refresh_every: int | None = Field(None, ge=1)
    """Steps after which the policy becomes the reference."""
    kl_reference: HttpService | None = None
    """Server of the reference, as in `{ url = "http://host:8000/v1" }`; its other keys are those of a teacher without
    `sources`. Default: the learner computes it."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the KL term from sampled tokens. Default with `kl_in = "reward"`: k1."""
    reward_scale: float = Field(1.0, gt=0)
    """Factor of the rewards before the advantage. It matters under gradient clipping; the reference runs use 10."""
    overlong_buffer: int | None = Field(None, ge=0)
    """Tokens before sampling.max_tokens over which the reward falls linearly by 1 (DAPO); 0: off."""
    mask_truncated: bool = False
    """Leave completions that reach max_tokens out of the loss."""

    @property
    def special_advantage(self) -> Advantage | None:
        """`advantage`, or that of the preset; None for a preset that compares the answers of a group."""
        return self.advantage or _ADVANTAGES.get(self.preset)


Beta = Annotated[float, Field(ge=0, lt=1)]
Core = Annotated[int, Field(ge=0)]
Cores = Annotated[list[Core], Field(min_length=1)]
Every = Annotated[int, Field(ge=2)]
Tokens = Annotated[int, Field(ge=1)]


OWN_ATTENTION: Final = ("auto", "sdpa", "varlen", "flash_attention_4")
"""Values of `learner.attention` that run in the service's own implementations."""
_OWN_ATTENTION_SHOWN: Final = " or ".join(f'"{name}"' for name in OWN_ATTENTION)


class Learner(Section):
    """DeepSpeed, over `nodes` x `ranks_per_node` ranks."""

    nodes: int = Field(1, ge=1)
    """Nodes of the learner (`--learner-nodes`)."""
    ranks_per_node: int = Field(1, ge=1)
    """Ranks on each node: one for each GPU, or on CPU one for each spare core."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks and the engines. `auto`: GPUs when cluster.gpus_per_node is over 0. Without that key: GPUs
    when Ray reports them, else the CPU; a run on this machine alone also needs a GPU build of torch for GPUs."""
    zero_stage: int = Field(2, ge=0, le=3)
    """DeepSpeed shards over the ranks: at 0 nothing, at 1 optimizer state, at 2 also gradients, at 3 also
    parameters."""
    learning_rate: float = Field(1e-6, ge=0, le=1)
    """Learning rate of AdamW after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up."""
    extended: str | None = Field(None, pattern=r"^(keep|decay) [1-9][0-9]*(, (keep|decay) [1-9][0-9]*)*$")
    """`keep N` or `decay N` in a run extended from schedule.steps = N, such as `decay 50, keep 90`: up to step N the
    learning rate is as before; then it stays, or falls to 0 over the added steps by `schedule`."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the first and second moment of AdamW."""
    eps: float = Field(1e-8, gt=0, lt=1)
    """Number that AdamW adds to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0, le=1)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient of an optimizer step; a larger gradient is scaled down."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps for each batch. Minibatches hold whole groups."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch."""
    row_tokens: Literal["auto"] | Tokens = "auto"
    """Tokens in one packed row. `auto`: on a GPU as many as the memory plan allows, else the longest prompt plus the
    longest completion."""
    sequence_parallel: int = Field(1, ge=1, le=64)
    """Ranks that share each row: every rank holds a part of its tokens, and in attention a part of the heads. For rows
    that are too long for the memory of one rank."""
    gradient_checkpointing: Literal["auto", "offload"] | bool | Every = "auto"
    """Recompute activations in the backward pass instead of keeping them: of all layers (`true`), of every n-th one (a
    number), or of none (`false`). `auto`: on a GPU as few as the memory plan allows, else none. `offload`: of all
    layers, with the layer inputs that are kept in host memory until then. For GPUs."""
    mlp_tiles: int = Field(1, ge=1, le=64)
    """Tiles of a row in which each MLP is computed one after the other, and once more in the backward pass. Above 1,
    RMS norms keep only their input for the backward pass, too."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the layers of a dense model around their attention, and its head. Each layer is compared with the plain
    one first. For zero_stage up to 2. `auto`: on GPUs, without shared rows, adapters and a critic. On the CPU it takes
    a minute."""
    attention: Literal[
        "auto", "eager", "sdpa", "varlen", "flash_attention_2", "flash_attention_4", "flex_attention"
    ] = "auto"
    """Attention over packed rows. `auto` in bfloat16: `flash_attention_4` (package flash-attn-4) on Hopper GPUs for
    heads of 128 values without windows, else `varlen` (torch's flash kernel) from compute capability 8; else `sdpa`.
    `flash_attention_2` needs the package flash-attn."""
    threads: int = Field(1, ge=1)
    """CPU threads of each rank."""
    cores: Cores | None = None
    """CPU cores of the ranks. Default: cores that no engine uses; on a cluster the system decides."""
    offload_optimizer: bool = False
    """Keep the optimizer state in host memory."""
    offload_reference: bool = False
    """Keep the reference model in host memory. It takes the policy's place for its pass."""
    offload_critic: bool = False
    """Let policy and critic have the device in turns: weights and optimizer of the other are in host memory."""
    batch_deadline_s: float = Field(3600, gt=0)
    """Longest wait of a rank for a batch. Then the run ends with the cause."""
    deepspeed: dict[str, Any] = Field(default_factory=dict)
    """More settings for DeepSpeed by their own names and tables, for instance `zero_optimization.overlap_comm = false`.
    Settings that other keys decide are refused."""

    def recomputed_every(self, *, on_gpu: bool) -> int:
        """Of every how many layers one is recomputed; 0: of none. All are where the memory plan could not decide."""
        if isinstance(self.gradient_checkpointing, str):
            return int(on_gpu or self.offload_activations)
        return int(self.gradient_checkpointing)

    @property
    def offload_activations(self) -> bool:
        return self.gradient_checkpointing == "offload"

    @property
    def can_compile(self) -> bool:
        return self.zero_stage < 3 and self.mlp_tiles == 1 and self.has_own_attention

    @property
    def has_own_attention(self) -> bool:
        """Whether attention runs in the service's own implementations, where answers share the prompt of a group."""
        return self.attention in OWN_ATTENTION


class Critic(Section):
    """The value model of `objective.advantage = "gae"`. The learner's ranks train it on the same rows as the policy."""

    path: str | None = None
    """Model whose layers it starts from: a Hugging Face folder or hub name with the tokenizer of the policy. Default:
    model.path."""
    learning_rate: float = Field(1e-5, ge=0, le=1)
    """Constant learning rate of its AdamW."""
    warmup_steps: int = Field(0, ge=0)
    """Steps in which it learns while the policy stays as it is."""
    value_clip: float = Field(0.5, gt=0)
    """Largest change of a value in a step that the loss rewards."""


class Actors(Section):
    """vLLM engines, one actor each."""

    nodes: int = Field(1, ge=1)
    """Nodes of the actors (`--actor-nodes`)."""
    engines_per_node: int | None = Field(None, ge=1)
    """Engines on each node. Default: GPUs of the node divided by tensor_parallel, on one machine without the learner's
    GPUs; 1 on CPU."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of each engine, on all its nodes."""
    nodes_per_engine: int = Field(1, ge=1)
    """Nodes of each engine. With more than 1 an engine has these nodes to itself, and equally many GPUs on each:
    for a model that does not fit the GPUs of one node."""
    autoscale: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    """Fewest and most engines, as in `[1, 4]`: their number follows what the learner needs, as far as the nodes that
    Ray has give places. Default: it stays."""
    max_running: int = Field(256, ge=1)
    """Most sequences that an engine decodes at one time."""
    batching: Literal["continuous", "static"] = "continuous"
    """When an engine begins new sequences. `continuous`: when a slot is free; `static`, for comparisons: when all
    sequences before have ended."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """KV cache of an engine on CPU. On a GPU gpu_memory_utilization decides."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory that an engine takes."""
    enforce_eager: bool = False
    """Skip compiled graphs: the engine starts faster and decodes slower."""
    cores: Cores | None = None
    """CPU cores of the engines, one for each. Default: cores that no rank uses; on a cluster the system decides."""
    start_deadline_s: float = Field(600, gt=0)
    """Longest time for the resources to appear in the cluster, and then for an engine to load the model and to
    compile."""
    weight_update: Literal["in_flight", "recompute", "drain"] = "in_flight"
    """How an engine takes a new version. `in_flight`: between two decoding steps, and the KV cache is kept;
    `recompute`: likewise, and it computes the cache of its sequences with the new weights; `drain`: it begins no
    sequence until all running ones have ended, so that each answer, or turn of an episode, has one version. Only one
    that the engine stopped for want of cache continues with the new."""
    stall_deadline_s: float = Field(300, gt=0)
    """Longest time that an engine with requests makes no token, or stays more than schedule.max_lag versions behind.
    Then another actor replaces it."""
    vllm: dict[str, Any] = Field(default_factory=dict)
    """More arguments for vLLM's engine by their own names, for instance `kv_cache_dtype = "fp8"`. Arguments that other
    keys decide are refused."""

    @field_validator("autoscale")
    @classmethod
    def _in_order(cls, bounds: tuple[int, int] | None) -> tuple[int, int] | None:
        if bounds is not None and bounds[0] > bounds[1]:
            raise ValueError(f"actors.autoscale = {list(bounds)}: write the fewest engines first, then the most")
        return bounds

    @property
    def max_waiting(self) -> int:
        """Sequences that an actor leases beyond max_running, so that no slot waits for the queue."""
        return min(self.max_running // 4, 16)


class Judge(HttpService):
    """A language model behind an OpenAI-compatible API."""

    max_reply_tokens: int = Field(512, ge=16)
    """Longest reply of the judge in tokens."""
    template: Path | None = None
    """Its question: {question}, {answer} (or {transcript}: all turns) and optionally {delimiter}. Default: built in."""
    reference_template: Path | None = None
    """The same for rows with a reference answer, with {reference} too. Default: built in."""


class RewardModel(HttpService):
    """A sequence classifier with one output, behind vLLM's `/classify`."""

    squash: Literal["sigmoid", "clamp"] = "sigmoid"
    """Reward of a score x, with z = (x - zero) / unit: `sigmoid` is 1 / (1 + exp(-z)), `clamp` is z cut to [0, 1]."""
    zero_and_unit: tuple[float, Positive] = (0.0, 1.0)
    """The score that becomes 0.5 with `sigmoid` and 0 with `clamp`, and the unit of the score."""


class Teacher(HttpService):
    """A model with the policy's vocabulary behind vLLM's OpenAI-compatible API."""

    sources: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Data files, folders or hub sets whose rows it teaches. Empty: the rows of all other sources."""

    def covers(self, row: str) -> bool:
        """Whether the place of a row, `file:line`, is in one of `sources`. A relative one fits the end of a path."""
        file = PurePath(row.rpartition(":")[0])
        return any(place.match(source) for place in (file, *file.parents) for source in self.sources)


TeacherName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,32}$")]


class Distillation(Section):
    """On-policy distillation: teachers score the sampled tokens. `docs/algorithms.md` has the formula."""

    teachers: dict[TeacherName, Teacher] = Field(default_factory=dict)
    """By name, as in `math = { url = "http://host:8000/v1", sources = ["math.jsonl"] }`. `sources`: its data files,
    folders or hub sets; one teacher may have none and take all other rows. Further keys: `model`, `api_key_env`,
    `timeout_s`, `concurrency` and `gpus`, as for a judge."""
    coefficient: float = Field(1.0, gt=0)
    """Factor of the teachers' part of the advantages."""
    with_rewards: bool = False
    """Add it to the advantages of rewards. When off, teachers alone decide, and training rows need no verifier."""

    @model_validator(mode="after")
    def _teachers_apart(self) -> Distillation:
        if len(default := [name for name, teacher in self.teachers.items() if not teacher.sources]) > 1:
            raise ValueError(
                f"distillation.teachers: {' and '.join(default)} have no sources, and one teacher takes the rows that "
                "no other has: give the others sources"
            )
        if not self.teachers and (self.coefficient != 1.0 or self.with_rewards):
            raise ValueError("distillation: its keys have no effect without distillation.teachers: name one")
        return self

    @property
    def is_alone(self) -> bool:
        """Whether the policy learns from teachers, and not from rewards."""
        return bool(self.teachers) and not self.with_rewards

    def teacher_of(self, row: str) -> str | None:
        """The name of the teacher of a row by its place, `file:line`: the first whose sources have it, or the default
        one. None: nobody teaches it."""
        names = [name for name, teacher in self.teachers.items() if teacher.covers(row)]
        names += [name for name, teacher in self.teachers.items() if not teacher.sources]
        return names[0] if names else None


MathRule = Literal["last_number", "percent", "units", "case", "order"]
Tag = Annotated[str, Field(min_length=1)]


class Verifiers(Section):
    """Rewards. `docs/data.md` explains each verifier."""

    workers: int = Field(1, ge=1)
    """Verifier processes of each actor."""
    timeout_s: float = Field(5.0, gt=0)
    """Deadline of one check. Then its process is killed."""
    memory_mib: int = Field(1024, ge=64)
    """Memory that a verifier process may allocate, and a program of the model."""
    functions: list[str] = Field(default_factory=list)
    """User reward functions, `package.module:function` or `file.py:function`, each with an optional `*weight`."""
    own: dict[str, OwnFunction] = Field(default_factory=dict)
    """Verifiers of your own by name, for rows with that name in `dataset`: `{essay = "file.py:function"}`. The function
    gets an answer and the row's label, and returns a reward from 0 to 1."""
    function_timeout_s: float = Field(30.0, gt=0)
    """Deadline of one call of a user function, for a whole group."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of a verifier's reward by its name. Default of each: 1."""
    combine: Literal["sum", "mean", "product"] = "sum"
    """How the weighted rewards of a completion become one number."""
    solved_at: float | None = None
    """Smallest combined reward of a solved completion, for rows that only user functions score. Default: the reward
    when each function gives 1. A row with built-in verifiers is solved when all of them give their best."""
    think_tags: tuple[Tag, Tag] = ("<think>", "</think>")
    """Begin and end of the part of a completion that verifiers do not see."""
    math_strict: list[MathRule] = Field(default_factory=list)
    """Readings of a math answer that are not accepted: `last_number`, the last number without a box or a marker;
    `percent`, 50% for 50; `units`, an answer without the label's unit; `case`, words in another case; `order`, `2, 1`
    for `1, 2`. Tuples in brackets always have an order, sets never."""
    math_tolerance: float = Field(1e-6, ge=0, lt=1)
    """Relative tolerance of decimals. Fractions, roots and integers are always exact."""
    ifeval_reward: Literal["all", "fraction"] = "all"
    """`all`: 1 when every constraint holds; `fraction`: the share of constraints that hold."""
    code_reward: Literal["fraction", "all"] = "fraction"
    """`fraction`: the share of tests that pass; `all`: 1 when all pass."""
    code_tier: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto"
    """Sandbox of programs. `auto`: bubblewrap; `olmorl-verify` takes Landlock where bubblewrap does not work, a run
    wants `landlock` by name, because it is weaker: programs share the process and network namespaces of the host.
    `unsafe`: resource limits only; a program can read and delete the files of its user."""
    code_test_timeout_s: float = Field(6.0, gt=0)
    """Processor seconds of one test. Its wall-clock limit is twice as long."""
    code_allow_numpy: bool = False
    """Allow programs to import numpy."""
    judge: Judge = Judge()
    """Judge of the verifiers `general-quality` and `general-quality_ref`."""
    reward_model: RewardModel = RewardModel()
    """Model of the verifier `reward_model`."""


class QueueSettings(Section):
    """Prompts, results, leases."""

    url: str | None = None
    """`redis://host:6379/0`, or the sentinels of a service: `redis+sentinel://host:26379,host:26379/service/0`;
    `rediss` for TLS. User and password come from the environment (`OLMORL_REDIS_USERNAME`, `OLMORL_REDIS_PASSWORD`; for
    sentinels `OLMORL_REDIS_SENTINEL_PASSWORD`). With `_FILE` behind its name, as in `OLMORL_REDIS_PASSWORD_FILE`, a
    variable names a file with the value. Default: the run starts its own Redis."""
    outage_deadline_s: float = Field(120.0, gt=0)
    """Longest wait for Redis to answer during a run, fail-overs included; at the start at most 10 s. A lease is half as
    long again: an actor that is silent for so long loses its prompts."""

    @property
    def lease_s(self) -> float:
        """Length of a lease. An actor that is silent for this long loses its prompts. From 4/3 of the outage deadline
        on, no outage of Redis costs answers under way."""
        return 1.5 * self.outage_deadline_s

    @property
    def connect_deadline_s(self) -> float:
        """Longest wait at the start for Redis to answer: an address may be wrong."""
        return min(10.0, self.outage_deadline_s)

    @field_validator("url")
    @classmethod
    def _no_secrets(cls, url: str | None) -> str | None:
        # Checked here, before the recipe is printed anywhere.
        if url is not None and any(sign in url for sign in "@?#"):
            raise ValueError(
                "queue.url: logs and recipes show the URL, so it may not hold credentials, a ? or a #: set "
                "OLMORL_REDIS_USERNAME and OLMORL_REDIS_PASSWORD in the environment, or "
                "OLMORL_REDIS_PASSWORD_FILE; for your own certificates set SSL_CERT_FILE"
            )
        return url


class Weights(Section):
    """Transport of new versions to the engines."""

    store: Literal["auto", "file", "ray"] | OwnFunction = "auto"
    """`file`: versions are files; `ray`: versions are in Ray's object store, and each host pulls them. `auto`: `file`
    for a run on one host or with `directory`, else `ray`; `module:function`: makes a store of your own."""
    directory: Path | None = None
    """Folder of the files, visible to all hosts. Default: shared memory for a run on one host, else the run
    directory."""
    full_every: int = Field(1, ge=1, le=32)
    """One of so many versions is published whole, the others as their exact changes since the version before. 1: all
    are whole. Changes are a few percent of the bytes at a learning rate of 1e-6, and cost CPU time
    (benchmarks/README.md). Versions in the shared memory of a run on one host are always whole."""
    publish_every: int = Field(1, ge=1)
    """Steps between published versions."""
    proof_tolerance: Positive | Literal["off"] | None = None
    """After each update the engine scores a few fixed tokens. Its actor ends when their log-probabilities differ from
    the learner's for this version by more than this on average, in nats. Default: 0.1, with `float32` 0.001. `off`: no
    proof."""

    @model_validator(mode="after")
    def _directory_of_files(self) -> Weights:
        if self.store == "ray" and self.directory is not None:
            raise ValueError('weights.directory needs weights.store = "file": write that, or remove weights.directory')
        if ":" in self.store and (self.directory is not None or self.full_every > 1):
            raise ValueError("weights.directory and weights.full_every are of the built-in stores: remove them")
        return self


class Checkpoint(Section):
    """Checkpoints of the learner."""

    every: int = Field(50, ge=1)
    """Steps between checkpoints. The last step always writes one."""
    keep: int = Field(3, ge=1)
    """Newest complete checkpoints to keep."""
    best: str | None = None
    """Metric of an evaluation, such as `eval_math_accuracy`: the checkpoint with its highest value is kept too, as
    `best`. Evaluated steps then have a checkpoint."""
    export_every: int | None = Field(None, ge=1)
    """Steps between exports to `exports/step_N`, Hugging Face folders made from checkpoints. Default: none."""
    rollouts: str = Field("all", pattern=r"^(all|(every|last) [1-9][0-9]*)$")
    """Steps whose files in `rollouts/` are kept: `all`; `every N`: each N-th step; `last N`: the last N steps. The
    others are removed once a complete checkpoint covers them; so are evaluations, by their version. The ledger keeps
    the outcomes of all draws."""


class Evaluation(Section):
    """Held-out problems. The same actors answer them, in a separate lane."""

    data: list[str] = Field(default_factory=list)
    """Files or hub names, as in data.train. An optional `name=` before it names the set."""
    every: int = Field(50, ge=1)
    """Steps between evaluations. The run also evaluates before the first step and after the last one."""
    limit: int | None = Field(None, ge=1)
    """Most prompts of each set. Default: all."""
    samples: int = Field(1, ge=1)
    """Completions for each prompt. With k of them the run also reports an unbiased pass@k."""
    temperature: float = Field(0.0, ge=0, le=10)
    """Temperature of evaluation. 0: greedy."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest completion in tokens. Default: sampling.max_tokens."""
    deadline_s: float = Field(1800, gt=0)
    """Deadline of one set for one version, pauses excluded. Prompts without an answer then count as failed."""


class Cluster(Section):
    """The Ray cluster."""

    address: str | None = None
    """`host:port` of a Ray cluster, or `auto` (`--ray-address`). Default: the run starts Ray on this machine."""
    gpus_per_node: int | None = Field(None, ge=0)
    """GPUs of each node. Default: what Ray reports; 8 in a plan (`--dry-run`) with learner.device cuda, else 0."""
    gpu_memory_gib: float | None = Field(None, gt=0)
    """Memory of each GPU, for the memory plan. Default: 80 GB, which are 74.5 GiB."""
    host_memory_gib: float | None = Field(None, gt=0)
    """Memory of each host, for the memory plan. Default: this machine's for a run that starts its own Ray; on a cluster
    `--preflight` asks each host, and before that it is not known."""
    peak: tuple[Positive, Positive] | None = None
    """Most operations of one GPU or one CPU core with model.dtype, in 10^12 per second, and most bytes that it moves to
    and from memory, in 10^9 per second: the base of MFU and MBU. Default: known GPUs by their names; on CPU a short
    measurement."""


class Supervision(Section):
    """Deadlines of processes, and their restarts."""

    patience: float = Field(1.0, ge=0.25, le=100)
    """Factor of the built-in deadlines (`olmorl/deadlines.py`): 8 s of silence for an actor, 30 s for other processes,
    an hour for a learner step, half an hour for a checkpoint, 30 s for a stop. A slow file system or a debugger wants
    more, for instance 5."""
    launcher_deadline_s: float = Field(600.0, gt=0)
    """Wait of the processes of a cluster run for a new launcher (`--resume`), once the run has lost its launcher and no
    longer trains. They end after one to two times this long."""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(*(self.patience * seconds for seconds in deadlines.BUILT_IN))


class TelemetrySettings(Section):
    """Metrics for Prometheus, and trackers."""

    tracker: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Send the curves of `metrics.jsonl`, evaluations and a table of answers there. A tracker that hangs or fails costs
    points, not steps: `olmorl_tracking_dropped_total` counts them. `tensorboard` writes to RUN/tensorboard."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the launcher's metrics. `/targets` lists the addresses of all processes. 0: a free port, named in
    `targets.json` of the run directory."""
    on_end: str | None = Field(None, min_length=1)
    """What learns of the end of the launcher, within ten seconds: an address (`https://...`, with `$VARIABLES` of the
    environment), which gets JSON by POST, or a command of the shell, which gets it on its standard input. `outcome` is
    `finished`, `stopped` or `failed`; `text` has all in one sentence, as chat services want it."""


class Config(Section):
    """A whole recipe."""

    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    sampling: SamplingSettings = SamplingSettings()
    episodes: Episodes = Episodes()
    schedule: Schedule = Schedule()
    objective: Objective = Objective()
    learner: Learner = Learner()
    critic: Critic = Critic()
    actors: Actors = Actors()
    distillation: Distillation = Distillation()
    verifiers: Verifiers = Verifiers()
    queue: QueueSettings = QueueSettings()
    weights: Weights = Weights()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
    cluster: Cluster = Cluster()
    supervision: Supervision = Supervision()
    telemetry: TelemetrySettings = TelemetrySettings()
    simulation: Simulation = Simulation()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if broken := [message for message in (rule(self) for rule in _RULES) if message]:
            raise ValueError("\n  ".join(broken))
        return self

    @property
    def token_scorers(self) -> dict[str, HttpService]:
        """By key, the servers that score each sampled token: the reference and the teachers."""
        reference = self.objective.kl_reference
        teachers = {f"distillation.teachers.{name}": teacher for name, teacher in self.distillation.teachers.items()}
        return {**({"objective.kl_reference": reference} if reference else {}), **teachers}

    @property
    def served(self) -> dict[str, HttpService]:
        """By key, the services whose servers start with the run."""
        services: dict[str, HttpService] = {
            "verifiers.judge": self.verifiers.judge,
            "verifiers.reward_model": self.verifiers.reward_model,
            **self.token_scorers,
        }
        return {key: service for key, service in services.items() if service.gpus}

    @property
    def served_gpus(self) -> int:
        """GPUs of these servers."""
        return sum(service.gpus for service in self.served.values())

    @property
    def weight_store(self) -> str:
        """The kind of weight store, with `auto` resolved."""
        if self.weights.store != "auto":
            return self.weights.store
        return "file" if self.cluster.address is None or self.weights.directory is not None else "ray"

    @property
    def has_deltas(self) -> bool:
        """Whether some versions are published as changes: they travel between hosts, and the recipe asks for it."""
        travels = self.cluster.address is not None or self.weights.directory is not None or self.weight_store == "ray"
        return travels and self.weights.full_every > 1

    @property
    def run_dir(self) -> Path:
        return self.run.directory / self.run.name

    @property
    def max_model_len(self) -> int:
        """Longest sequence of an engine: the longest prompt plus the longest completion, evaluation included."""
        evaluated = (self.evaluation.max_tokens or 0) if self.evaluation.data else 0
        return self.data.max_prompt_tokens + max(self.longest_answer, evaluated)

    @property
    def longest_answer(self) -> int:
        """Most tokens after a prompt: of a single answer, or of an episode with all its turns."""
        return self.episodes.max_tokens or self.sampling.max_tokens

    @property
    def longest_sample(self) -> int:
        """Tokens of the longest prompt plus the longest completion."""
        return self.data.max_prompt_tokens + self.longest_answer

    @property
    def row_tokens(self) -> int:
        """Length of a packed row of the learner, in tokens."""
        tokens = self.learner.row_tokens
        return self.longest_sample if tokens == "auto" else tokens


# --- rules over several keys: the docstring states the rule, the result names the problem and the fix ----------------


def _minibatches(config: Config) -> str | None:
    """`learner.minibatches` is at most `schedule.prompts_per_step`."""
    minibatches, prompts = config.learner.minibatches, config.schedule.prompts_per_step
    if minibatches <= prompts:
        return None
    return (
        f"learner.minibatches = {minibatches} is over schedule.prompts_per_step = {prompts}: a minibatch holds at "
        f"least one group; set learner.minibatches to {prompts} or less"
    )


def _baseline(config: Config) -> str | None:
    """`sampling.group_size` is 2 or more, except where a critic or the batch gives the baseline."""
    if config.sampling.group_size > 1 or config.objective.special_advantage in ("gae", "whiten"):
        return None
    return (
        "sampling.group_size = 1: the advantage compares the answers of a group: set it to 2 or more, or "
        'objective.preset to "ppo" or "reinforce_pp"'
    )


def _each_reward(config: Config) -> str | None:
    """`objective.advantage = "gdpo"` adds up rewards, so `verifiers.combine` is no product."""
    if config.objective.special_advantage != "gdpo" or config.verifiers.combine != "product":
        return None
    return 'the advantage `gdpo` is a weighted sum: set verifiers.combine to "sum", or another objective.advantage'


def _compiled(config: Config) -> str | None:
    """`learner.compile` needs `zero_stage` up to 2, one of `mlp_tiles`, and no attention of transformers."""
    learner = config.learner
    if learner.compile is not True or learner.can_compile:
        return None
    return (
        f"learner.compile needs learner.zero_stage up to 2, mlp_tiles = 1 and one of attention = {_OWN_ATTENTION_SHOWN}"
    )


def _has_critic(config: Config) -> str | None:
    """The keys of `critic`, and `learner.offload_critic`, need a critic."""
    named = [f"critic.{name}" for name, value in config.critic if value != getattr(Critic(), name)]
    named += ["learner.offload_critic"] if config.learner.offload_critic else []
    if config.objective.special_advantage == "gae" or not named:
        return None
    return f'{named[0]} has no effect without a critic: set objective.preset = "ppo", or leave it out'


def _reference_in_turn(config: Config) -> str | None:
    """`objective.kl_refresh_every` needs `learner.offload_reference`; adapters and `kl_reference` go with neither."""
    offloads, every = config.learner.offload_reference, config.objective.kl_refresh_every
    key = "learner.offload_reference" if offloads else "objective.kl_refresh_every"
    if (offloads or every) and config.objective.kl_reference:
        return f"{key} with objective.kl_reference: the weights of a server never change: leave one of them out"
    if (offloads or every) and config.model.lora.rank:
        return f"{key} with model.lora: the reference is the policy without adapters, which never changes: leave it out"
    if every is None or offloads:
        return None
    return f"objective.kl_refresh_every = {every}: set learner.offload_reference = true, which makes it replaceable"


def _has_adapters(config: Config) -> str | None:
    """The keys of `model.lora` need adapters."""
    lora = config.model.lora
    named = [name for name, value in lora if value != getattr(Lora(), name)]
    if lora.rank or not named:
        return None
    return f"model.lora.{named[0]} has no effect without adapters: set model.lora.rank to 1 or more, or leave it out"


def _publishing(config: Config) -> str | None:
    """`weights.publish_every` is at most the batches ahead (`schedule.depth`, else `schedule.max_lag`) plus 1."""
    every = config.weights.publish_every
    if every <= config.schedule.batches_ahead + 1:
        return None
    return (
        f"weights.publish_every = {every} needs schedule.max_lag and depth of at least {every - 1}: raise both, or "
        "lower weights.publish_every"
    )


def _best_checkpoint(config: Config) -> str | None:
    """`checkpoint.best` needs `evaluation.data`, and an `evaluation.every` that `weights.publish_every` divides."""
    if config.checkpoint.best is None:
        return None
    if not config.evaluation.data:
        return "checkpoint.best is a metric of an evaluation: name evaluation.data, or leave it out"
    if config.evaluation.every % config.weights.publish_every:
        return (
            f"checkpoint.best with weights.publish_every = {config.weights.publish_every}: only published versions are "
            f"evaluated; set evaluation.every = {config.evaluation.every} to a multiple of it"
        )
    return None


def _engine_nodes(config: Config) -> str | None:
    """`actors.nodes_per_engine` divides `actors.nodes` and `actors.tensor_parallel`; over 1, a node has one engine."""
    actors = config.actors
    share = actors.nodes_per_engine
    for key, number in (("actors.nodes", actors.nodes), ("actors.tensor_parallel", actors.tensor_parallel)):
        if number % share:
            return f"actors.nodes_per_engine = {share} does not divide {key} = {number}: set {key} to a multiple of it"
    if share > 1 and (actors.engines_per_node or 1) > 1:
        return (
            f"actors.engines_per_node = {actors.engines_per_node}: with actors.nodes_per_engine = {share} an engine "
            "has its nodes to itself; leave actors.engines_per_node out"
        )
    return None


def _warm_up(config: Config) -> str | None:
    """`learner.warmup_steps` is at most `schedule.steps`."""
    warmup, steps = config.learner.warmup_steps, config.schedule.steps
    if warmup <= steps:
        return None
    return (
        f"learner.warmup_steps = {warmup} is longer than the run, schedule.steps = {steps}: the full learning rate "
        f"would never be reached; set learner.warmup_steps to {steps} or less"
    )


def _overlong_buffer(config: Config) -> str | None:
    """`objective.overlong_buffer` is at most `sampling.max_tokens`."""
    buffer, limit = config.objective.overlong_buffer, config.longest_answer
    if buffer is None or buffer <= limit:
        return None
    return (
        f"objective.overlong_buffer = {buffer} is over sampling.max_tokens = {limit}: the buffer is the end of a "
        f"completion; set it to {limit} or less"
    )


def _row_length(config: Config) -> str | None:
    """`learner.row_tokens` is at least `data.max_prompt_tokens` plus `sampling.max_tokens` or `episodes.max_tokens`."""
    given, needed = config.row_tokens, config.longest_sample
    if given >= needed:
        return None
    key = "sampling" if config.episodes.max_tokens is None else "episodes"
    return (
        f"learner.row_tokens = {given} is too short: data.max_prompt_tokens = {config.data.max_prompt_tokens} and "
        f"{key}.max_tokens = {config.longest_answer} make {needed}; set it to {needed} or more, or remove it"
    )


def _episode_length(config: Config) -> str | None:
    """`episodes.max_tokens` needs `episodes.environment` or `agent`, and is at least `sampling.max_tokens`."""
    tokens, answer = config.episodes.max_tokens, config.sampling.max_tokens
    if tokens is None:
        return None
    if config.episodes.player is None:
        return "episodes.max_tokens has no effect on single answers: set episodes.environment or agent, or leave it out"
    if tokens >= answer:
        return None
    return (
        f"episodes.max_tokens = {tokens} is less than sampling.max_tokens = {answer}: an episode has at least one "
        f"answer; set it to {answer} or more"
    )


def _simulated_turns(config: Config) -> str | None:
    """`simulation.turns` and `tool_s` of a simulated run need `episodes.environment` or `agent`."""
    turns, tool_s = config.simulation.turns, config.simulation.tool_s
    if config.run.mode == "real" or config.episodes.player is not None or (turns == 1 and tool_s == 0):
        return None
    key = f"turns = {turns}" if turns > 1 else f"tool_s = {tool_s:g}"
    return f"simulation.{key} has no effect on single answers: set episodes.environment or agent, or leave it out"


def _one_player(config: Config) -> str | None:
    """`episodes.environment` and `episodes.agent` are not both set."""
    if config.episodes.environment is None or config.episodes.agent is None:
        return None
    return "episodes.environment and episodes.agent both play the episodes: remove one of them"


def _shared_rows(config: Config) -> str | None:
    """`learner.sequence_parallel` divides `learner.nodes` x `learner.ranks_per_node`."""
    learner, size = config.learner, config.learner.sequence_parallel
    ranks = learner.nodes * learner.ranks_per_node
    if ranks % size == 0:
        return None
    return (
        f"learner.sequence_parallel = {size} does not divide the {ranks} rank(s) of learner.nodes = {learner.nodes} x "
        f"learner.ranks_per_node = {learner.ranks_per_node}: every row has that many ranks; change one of the three"
    )


def _attention_of_shared_rows(config: Config) -> str | None:
    """`learner.sequence_parallel` above 1 needs a `learner.attention` that is not of transformers."""
    learner = config.learner
    if learner.sequence_parallel == 1 or learner.has_own_attention:
        return None
    return (
        f"learner.sequence_parallel = {learner.sequence_parallel} does not work with learner.attention = "
        f'"{learner.attention}": set it to {_OWN_ATTENTION_SHOWN}'
    )


def _greedy_samples(config: Config) -> str | None:
    """`evaluation.samples` above 1 needs an `evaluation.temperature` above 0."""
    evaluation = config.evaluation
    if evaluation.samples == 1 or evaluation.temperature > 0:
        return None
    return (
        f"evaluation.samples = {evaluation.samples} with evaluation.temperature = 0 gives {evaluation.samples} equal "
        "answers: set evaluation.temperature over 0, for instance to 0.6, or evaluation.samples to 1"
    )


def _scored_by_address(config: Config) -> str | None:
    """`distillation.teachers` and `objective.kl_reference` have a `url`, or `gpus`."""
    for key, service in config.token_scorers.items():
        if service.url == "local" or (service.url is None and not service.gpus):
            return f"{key}.url: give the address of its server, as in http://host:8000/v1"
    return None


def _scored_answers(config: Config) -> str | None:
    """Teachers and `objective.kl_reference` score single answers, so there is no `episodes.environment` or `agent`."""
    if not config.token_scorers or config.episodes.player is None:
        return None
    key = "agent" if config.episodes.agent else "environment"
    (first, *_) = config.token_scorers
    return f"{first} scores single answers: take out episodes.{key}, or {first}"


def _scored_at_temperature_1(config: Config) -> str | None:
    """`distillation.teachers` and `objective.kl_reference` need `sampling.temperature` = 1."""
    if not config.token_scorers or config.sampling.temperature == 1:
        return None
    (first, *_) = config.token_scorers
    return (
        f"sampling.temperature = {config.sampling.temperature:g} with {first}: a server gives the "
        "log-probabilities of its prompt at temperature 1 only; set sampling.temperature to 1"
    )


def _near_greedy(config: Config) -> str | None:
    """`evaluation.temperature` is 0 or at least 0.01."""
    temperature = config.evaluation.temperature
    if temperature == 0 or temperature >= LEAST_TEMPERATURE:
        return None
    return (
        f"evaluation.temperature = {temperature:g} is lower than an engine accepts: set it to {LEAST_TEMPERATURE} "
        "or more, or to 0 for greedy sampling"
    )


def _device_of_gpus(config: Config) -> str | None:
    """`cluster.gpus_per_node` is 0 or left out with `learner.device = "cpu"`, and not 0 with "cuda"."""
    if config.learner.device == "cuda" and config.cluster.gpus_per_node == 0:
        return (
            'learner.device = "cuda" with cluster.gpus_per_node = 0: set cluster.gpus_per_node to the GPUs of a node, '
            "remove it to take what Ray reports, or remove learner.device to use no GPU"
        )
    if config.learner.device != "cpu" or not config.cluster.gpus_per_node:
        return None
    return (
        f'learner.device = "cpu" with cluster.gpus_per_node = {config.cluster.gpus_per_node}: remove learner.device to '
        "use the GPUs, or cluster.gpus_per_node to use none"
    )


def _own_cores(config: Config) -> str | None:
    """`learner.cores` and `actors.cores` each name a core once. On one machine they have no core in common."""
    learner, actors = config.learner.cores or [], config.actors.cores or []
    for key, cores in (("learner.cores", learner), ("actors.cores", actors)):
        if len(set(cores)) < len(cores):
            return f"{key} = {cores} names a core twice: two busy threads on one core stall each other; name each once"
    shared = sorted(set(learner) & set(actors))
    if not shared or config.cluster.address is not None:
        return None
    return (
        f"learner.cores and actors.cores both name {', '.join(map(str, shared))}: two busy threads on one core stall "
        "each other; give each of them other cores"
    )


_RULES: tuple[Callable[[Config], str | None], ...] = (
    _minibatches,
    _baseline,
    _each_reward,
    _has_critic,
    _has_adapters,
    _reference_in_turn,
    _compiled,
    _publishing,
    _best_checkpoint,
    _engine_nodes,
    _warm_up,
    _overlong_buffer,
    _row_length,
    _episode_length,
    _simulated_turns,
    _one_player,
    _shared_rows,
    _attention_of_shared_rows,
    _greedy_samples,
    _scored_by_address,
    _scored_at_temperature_1,
    _scored_answers,
    _near_greedy,
    _device_of_gpus,
    _own_cores,
)


# --- recipes ------------------------------------------------------------------------------------------------------


def load(
    recipe: Path | None,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    keys: Mapping[str, Any] | None = None,
    of_run: bool = False,
) -> Config:
    """Read the recipe, if given, and apply `(dotted.key, text)` overrides in order.

    A recipe that begins with `extends = "other.toml"` has the keys of that recipe, beside it, and its own on top.

    Args:
        keys: the keys of the file by their dotted names, where it is no TOML.
        of_run: the file is the recipe in a run directory. Keys that an earlier version had are left out.

    Raises:
        ConfigError: the file is missing or malformed, a key is unknown or removed, or a value is out of bounds.
    """
    text, tree = _read(recipe) if recipe and keys is None else ("", {})
    for key, value in (keys or {}).items():
        _set(tree, key, value)
    for key, value in overrides:
        _set(tree, key, parse_value(value))
    source, message = str(recipe or "command line"), ""
    for key, advice in removed_keys.drop(tree, whatever_value=of_run).items():
        line = toml.line_of(text, key)
        message += f"\n  {key}{f' (line {line})' if line else ''}: this key was removed: {advice}"
    if message:
        raise ConfigError(f"{source}:{message}")
    return build(tree, source)


def _read(recipe: Path, extended_by: Sequence[Path] = ()) -> tuple[str, dict[str, Any]]:
    """Returns the text of a recipe, and its keys on top of those of the recipe that it extends."""
    try:
        text = recipe.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except FileNotFoundError:
        by = f" ({extended_by[-1]} extends it)" if extended_by else ""
        raise ConfigError(f"{recipe}: no such recipe{by}; the shipped recipes are in deploy/recipes/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{recipe}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{recipe}: not TOML: {error}") from None
    base = tree.pop("extends", None)
    if base is None:
        return text, tree
    if not isinstance(base, str):
        raise ConfigError(f'{recipe}: extends: names one recipe, as in extends = "demo.toml" (got {base!r})')
    if recipe.resolve() in [path.resolve() for path in extended_by]:
        raise ConfigError(f"{recipe}: it extends itself, by way of {extended_by[-1]}")
    return text, _on_top(tree, _read(recipe.parent / base, [*extended_by, recipe])[1])


def _on_top(tree: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """The keys of both; sections are joined, and any other value of `tree` replaces that of `base`."""
    joined = {
        key: _on_top(value, base[key]) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in tree.items()
    }
    return base | joined


def build(tree: Mapping[str, Any], source: str = "configuration") -> Config:
    """Validate a nested mapping. Errors name `source`."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        # Each branch of a union gives its own error: one line for each key is enough.
        lines = {f"  {_explain(item)}": None for item in error.errors()}
        raise ConfigError(f"{source}:\n" + "\n".join(lines)) from None


_NEAR_SECRETS = (
    "queue", "verifiers.judge", "verifiers.reward_model", "distillation.teachers", "objective.kl_reference",
)  # fmt: skip
"""Sections in which a user may write a secret by mistake. Errors do not show their refused values."""


_HINTS = {
    "list_type": "; a list is written {key} = [{literal}], and on the command line --{key} '[{literal}]'",
    "tuple_type": "; a list is written {key} = [0.9, 0.95], and on the command line --{key} '[0.9, 0.95]'",
    "dict_type": "; one value of it is set by --{key}.NAME VALUE",
    "string_type": '; a text is written in quotes: {key} = "{got}", and on the command line --{key} \'"{got}"\'',
    "model_type": "; it is a section: its keys are {names}",
}
"""Text after pydantic's message, by pydantic's error type."""


def _explain(item: Any) -> str:
    path = [str(part) for part in item["loc"]]
    if item["type"] == "extra_forbidden":
        return f"{'.'.join(path)}: unknown key; {_hint(path)}"
    message: str = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return message if not path or path[0] in message else f"{'.'.join(path)}: {message}"
    key, choice = _key_of(path)
    if key.startswith(_NEAR_SECRETS):
        return f"{key}: {f'wants {choice}' if choice else message}"
    if choice:
        return f"{key}: wants {choice} (got {item['input']!r})"
    got, known = item["input"], ", ".join(_names(path))
    hint = _HINTS.get(item["type"], "").format(key=key, got=got, literal=toml.literal(got), names=known)
    return f"{key}: {message} (got {got!r}){hint}"


def _hint(path: Sequence[str]) -> str:
    """A suggestion for an unknown key: a similar key of the section, or the same key of another section."""
    names = _names(path[:-1])
    if close := get_close_matches(path[-1], names, 1):
        return f"did you mean {close[0]!r}?"
    elsewhere = keys_named(path[-1])
    return f"did you mean {' or '.join(elsewhere)}?" if elsewhere else "known keys: " + ", ".join(names)


def keys_named(name: str) -> list[str]:
    """The dotted keys with this last part, in all sections."""
    return [key.key for key in reference() if key.key.rpartition(".")[2] == name.replace("-", "_")]


def _key_of(path: Sequence[str]) -> tuple[str, str]:
    """The key of an error. For a key that takes several types, also those types as text."""
    section: Any = Config
    for number, part in enumerate(path, 1):
        field = section.model_fields.get(part)
        if field is None:
            break
        section = field.annotation
        if _of_table(section):
            break
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            described = describe(field)
            table = described.type.removeprefix("table of ")
            if table != described.type and len(path) > number + 1:  # a value of the table, which takes several types
                kinds = table.removesuffix("s by name").replace("number", "finite number")
                return ".".join(path[: number + 1]), kinds
            branches = described.choices and described.type != "text"
            return ".".join(path if not branches else path[:number]), described.wanted if branches else ""
    return ".".join(path), ""


def _names(path: Sequence[str]) -> list[str]:
    section: Any = Config
    for part in path:
        if of_table := _of_table(section):
            section = of_table
            continue
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        section = field.annotation if field else Config
        section = HttpService if section == HttpService | None else section
    return list(getattr(section, "model_fields", ()))


def _of_table(annotation: Any) -> type[Section] | None:
    """The section of each entry of a table of sections by name; None for other keys."""
    of = get_args(annotation)[-1] if get_origin(annotation) is dict else None
    return of if isinstance(of, type) and issubclass(of, Section) else None


def with_key(settings: Config, key: str, value: Any) -> Config:
    """The settings with one `section.key` changed. Raises ConfigError when they no longer fit together."""
    tree = settings.model_dump(mode="json", exclude_none=True)
    _set(tree, key, value)
    return build(tree, key)


def value_of(settings: Config, key: str) -> Any:
    """The value of one `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.replace("-", "_").split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--{dotted}: {part} is a value, not a section")
    tree[leaf] = value


def parse_value(text: str) -> Any:
    """Read `text` as a TOML value, else as a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML, without None. `load` reads it back unchanged."""
    left_out = {"simulation"} if config.simulation == Simulation() else set()
    return toml.document(config.model_dump(mode="json", exclude_none=True, exclude=left_out))


def reference() -> list[Key]:
    """All keys of a run, for `--help-keys` and the docs. [simulation] is for tests and `olmorl-plan`."""
    return [key for key in keys("", Config) if not key.key.startswith("simulation.")]


def agreements() -> list[str]:
    """The rules over several keys, one sentence each."""
    return [rule.__doc__ or "" for rule in _RULES]
