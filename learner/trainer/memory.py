"""The memory of one learner rank, worked out before anything is loaded.

DeepSpeed's own tensors follow from its settings and the number of parameters. Activations and logits come from a
forward and a backward pass of the real policy on fake tensors: these have the true shapes and no bytes. Attention is
assumed to run in a fused kernel, which keeps no matrix of all pairs of tokens, unless `learner.attention` is `eager`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.trainer import deepspeed_config, packed_attention
from olmorl.learner.trainer.adapters import inject
from olmorl.learner.trainer.compat import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    TorchDispatchMode,
    UnsupportedFakeTensorException,
    compile_in_pieces,
    storage_key,
    tree_leaves,
)
from olmorl.learner.trainer.compiled import dense_layers
from olmorl.learner.trainer.logprobs import AT_ONCE, PLAIN
from olmorl.learner.trainer.model import DTYPES, attention_heads, read_config, without_dropout
from olmorl.learner.trainer.pinned_memory import pinned_bytes
from olmorl.learner.trainer.policy import LOGPROB_CHUNK, PackedPolicy, PolicyRow
from olmorl.learner.trainer.rms_norm import recompute_norms
from olmorl.learner.trainer.sequence_parallel import SequenceGroup, refuse_heads
from olmorl.learner.trainer.tiled_mlp import tile_mlps

MASTER_BYTES: Final = 4
MOMENTS_BYTES: Final = 8
"""AdamW's two moments of a parameter, in fp32."""
SHALLOW: Final = 4
"""Layers of the smaller model from which a deep one is extrapolated: one period of sliding and full attention."""
_PROBED: Final = 1024
"""Tokens of the sample on which compiled and plain layers are compared: what they keep grows with it by a constant."""


class Activations(NamedTuple):
    """Bytes of one packed row. They add up: `kept` is live when either of the others is at its peak."""

    kept: int
    """Held at the end of the forward pass for the backward pass."""
    layers: int
    """Added at the peak of the backward pass of the layers and the embedding."""
    logits: int
    """Added at the peak of the head, forward or backward."""

    host: int
    """Taken in pinned host memory by what is moved there from the forward to the backward pass."""

    @property
    def peak(self) -> int:
        return self.kept + max(self.layers, self.logits)


class RowSettings(NamedTuple):
    """What the activations of a row depend on, besides the model: its tokens and keys of `learner`."""

    tokens: int
    eager: bool
    sequence_parallel: int
    recomputed_every: int
    offload_activations: bool
    mlp_tiles: int
    compiled: bool
    on_gpu: bool


class States(NamedTuple):
    """Bytes of a rank that do not depend on the row."""

    weights: int
    """In the dtype of the forward pass: all of them, or this rank's share under ZeRO-3."""
    gathered: int
    """Weights of other ranks that ZeRO-3 holds while it uses them."""
    optimizer: int
    """fp32 master weights and AdamW's moments. In host memory with `learner.offload_optimizer`."""
    gradients: int
    buckets: int
    """Buffers of the sum over ranks."""
    step: int
    """Added during the optimizer step, when there are no activations."""


class RankMemory(NamedTuple):
    """The parts of a rank's memory."""

    parameters: int
    trained: int
    """Parameters that are trained, published and saved: all of them, or the adapters."""
    states: States
    activations: Activations | None
    """None: not known, because the model's shapes depend on its data."""
    offloaded: int
    """Bytes of this rank in host memory: with `learner.offload_optimizer`, optimizer states and gradients."""
    critic: RankMemory | None = None
    """Of the critic. Its activations and those of the policy are not there at the same time."""
    in_turns: bool = False
    """Whether critic and policy have the device in turns."""

    @property
    def movable(self) -> int:
        """Bytes that leave the device for the turn of another."""
        return self.states.weights + self.states.optimizer

    @property
    def of_critic(self) -> int:
        """Bytes that the critic adds to those on the device."""
        if self.critic is None:
            return 0
        return self.critic.standing - (min(self.movable, self.critic.movable) if self.in_turns else 0)

    @property
    def asleep(self) -> tuple[int, ...]:
        """Bytes of the blocks of host memory for what sleeps. Both have theirs at all times: to pin takes seconds."""
        return (self.movable, self.critic.movable) if self.critic and self.in_turns else ()

    @property
    def standing(self) -> int:
        """Bytes on the device at all times."""
        return self.movable + self.states.gradients + self.states.buckets + self.of_critic

    @property
    def peak(self) -> int:
        """Bytes on the device: the greater of the backward pass and the optimizer step."""
        row = self.activations.peak if self.activations else 0
        return self.standing + max(self.states.gathered + row, self.states.step)


def rank_memory(
    model: config.Model,
    learner: config.Learner,
    ranks: int,
    row_tokens: int,
    *,
    on_gpu: bool,
    critic: config.Model | None = None,
) -> RankMemory:
    """The memory of one of `ranks` ranks, when a row of `row_tokens` tokens is one sample.

    The `critic` is counted as the model that it starts from, which has a larger head.

    Raises:
        ModelError: the folder is not a model that the learner can train.
        ConfigError: settings that cannot be trained with.
    """
    sizes = parameter_sizes(model)
    held, offloaded = states(model, learner, sizes, ranks, on_gpu=on_gpu), 0
    if learner.offload_optimizer:
        offloaded = _offloaded(model, learner, sizes.trained, ranks, block=pinned_bytes if on_gpu else int)
        # Stage 3 sums gradients in host memory.
        held = held._replace(optimizer=0, gradients=0 if learner.zero_stage == 3 else held.gradients)
    row = RowSettings(
        tokens=row_tokens,
        eager=learner.attention == "eager",
        sequence_parallel=learner.sequence_parallel,
        recomputed_every=learner.recomputed_every(on_gpu=on_gpu),
        offload_activations=learner.offload_activations,
        mlp_tiles=learner.mlp_tiles,
        # The layers of a critic stay plain, and its rows need as much as plain ones of the policy.
        compiled=learner.compile is True and critic is None,
        on_gpu=on_gpu,
    )
    try:
        plain = learner.model_copy(update={"compile": False})
        second = rank_memory(critic, plain, ranks, row_tokens, on_gpu=on_gpu) if critic else None
    except ModelError as error:
        raise ModelError(str(error).replace("model.path", "critic.path", 1)) from None
    return RankMemory(
        parameters=sizes.of_model,
        trained=sum(sizes.trained),
        states=held,
        activations=activations(model, row),
        offloaded=offloaded + (second.offloaded if second else 0),
        critic=second,
        in_turns=learner.offload_critic,
    )


def states(model: config.Model, learner: config.Learner, sizes: ParameterSizes, ranks: int, *, on_gpu: bool) -> States:
    """The memory that DeepSpeed holds for parameters of these `sizes`, as measured on its version 0.19.

    Of weights that are not trained it is that of the weights alone.

    Raises:
        ConfigError: settings that cannot be trained with.
    """
    device = torch.device("cuda" if on_gpu else "cpu")
    settings = deepspeed_config.settings(model, learner, device)
    zero, in_fp32 = settings["zero_optimization"], settings.get("communication_data_type") == "fp32"
    trained, whole = sizes.trained, sum(sizes.trained) + sum(sizes.frozen)
    number, width, full = sum(trained), DTYPES[model.dtype].itemsize, model.dtype == "float32"
    share, stage, largest_bucket = -(-number // ranks), zero["stage"], int(zero["reduce_bucket_size"])
    if stage == 0:
        return States(width * whole, 0, MOMENTS_BYTES * number, width * number, 0, width * number)
    optimizer = (MASTER_BYTES + MOMENTS_BYTES) * share
    # On the CPU the part of a buffer that is never written takes no memory.
    bucket = largest_bucket if on_gpu else min(largest_bucket, number)
    # The gradients of one sum over ranks are copied once more. For a sum in fp32 they are first copied into fp32.
    copied = min(max(largest_bucket, *trained), number) if ranks > 1 else 0
    summed_in = 2 * MASTER_BYTES if in_fp32 and not full else width
    if stage == 1:
        # fp32 sums of bf16 gradients are tensors of their own, and need no buffer.
        gradients, buckets = (width, bucket) if full else (MASTER_BYTES + width, 0)
        return States(width * whole, 0, optimizer, gradients * number, width * buckets, MASTER_BYTES * share)
    if stage == 2:
        buffers = width * bucket * (2 if zero["overlap_comm"] else 1)
        copies = summed_in * copied * (2 if full else in_fp32)
        return States(width * whole, 0, optimizer, MASTER_BYTES * share, buffers + copies, 0)
    live = max(int(zero["stage3_max_live_parameters"]), *trained, *sizes.frozen) + int(
        zero["stage3_prefetch_bucket_size"]
    )
    return States(
        weights=width * -(-whole // ranks),
        gathered=width * min(whole, live),
        optimizer=optimizer,
        gradients=MASTER_BYTES * share,
        buckets=width * bucket + summed_in * copied,
        step=MASTER_BYTES * min(int(zero["sub_group_size"]), share),
    )


def _offloaded(
    model: config.Model, learner: config.Learner, sizes: tuple[int, ...], ranks: int, block: Callable[[int], int]
) -> int:
    """Host memory of a rank for its share of the parameters, as DeepSpeed 0.19 allocates it.

    Adam's moments are in ordinary memory, everything that moves to or from the device in pinned blocks.
    """
    zero = deepspeed_config.settings(model, learner, torch.device("cpu"))["zero_optimization"]
    share, width = -(-sum(sizes) // ranks), DTYPES[model.dtype].itemsize
    if zero["stage"] == 3:
        # Each group of parameters has a master copy in ordinary memory and a pinned gradient. One block has all sums.
        whole, rest = divmod(share, int(zero["sub_group_size"]))
        gradients = whole * block(MASTER_BYTES * int(zero["sub_group_size"])) + block(MASTER_BYTES * rest)
        return (MASTER_BYTES + MOMENTS_BYTES) * share + gradients + block(MASTER_BYTES * share)
    # Master copy and gradient, the updated weights on their way back, and a buffer for the largest parameter. Gradients
    # of several rows add up in a block for each parameter, which is rounded to at most twice its size.
    blocks = 2 * block(MASTER_BYTES * share) + block(width * share) + block(width * max(sizes))
    return MOMENTS_BYTES * share + blocks + (1 if block is int else 2) * width * share


class ParameterSizes(NamedTuple):
    """Elements of each parameter."""

    of_model: int
    """Of all parameters of the model together, without adapters."""
    trained: tuple[int, ...]
    frozen: tuple[int, ...] = ()


@lru_cache
def parameter_sizes(model: config.Model) -> ParameterSizes:
    """Counts the parameters on a model without memory.

    Raises:
        ModelError: not a causal language model, or one that adapters do not fit.
    """
    with torch.device("meta"):
        built = _build(read_config(model), model, "eager")
    of_model = sum(weight.numel() for weight in built.parameters())
    if model.lora.rank:
        built = _adapted(read_config(model), model, "eager")
    trained, frozen = (
        tuple(weight.numel() for weight in built.parameters() if weight.requires_grad is is_trained)
        for is_trained in (True, False)
    )
    return ParameterSizes(of_model, trained, frozen)


@lru_cache
def activations(model: config.Model, row: RowSettings) -> Activations | None:
    """The activations of one row that is one sample.

    A model of more than two periods of layers is extrapolated from two shallow ones: every layer keeps the same.
    None for a model whose shapes depend on its data.

    Raises:
        ModelError: the learner cannot train the model.
    """
    whole = read_config(model)
    text = whole.get_text_config()
    if row.sequence_parallel > 1:
        refuse_heads(*attention_heads(text), row.sequence_parallel)
    wanted = "eager" if row.eager else "sdpa"
    attention = packed_attention.implementation(wanted, torch.device("cpu"), DTYPES[model.dtype], whole)
    copies_head = model.fp32_head and not row.on_gpu
    depth = text.num_hidden_layers

    def of(layers: int) -> Activations:
        live, adapted = LiveBytes(), _adapted(_shallow(whole, layers), model, attention) if model.lora.rank else None
        with FakeTensorMode(), live:
            network = adapted or _build(_shallow(whole, layers), model, attention)
            if adapted:
                _fake(adapted)
            without_dropout(network)
            network.train()
            if every := row.recomputed_every:
                network.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
            if row.mlp_tiles > 1:
                tile_mlps(network, row.mlp_tiles)
                recompute_norms(network, checked=False)
            group = _PlannedGroup(0, row.sequence_parallel) if row.sequence_parallel > 1 else None
            host = _Host()
            saving = host.keep if row.offload_activations and row.on_gpu else nullcontext
            policy = PackedPolicy(network, 1.0, LOGPROB_CHUNK, copies_head, group, saving)
            policy.head.passes = AT_ONCE if row.on_gpu else PLAIN
            return _of_row(policy, row.tokens, live)._replace(host=host.num_bytes)

    try:
        if depth <= 2 * SHALLOW:
            found = of(depth)
        else:
            few, more = of(SHALLOW), of(2 * SHALLOW)
            periods = (depth - SHALLOW) / SHALLOW
            kept, host = (round(a + (b - a) * periods) for a, b in ((few.kept, more.kept), (few.host, more.host)))
            found = more._replace(kept=kept, host=host)
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException):
        return None
    recomputed = -(-depth // row.recomputed_every) if row.recomputed_every else 0
    if not row.compiled or recomputed == depth:
        return found
    saving = (compiled_saving(model) or 0) * (depth - recomputed) * row.tokens / row.sequence_parallel
    return found._replace(kept=found.kept - round(saving))


@lru_cache
def compiled_saving(model: config.Model) -> float | None:
    """How many bytes a token each compiled layer keeps less than a plain one; None: its layers cannot be compiled.

    torch.compile decides what a layer keeps for its backward pass when it divides it into passes. That part of the
    compiler runs here, on fake tensors and without making code.
    """
    whole = read_config(model)
    depth = min(SHALLOW, whole.get_text_config().num_hidden_layers)
    attention = packed_attention.implementation("sdpa", torch.device("cpu"), DTYPES[model.dtype], whole)
    with FakeTensorMode():
        network = _build(_shallow(whole, depth), model, attention)
        network.train()
        layers = dense_layers(network)
        if not layers:
            return None
        plain = _saved_bytes(network)
        packed_attention.keep_apart(network)
        for layer in layers:
            layer.forward = compile_in_pieces(layer.forward, backend="aot_eager_decomp_partition")
        try:
            return float((plain - _saved_bytes(network)) / (depth * _PROBED))
        except RuntimeError:
            return None
        finally:
            torch.compiler.reset()


def _saved_bytes(network: PreTrainedModel) -> int:
    """What the layers save for the backward pass of one sample."""
    held = {storage_key(weight.untyped_storage()): 0 for weight in network.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held.setdefault(storage_key(storage), storage.nbytes())
        return tensor

    layout = packed_attention.arguments(packed_attention.layout((_PROBED,), torch.device("cpu")), network)
    with saved_tensors_hooks(note, lambda tensor: tensor):
        # The output keeps what was saved: a storage that goes could leave its key to another.
        output = network.base_model(input_ids=torch.zeros(1, _PROBED, dtype=torch.long), **layout)
    found = sum(held.values())
    del output
    return found


def _fake(network: PreTrainedModel) -> None:
    """Give a model on the meta device fake tensors. PEFT moves its adapters, which fake tensors refuse."""
    made: dict[int, nn.Parameter] = {}  # tied weights stay one
    for module in network.modules():
        for name, weight in module.named_parameters(recurse=False):
            empty = torch.empty(weight.shape, dtype=weight.dtype)
            fake = made.setdefault(id(weight), nn.Parameter(empty, requires_grad=weight.requires_grad))
            setattr(module, name, fake)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


class _PlannedGroup(SequenceGroup):
    """A group of which the other ranks do not exist. An exchange makes the tensors of a real one."""

    def own(self, before_P: Tensor, part: slice) -> slice:
        """All tokens of the planned row are predicted. So the shape does not depend on the data."""
        return part

    def exchange(self, states: Tensor, split: int, joined: int) -> Tensor:
        sent = torch.cat(states.chunk(self.size, dim=split), dim=joined)
        return sent.clone()

    def add_up(self, values: Tensor) -> None: ...


class _Host:
    """Counts the host memory of saved tensors that leave the device, each in a pinned block."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def keep(self) -> AbstractContextManager[Any]:
        """The context in which tensors that are saved for the backward pass leave the device."""
        return saved_tensors_hooks(self._leave, self._return)

    def _leave(self, tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
        self.num_bytes += pinned_bytes(tensor.nbytes)
        return tensor.shape, tensor.dtype

    @staticmethod
    def _return(left: tuple[torch.Size, torch.dtype]) -> Tensor:
        shape, dtype = left
        return torch.empty(shape, dtype=dtype)


def _of_row(policy: PackedPolicy, row_tokens: int, live: LiveBytes) -> Activations:
    """One forward and one backward pass over tensors of any kind; `live` counts them and must be on."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
    row = PolicyRow(torch.zeros(row_tokens, dtype=torch.long), (row_tokens,), torch.arange(1, row_tokens))
    peaks: list[int] = []

    def end_of_head(gradient: Tensor) -> None:
        peaks.append(live.peak)
        live.peak = live.now

    def watch(head: nn.Module, given: tuple[Any, ...]) -> None:
        given[0].register_hook(end_of_head)

    policy.head.register_forward_pre_hook(watch)
    live.peak = standing = live.now
    logprobs_T, entropy_T = policy(row, with_entropy=True)
    kept = live.now - standing
    logprobs_T.sum().backward()
    del entropy_T
    return Activations(kept, max(0, live.peak - standing - kept), peaks[0] - standing - kept, 0)


def _shallow(whole: PretrainedConfig, layers: int) -> PretrainedConfig:
    """The same model with its first layers only."""
    cut = deepcopy(whole)
    text = cut.get_text_config()
    depth = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == depth:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return cut


def _drop_gradient(parameter: Tensor) -> None:
    """DeepSpeed moves each gradient into its own buffers as soon as it is there."""
    parameter.grad = None


def _build(whole: PretrainedConfig, model: config.Model, attention: str) -> PreTrainedModel:
    try:
        built: PreTrainedModel = AutoModelForCausalLM.from_config(
            whole, dtype=DTYPES[model.dtype], attn_implementation=attention, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path = {model.path}: {str(error).partition(chr(10))[0]}") from None
    return built


def _adapted(whole: PretrainedConfig, model: config.Model, attention: str) -> PreTrainedModel:
    """The model with its adapters, on the meta device."""
    with torch.device("meta"):
        built = _build(whole, model, attention)
        inject(built, model.lora)
    return built


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations have made and nothing has freed yet, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage_key(storage)
        if key not in self._known:
            self._known[key] = weakref.finalize(storage, self._forget, key, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int, num_bytes: int) -> None:
        del self._known[key]
        self.now -= num_bytes
