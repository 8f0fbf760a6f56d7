"""The phases before the first step: loading, waiting for the first groups, training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from olmorl.config import Config
from olmorl.messages import ActorStatus, Stage, Wait

_STAGES = {
    Stage.BATCH: "ready, waiting for the first groups",
    Stage.TRAINING: "training its first step",
    Stage.ASKING: "loading the model",
}
"""The phase of the learner before its first report. With several waits the earliest line counts."""


class Phase(NamedTuple):
    """The phase of one part of the run."""

    part: str
    what: str
    detail: str = ""
    """Changes while the phase lasts."""

    def __str__(self) -> str:
        return f"{self.part}: {self.what}{self.detail and f', {self.detail}'}"


def start_of_an_engine(settings: Config) -> str:
    """The work of an engine before it generates."""
    if settings.run.mode == "simulated":
        return "starting"
    compiles = not settings.actors.enforce_eager
    return "loading the model and compiling it" if compiles else "loading the model"


def phases(waits: Sequence[Wait], actors: Sequence[ActorStatus], num_scored: int, engine_start: str) -> Iterator[Phase]:
    """The phase of the learner and the phase of the engines.

    Args:
        num_scored: groups that are scored and not trained yet.
        engine_start: the phase of an engine that starts.
    """
    yield _learner(waits)
    states = Counter("starting" if actor.state == "starting" else "running" for actor in actors)
    if not states:
        yield Phase("engines", "starting their processes")
    if states["starting"]:
        of_all = f"{states['starting']} of {states.total()}" if states.total() > 1 else ""
        yield Phase("engines", engine_start, of_all)
    if states["running"]:
        running = sum(actor.running for actor in actors)
        yield Phase("engines", "generating", f"{running} sequences now, {num_scored} groups are scored")


def _learner(waits: Sequence[Wait]) -> Phase:
    waited_s = {wait.stage: wait.waited_s for wait in waits}
    for stage, what in _STAGES.items():
        if stage in waited_s:
            return Phase("learner", what, f"for {waited_s[stage]:.0f} s")
    return Phase("learner", _STAGES[Stage.ASKING])
