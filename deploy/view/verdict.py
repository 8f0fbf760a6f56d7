"""Names the limit of a run, in one sentence with its evidence, from a window of metric lines. Pure.

A run pays for the engines' slots and for the learner. If one of them always works, it is the limit. If both are idle at
times, sequences wait somewhere between them: for their version, for the verifiers, or in groups for their slowest
answer. Or fewer draws are in flight than there are slots. By Little's law most time goes to the place with the most
sequences. And some tokens are generated for nothing: those of groups without a gradient, and of draws that fail or
become too old. The limit is the lever that makes the run fastest by these figures.
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
_SMALL = 0.01
"""A share below this is not worth a word."""
OLD = 3.0
"""A verdict is old once no line has come for so many steps, and for `OLD_S`."""
OLD_S = 60.0
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
    FILTERED = "filtered"
    """Groups without a gradient: all answers right, or all wrong."""
    FAULTS = "faults"
    """Generated tokens that are lost with their attempt, fail or become too old."""
    BALANCED = "balanced"


_SAYS = {
    Bottleneck.ACTORS: "the actors limit this run",
    Bottleneck.LEARNER: "the learner limits this run",
    Bottleneck.VERIFIERS: "the verifiers limit this run",
    Bottleneck.QUEUE: "too few prompts in flight limit this run",
    Bottleneck.WEIGHTS: "the transfer of weights limits this run",
    Bottleneck.DATA: "the data limits this run",
    Bottleneck.STRAGGLERS: "the slowest answers limit this run",
    Bottleneck.FILTERED: "groups without a gradient limit this run",
    Bottleneck.FAULTS: "lost work limits this run",
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


class Lever(NamedTuple):
    """A limit, and what the run would gain without it."""

    limit: Bottleneck
    gain: float
    """How many times as fast the run would be, at most."""


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
    levers: Sequence[Lever] = ()
    """All levers that are worth it, the best first."""

    @property
    def text(self) -> str:
        """One sentence, what to do, and the ranking when there is more than one lever."""
        said = f"{_SAYS[self.limit]} ({self.sure:.0%} sure): {self.evidence}"
        ranked = ", ".join(f"{lever.limit} {lever.gain:.2g} times" for lever in self.levers)
        more = (self.advice, f"possible speed-ups: {ranked}" if len(self.levers) > 1 else "")
        return "; ".join([said, *filter(None, more)])

    def fields(self) -> dict[str, Any]:
        """The verdict as a table of plain values."""
        levers = [{"limit": str(lever.limit), "gain": lever.gain} for lever in self.levers]
        return {**self._asdict(), "limit": str(self.limit), "levers": levers, "text": self.text}


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
    filtered: float = 0.0
    """Share of the tokens of scored groups that are of groups without a gradient."""
    stale: float = 0.0
    """Share of the generated tokens that became too old."""
    failed: float = 0.0
    """Share of the generated tokens that are of failed draws."""
    lost: float = 0.0
    """Share of the generated tokens in attempts without a result."""
    solve_rate: float | None = None

    @property
    def faults(self) -> float:
        return self.stale + self.failed + self.lost

    @property
    def full_actors_per_s(self) -> float:
        """Trained tokens per second of full engines: what they give now, if they are full and the learner waits."""
        if self.actors_per_s is None or (self.learner_wait >= WAITS and self.idle < IDLE):
            return self.trained_per_s
        return self.actors_per_s

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
    ranked, ratio = levers(measured, shape), balance(measured, shape)
    limit = ranked[0].limit if ranked else Bottleneck.BALANCED
    judged = [judge(found, shape) for part in _parts(window) if (found := measure(part, shape))]
    number = len(window) - 1
    # The whole window has a vote too. A verdict from few lines is never sure.
    sure = (Counter(judged)[limit] + 1) / (len(judged) + 1) * number / (number + 1)
    return RunVerdict(limit, sure, _evidence(limit, measured, shape), _advice(limit, measured, shape), ratio, ranked)


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

    def grown(outcome: str) -> float:
        name = f"tokens_{outcome}_total"
        return float(last.get(name, 0) - before.get(name, 0))

    trained, generated, filtered = grown("trained"), grown("generated"), grown("zero_gradient")
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
        filtered=filtered / max(filtered + trained + grown("masked"), 1),
        stale=grown("stale") / max(generated, 1),
        failed=grown("failed") / max(generated, 1),
        lost=grown("lost") / max(generated, 1),
        solve_rate=mean("solve_rate_mean"),
    )


def judge(measured: WindowMeans, shape: Shape) -> Bottleneck:
    """The limit of a run with these means."""
    ranked = levers(measured, shape)
    return ranked[0].limit if ranked else Bottleneck.BALANCED


def levers(measured: WindowMeans, shape: Shape) -> list[Lever]:
    """What makes the run at least `GAIN` times as fast, the largest gain first."""
    gains = _gains(measured, shape)
    return [Lever(limit, gain) for limit, gain in sorted(gains.items(), key=lambda each: -each[1]) if gain >= GAIN]


def _gains(measured: WindowMeans, shape: Shape) -> dict[Bottleneck, float]:
    """How many times as fast the run is without each limit. Of equal gains the first comes first."""
    idle, nodes = measured.idle >= IDLE, _gain_of_nodes(measured, shape)
    if measured.learner_wait < WAITS:
        # Nothing but the learner's own time matters.
        published = 1 / max(1 - measured.publish_wait, 1e-3)
        return {Bottleneck.WEIGHTS: published} | ({Bottleneck.LEARNER: nodes} if idle else {})
    most = 1 / max(1 - measured.learner_wait, 1e-3)
    used = max(measured.slots_used * measured.slots, 1e-3)
    full = min(measured.slots / used, most)
    held = _held(measured, shape) if idle else {}
    by_held = sorted(held, key=lambda limit: -held[limit])
    # The best data leave groups without a gradient too, by chance: each answer is right or wrong with the same chance.
    by_chance = 2 * 0.5**shape.group
    gains = {limit: min(1 + held[limit] / used, full) for limit in by_held}
    gains[Bottleneck.FILTERED] = min((1 - by_chance) / max(1 - measured.filtered, 1e-3), most)
    gains[Bottleneck.FAULTS] = min(1 / max(1 - measured.faults, 1e-3), most)
    return gains | {Bottleneck.ACTORS: nodes}


def _gain_of_nodes(measured: WindowMeans, shape: Shape) -> float:
    """How many times as fast the best split of the same nodes is, with full engines before and after."""
    actors_per_s = measured.full_actors_per_s
    learner, actors = measured.learner_per_s / shape.learner_nodes, actors_per_s / shape.actor_nodes
    if not learner or not actors:
        return 1.0
    best = (shape.learner_nodes + shape.actor_nodes) * learner * actors / (learner + actors)
    return best / min(measured.learner_per_s, actors_per_s)


def _held(measured: WindowMeans, shape: Shape) -> dict[Bottleneck, float]:
    """The number of sequences that each limit keeps away from empty slots."""
    sequences = shape.batch * shape.group
    under_way = (shape.ahead + measured.learner_wait) * sequences
    # Draws are allowed only for published versions. The draws of a version in transfer are held back.
    held_back = min(measured.publish_s / measured.step_s, 1.0) * sequences
    held = {
        Bottleneck.WEIGHTS: measured.awaiting_weights + measured.stall * measured.slots + held_back,
        Bottleneck.VERIFIERS: measured.awaiting_verdicts,
        # Ready groups while the learner waits are too few for a batch, or leave room for older ones.
        Bottleneck.STRAGGLERS: measured.awaiting_group + measured.ready * measured.learner_wait,
    }
    # Slots that stay empty although nothing else is known to wait need more sequences.
    unexplained = measured.idle * measured.slots - sum(held.values())
    return held | {Bottleneck.QUEUE: max(measured.slots - under_way, unexplained, 0.0)}


def balance(measured: WindowMeans, shape: Shape) -> float | None:
    """Actor nodes for each learner node at which both are always busy."""
    if not measured.actors_per_s or not measured.learner_per_s:
        return None
    return (measured.learner_per_s / shape.learner_nodes) / (measured.full_actors_per_s / shape.actor_nodes)


def _evidence(limit: Bottleneck, measured: WindowMeans, shape: Shape) -> str:
    both = f"the learner waits {measured.learner_wait:.0%} of the time, engine slots are {measured.slots_used:.0%} full"
    match limit:
        case Bottleneck.VERIFIERS:
            wait_s = measured.awaiting_verdicts / measured.completions_per_s if measured.completions_per_s else 0.0
            return f"{both}, {measured.awaiting_verdicts:,.0f} answers wait for verdicts, each {wait_s:.1f} s"
        case Bottleneck.QUEUE:
            allowed = (shape.ahead + 1) * shape.batch * shape.group
            unexplained = "" if allowed < measured.slots else ", and no other wait explains the free ones"
            return f"{both}, {allowed:,} sequences may be in flight for {measured.slots:,.0f} slots{unexplained}"
        case Bottleneck.WEIGHTS:
            return ", ".join([both, *_of_weights(measured)])
        case Bottleneck.FILTERED:
            right = "" if measured.solve_rate is None else f" ({measured.solve_rate:.0%} of the answers are right)"
            return f"{both}, {measured.filtered:.0%} of the scored tokens are of groups without a gradient{right}"
        case Bottleneck.FAULTS:
            parts = {
                "became too old": measured.stale,
                "failed": measured.failed,
                "were in attempts without a result": measured.lost,
            }
            shares = [f"{share:.0%} {what}" for what, share in parts.items() if share >= _SMALL]
            return f"{both}, of the generated tokens {', '.join(shares)}"
        case Bottleneck.STRAGGLERS:
            return f"{both}, {measured.awaiting_group + measured.ready:,.0f} finished answers wait for slower ones"
        case Bottleneck.DATA:
            return f"every row was drawn, {both}"
        case _:
            return both


def _of_weights(measured: WindowMeans) -> Iterator[str]:
    """What the transfer of weights costs. A cost that rounds to nothing is not worth a word."""
    if measured.awaiting_weights >= 1:
        yield f"{measured.awaiting_weights:,.0f} sequences wait for a version"
    if measured.publish_s >= _SMALL * measured.step_s:
        yield f"publishing takes {measured.publish_s:.2g} of {measured.step_s:.2g} s a step"
    if measured.publish_wait >= _SMALL:
        yield f"the learner waits {measured.publish_wait:.0%} of the time until a version is published"
    if measured.stall >= _SMALL:
        yield f"updates stall engines {measured.stall:.0%} of the time"


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
        case Bottleneck.FILTERED:
            other = "easier" if (measured.solve_rate or 0.0) < 0.5 else "harder"
            return f"give {other} rows (olmorl-verify finds them by pass rate), or raise sampling.group_size"
        case Bottleneck.FAULTS:
            return _mend(measured)


def _mend(measured: WindowMeans) -> str:
    """The remedy for most of the lost work."""
    remedies = {
        "raise schedule.max_lag, or use fewer actors": measured.stale,
        "failures_* in metrics.jsonl and failed groups in rollouts/ have the causes": measured.failed,
        "`olmorl-ctl RUN status` names dead actors; answers that are too old need more schedule.max_lag": measured.lost,
    }
    return max(remedies, key=lambda remedy: remedies[remedy])


def _raise(ahead: int, shape: Shape) -> str:
    """The order to have more batches ahead."""
    if shape.max_lag is None:
        return f"raise schedule.max_lag to {ahead} (now {shape.ahead})"
    also = f", schedule.max_lag to {ahead} (now {shape.max_lag})" if ahead > shape.max_lag else ""
    return f"raise schedule.depth to {ahead} (now {shape.ahead}){also}"


def _split(ratio: float | None, shape: Shape) -> str:
    """The split of the nodes that keeps both busy."""
    now = shape.actor_nodes / shape.learner_nodes
    if ratio is None or f"{ratio:.2g}" == f"{now:.2g}":
        return ""
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
        self._newest: float | None = None
        self._came_at = 0.0

    @property
    def lines(self) -> Lines:
        """The newest lines, oldest first."""
        return list(self._lines)

    def current(self, now: float) -> RunVerdict | None:
        """The verdict at time `now` (s, monotonic). None before there is one, and when its lines are old."""
        if not self._lines:
            return None
        newest = self._lines[-1]["wall_s"]
        if newest != self._newest:
            self._newest, self._came_at = newest, now
        step_s = (newest - self._lines[0]["wall_s"]) / max(len(self._lines) - 1, 1)
        return self.latest if now - self._came_at <= max(OLD * step_s, OLD_S) else None

    def add(self, lines: Lines) -> None:
        """Add new lines, oldest first; known lines change nothing."""
        if not lines or (self._lines and lines[-1] == self._lines[-1]):
            return
        for line in lines:
            while self._lines and self._lines[-1]["step"] >= line["step"]:
                self._lines.pop()
            self._lines.append(line)
        self.latest = verdict(list(self._lines), self._shape)
