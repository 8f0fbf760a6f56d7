"""Decides what a recipe leaves to the memory plan: compiled layers, which layers are recomputed, how long rows are.

Less recomputation is tried first, with rows of the longest sample, because it gains more than longer rows do. What is
left of the GPU then goes to longer rows: fewer of them keep a GPU busier.
"""

from __future__ import annotations

from typing import NamedTuple

from olmorl.config import Config, with_key
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight.memory import MemoryPlan, known, memory_plan
from olmorl.deploy.preflight.memory_places import LEARNER_GPU, SHARED_GPU, size

COMPILE, CHECKPOINTING, ROWS = "learner.compile", "learner.gradient_checkpointing", "learner.row_tokens"
STEPS: tuple[bool | int, ...] = (False, 4, 2)
"""Which layers are recomputed: none, every fourth, every second; else all."""
FILLED = 0.95
"""Share of a GPU that they may fill: the plan is exact within some percent."""
UNIT = 256
"""Rows have multiples of this many tokens, above the longest sample."""


class Decided(NamedTuple):
    """The settings without what was open, and why, for people; empty where nothing was."""

    settings: Config
    why: str


def decided(settings: Config) -> Decided:
    """Decide by the memory plan, on GPUs and where the model is here. Elsewhere the settings stay as they are."""
    learner = settings.learner
    here = known(settings) if settings.run.mode == "real" and plan(settings).on_gpu else None
    if here is None or "auto" not in (learner.compile, learner.gradient_checkpointing, learner.row_tokens):
        return Decided(settings, "")
    changes: dict[str, bool | int] = {}
    if learner.compile == "auto":
        changes[COMPILE] = _compiles(here)
        here = with_key(here, COMPILE, changes[COMPILE])
    if learner.gradient_checkpointing == "auto":
        changes[CHECKPOINTING] = _recomputed(here)
        here = with_key(here, CHECKPOINTING, changes[CHECKPOINTING])
    if learner.row_tokens == "auto":
        changes[ROWS] = _longest_row(here)
        here = with_key(here, ROWS, changes[ROWS])
    for key, value in changes.items():
        settings = with_key(settings, key, value)
    needed, limit = _learner_gpu(here)
    shown = " and ".join(f"{key} = {str(value).lower()}" for key, value in changes.items())
    return Decided(settings, f"auto: {shown}: with them a learner GPU needs {size(needed)} of {size(limit)}")


def _compiles(settings: Config) -> bool:
    """Whether layers are compiled: where that was measured on a GPU, and torch can trace the model."""
    from olmorl.learner.algorithm.presets import resolve
    from olmorl.learner.trainer.memory import compiled_saving

    learner, model = settings.learner, settings.model
    has_critic = resolve(settings.objective, settings.longest_answer).has_critic
    alone = learner.sequence_parallel == 1 and not model.lora.rank and not has_critic
    return learner.can_compile and alone and compiled_saving(model) is not None


def _recomputed(settings: Config) -> bool | int:
    """The least recomputation that fits. What each layer keeps adds up, so two plans tell which others to try."""
    none, every = (_learner_gpu(with_key(settings, CHECKPOINTING, value)) for value in (False, True))
    for step in STEPS:
        needed = none.needed + (every.needed - none.needed) * (1 / step if step else 0)
        if needed <= FILLED * none.limit and _fits(with_key(settings, CHECKPOINTING, step)):
            return step
    return True


def _longest_row(settings: Config) -> int:
    """Tokens of the longest row that fits, at most all that a rank has for an optimizer step.

    Memory grows with the tokens of a row by a constant, but for attention that keeps all pairs.
    """
    longest, learner = settings.longest_sample, settings.learner
    rows = plan(settings).ranks // learner.sequence_parallel * learner.minibatches
    most = longest * -(-settings.schedule.prompts_per_step * settings.sampling.group_size // rows)
    if learner.attention == "eager" or most < 2 * longest:
        return longest
    once, twice = _learner_gpu(settings), _learner_gpu(with_key(settings, ROWS, 2 * longest))
    of_token = (twice.needed - once.needed) / longest
    tokens = min(most, int(longest + max(0.0, FILLED * once.limit - once.needed) / of_token))
    tokens -= tokens % UNIT
    return tokens if tokens > longest and _fits(with_key(settings, ROWS, tokens)) else longest


class _Gpu(NamedTuple):
    needed: int
    limit: int


def _learner_gpu(settings: Config) -> _Gpu:
    """The fullest kind of GPU that a learner rank is on."""
    return min(_gpus(memory_plan(settings)), key=lambda gpu: gpu.limit - gpu.needed)


def _gpus(found: MemoryPlan) -> list[_Gpu]:
    return [_Gpu(each.needed, each.limit or 0) for each in found.places if each.name in (LEARNER_GPU, SHARED_GPU)]


def _fits(settings: Config) -> bool:
    found = memory_plan(settings)
    return found.overfull is None and all(gpu.needed <= FILLED * gpu.limit for gpu in _gpus(found))
