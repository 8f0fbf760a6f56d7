"""The memory plan: the parts that a GPU of the learner, a GPU of an engine and each kind of host must hold.

It is worked out from the model's configuration, before anything is loaded. Sources of the parts:

learner    `learner.trainer.memory`: DeepSpeed's tensors, and the real policy on fake tensors
engine     weights and KV cache from the architecture; vLLM measures its working memory itself, here it is estimated
hosts      the versions that the weight store keeps, and the copies of the ranks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olmorl import toml
from olmorl.config import Config, Lora, Model, with_key
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.deploy.preflight import hub, memory_fixes, model_folder
from olmorl.deploy.preflight.engine_bytes import cache_width, weight_bytes
from olmorl.deploy.preflight.memory_fixes import Change
from olmorl.deploy.preflight.memory_places import (
    ENGINE_GPU,
    ENGINE_HOST,
    GIB,
    GPU_KEY,
    LEARNER_GPU,
    LEARNER_HOST,
    ONE_HOST,
    SHARED_GPU,
    THIS_HOST,
    MemoryPart,
    MemoryPlace,
    host_place,
    real,
    size,
)
from olmorl.deploy.preflight.publishing import PublishingPlan, publishing_plan
from olmorl.errors import ConfigError, ResourceError
from olmorl.host_memory import host_memory
from olmorl.learner.publisher import KEPT_VERSIONS
from olmorl.learner.trainer.pinned_memory import pinned_bytes
from olmorl.model_cost import VALUE_BYTES
from olmorl.run_dir import RunFiles

if TYPE_CHECKING:
    from olmorl.learner.trainer.memory import RankMemory

GPU_GIB = 80e9 / GIB
"""Memory of a GPU, unless `cluster.gpu_memory_gib` says otherwise: 80 GB."""
RESERVED_BYTES = 4 * GIB
"""Memory of a GPU outside torch's tensors: CUDA, NCCL, workspaces and fragments. An assumption."""
STAGED_VERSIONS = 2
"""Versions in shared memory of a host with engines: the version in use and the next one."""
PUBLISHED_VERSIONS = KEPT_VERSIONS + 1
"""Versions on the publishing hosts, and in the object store of each host that pulls them: the kept and the next one."""
ROLLOUT_BYTES, JOURNAL_BYTES = 8, 13
"""Bytes of a completion token on disk: as compressed JSON with text, and in the queue's own form."""
MASTER_AND_MOMENTS_BYTES = 12
"""Bytes of a parameter in a checkpoint: fp32 master weight and Adam's two moments."""
_LOGITS_COPIES = 3
"""Copies of the logits in one step of an engine, in fp32: logits, log-probabilities and probabilities."""
_HIDDEN_COPIES = 16
"""Numbers per token in a step of an engine, in hidden sizes: hidden states, and the wider ones of attention and MLP."""
BATCHED_TOKENS, BATCHED_TOKENS_LARGE, LARGE_GPU_GIB = 8192, 16384, 70
"""Tokens of one step of an engine, without `actors.vllm.max_num_batched_tokens`: more on a GPU this large."""
PROCESS_BYTES = 4 * GIB
"""Host memory of a process with a GPU, beside what the plan counts: torch, CUDA and NCCL. An assumption."""


@dataclass(frozen=True)
class MemoryPlan:
    """The places of a run, its use of the disk, and what publishing costs its learner."""

    places: tuple[MemoryPlace, ...]
    disk: tuple[MemoryPart, ...]
    publishing: PublishingPlan

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """`(place, part, size)` for people."""
        for place in self.places:
            for number, part in enumerate(place.parts):
                note = f"  ({part.note})" if part.note else ""
                yield "" if number else place.name, part.what, f"{size(part.num_bytes)}{note}"
            yield "", "at the peak", place.peak
        for number, part in enumerate(self.disk):
            yield "" if number else "disk", part.what, f"{size(part.num_bytes)}  ({part.note})"
        yield from self.publishing.rows()

    @property
    def hosts(self) -> MemoryPlan:
        """The plan of the hosts alone."""
        return replace(self, places=tuple(place for place in self.places if place.is_host))

    @property
    def overfull(self) -> MemoryPlace | None:
        """The first place that does not fit."""
        return next((place for place in self.places if not place.fits), None)


def known(settings: Config) -> Config | None:
    """The settings with a model folder that is here, in the hub's cache if need be; None when there is no such folder.

    Asks no hub.
    """
    path = Path(settings.model.path)
    folder = path if (path / "config.json").is_file() else hub.cached_folder(settings.model.path)
    if folder is None:
        return None
    return settings.model_copy(update={"model": settings.model.model_copy(update={"path": str(folder)})})


def memory_plan(settings: Config) -> MemoryPlan:
    """The plan of a recipe whose model folder is here.

    Raises:
        ModelError: not a model that the learner can train.
        ConfigError: the engine cannot have the GPUs of actors.tensor_parallel.
    """
    from olmorl.learner.trainer.memory import rank_memory

    settings = _where_it_runs(settings)
    placed = plan(settings)
    rank = rank_memory(
        settings.model,
        settings.learner,
        placed.ranks,
        settings.row_tokens,
        on_gpu=placed.on_gpu,
        critic=_critic_model(settings),
    )
    weights = rank.trained * VALUE_BYTES[settings.model.dtype]  # of a published version
    learner, engine = _learner(settings, rank), _engine(settings, rank.parameters)
    if placed.on_gpu:
        places = [
            learner,
            engine,
            *_shared_gpu(settings, placed, learner),
            *_gpu_hosts(settings, placed, rank, weights),
        ]
    else:
        places = _cpu_hosts(settings, placed, rank, weights, learner, engine)
    places = [place for place in places if place.parts]
    publishing = publishing_plan(settings, rank.parameters, weights)
    return MemoryPlan(tuple(places), _disk(settings, rank, weights), publishing)


def _critic_model(settings: Config) -> Model | None:
    """The model that the critic starts from, if there is a critic."""
    from olmorl.learner.algorithm.presets import resolve

    if not resolve(settings.objective, settings.longest_answer).has_critic:
        return None
    return settings.model.model_copy(update={"path": settings.critic.path or settings.model.path, "lora": Lora()})


def _where_it_runs(settings: Config) -> Config:
    """A run of several hosts starts only on a cluster."""
    if settings.cluster.address is None and plan(settings).several_hosts:
        return with_key(settings, "cluster.address", "auto")
    return settings


def refuse_too_little(settings: Config, found: MemoryPlan) -> None:
    """Refuse a plan that does not fit.

    Raises:
        ResourceError: a place holds too little. The message names the key to change; the plan with it fits.
    """
    place = found.overfull
    if place is None or place.limit is None:
        return
    largest = sorted(place.parts, key=lambda part: -part.num_bytes)[:3]
    names = ", ".join(f"{part.what} {size(part.num_bytes)}" for part in largest)
    is_found = place.is_host and settings.cluster.host_memory_gib is None
    limit = size(place.limit) + ("" if is_found or not place.limit_key else f" ({place.limit_key})")
    raise ResourceError(
        f"memory: {place.name} needs {size(place.needed)} ({names}) of {limit}: {_fix(settings, place)}"
    )


def not_known(settings: Config) -> str:
    """Why there is no plan, as one line."""
    return (
        f"memory: not known before the model is here: {settings.model.path} has no config.json, nor has the hub's cache"
    )


# --- places -----------------------------------------------------------------------------------------


def _learner(settings: Config, rank: RankMemory) -> MemoryPlace:
    from olmorl.learner.algorithm.presets import has_reference_weights

    on_gpu, states, row = plan(settings).on_gpu, rank.states, rank.activations
    layers, logits = (row.kept + row.layers, row.logits) if row else (0, 0)
    reference = 0 if settings.learner.offload_reference or not has_reference_weights(settings) else states.weights
    reserved = RESERVED_BYTES if on_gpu else 0
    copied = _copied_keys(settings)
    share = settings.learner.sequence_parallel
    row_note = f"a row of {settings.row_tokens:,} tokens" + (f" on {share} ranks" if share > 1 else "")
    parts = (
        MemoryPart("weights", states.weights),
        MemoryPart("weights gathered from other ranks", states.gathered),
        MemoryPart("optimizer", states.optimizer),
        MemoryPart("gradients", states.gradients),
        MemoryPart("buffers of the gradients' sum", states.buckets),
        MemoryPart("reference model", reference, "objective.kl_beta"),
        MemoryPart(
            "critic", rank.of_critic, "more than the policy" if rank.in_turns else 'objective.advantage = "gae"'
        ),
        MemoryPart("activations", layers, row_note),
        MemoryPart("copied keys of prompts", copied, "one group with the longest prompt"),
        MemoryPart("logits", logits, "not while the layers' activations are at their peak"),
        MemoryPart("optimizer step", states.step, "not while there are activations"),
        MemoryPart("reserve", reserved, "CUDA, NCCL, fragments: assumed"),
    )
    limit = gpu_bytes(settings) if on_gpu else None
    there = real(parts)
    if row is None:
        there += (MemoryPart("activations", 0, "not known: the model's shapes depend on its data"),)
    return MemoryPlace(
        LEARNER_GPU if on_gpu else "learner", there, rank.peak + copied + reference + reserved, limit, GPU_KEY
    )


def _saved(settings: Config, rank: RankMemory) -> int:
    """Bytes of a checkpoint: of the policy, of a critic, and of a reference that is refreshed."""
    reference = VALUE_BYTES[settings.model.dtype] * rank.trained if settings.objective.kl_refresh_every else 0
    trained = rank.trained + (rank.critic.trained if rank.critic else 0)
    return MASTER_AND_MOMENTS_BYTES * trained + reference


def _copied_keys(settings: Config) -> int:
    """Bytes of shared prompts' keys and values in front of each further answer of a group, and of their gradients.

    Of a group with the longest prompt for each longest sample that a row holds. Rows of shorter answers have more.
    """
    learner, sizes = settings.learner, model_folder.architecture(Path(settings.model.path))
    if sizes is None or not learner.has_own_attention:
        return 0
    groups = max(1, settings.row_tokens // settings.longest_sample)
    tokens = groups * (settings.sampling.group_size - 1) * settings.data.max_prompt_tokens
    heads = -(-sizes.kv_heads // learner.sequence_parallel)
    of_layer = 2 * tokens * heads * sizes.head_dim * VALUE_BYTES[settings.model.dtype]
    every = learner.recomputed_every(on_gpu=plan(settings).on_gpu)
    kept = sizes.layers - (-(-sizes.layers // every) if every else 0)
    return (max(1, kept) + 1) * of_layer


def _engine(settings: Config, parameters: int) -> MemoryPlace:
    actors, placed = settings.actors, plan(settings)
    share = placed.gpus_per_engine if placed.on_gpu else placed.nodes_per_engine
    architecture = model_folder.architecture(Path(settings.model.path))
    one = 0
    if architecture is not None:
        if architecture.heads % share:
            step = placed.engine_gpus_of_a_node if placed.nodes_per_engine > 1 else 1
            fitting = [1, *(n for n in range(step, share, step) if architecture.heads % n == 0)]
            raise ConfigError(
                f"actors.tensor_parallel = {share} does not divide the {architecture.heads} attention heads of "
                f"{settings.model.path}: set it to {fitting[-1]}"
            )
        heads = -(-architecture.kv_heads // share)
        one = model_folder.cache_bytes(architecture, heads, settings.max_model_len, cache_width(settings))
    large = placed.on_gpu and gpu_bytes(settings) >= LARGE_GPU_GIB * GIB
    tokens = actors.vllm.get("max_num_batched_tokens") or (BATCHED_TOKENS_LARGE if large else BATCHED_TOKENS)
    logits = _LOGITS_COPIES * 4 * actors.max_running * (architecture.vocabulary if architecture else 0)
    inner = (architecture.hidden if architecture else 0) * _HIDDEN_COPIES * VALUE_BYTES[settings.model.dtype] * tokens
    weights = parameters * VALUE_BYTES[settings.model.dtype]
    if architecture is not None:
        weights = weight_bytes(settings, parameters, architecture.vocabulary, architecture.hidden)
    fixed = [
        MemoryPart("weights", weights // share, f"of {share} GPU(s)" if placed.on_gpu else ""),
        MemoryPart(
            "working memory", logits + inner, f"{tokens:,} tokens a step, {actors.max_running} logits: estimated"
        ),
    ]
    if not placed.on_gpu:
        cache = MemoryPart("KV cache", int(actors.kv_cache_gib * GIB), "actors.kv_cache_gib")
        return host_place("engine", [*fixed, cache], None)
    limit = int(actors.gpu_memory_utilization * gpu_bytes(settings))
    room = limit - sum(part.num_bytes for part in fixed)
    held = f"{room / one:.1f} sequences of {settings.max_model_len:,} tokens" if one else "size of a sequence unknown"
    return MemoryPlace(
        ENGINE_GPU,
        (*fixed, MemoryPart("KV cache", max(room, one), held)),
        sum(part.num_bytes for part in fixed) + max(room, one),
        limit,
        "actors.gpu_memory_utilization of cluster.gpu_memory_gib",
    )


def _shared_gpu(settings: Config, placed: Placement, learner: MemoryPlace) -> list[MemoryPlace]:
    """The only GPU of a machine, which holds learner and engine."""
    if not placed.shares_gpu:
        return []
    engine = int(settings.actors.gpu_memory_utilization * gpu_bytes(settings))
    parts = (
        MemoryPart("learner", learner.needed, "at the peak"),
        MemoryPart("engine", engine, "actors.gpu_memory_utilization"),
    )
    return [MemoryPlace(SHARED_GPU, parts, learner.needed + engine, gpu_bytes(settings), GPU_KEY)]


def _gpu_hosts(settings: Config, placed: Placement, rank: RankMemory, weights: int) -> list[MemoryPlace]:
    learner, engines = _learner_host(settings, placed, rank, weights), _engine_host(settings, placed, weights)
    workers = placed.engines_per_node * placed.engine_gpus_of_a_node
    if _is_one_host(settings, placed):
        parts = [*learner, *engines, _processes(placed.ranks_per_node + workers)]
        return [host_place(_one_host(settings), parts, _host_limit(settings))]
    return [
        host_place(LEARNER_HOST, [*learner, _processes(placed.ranks_per_node)], _host_limit(settings)),
        host_place(ENGINE_HOST, [*engines, _processes(workers)], _host_limit(settings)),
    ]


def _cpu_hosts(
    settings: Config, placed: Placement, rank: RankMemory, weights: int, learner: MemoryPlace, engine: MemoryPlace
) -> list[MemoryPlace]:
    """Without GPUs the hosts also hold what would be in the memory of GPUs."""
    of_learner = _with_copies(
        host_place(LEARNER_HOST, _learner_host(settings, placed, rank, weights), _host_limit(settings)),
        learner,
        placed.ranks_per_node,
    )
    of_engines = _with_copies(
        host_place(ENGINE_HOST, _engine_host(settings, placed, weights), _host_limit(settings)),
        engine,
        placed.engines_per_node,
    )
    if not _is_one_host(settings, placed):
        return [of_learner, of_engines]
    parts, needed = of_learner.parts + of_engines.parts, of_learner.needed + of_engines.needed
    return [replace(of_learner, name=_one_host(settings), parts=parts, needed=needed)]


def _with_copies(host: MemoryPlace, place: MemoryPlace, number: int) -> MemoryPlace:
    """The host with `number` processes that each hold the parts of `place`."""
    parts = tuple(MemoryPart(f"{place.name}: {part.what}", part.num_bytes * number, part.note) for part in place.parts)
    return replace(host, parts=parts + host.parts, needed=host.needed + place.needed * number)


def _learner_host(settings: Config, placed: Placement, rank: RankMemory, weights: int) -> list[MemoryPart]:
    from olmorl.learner.algorithm.presets import has_reference_weights, resolve
    from olmorl.learner.trainer.memory import MASTER_BYTES

    anchor = settings.schedule.max_lag > 0 and resolve(settings.objective, settings.longest_answer).needs_anchor
    offloaded = settings.learner.offload_reference and has_reference_weights(settings)
    masters = MASTER_BYTES * rank.trained // placed.learner_nodes
    shards, ranks = weights // placed.learner_nodes, placed.ranks_per_node
    row = rank.activations.host * ranks if rank.activations else 0
    block = pinned_bytes if placed.on_gpu else int
    return [
        MemoryPart("snapshot for publishing", block(weights // placed.ranks) * ranks, "the shards of its ranks"),
        MemoryPart("copy for the deltas", shards if settings.has_deltas else 0, "weights.full_every"),
        MemoryPart("copy for a checkpoint", block(_saved(settings, rank) // placed.ranks) * ranks),
        MemoryPart("earlier weights", 2 * shards + masters if anchor else 0, 'rho_kind = "two_factor"'),
        MemoryPart("offloaded reference", shards + masters if offloaded else 0, "and the policy while it computes"),
        MemoryPart("export", _whole(settings, rank), "on the host of rank 0, after the last step"),
        MemoryPart("offloaded optimizer", rank.offloaded * ranks),
        MemoryPart("policy and critic in turns", sum(map(block, rank.asleep)) * ranks, "learner.offload_critic"),
        MemoryPart("offloaded activations", row, f"a row of {settings.row_tokens:,} tokens"),
        # Shorter rows need blocks of a half, a quarter and so on. Torch keeps them all: together once more as much.
        MemoryPart("kept for shorter rows", row, "at most: pinned blocks of lower powers of two"),
        *_published(settings, shards),
    ]


def _engine_host(settings: Config, placed: Placement, weights: int) -> list[MemoryPart]:
    """On the learner's own host nothing is pulled: the versions are in its object store already."""
    parts = _staged(settings, weights)
    return [part for part in parts if part.what != "object store"] if _is_one_host(settings, placed) else parts


def _processes(number: int) -> MemoryPart:
    return MemoryPart("processes", PROCESS_BYTES * number, f"{number} with a GPU, without the parts above: assumed")


def _is_one_host(settings: Config, placed: Placement) -> bool:
    """Whether learner and engines are, or may be, on the same host."""
    has_room = not placed.on_gpu or placed.devices <= placed.gpus_per_node
    return not placed.several_hosts and (settings.cluster.address is None or has_room)


def _one_host(settings: Config) -> str:
    return THIS_HOST if settings.cluster.address is None else ONE_HOST


def _host_limit(settings: Config) -> int | None:
    """Memory of a host; None where it is not known: on a cluster, and where a run with GPUs is planned without any."""
    if settings.cluster.host_memory_gib is not None:
        return int(settings.cluster.host_memory_gib * GIB)
    if settings.cluster.address is not None or (plan(settings).on_gpu and hardware.gpus_here() == 0):
        return None
    return host_memory()


def _published(settings: Config, shards: int) -> list[MemoryPart]:
    """Shared memory of a host of the learner, whose ranks publish `shards` bytes of a version."""
    if settings.weight_store == "ray":
        return [MemoryPart("object store", PUBLISHED_VERSIONS * shards, f"{PUBLISHED_VERSIONS} published versions")]
    if settings.cluster.address is None and settings.weights.directory is None:
        return [MemoryPart("shared memory", PUBLISHED_VERSIONS * shards, f"{PUBLISHED_VERSIONS} published versions")]
    return []


def _staged(settings: Config, weights: int) -> list[MemoryPart]:
    """Shared memory of a host with engines. Pulled versions stay in its object store until the learner drops them."""
    if settings.cluster.address is None and settings.weights.directory is None:
        return []
    staged = [MemoryPart("shared memory", STAGED_VERSIONS * weights, f"{STAGED_VERSIONS} staged versions")]
    if settings.weight_store == "ray":
        staged.append(MemoryPart("object store", PUBLISHED_VERSIONS * weights, f"{PUBLISHED_VERSIONS} pulled versions"))
    return staged


def shared_memory(settings: Config, weights: int) -> int:
    """Bytes in /dev/shm of the host that needs most, Ray's object store apart."""
    parts = (_published(settings, weights // plan(settings).learner_nodes), _staged(settings, weights))
    return max(sum(part.num_bytes for part in each if part.what == "shared memory") for each in parts)


def object_store(settings: Config, weights: int) -> int:
    """Bytes in Ray's object store of the host that needs most."""
    parts = (_published(settings, weights // plan(settings).learner_nodes), _staged(settings, weights))
    return max(sum(part.num_bytes for part in each if part.what == "object store") for each in parts)


def _whole(settings: Config, rank: RankMemory) -> int:
    """Bytes of the whole model in the dtype of the forward pass."""
    return rank.parameters * VALUE_BYTES[settings.model.dtype]


def kept_checkpoints(settings: Config) -> int:
    """The complete checkpoints that stay: the newest, the best, and one that waits for its evaluation."""
    return settings.checkpoint.keep + (2 if settings.checkpoint.best else 0)


def _disk(settings: Config, rank: RankMemory, weights: int) -> tuple[MemoryPart, ...]:
    batch = settings.schedule.prompts_per_step * settings.sampling.group_size
    tokens = batch * settings.longest_answer
    checkpoint, kept = _saved(settings, rank), kept_checkpoints(settings)
    steps, every = min(settings.checkpoint.every, settings.schedule.steps), settings.checkpoint.export_every
    exports = 1 + settings.schedule.steps // every if every else 1
    parts = (
        MemoryPart(
            "rollouts a step", ROLLOUT_BYTES * tokens, f"at most: {batch:,} answers of full length; more if filtered"
        ),
        MemoryPart("journal", JOURNAL_BYTES * tokens * steps, f"at most: {steps} steps up to the next checkpoint"),
        MemoryPart("a checkpoint", checkpoint, f"every {settings.checkpoint.every} steps"),
        MemoryPart("checkpoints", (kept + 1) * checkpoint, f"checkpoint.keep = {kept}, and one being written"),
        MemoryPart("export", exports * _whole(settings, rank), f"{exports}, the last one after the last step"),
        MemoryPart("published versions", published_files(settings, weights), f"in {weights_folder(settings)}"),
    )
    return real(parts)


def weights_folder(settings: Config) -> Path | None:
    """The folder of published versions; None where they are in memory."""
    if settings.weight_store != "file" or (settings.cluster.address is None and settings.weights.directory is None):
        return None
    return settings.weights.directory or RunFiles(settings.run_dir).weights


def published_files(settings: Config, weights: int) -> int:
    """Bytes of the versions in that folder."""
    return PUBLISHED_VERSIONS * weights if weights_folder(settings) else 0


def gpu_bytes(settings: Config) -> int:
    """Memory of a GPU that the plan counts on."""
    return int((settings.cluster.gpu_memory_gib or GPU_GIB) * GIB)


# --- what to change ---------------------------------------------------------------------------------


def _fix(settings: Config, place: MemoryPlace) -> str:
    """The first single change that makes the place fit; without one, the changes that do so together."""
    tried = list(memory_fixes.changes(_where_it_runs(settings), place.name))
    for change in tried:
        then = _with(settings, [change], place)
        if then is not None and then.fits:
            return _told([change], then)
    kept: list[Change] = []
    for change in tried:
        others = [other for other in kept if other[0] != change[0]]
        then = _with(settings, [*others, change], place)
        if then is not None and then.needed < place.needed:
            kept, place = [*others, change], then
            if then.fits:
                return _told(kept, then)
    if place.name == ENGINE_GPU:
        return (
            "no setting of one node mends it: give an engine several (actors.nodes_per_engine, and "
            "actors.tensor_parallel for all its GPUs), or take a smaller model or shorter answers"
        )
    return "no setting mends it: take a smaller model, more nodes or shorter answers"


def _with(settings: Config, changes: Sequence[Change], place: MemoryPlace) -> MemoryPlace | None:
    """The place with these changes.

    None if the rest of the recipe does not allow them, or if another place no longer fits.
    """
    overfull = {each.name for each in memory_plan(settings).places if not each.fits}
    try:
        for key, value in changes:
            settings = with_key(settings, key, value)
        places = memory_plan(settings).places
    except ConfigError:
        return None
    if any(not each.fits and each.name != place.name and each.name not in overfull for each in places):
        return None
    return next((each for each in places if each.name == place.name), MemoryPlace(place.name, (), 0, place.limit))


def _told(changes: Sequence[Change], then: MemoryPlace) -> str:
    return f"set {' and '.join(f'{key} = {toml.literal(value)}' for key, value in changes)} (then {size(then.needed)})"
