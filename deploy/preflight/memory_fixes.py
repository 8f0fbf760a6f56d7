"""The single changes of a recipe that may make a place of the memory plan fit, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from olmorl.config import Config
from olmorl.deploy.cluster.placement import GPUS_OF_A_NODE, plan
from olmorl.deploy.preflight import model_folder
from olmorl.deploy.preflight.memory_places import (
    ENGINE_GPU,
    ENGINE_HOST,
    LEARNER_GPU,
    LEARNER_HOST,
    SHARED_GPU,
)
from olmorl.errors import ModelError
from olmorl.learner.algorithm.presets import has_reference_weights
from olmorl.learner.trainer.sequence_parallel import refuse_heads

LEAST_ANSWER = 256
"""Tokens of the shortest answer limit that is proposed as a fix."""
Change = tuple[str, Any]


def changes(settings: Config, place: str) -> Iterator[Change]:
    """Keys and new values that may take memory from the place of this name."""
    if place == ENGINE_GPU:
        return _of_engine(settings)
    if place == LEARNER_GPU:
        return _of_learner(settings)
    if place == SHARED_GPU:
        return _of_shared_gpu(settings)
    return _of_gpu_host(settings, place) if plan(settings).on_gpu else _of_cpu_host(settings)


def _of_engine(settings: Config) -> Iterator[Change]:
    actors = settings.actors
    there = (settings.cluster.gpus_per_node or GPUS_OF_A_NODE) // (actors.engines_per_node or 1)
    yield from (("actors.tensor_parallel", n) for n in (2, 4, 8) if actors.tensor_parallel < n <= there)
    if actors.gpu_memory_utilization < 0.95:
        yield "actors.gpu_memory_utilization", 0.95
    yield from _shorter_answers(settings)


def _of_shared_gpu(settings: Config) -> Iterator[Change]:
    now = settings.actors.gpu_memory_utilization
    yield from (("actors.gpu_memory_utilization", n) for n in (0.7, 0.5, 0.3, 0.2) if n < now)
    yield from _of_learner(settings)


def _of_learner(settings: Config) -> Iterator[Change]:
    learner = settings.learner
    yield from _smaller_states_and_rows(settings)
    if has_reference_weights(settings) and not learner.offload_reference:
        yield "learner.offload_reference", True
    if settings.objective.special_advantage == "gae" and not learner.offload_critic:
        yield "learner.offload_critic", True
    if not learner.offload_optimizer:
        yield "learner.offload_optimizer", True
    yield from _shared_rows(settings)
    if learner.gradient_checkpointing is not False and not learner.offload_activations:
        yield "learner.gradient_checkpointing", "offload"
    yield from _more_nodes(settings)
    if settings.row_tokens == settings.longest_sample:
        yield from _shorter_answers(settings)


def _of_cpu_host(settings: Config) -> Iterator[Change]:
    yield from _smaller_states_and_rows(settings)
    yield from (("actors.kv_cache_gib", n) for n in (1.0, 0.25) if n < settings.actors.kv_cache_gib)
    if settings.row_tokens == settings.longest_sample:
        yield from _shorter_answers(settings)


def _of_gpu_host(settings: Config, place: str) -> Iterator[Change]:
    learner = settings.learner
    if place != ENGINE_HOST:
        if learner.offload_activations:
            yield "learner.gradient_checkpointing", True
        if learner.offload_optimizer:
            yield "learner.offload_optimizer", False
        if learner.offload_critic:
            yield "learner.offload_critic", False
        if learner.offload_activations:
            yield from _shared_rows(settings)
        if settings.has_deltas:
            yield "weights.full_every", 1
    if place == LEARNER_HOST:
        yield from _more_nodes(settings)
    if settings.weight_store == "ray":
        yield "weights.store", "file"


def _smaller_states_and_rows(settings: Config) -> Iterator[Change]:
    learner = settings.learner
    if learner.gradient_checkpointing is not True:
        yield "learner.gradient_checkpointing", True
    if learner.zero_stage < 3:
        yield "learner.zero_stage", 3


def _more_nodes(settings: Config) -> Iterator[Change]:
    yield from (("learner.nodes", settings.learner.nodes * n) for n in (2, 4, 8))


def _shared_rows(settings: Config) -> Iterator[Change]:
    """Larger numbers of ranks for each row that the learner's ranks and the model's heads allow."""
    sizes, placed = model_folder.architecture(Path(settings.model.path)), plan(settings)
    attention = settings.learner.has_own_attention
    for number in (2, 4, 8):
        if number > settings.learner.sequence_parallel and placed.ranks_per_node % number == 0 and attention and sizes:
            with suppress(ModelError):
                refuse_heads(sizes.heads, sizes.kv_heads, number)
                yield "learner.sequence_parallel", number


def _shorter_answers(settings: Config) -> Iterator[Change]:
    key = "sampling.max_tokens" if settings.episodes.max_tokens is None else "episodes.max_tokens"
    number = settings.longest_answer
    while number > LEAST_ANSWER:
        number //= 2
        yield key, number
