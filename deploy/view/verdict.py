"""Names the limit of a run, in one sentence with its evidence, from a window of metric lines. Pure.

A run pays for the engines' slots and for the learner. If one of them always works, it is the limit. If both are idle at
times, sequences wait somewhere between them: for their version, for the verifiers, or in groups for their slowest
answer. Or fewer draws are in flight than there are slots. By Little's law most time goes to the place with the most
sequences.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import ceil, gcd
from typing import Any, NamedTuple

from olmorl.config import Config

Lines = Sequence[Mapping[str, Any]]
WINDOW = 16
"""The newest lines, which a verdict uses."""
LEAST_LINES = 3
"""The fewest lines for a verdict."""
PARTS = 4
"""Parts of the window that are judged separately, to estimate how sure the verdict is."""
WAITS = 0.1
"""The learner counts as waiting from this share of its time."""
IDLE = 0.2
"""Engines count as idle from this share of free slots. Some are always free for a moment: groups come as a whole."""
GAIN = 1.1
"""A run is balanced if no change makes it at least this many times as fast."""
SPARE = 1.25
"""Sequences in flight for each slot that keep engines full, though a batch trains and answers end unevenly."""


_NEEDED = {"step", "wall_s", "tokens_trained_total", "tokens_generated_total"}


class Bottleneck(StrEnum):
    """The limits of a run."""

    ACTORS = "actors"
    LEARNER = "learner"
    VERIFIERS = "verifiers"
    QUEUE = "queue"
    """Fewer draws may be in flight than the engines have slots."""
    WEIGHTS = "weights"
    DATA = "data"
    STRAGGLERS = "stragglers"
    """The slowest answers of groups and batches."""
    BALANCED = "balanced"


_SAYS = {
    Bottleneck.ACTORS: "the actors limit this run",
    Bottleneck.LEARNER: "the learner limits this run",
    Bottleneck.VERIFIERS: "the verifiers limit this run",
    Bottleneck.QUEUE: "too few prompts in flight limit this run",
    Bottleneck.WEIGHTS: "the transfer of weights limits this run",
    Bottleneck.DATA: "the data limits this run",
    Bottleneck.STRAGGLERS: "the slowest answers limit this run",
    Bottleneck.BALANCED: "learner and actors are balanced",
}


class Shape(NamedTuple):
    """The size of a run, from its recipe."""

    learner_nodes: int
    actor_nodes: float
    """A part of a node when fewer engines run than the recipe asks for."""
    group: int
    """Sequences of a group."""
    batch: int
    """Groups of a step."""
    ahead: int
    """Batches in flight in addition to the one that trains."""
    steps: int
    engines: int = 0
    """Engines on `actor_nodes`; 0: not known."""
    max_lag: int | None = None
    """`schedule.max_lag`, where `schedule.depth` sets `ahead`."""
    learner_unit: int = 1
    """The number of learner nodes is a multiple of it: ranks share rows."""
    actor_unit: int = 1
    """The number of actor nodes is a multiple of it: an engine has several."""

    @classmethod
    def of(cls, settings: Config, engines: int = 0) -> Shape:
        """The shape of a recipe, which starts so many engines."""
        schedule, learner = settings.schedule, settings.learner
        return cls(
            learner_nodes=settings.learner.nodes,
            actor_nodes=settings.actors.nodes,
            group=settings.sampling.group_size,
            batch=schedule.prompts_per_step,
            ahead=schedule.batches_ahead,
            steps=schedule.steps,
            engines=engines,
            max_lag=None if schedule.depth is None else schedule.max_lag,
            learner_unit=learner.sequence_parallel // gcd(learner.sequence_parallel, learner.ranks_per_node),
            actor_unit=settings.actors.nodes_per_engine,
        )

    def with_engines(self, engines: int | None) -> Shape:
        """The shape while so many engines run. `olmorl-ctl RUN actors` changes their number."""
        if not engines or not self.engines:
            return self
        return self._replace(actor_nodes=self.actor_nodes * engines / self.engines, engines=engines)


class RunVerdict(NamedTuple):
    """The limit of a run, with its certainty, its evidence and a remedy."""

    limit: Bottleneck
    sure: float
    """0 to 1."""
    evidence: str
    advice: str
    """Empty if there is nothing to change."""
    actors_per_learner: float | None
    """Actor nodes for each learner node at which neither would wait for the other; None while unknown."""

    @property
    def text(self) -> str:
        """One sentence and what to do."""
        said = f"{_SAYS[self.limit]} ({self.sure:.0%} sure): {self.evidence}"
        return f"{said}; {self.advice}" if self.advice else said

    def fields(self) -> dict[str, Any]:
        """The verdict as a table of plain values."""
        return {**self._asdict(), "limit": str(self.limit), "text": self.text}


class WindowMeans(NamedTuple):
    """Means over time of a window. Sequences are counted over all actors."""

    step_s: float
    learner_wait: float
    """Share of the time without a batch."""
    publish_wait: float
    """Share of the time in which the learner waits for the publication of the version before."""
    publish_s: float
    stall: float
    """Share of the engines' time in updates."""
    slots: float
    slots_used: float
    """Share of the slots."""
    awaiting_weights: float
    awaiting_verdicts: float
    awaiting_group: float
    ready: float
    """Sequences of finished groups that wait for a step."""
    completions_per_s: float
    trained_per_s: float
    """Tokens that feed the loss per second."""
    learner_per_s: float
    """Tokens per second that the learner trains when it does not wait."""
    actors_per_s: float | None
    """Tokens per second that full engines generate and the learner trains, without filtered, failed and stale ones."""

    @property
    def idle(self) -> float:
        return 1 - self.slots_used


def verdict(lines: Lines, shape: Shape) -> RunVerdict | None:
    """The verdict over the newest lines of a run; None while there are too few.

    Args:
        lines: metric lines, oldest first.
    """
    lines = [line for line in lines if line.keys() >= _NEEDED]
    # The first batches find empty engines, and nothing is generated during the last ones: neither is the usual state.
    steady = [line for line in lines if shape.ahead + 1 < line["step"] <= shape.steps - shape.ahead]
    window = (steady if len(steady) > LEAST_LINES else list(lines))[-WINDOW - 1 :]
    measured = measure(window, shape)
    if measured is None:
        return None
    shape = shape.with_engines(window[-1].get("engines"))
    if lines[-1].get("data_ended"):
        return RunVerdict(
            Bottleneck.DATA,
            1.0,
            _evidence(Bottleneck.DATA, measured, shape),
            _advice(Bottleneck.DATA, measured, shape),
            None,
        )
    limit, ratio = judge(measured, shape), balance(measured, shape)
    judged = [judge(found, shape) for part in _parts(window) if (found := measure(part, shape))]
    number = len(window) - 1
    # The whole window has a vote too. A verdict from few lines is never sure.
    sure = (Counter(judged)[limit] + 1) / (len(judged) + 1) * number / (number + 1)
    return RunVerdict(limit, sure, _evidence(limit, measured, shape), _advice(limit, measured, shape), ratio)


def _parts(window: Lines) -> Iterator[Lines]:
    """The window in parts of equal length; each begins with the last line of the part before."""
    size = max((len(window) - 1) // PARTS, LEAST_LINES)
    for first in range(0, len(window) - size, size):
        yield window[first : first + size + 1]


def measure(lines: Lines, shape: Shape) -> WindowMeans | None:
    """The means after the first line; None for fewer than `LEAST_LINES` others, or without a heartbeat among them."""
    if len(lines) <= LEAST_LINES:
        return None
    seconds = {id(line): line["wall_s"] - before["wall_s"] for before, line in pairwise(lines)}
    counted, before, last = lines[1:], lines[0], lines[-1]
    wall_s = max(last["wall_s"] - before["wall_s"], 1e-9)

    def mean(name: str) -> float | None:
        """The mean over time of the lines that have the field."""
        there = [(line[name], seconds[id(line)]) for line in counted if line.get(name) is not None]
        total = sum(weight for _, weight in there)
        return sum(value * weight for value, weight in there) / total if total else None

    def share(name: str) -> float:
        return float(min(sum(line.get(name) or 0.0 for line in counted) / wall_s, 1.0))

    slots, used = mean("engine_slots"), mean("engine_slots_fraction")
    if slots is None or used is None:
        return None
    wait, publish_wait, stall = share("learner_wait_s"), share("learner_publish_wait_s"), share("weight_stall_s_mean")
    trained = last["tokens_trained_total"] - before["tokens_trained_total"]
    generated = last["tokens_generated_total"] - before["tokens_generated_total"]
    capacity, length = mean("engine_capacity_tokens_per_s"), mean("completion_tokens_mean")
    speed = mean("actor_tokens_per_s") or 0.0
    return WindowMeans(
        step_s=wall_s / len(counted),
        learner_wait=wait,
        publish_wait=publish_wait,
        publish_s=mean("weight_publish_s") or 0.0,
        stall=stall,
        slots=slots,
        slots_used=used,
        awaiting_weights=mean("sequences_awaiting_weights") or 0.0,
        awaiting_verdicts=mean("sequences_awaiting_verdicts") or 0.0,
        awaiting_group=mean("sequences_awaiting_group") or 0.0,
        ready=(mean("groups_ready") or 0.0) * shape.group,
        completions_per_s=speed / length if length else 0.0,
        trained_per_s=trained / wall_s,
        learner_per_s=trained / (wall_s * max(1 - wait - publish_wait, 1e-3)),
        actors_per_s=None if capacity is None or not generated else capacity * (1 - stall) * trained / generated,
    )


def judge(measured: WindowMeans, shape: Shape) -> Bottleneck:
    """The limit of a run with these means."""
    engines_idle = measured.idle >= IDLE
    if measured.learner_wait < WAITS:
        if measured.publish_wait >= WAITS:
            return Bottleneck.WEIGHTS
        gain = _gain_of_nodes(measured, measured.actors_per_s or measured.trained_per_s, shape)
        return Bottleneck.LEARNER if engines_idle and gain >= GAIN else Bottleneck.BALANCED
    # Compares other nodes with the engines as they are, and the same nodes with full engines.
    nodes = _gain_of_nodes(measured, measured.trained_per_s, shape)
    full = min(1 / max(measured.slots_used, 1e-3), 1 / max(1 - measured.learner_wait, 1e-3))
    if not engines_idle or nodes > full:
        return Bottleneck.ACTORS if nodes >= GAIN else Bottleneck.BALANCED
    held = _held(measured, shape)
    return max(held, key=lambda limit: held[limit]) if full >= GAIN else Bottleneck.BALANCED


def _gain_of_nodes(measured: WindowMeans, actors_per_s: float, shape: Shape) -> float:
    """How many times as fast the best split of the same nodes is."""
    learner, actors = measured.learner_per_s / shape.learner_nodes, actors_per_s / shape.actor_nodes
    if not learner or not actors:
        return 1.0
    best = (shape.learner_nodes + shape.actor_nodes) * learner * actors / (learner + actors)
    return best / measured.trained_per_s


def _held(measured: WindowMeans, shape: Shape) -> dict[Bottleneck, float]:
    """The number of sequences that each limit keeps away from empty slots."""
    sequences = shape.batch * shape.group
    under_way = (shape.ahead + measured.learner_wait) * sequences
    # Draws are allowed only for published versions. The draws of a version in transfer are held back.
    held_back = min(measured.publish_s / measured.step_s, 1.0) * sequences
    return {
        Bottleneck.QUEUE: max(measured.slots - under_way, 0.0),
        Bottleneck.WEIGHTS: measured.awaiting_weights + measured.stall * measured.slots + held_back,
        Bottleneck.VERIFIERS: measured.awaiting_verdicts,
        # Ready groups while the learner waits are too few for a batch, or leave room for older ones.
        Bottleneck.STRAGGLERS: measured.awaiting_group + measured.ready * measured.learner_wait,
    }


def balance(measured: WindowMeans, shape: Shape) -> float | None:
    """Actor nodes for each learner node at which both are always busy."""
    if not measured.actors_per_s or not measured.learner_per_s:
        return None
    return (measured.learner_per_s / shape.learner_nodes) / (measured.actors_per_s / shape.actor_nodes)


def _evidence(limit: Bottleneck, measured: WindowMeans, shape: Shape) -> str:
    both = f"the learner waits {measured.learner_wait:.0%} of the time, engine slots are {measured.slots_used:.0%} full"
    match limit:
        case Bottleneck.VERIFIERS:
            wait_s = measured.awaiting_verdicts / measured.completions_per_s if measured.completions_per_s else 0.0
            return f"{both}, {measured.awaiting_verdicts:,.0f} answers wait for verdicts, each {wait_s:.1f} s"
        case Bottleneck.QUEUE:
            allowed = (shape.ahead + 1) * shape.batch * shape.group
            return f"{both}, {allowed:,} sequences may be in flight for {measured.slots:,.0f} slots"
        case Bottleneck.WEIGHTS:
            return ", ".join(
                [
                    both,
                    f"{measured.awaiting_weights:,.0f} sequences wait for a version",
                    f"publishing takes {measured.publish_s:.1f} of {measured.step_s:.1f} s a step",
                    f"updates stall engines {measured.stall:.0%} of the time",
                ]
            )
        case Bottleneck.STRAGGLERS:
            return f"{both}, {measured.awaiting_group + measured.ready:,.0f} finished answers wait for slower ones"
        case Bottleneck.DATA:
            return f"every row was drawn, {both}"
        case _:
            return both


def _advice(limit: Bottleneck, measured: WindowMeans, shape: Shape) -> str:
    sequences = shape.batch * shape.group
    match limit:
        case Bottleneck.ACTORS | Bottleneck.LEARNER | Bottleneck.BALANCED:
            return _split(balance(measured, shape), shape)
        case Bottleneck.QUEUE:
            ahead = max(ceil(SPARE * measured.slots / sequences), shape.ahead + 1)
            batch = ceil(SPARE * measured.slots / (shape.group * max(shape.ahead, 1)))
            return f"{_raise(ahead, shape)} or schedule.prompts_per_step to {batch}"
        case Bottleneck.STRAGGLERS:
            missing = ceil((measured.awaiting_group + measured.ready * measured.learner_wait) / sequences)
            ahead = shape.ahead + max(missing, 1)
            return f"{_raise(ahead, shape)}, or lower sampling.max_tokens"
        case Bottleneck.VERIFIERS:
            return "raise verifiers.workers on hosts with free cores, or make the slowest verifier faster"
        case Bottleneck.WEIGHTS:
            return "raise weights.publish_every or schedule.max_lag, or choose a faster weights.store"
        case Bottleneck.DATA:
            return "give more rows, or raise data.epochs"


def _raise(ahead: int, shape: Shape) -> str:
    """The order to have more batches ahead."""
    if shape.max_lag is None:
        return f"raise schedule.max_lag to {ahead} (now {shape.ahead})"
    also = f", schedule.max_lag to {ahead} (now {shape.max_lag})" if ahead > shape.max_lag else ""
    return f"raise schedule.depth to {ahead} (now {shape.ahead}){also}"


def _split(ratio: float | None, shape: Shape) -> str:
    """The split of the nodes that keeps both busy."""
    if ratio is None:
        return ""
    now = shape.actor_nodes / shape.learner_nodes
    said = f"balanced at {ratio:.2g} actor nodes for each learner node (now {now:.2g})"
    nodes = round(shape.learner_nodes + shape.actor_nodes)
    learner = min(max(round(nodes / (1 + ratio)), 1), nodes - 1) // shape.learner_unit * shape.learner_unit
    actors = (nodes - learner) // shape.actor_unit * shape.actor_unit
    if nodes > 2 and learner and actors and learner != shape.learner_nodes:
        said += f": --learner-nodes {learner} --actor-nodes {actors}"
    return said


class VerdictWindow:
    """Keeps the newest lines of a run. A step that is trained again replaces its line and all later ones."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=WINDOW + shape.ahead + 2)
        self.latest: RunVerdict | None = None

    def add(self, lines: Lines) -> None:
        """Add new lines, oldest first; known lines change nothing."""
        if not lines or (self._lines and lines[-1] == self._lines[-1]):
            return
        for line in lines:
            while self._lines and self._lines[-1]["step"] >= line["step"]:
                self._lines.pop()
            self._lines.append(line)
        self.latest = verdict(list(self._lines), self._shape)
