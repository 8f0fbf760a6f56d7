"""The checks of the preflight table. Each returns its finding, or raises an error with the fix."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from olmorl.config import Config, with_key
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import Placement
from olmorl.deploy.preflight import data_trial, hub, memory, model_folder
from olmorl.deploy.preflight.disk_room import disk_room, published_bytes, room
from olmorl.deploy.preflight.local_checks import (
    check_data,
    check_functions,
    check_model,
    check_token_scorers,
    check_whole_paths,
)
from olmorl.deploy.preflight.memory_places import GPU_KEY, HOST_KEY, size
from olmorl.errors import (
    ConfigError,
    DeadlinePassed,
    EnvironmentFailed,
    ModelError,
    ResourceError,
    Unscorable,
    UserError,
    unwritable,
)
from olmorl.learner.orchestrator.draw_source import prompt_of
from olmorl.messages import ENVIRONMENT, Completion, Episode, Prompt, Span, Turn, Verdict, Version
from olmorl.ports import Row
from olmorl.verifiers.code.sandbox import self_test

MIB, GIB = 2**20, 2**30
RAY_OBJECTS_BYTES = 512 * MIB
_LANE = "preflight"
"""The lane of made-up answers. No teacher is asked about them."""
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
"""Prints the MiB of each GPU."""
NVIDIA_SMI_DEADLINE_S = 30.0
KNOWN_GOOD = (
    ("math", r"\frac{1}{2}", r"The result is \boxed{0.5}."),
    ("math", r"x^2-1", r"So we get \boxed{(x-1)(x+1)}."),
    ("ifeval", {"instruction_id": ["punctuation:no_comma"], "kwargs": [{}]}, "No pause in here"),
)


class Size(NamedTuple):
    """The size of a model."""

    architecture: str
    parameters: int
    weights_bytes: int


@lru_cache
def size_of(path: str, dtype: str, trust_remote_code: bool) -> Size:
    """Count on a model without memory. Raises ModelError if it is not a causal language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_model(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path = {path}: {str(error).partition(chr(10))[0]}") from None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(type(model).__name__, parameters, parameters * (4 if dtype == "float32" else 2))


def _size(settings: Config) -> Size:
    model = settings.model
    hub.check_model(model)
    return size_of(model.path, model.dtype, model.trust_remote_code)


# --- once -------------------------------------------------------------------------------------------


def data(settings: Config) -> str:
    """The first rows of every data set can be read, labelled and written by the policy's chat template."""
    check_data(settings)
    check_whole_paths(settings)
    tried = _tried(settings)
    longest = max(tried.rows, key=lambda row: len(row.token_ids))
    held_out = f" to train on, {tried.held_out_report} to evaluate with" if tried.evaluations else ""
    found = [
        f"{len(tried.sources)} to train on, {len(tried.evaluations)} to evaluate with; of the first rows "
        f"{tried.report}{held_out}, the longest prompt has {len(longest.token_ids)} tokens",
        wiring.scored_by(tried.rows, settings.verifiers),
        *tried.notes,
        *[*tried.report.reasons, *tried.held_out_report.reasons][:3],
    ]
    return "\n".join(found)


def _tried(settings: Config) -> data_trial.Tried:
    from olmorl.learner.data.loader import open_tokenizer

    check_model(settings.model.path)
    hub.check(settings)
    return data_trial.try_rows(settings, open_tokenizer(settings.model))


def model(settings: Config) -> str:
    """The learner can train the model. Its files are complete, and they fit each other and the recipe."""
    check_model(settings.model.path)
    hub.check_model(settings.model)
    model_folder.check_folder(settings)
    model_size = _size(settings)
    folder = Path(settings.model.path)
    where = "on the hub"
    if folder.is_dir():
        where = f"{len(model_folder.tensors(folder))} tensors in {folder}"
    return f"{model_size.architecture}, {model_size.parameters:,} parameters, {size(model_size.weights_bytes)}; {where}"


def memory_plan(settings: Config) -> str:
    """The memory plan fits each kind of GPU and host."""
    here = memory.known(settings)
    if here is None:
        return memory.not_known(settings)
    found = memory.memory_plan(here)
    memory.refuse_too_little(here, found)
    return "\n".join(" ".join(row).strip() for row in found.rows())


def tokenizer(settings: Config) -> str:
    """The tokenizer fits the model and its template renders."""
    from transformers import AutoConfig

    from olmorl.learner.data.chat_templates import check_template_kwargs
    from olmorl.learner.data.loader import open_tokenizer

    check_model(settings.model.path)
    hub.check_model(settings.model)
    found = open_tokenizer(settings.model)
    question = "What is 6 x 7?"
    turns = [{"role": "user", "content": question}]
    given = settings.data.chat_template_kwargs
    check_template_kwargs(found.chat_template, given)
    if found.chat_template:
        ids = found.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False, **given)
    else:
        ids = found(question)["input_ids"]
    if not ids:
        raise ModelError(f"{settings.model.path}: the tokenizer makes no token of {question!r}: it has no vocabulary")
    vocabulary = AutoConfig.from_pretrained(
        settings.model.path, trust_remote_code=settings.model.trust_remote_code
    ).vocab_size
    if max(ids) >= vocabulary:
        raise ModelError(
            f"the tokenizer writes token {max(ids)} and the model knows {vocabulary}: name the model's own in "
            "model.tokenizer"
        )
    if found.eos_token_id is None:
        raise ModelError(f"{settings.model.path}: the tokenizer has no end-of-sequence token, so no answer would end")
    template = "" if found.chat_template else "; no chat template: prompts have to be plain strings"
    check_token_scorers(settings)
    servers = f"; so have {', '.join(settings.token_scorers)}" if settings.token_scorers else ""
    text = f"{len(found):,} tokens for {vocabulary:,} rows; a question of one line is {len(ids)} tokens"
    return f"{text}{template}{servers}"


def environment(settings: Config) -> str:
    """The chat template can write replies, and the environment or agent plays an episode on a real row."""
    from olmorl.actors.episodes.template_check import faults

    tried = _tried(settings)
    has_tools = settings.episodes.tool_parser and settings.episodes.environment
    role = settings.episodes.tool_role if has_tools else None
    if found := faults(wiring.template_renderer(settings), role):
        raise ModelError(f"{'; '.join(found)}: give another template in model.chat_template")
    key = "agent" if settings.episodes.agent else "environment"
    try:
        what, _ = asyncio.run((_run_agent if settings.episodes.agent else _play_once)(settings, tried.rows[0]))
    except (EnvironmentFailed, DeadlinePassed, Unscorable) as error:
        raise ConfigError(f"episodes.{key} = {settings.episodes.player!r}: {error}") from None
    return f"{settings.episodes.player}: {what}; the chat template writes its replies"


async def _play_once(settings: Config, row: Row) -> tuple[str, Mapping[str, Verdict]]:
    """Play an episode whose only answer is a made-up one; returns what the environment did, and its verdicts."""
    from olmorl.actors.episodes.runner import Play

    play = wiring.play(settings)
    assert isinstance(play, Play)
    await play.environments.start()
    try:
        world = play.environments.open()
        try:
            await world.reset(_prompt_of(row), 0)
            answer = _answer("The answer is 1.")
            reply = {"role": "assistant", "content": answer.text}
            step = await world.step(reply)
            turn = Turn(kept=0, added=np.zeros(0, np.int32), start=0, end=1, finish_reason="stop", reply=reply)
            verdicts = await world.reward(replace(answer, episode=Episode(turns=(turn,), exit="done")))
        finally:
            await world.close()
    finally:
        await play.environments.stop()
    reacted = "ended the episode" if step.done else f"replied with {len(step.messages)} message(s)"
    rewarded = _reward(settings, row, verdicts, "a method reward of the environment")
    return f"it {reacted} after {row.row}{rewarded}", verdicts


async def _run_agent(settings: Config, row: Row) -> tuple[str, Mapping[str, Verdict]]:
    """Run the agent with made-up answers; returns what it did, and its verdict if it wrote one."""
    from olmorl.deploy.preflight.agent_trial import play_once

    episode = await play_once(settings, _prompt_of(row))
    rewarded = _reward(settings, row, episode.verdicts, "a number to $OLMORL_REWARD")
    what = f"it asked {len(episode.turns)} time(s) and ended with {episode.exit} after {row.row}{rewarded}"
    return what, episode.verdicts


def _reward(settings: Config, row: Row, verdicts: Mapping[str, Verdict], own: str) -> str:
    """The rewards of an episode, for its line. Raises ConfigError if nothing gives one."""
    if not verdicts and not row.datasets and not settings.verifiers.functions:
        raise ConfigError(
            f"{row.row}: nothing gives a reward: the environment has none, and the row names no verifier: write "
            f"{own}, a column dataset, or verifiers.functions"
        )
    rewards = ", ".join(f"{name} {verdict.reward}" for name, verdict in verdicts.items())
    return rewards and f", with the rewards {rewards}"


def _prompt_of(row: Row) -> Prompt:
    return prompt_of(row, lane="train", draw_id=0, attempt=1, group_size=2, min_version=Version(0, 0))


def functions(settings: Config) -> str:
    """The user's reward functions import. They and the verifiers of the data score a real row."""
    check_functions(settings)
    own = f"{len(settings.verifiers.functions)} of your own"
    if settings.run.mode == "simulated":
        return own
    try:
        tried = _tried(settings)
    except UserError:
        return f"{own}; not called: no row could be loaded"
    rows: dict[tuple[str, ...], Row] = {}
    for row in tried.rows:
        if row.datasets or row.episode or settings.verifiers.functions:  # the others have a teacher
            rows.setdefault(row.datasets, row)
    names = asyncio.run(_score_once(settings, list(rows.values())))
    return f"{own}; scored a row each: {', '.join(names) or 'none'}"


async def _score_once(settings: Config, rows: Sequence[Row]) -> list[str]:
    """Score a real row and a made-up group with every verifier and function; returns their names."""
    scorer = wiring.scorer(settings)
    await scorer.start()
    names: dict[str, None] = {}
    try:
        of_world: dict[str, Verdict] = {}
        if settings.episodes.agent:
            of_world[ENVIRONMENT] = Verdict(reward=0.0)
        elif played := next((row for row in rows if row.episode), None):
            of_world.update((await _play_once(settings, played))[1])
        for row in rows:
            prompt = replace(_prompt_of(row), lane=_LANE)
            group = []
            for index, text in enumerate(("I do not know.", "The answer is 1.")):
                answer = replace(_answer(text), index=index)
                group.append(replace(answer, verdicts=of_world | await scorer.verify(prompt, answer)))
            try:
                scored = await scorer.combine(prompt, group)
            except Unscorable as error:
                raise Unscorable(error.error_kind, f"{row.row}: {error.detail}") from None
            names |= dict.fromkeys(scored[0].verdicts)
    finally:
        await scorer.stop()
    return list(names)


def redis(settings: Config) -> str:
    """The queues survive their server's restart."""
    if settings.queue.url is None:
        from olmorl.queues.redis_server.embedded_server import find_server

        return f"embedded ({find_server()}), append-only file, fsync everysec"
    from olmorl.deploy.credentials import QueueAccess
    from olmorl.queues.redis_server.persistence_check import examine

    access = QueueAccess.of_recipe(settings.queue.url)
    return asyncio.run(examine(access.url, access.environment, settings.queue))


# --- on the hosts -----------------------------------------------------------------------------------


def disk(settings: Config) -> str:
    """The run directory has room for the checkpoints that are kept, and one being written; versions have room too."""
    model_size = _size(settings)
    folder = settings.weights.directory
    try:
        for path in filter(None, (settings.run_dir, folder)):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error, "weights.directory" if path == folder else "run.directory") from None
    return disk_room(settings, model_size.parameters)


def shared_memory(settings: Config) -> str:
    """Shared memory holds the versions of the weights that exist at the same time."""
    weights = published_bytes(settings, _size(settings).parameters)
    versions = memory.shared_memory(settings, weights)
    return room(
        Path("/dev/shm"),
        versions + max(RAY_OBJECTS_BYTES, memory.object_store(settings, weights)),
        f"{versions // weights} versions of the weights and Ray's objects",
        "remount it larger (mount -o remount,size=...), or give the container more (--shm-size)",
    )


def gpu_memory(settings: Config) -> str:
    """Each GPU of the host has the memory that the plan counts on."""
    planned = memory.gpu_bytes(settings)
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_DEADLINE_S, check=True)
        there = min(int(line) for line in done.stdout.split()) * MIB
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"not known: {NVIDIA_SMI[0]} does not tell it ({type(error).__name__})"
    if there < planned:
        raise ResourceError(
            f"a GPU of this host has {size(there)}, and the memory plan counts on {size(planned)}: set "
            f"{GPU_KEY} = {int(there / GIB)}, and see with --dry-run that the plan fits"
        )
    return f"{size(there)}, {size(planned)} planned"


def ports(settings: Config) -> str:
    """The host can listen on its own address in the cluster."""
    address = wiring.own_address(settings)
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ResourceError(
                f"cannot listen on {address}: {error.strerror}; give Ray this host's own address (--node-ip-address)"
            ) from None
    return f"listens on {address}"


def verifiers(settings: Config) -> str:
    """Known right answers get full reward. A missing sandbox is only reported: few runs have programs."""
    return f"{asyncio.run(_verify_known_good(settings))}; {asyncio.run(self_test.describe(settings.verifiers))}"


async def _verify_known_good(settings: Config) -> str:
    scorer = wiring.scorer(settings)
    await scorer.start()
    try:
        for dataset, label, text in KNOWN_GOOD:
            prompt, completion = _question(dataset, label), _answer(text)
            (verdict,) = (await scorer.verify(prompt, completion)).values()
            if verdict.reward != 1.0:
                raise Unscorable("self_test", f"{dataset}: {text!r} for {label!r} came out as {verdict}")
    finally:
        await scorer.stop()
    return f"{len(KNOWN_GOOD)} known answers are right"


def _question(dataset: str, label: object) -> Prompt:
    return Prompt(
        draw_id=0,
        lane=_LANE,
        row="preflight:1",
        messages="",
        token_ids=np.zeros(1, np.int32),
        datasets=(dataset,),
        ground_truths=(label,),
        group_size=2,
        min_version=Version(0, 0),
    )


def _answer(text: str) -> Completion:
    return Completion(
        index=0,
        token_ids=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        spans=(Span(Version(0, 0), 0, 1),),
        finish_reason="stop",
        text=text,
    )


ONCE: Mapping[str, Callable[[Config], str]] = {
    "data": data,
    "model": model,
    "memory": memory_plan,
    "tokenizer": tokenizer,
    "environment": environment,
    "reward functions": functions,
    "redis": redis,
}
ON_HOSTS: Mapping[str, Callable[[Config], str]] = {
    "disk": disk,
    "shared memory": shared_memory,
    "GPU memory": gpu_memory,
    "ports": ports,
    "verifiers": verifiers,
}
HOLDERS: Mapping[str, Sequence[Callable[[Placement], Mapping[str, float]]]] = {
    "run directory": (Placement.learner_bundle,),
    "weights directory": (Placement.learner_bundle, Placement.engine_bundle),
    "disk": (Placement.learner_bundle,),
    "shared memory": (Placement.learner_bundle, Placement.engine_bundle),
    "object store": (Placement.learner_bundle, Placement.engine_bundle),
    "GPU memory": (Placement.learner_bundle, Placement.engine_bundle),
    "host memory": (Placement.learner_bundle, Placement.engine_bundle),
}
"""Which hosts a check concerns, if not all: ranks write checkpoints, and ranks and engines stage weights. The first two
checks compare a folder with the launcher's."""
WITHOUT_A_MODEL = ("reward functions", "redis", "ports")
"""The checks that a simulated run needs."""


def applies(check: str, settings: Config) -> bool:
    """Whether a run needs a check."""
    real = settings.run.mode == "real"
    return (real or check in WITHOUT_A_MODEL) and (check != "environment" or settings.episodes.player is not None)


def object_store(settings: Config, there: float) -> str:
    """Ray's object store of a host, of `there` bytes, holds the versions of the weights that it keeps."""
    needed = memory.object_store(settings, published_bytes(settings, _size(settings).parameters))
    if there < needed:
        raise ResourceError(
            f"Ray's object store has {size(int(there))}, and the published versions of the weights need "
            f"{size(needed)}, or Ray moves them to disk: ray start --object-store-memory {needed}"
        )
    return f"{size(int(there))}, {size(needed)} needed"


def host_memory(settings: Config, there: int) -> str:
    """A host, of `there` bytes, holds what the plan has for the host that needs most."""
    planned = settings.cluster.host_memory_gib
    if planned is not None and there < planned * GIB:
        raise ResourceError(
            f"this host has {size(there)}, and the memory plan counts on {size(int(planned * GIB))}: set "
            f"{HOST_KEY} = {int(there / GIB)}, and see with --dry-run that the plan fits"
        )
    here = memory.known(settings)
    if here is None:
        return memory.not_known(settings)
    here = with_key(here, HOST_KEY, there / GIB)
    found = memory.memory_plan(here).hosts
    memory.refuse_too_little(here, found)
    return f"{size(there)}, {size(max(place.needed for place in found.places))} needed"


def concerns(check: str, placed: Placement, resources: Mapping[str, float]) -> bool:
    """Whether a check concerns a host with these resources of Ray."""
    if check == "GPU memory" and not placed.on_gpu:
        return False
    bundles = [bundle(placed) for bundle in HOLDERS.get(check, ())]
    return not bundles or any(
        all(resources.get(name, 0.0) >= amount for name, amount in bundle.items()) for bundle in bundles
    )
