"""The composition root: builds each part from the recipe, with the adapters of its ports.

Heavy imports are inside the functions, so that each process loads only the libraries that it runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olmorl import seeds
from olmorl.actors.vllm_engine import reaper
from olmorl.clock import SystemClock
from olmorl.config import Config, Distillation, Verifiers
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.credentials import QueueAccess, run_id
from olmorl.errors import ConfigError, HostLost, ModelError, QueueUnavailable, ResourceError
from olmorl.extension import load_function
from olmorl.failed_start import building
from olmorl.messages import EpisodeStart, Stop, Version
from olmorl.model_cost import DevicePeak
from olmorl.ports import (
    BatchSource,
    Engine,
    EngineFollower,
    EngineNode,
    Environments,
    Queue,
    Renderer,
    Row,
    Scorer,
    Trainer,
    WeightSource,
    WeightStore,
)
from olmorl.run_dir import RunFiles

MOST_NAMED = 8
"""The most combinations of verifiers that the line about rewards names."""

if TYPE_CHECKING:
    from olmorl.actors.episodes.agent_runner import Agents
    from olmorl.actors.episodes.runner import Play
    from olmorl.actors.episodes.suffix import TemplateRenderer
    from olmorl.actors.loop import Actor
    from olmorl.actors.vllm_engine.processes import EngineProcesses
    from olmorl.actors.vllm_engine.start import EngineStart
    from olmorl.learner.data.stream import PromptStream, Source
    from olmorl.learner.orchestrator.orchestrator import Orchestrator
    from olmorl.learner.storage.rollout_record import Ended
    from olmorl.queues.redis_server.embedded_server import EmbeddedRedis


_TRY_AGAIN_S = 0.5


async def open_queue(settings: Config, access: QueueAccess) -> Queue:
    """Connect to the run's Redis."""
    from olmorl.learner.orchestrator.evaluation import MOST_LIVE
    from olmorl.queues.prompts.redis_queue import RedisQueue

    evaluation = MOST_LIVE if settings.evaluation.data else 0
    bound = max((settings.schedule.max_lag + 2) * settings.schedule.prompts_per_step, evaluation)
    return await RedisQueue.connect(
        access.url, run_id(settings.run_dir), settings.queue, bound, SystemClock(), access.environment
    )


async def join_queue(settings: Config, access: QueueAccess) -> Queue:
    """Connect to the run's Redis. While it is down, try again for as long as in any outage.

    Raises:
        QueueUnavailable: it has not come back within `queue.outage_deadline_s`.
    """
    give_up = time.monotonic() + settings.queue.outage_deadline_s
    while True:
        try:
            return await open_queue(settings, access)
        except ResourceError as error:
            if time.monotonic() > give_up:
                raise QueueUnavailable(str(error)) from error
        await asyncio.sleep(_TRY_AGAIN_S)


def embedded_redis(settings: Config, access: QueueAccess | None, password: str | None) -> EmbeddedRedis:
    """The run's own Redis, not started yet. It loads the append-only file of an earlier start.

    With `access` it keeps the port and the password of that start.

    Raises:
        HostLost: `access` names another host.
    """
    from olmorl.queues.redis_server.data_dir import own_folder
    from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
    from olmorl.queues.redis_server.url import parse_url

    folder, host = RunFiles(settings.run_dir).redis, own_address(settings)
    if access is not None:
        address = parse_url(access.url, access.environment)
        [place] = address.hosts
        if place.name != host:
            raise HostLost(f"the embedded Redis was on {place.name}, and its host is lost")
    if settings.cluster.address is not None:
        folder = own_folder(folder, host)
    if access is None:
        return EmbeddedRedis(folder, host, password=password)
    return EmbeddedRedis(folder, host, port=place.port, password=address.credentials.password)


def own_address(settings: Config) -> str:
    """The address at which other hosts of the run reach this one; the loopback address on a single host."""
    if settings.cluster.address is None:
        return "127.0.0.1"
    from olmorl.deploy.cluster.ray_cluster import node_address

    return node_address()


def weight_store(settings: Config) -> WeightStore:
    """The store through which versions reach the engines."""
    from olmorl.queues.weights import store

    if ":" in settings.weight_store:
        return _own_store(settings)
    run, full_every = run_id(settings.run_dir), settings.weights.full_every
    if settings.weight_store == "ray":
        return store.store_in_ray(run, full_every=full_every)
    directory = settings.weights.directory
    if directory is None and settings.cluster.address is not None:
        directory = RunFiles(settings.run_dir).weights
    return store.store_in_files(run, directory, full_every=full_every)


def _own_store(settings: Config) -> WeightStore:
    """The store of the user's own. Raises ConfigError if it lacks a method of `WeightStore`."""
    name = settings.weight_store
    made: WeightStore = load_function("weights.store", name)(run_id(settings.run_dir))
    methods = ("publish", "complete", "latest", "fetch", "discard", "sweep")
    if missing := [method for method in methods if not callable(getattr(made, method, None))]:
        raise ConfigError(f"weights.store = {name!r}: what it returned has no method {', '.join(missing)}")
    return made


def engine_processes(settings: Config) -> EngineProcesses:
    """The processes that an engine will have on this node."""
    from olmorl.actors.vllm_engine.processes import EngineProcesses

    return EngineProcesses(_staged(settings))


def load_engine(settings: Config, core: int | None, processes: EngineProcesses, *, has_core: bool) -> None:
    """Import the modules of an engine, ahead of its start, also in the process of its core. Blocks."""
    if settings.run.mode == "real":
        from olmorl.actors.vllm_engine.start import load_libraries

        load_libraries(core, settings.actors.start_deadline_s, processes, has_core=has_core)


def engine(
    settings: Config,
    core: int | None,
    name: str = "",
    node: EngineNode | None = None,
    processes: EngineProcesses | None = None,
) -> Engine:
    """The engine of an actor. Engines of different names sample apart.

    Args:
        node: this node, of an engine on several.
        processes: those that `load_engine` got.
    """
    if settings.run.mode == "simulated":
        from olmorl.actors.fake_engine import FakeEngine

        return FakeEngine(
            settings.simulation,
            max_running=settings.actors.max_running,
            max_model_len=settings.max_model_len,
            recompute=settings.actors.weight_update == "recompute",
        )
    from olmorl.actors.vllm_engine.engine import VllmEngine

    return VllmEngine(_engine_start(settings, core, name, processes or engine_processes(settings), node), Version(0, 0))


def engine_follower(
    settings: Config, core: int | None, name: str, node: EngineNode, processes: EngineProcesses
) -> EngineFollower:
    """The part of the engine `name` on this node."""
    if settings.run.mode == "simulated":
        from olmorl.actors.fake_engine import FakeFollower

        return FakeFollower()
    from olmorl.actors.vllm_engine.follower import VllmFollower

    return VllmFollower(_engine_start(settings, core, name, processes, node))


def _engine_start(
    settings: Config, core: int | None, name: str, processes: EngineProcesses, node: EngineNode | None
) -> EngineStart:
    from olmorl.actors.vllm_engine.start import EngineStart

    seed = seeds.derive(settings.run.seed, "engine", name)
    return EngineStart(settings.model, settings.actors, settings.max_model_len, seed, core, processes, node)


def device_peak(settings: Config) -> DevicePeak:
    """The limits of the device of this process. Blocks while it is measured. Simulated runs have none."""
    if settings.run.mode == "simulated":
        return DevicePeak()
    from olmorl.deploy.cluster import device_peak as peaks

    return peaks.device_peak(settings, on_gpu=plan(settings).on_gpu)


def scorer(settings: Config) -> Scorer:
    """The verifiers of an actor."""
    if settings.run.mode == "simulated":
        from olmorl.actors.fake_engine import simulated_scorer

        return simulated_scorer(settings)
    from olmorl.verifiers.scorer import VerifierScorer

    distillation, reference = settings.distillation, settings.objective.kl_reference
    return VerifierScorer(settings.verifiers, settings.schedule.steps, distillation, reference)


def actor(
    settings: Config,
    name: str,
    core: int | None,
    queue: Queue,
    metrics: str,
    peak: DevicePeak | None = None,
    node: EngineNode | None = None,
    weights: WeightSource | None = None,
    processes: EngineProcesses | None = None,
) -> Actor:
    """An actor with all that it works with. `peak` is that of one device of its engine.

    `processes` are those that `load_engine` got. With an engine on several nodes, `node` is this one, and `weights`
    stages versions on all of them.
    """
    from olmorl.actors.admission import lanes
    from olmorl.actors.loop import Actor
    from olmorl.actors.sampling_params import SamplingRule
    from olmorl.learner.data.loader import evaluation_names

    repeatable = settings.schedule.max_lag == 0 or settings.run.mode == "simulated"
    return Actor(
        name=name,
        engine=engine(settings, core, name, node, processes),
        queue=queue,
        weights=weights or weight_store(settings),
        scorer=scorer(settings),
        clock=SystemClock(),
        sample=SamplingRule(settings.sampling, settings.evaluation, settings.run.seed if repeatable else None),
        lanes=lanes(settings.sampling, settings.evaluation, evaluation_names(settings.evaluation)),
        settings=settings.actors,
        lease_s=settings.queue.lease_s,
        max_lag=settings.schedule.max_lag,
        max_span=settings.schedule.max_lag if settings.schedule.over_age == "drop" else None,
        proof_tolerance=proof_tolerance(settings),
        metrics=metrics,
        peak=peak and peak.times(settings.actors.tensor_parallel),
        play=play(settings),
    )


def episode(settings: Config) -> EpisodeStart | None:
    """How each row is played; None: with a single answer.

    Raises:
        ConfigError: the environment cannot be made, a tool has no schema, or tools and their parser do not go together.
    """
    name, parser = settings.episodes.environment, settings.episodes.tool_parser
    if name is None:
        return EpisodeStart() if settings.episodes.agent else None
    if settings.run.mode == "simulated":
        return EpisodeStart(environment=name)
    from olmorl.verifiers.environments.forked_environments import schemas

    tools = schemas(settings.episodes)
    if bool(tools) != bool(parser):
        lacks = "tools and no step(reply): name the parser of its calls" if tools else "no tools: leave it out"
        raise ConfigError(f"episodes.tool_parser: the environment {name} has {lacks}")
    return EpisodeStart(environment=name, tools=tools)


def play(settings: Config) -> Play | Agents | None:
    """What an actor needs for episodes; None in a run of single answers."""
    if settings.episodes.player is None:
        return None
    if settings.episodes.agent and settings.run.mode == "real":
        return _agent_play(settings, settings.episodes.agent)
    from olmorl.actors.episodes.runner import Play

    environments: Environments
    renderer: Renderer
    if settings.run.mode == "simulated":
        from olmorl.actors.episodes.fake_environments import FakeEnvironments, FakeRenderer

        environments = FakeEnvironments(settings.simulation.turns, settings.simulation.tool_s)
        renderer = FakeRenderer()
    else:
        from olmorl.verifiers.environments.forked_environments import ForkedEnvironments

        environments = ForkedEnvironments(settings.episodes, settings.verifiers, settings.schedule.steps)
        renderer = template_renderer(settings)
    return Play(
        environments,
        renderer,
        max_turns=settings.episodes.max_turns,
        max_prompt=settings.data.max_prompt_tokens,
        max_tokens=settings.longest_answer,
        max_cache_age=settings.schedule.max_lag,
    )


def _agent_play(settings: Config, command: str) -> Agents:
    from olmorl.actors.episodes.agent_runner import Agents
    from olmorl.actors.episodes.template_check import faults

    episodes, renderer = settings.episodes, template_renderers(settings)

    @lru_cache(maxsize=16)
    def checked(tools: str) -> TemplateRenderer:
        made = renderer(json.loads(tools))
        if found := faults(made, episodes.tool_role if made.has_tools else None):
            raise ModelError(f"{'; '.join(found)}: give another template in model.chat_template")
        return made

    return Agents(
        command,
        lambda tools: checked(json.dumps(tools)),
        tool_role=episodes.tool_role,
        timeout_s=episodes.timeout_s,
        max_turns=episodes.max_turns,
        max_sequence=settings.longest_sample,
        max_cache_age=settings.schedule.max_lag,
        host=episodes.host,
    )


def template_renderer(settings: Config) -> TemplateRenderer:
    """Writes messages by the policy's chat template. Raises ConfigError as `template_renderers`."""
    start = episode(settings) if settings.episodes.tool_parser else None
    return template_renderers(settings)(start.tools if start else ())


def template_renderers(settings: Config) -> Callable[[Sequence[dict[str, Any]]], TemplateRenderer]:
    """Gives the renderer of prompts with some tools, by the policy's chat template.

    Raises:
        ConfigError: there is no chat template, or the model has no token that ends an answer; or there are tools and no
            parser of their calls.
    """
    from olmorl.actors.episodes.suffix import TemplateRenderer
    from olmorl.learner.data.loader import open_tokenizer

    tokenizer, data = open_tokenizer(settings.model), settings.data
    stops = _stop_tokens(settings, tokenizer)
    if not tokenizer.chat_template or not stops:
        key = "episodes.agent" if settings.episodes.agent else "episodes.environment"
        what = "stop token" if tokenizer.chat_template else "chat template"
        raise ConfigError(
            f"{key}: the policy has no {what}, and so no way to read a reply: give one in "
            f"{'model.path' if tokenizer.chat_template else 'model.chat_template'}"
        )
    parser = settings.episodes.tool_parser

    def renderer(tools: Sequence[dict[str, Any]]) -> TemplateRenderer:
        parse = None
        if tools:
            if parser is None:
                raise ConfigError("episodes.tool_parser: name the parser of the calls of tools, such as hermes")
            from olmorl.actors.vllm_engine.tool_calls import ToolCallParser

            parse = ToolCallParser(parser, tokenizer, tools, settings.verifiers.think_tags[1])
        return TemplateRenderer(
            tokenizer,
            stops,
            values=data.chat_template_kwargs,
            system_prompt=data.system_prompt,
            tools=tools,
            parse=parse,
            longest=settings.longest_sample,
        )

    return renderer


def _stop_tokens(settings: Config, tokenizer: Any) -> set[int]:
    """The tokens at which the engine ends an answer: of the tokenizer, and of the model's generation settings."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(settings.model.path).eos_token_id
    except OSError:
        ends = None
    several = ends if isinstance(ends, list) else [ends]
    return {int(end) for end in (*several, tokenizer.eos_token_id) if end is not None}


def proof_tolerance(settings: Config) -> float:
    """Mean difference of log-probabilities, in nats, at which engine and learner still have the same weights."""
    from olmorl.actors.weight_proof import TOLERANCE

    given = settings.weights.proof_tolerance
    return given if isinstance(given, float) else TOLERANCE[settings.model.dtype]


def prompts(
    settings: Config, progress: Callable[[str, int], None] | None = None
) -> tuple[PromptStream, dict[str, Sequence[Row]], list[str]]:
    """The training stream, the evaluation sets, and notes on the data for people.

    `progress` is called repeatedly with the name of a data set and the number of its rows read so far.
    """
    from olmorl.learner.data.stream import PromptStream

    if settings.run.mode == "simulated":
        return PromptStream([_numbered_rows(settings.episodes.player)], settings.run.seed), {}, []
    from olmorl.learner.data.checks import check_different, check_enough, check_ordered, check_taught, shared_rows
    from olmorl.learner.data.loader import Loader, evaluation_sets, open_tokenizer, training_sources
    from olmorl.learner.storage.group_stats import names_taken_twice
    from olmorl.verifiers.label_check import LabelChecker

    data = settings.data
    with LabelChecker(settings.verifiers) as check:
        loader = Loader(
            data,
            open_tokenizer(settings.model),
            settings.verifiers,
            check,
            progress,
            episode(settings),
            labels_optional=settings.distillation.is_alone,
        )
        held_out = loader.for_evaluation()
        sources = training_sources(loader, data)
        evaluations = evaluation_sets(held_out, settings.evaluation)
    check_different(sources)
    check_taught(sources, settings.distillation, are_all=True)
    check_enough(sources, data, settings.schedule.prompts_per_step)
    check_ordered(sources, data.curriculum)
    notes = [f"data: {loader.report}", *(f"  {reason}" for reason in loader.report.reasons)]
    if evaluations:
        notes += [f"evaluation: {held_out.report}", *(f"  {reason}" for reason in held_out.report.reasons)]
    notes += shared_rows(sources, evaluations, data.strict)
    notes += names_taken_twice(row.row for source in sources for row in source.rows)
    rows = chain.from_iterable([*(source.rows for source in sources), *evaluations.values()])
    notes.append(scored_by(rows, settings.verifiers))
    if settings.distillation.teachers:
        notes.append(taught_by(chain.from_iterable(source.rows for source in sources), settings.distillation))
    stream = PromptStream(sources, settings.run.seed, data.shuffle, data.epochs, data.curriculum)
    return stream, evaluations, notes


def scored_by(rows: Iterable[Row], verifiers: Verifiers) -> str:
    """One line that says what scores the rows, such as "rewards: math, plain x1"."""
    from olmorl.verifiers.functions.function_scorer import parse
    from olmorl.verifiers.registry import numbered

    weights = verifiers.weights
    counts = Counter(row.datasets for row in rows)
    named = []
    for names, number in counts.most_common(MOST_NAMED):
        text = " + ".join(f"{name} x{weights[name]:g}" if name in weights else name for name in numbered(names))
        named.append(text if len(counts) == 1 else f"{text or 'no verifier'} ({number} rows)")
    more = [f"{len(counts) - MOST_NAMED} more"] if len(counts) > MOST_NAMED else []
    own = [f"{each.name} x{weights.get(each.name, each.weight):g}" for each in parse(verifiers.functions)]
    together = f"; combined by {verifiers.combine}" if verifiers.combine != "sum" else ""
    return f"rewards: {', '.join(filter(None, [*named, *more, *own])) or 'none'}{together}"


def taught_by(rows: Iterable[Row], distillation: Distillation) -> str:
    """One line that says who teaches the training rows, such as "teachers: math (400 rows), without rewards"."""
    counts = Counter(distillation.teacher_of(row.row) or "nobody" for row in rows)
    named = ", ".join(f"{name} ({number} rows)" for name, number in counts.most_common())
    return f"teachers: {named}, {'with' if distillation.with_rewards else 'without'} rewards"


def _numbered_rows(environment: str | None) -> Source:
    """Rows for an engine without a model, which needs only a number of tokens."""
    from olmorl.learner.data.stream import Source

    episode = EpisodeStart(environment=environment) if environment else None
    rows = [
        Row(f"simulated:{n}", f"problem {n}", np.full(16, n, np.int32), ("simulated",), ("",), {}, False, episode)
        for n in range(100_000)
    ]
    return Source("simulated", None, rows)


async def open_orchestrator(
    settings: Config,
    queue: Queue,
    stream: PromptStream,
    evaluations: Mapping[str, Sequence[Row]],
    observe: Callable[[Mapping[str, Any]], None],
    observe_ended: Callable[[Ended], None],
    *,
    resume: bool,
    from_step: int | None,
) -> Orchestrator:
    """Take over the run: its orchestrator, with the state of the run recovered."""
    from olmorl.learner.orchestrator.orchestrator import Orchestrator
    from olmorl.learner.trainer.export_process import export_step

    return await Orchestrator.open(
        settings,
        queue,
        stream,
        SystemClock(),
        num_ranks=plan(settings).ranks,
        evaluations=evaluations,
        resume=resume,
        from_step=from_step,
        observe=observe,
        observe_ended=observe_ended,
        export=None if settings.run.mode == "simulated" else partial(export_step, settings.run_dir),
    )


def trainer(settings: Config, rank: int, meeting_point: str) -> Trainer:
    """One rank's share of the policy."""
    if settings.run.mode == "simulated":
        from olmorl.learner.trainer.fake_trainer import FakeTrainer

        return FakeTrainer(settings.simulation, SystemClock(), rank, settings.learner.sequence_parallel)
    from olmorl.learner.algorithm.presets import resolve
    from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
    from olmorl.learner.trainer.process_group import Ranks

    return DeepSpeedTrainer(
        settings.model,
        settings.learner,
        resolve(settings.objective, settings.longest_answer),
        temperature=settings.sampling.temperature,
        steps=settings.schedule.steps,
        seed=settings.run.seed,
        ranks=Ranks(rank, plan(settings).ranks, meeting_point),
        critic=settings.critic,
        peak=device_peak(settings).times(1 if plan(settings).on_gpu else settings.learner.threads),
        max_lag=settings.schedule.max_lag,
    )


async def learn(settings: Config, rank: int, meeting_point: str, source: BatchSource) -> Stop:
    """Train as one rank until the orchestrator says stop; returns the stop."""
    from olmorl.learner import loop

    with building(f"the policy of learner rank {rank}"):
        policy = trainer(settings, rank, meeting_point)
    stop = await loop.run(rank, policy, source, weight_store(settings), SystemClock(), settings)
    # After an error the launcher ends all ranks. Leaving an NCCL group would wait for the others, which may themselves
    # wait for this rank in a collective, and nobody would hear of the error.
    policy.close()
    return stop


def sweep(settings: Config) -> None:
    """Remove the run's files from shared memory of this host."""
    reaper.sweep(_staged(settings))
    weight_store(settings).sweep()


def sweep_here(settings: Config) -> None:
    """Remove the weights that this host has staged for its engines. Versions published for other hosts stay."""
    from olmorl.queues.weights.host_cache import HostCache

    reaper.sweep(_staged(settings))
    HostCache(_staged(settings), in_place=False).sweep()


def _staged(settings: Config) -> Path:
    """The run's folder in the shared memory of a host."""
    from olmorl.queues.weights.host_cache import SHARED_MEMORY

    return SHARED_MEMORY / f"olmorl-{run_id(settings.run_dir)}"
