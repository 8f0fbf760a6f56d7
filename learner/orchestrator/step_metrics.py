"""Makes the lines of `metrics.jsonl`. A rate is a count over the wall time between two lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import asdict

from olmorl import metrics
from olmorl.learner.background import in_thread
from olmorl.learner.batching.batch import BatchFacts
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.ledger_state import LedgerState, Outcome
from olmorl.learner.storage.metrics_log import Fields, MetricsLog
from olmorl.messages import ActorStatus, StepReport
from olmorl.ports import Counts

SPREAD = 2.0
"""The tokens of one heartbeat are spread over this many intervals, because the next heartbeat may be late."""
KEPT = 0.99
"""With each new heartbeat the earlier ones keep this share of their weight in the fit of the speed."""
USUAL_SLOWDOWN = 0.2
"""Assumed share of a token's time that grows with the number of sequences."""
LEAST_SPREAD = 0.1
"""Relative spread of the number of running sequences at which the heartbeats count as much as the assumption."""
WAITS = ("weights", "verdicts", "group", "environment")
_SUMS = (
    *("up_s", "busy_s", "running_s", "slots_s", *(f"awaiting_{name}_s" for name in WAITS)),
    *("flops", "moved_bytes", "scored_s"),
)


@dataclass
class ActorTotals:
    """Sums over all actors since a point in time. An actor that was restarted counts from zero."""

    updates: int = 0
    stall_s: float = 0.0
    stall_s_max: float = 0.0
    proofs: int = 0
    proof_diff: float = 0.0
    proof_diff_max: float = 0.0
    proof_s: float = 0.0


class TokenCount:
    """Every token belongs to exactly one line. The tokens of a heartbeat are spread over the time until the next one.

    So a step that is shorter than a heartbeat interval gets its share of the tokens too.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[float, float, float]] = []

    def heard(self, now: float, seconds: float, tokens: int) -> None:
        """Add a heartbeat with `tokens` since the actor's previous one, `seconds` ago; 0 for the first."""
        if tokens:
            self._parts.append((now, now + SPREAD * max(seconds, 0.0), tokens))

    def between(self, since: float, now: float) -> float:
        """The tokens from `since` until now. Later calls begin here."""
        found = sum(tokens * _overlap(begin, end, since, now) for begin, end, tokens in self._parts)
        self._parts = [part for part in self._parts if part[1] > now]
        return found


def _overlap(begin: float, end: float, since: float, now: float) -> float:
    """The share of [begin, end] that is between `since` and `now`; 0 or 1 for a single moment."""
    if end <= begin:
        return float(begin <= now)
    return max(min(end, now) - max(begin, since), 0.0) / (end - begin)


class TimeMean:
    """The mean over time of a number. The value that was noted last holds until the next note."""

    def __init__(self, now: float) -> None:
        self._value = 0.0
        self._since = self._noted_at = now
        self._sum = 0.0

    def note(self, value: float, now: float) -> None:
        """Note a new value at time `now` (s)."""
        self._sum += (now - self._noted_at) * self._value
        self._value, self._noted_at = value, now

    def take(self, now: float) -> float:
        """The mean since the last call."""
        self.note(self._value, now)
        seconds, total = now - self._since, self._sum
        self._since, self._sum = now, 0.0
        return total / seconds if seconds > 0 else self._value


@dataclass
class SpeedFit:
    """The time of a token of one sequence is a linear function of the number of running sequences.

    Fitted to heartbeats by least squares, with weights that fade. `USUAL_SLOWDOWN` is a prior on the slope, as strong
    as observations with the spread `LEAST_SPREAD`: engines with a constant number of sequences do not show the slope.
    """

    _weight: float = 0.0
    _n: float = 0.0
    _y: float = 0.0
    _nn: float = 0.0
    _ny: float = 0.0

    def note(self, tokens: int, busy_s: float, running_s: float) -> None:
        """Add the tokens and times of one engine in one interval."""
        if tokens <= 0 or busy_s <= 0 or running_s <= 0:
            return
        number, token_s = running_s / busy_s, running_s / tokens
        values = (busy_s, busy_s * number, busy_s * token_s, busy_s * number**2, busy_s * number * token_s)
        old = (self._weight, self._n, self._y, self._nn, self._ny)
        self._weight, self._n, self._y, self._nn, self._ny = (KEPT * a + b for a, b in zip(old, values, strict=True))

    def tokens_per_s(self, sequences: float) -> float | None:
        """Tokens per second of an engine that runs this many sequences; None before the first observation."""
        if not self._weight or sequences <= 0:
            return None
        mean_n, mean_y = self._n / self._weight, self._y / self._weight
        variance = max(self._nn / self._weight - mean_n**2, 0.0)
        covariance = self._ny / self._weight - mean_n * mean_y
        usual, trust = USUAL_SLOWDOWN * mean_y / mean_n, (LEAST_SPREAD * mean_n) ** 2
        slope = (covariance + trust * usual) / (variance + trust)
        # Time of a token grows with the batch, and at most in proportion.
        slope = min(max(slope, 0.0), mean_y / mean_n)
        return sequences / (mean_y + slope * (sequences - mean_n))


@dataclass
class EngineTimes:
    """How busy the engines were since the last line. Each second of a heartbeat counts in one line."""

    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    _speed: SpeedFit = field(default_factory=SpeedFit)
    _engines: int = 0
    _most_flops: float = 0.0
    _most_bytes: float = 0.0
    """The most that the devices could have done since the last line."""

    def heard(self, status: ActorStatus, before: ActorStatus) -> None:
        """Add an actor's times since its heartbeat `before`, which has none if the actor started since."""
        now, then = asdict(status), asdict(before)
        grown = {name: max(now[name] - then[name], 0.0) for name in _SUMS}
        for name, seconds in grown.items():
            self._sums[name] += seconds
        self._most_flops += grown["up_s"] * status.peak_flops_per_s
        self._most_bytes += grown["up_s"] * status.peak_bytes_per_s
        self._speed.note(status.tokens_generated - before.tokens_generated, grown["busy_s"], grown["running_s"])

    def count(self, engines: int) -> None:
        """Note how many engines are up."""
        self._engines = engines

    def fields(self) -> Fields:
        """The fields of a line; None where no heartbeat came. The next line begins here."""
        sums, self._sums = self._sums, dict.fromkeys(_SUMS, 0.0)
        most_flops, most_bytes, self._most_flops, self._most_bytes = self._most_flops, self._most_bytes, 0.0, 0.0
        up_s, engines = sums["up_s"], self._engines
        if not up_s or not engines:
            names = ("slots", "busy_fraction", "slots_fraction", "capacity_tokens_per_s", "mfu", "mbu")
            return {
                "engines": engines,
                "weight_proof_fraction": None,
                **{f"engine_{name}": None for name in names},
                **{f"sequences_awaiting_{name}": None for name in WAITS},
            }
        slots = sums["slots_s"] / up_s
        capacity = self._speed.tokens_per_s(slots)
        return {
            "engines": engines,
            "weight_proof_fraction": sums["scored_s"] / up_s,
            "engine_slots": slots * engines,
            "engine_busy_fraction": min(sums["busy_s"] / up_s, 1.0),
            "engine_slots_fraction": min(sums["running_s"] / sums["slots_s"], 1.0) if sums["slots_s"] else None,
            "engine_mfu": sums["flops"] / most_flops if most_flops else None,
            "engine_mbu": sums["moved_bytes"] / most_bytes if most_bytes else None,
            "engine_capacity_tokens_per_s": None if capacity is None else capacity * engines,
            **{f"sequences_awaiting_{name}": sums[f"awaiting_{name}_s"] / up_s * engines for name in WAITS},
        }


class StepMetrics:
    """Every heartbeat counts once, in the line of the step in which it arrives."""

    def __init__(
        self,
        log: MetricsLog,
        disk: DiskWriter,
        now: float,
        wall_s: float,
        statuses: Mapping[str, ActorStatus],
        lost: Mapping[str, int],
    ) -> None:
        """`wall_s` is the time that the run took before this start; `statuses` are the totals of the actors then.

        `lost` are the tokens of lost attempts that the ledger has, by process of an actor.
        """
        self._log = log
        self._disk = disk
        self._started = now - wall_s
        self._last_line = now
        self._seen = dict(statuses)
        self._counted = Counter(lost)
        self._lost: Counter[str] = Counter()
        """Tokens of lost attempts that the ledger does not have, by process of an actor."""
        self._window = ActorTotals()
        self._tokens = TokenCount()
        self._engines = EngineTimes()
        self._ready = TimeMean(now)
        self._publish_s = 0.0

    async def append(self, line: Fields) -> None:
        """Add a line to `metrics.jsonl`."""
        await self._disk.write(partial(in_thread, self._log.append, line))

    async def amend(self, fields: Fields) -> None:
        """Add fields to the last line."""
        await self._disk.write(partial(in_thread, self._log.amend, fields))

    async def sync(self) -> None:
        """Make all lines durable."""
        await in_thread(self._log.sync)

    def published(self, seconds: float) -> None:
        """Note how long publishing the newest version took."""
        self._publish_s = seconds

    def ready(self, groups: int, now: float) -> None:
        """Note how many groups wait for a step."""
        self._ready.note(groups, now)

    def heard(self, statuses: Mapping[str, ActorStatus], now: float) -> None:
        """Add the counts of the actors since their last heartbeats."""
        for name in self._seen.keys() - statuses.keys():
            del self._seen[name]
        for name, status in statuses.items():
            before = self._seen.get(name)
            if status is before:
                continue  # heartbeats are read more often than they come
            if before is None or status.pid != before.pid or status.tokens_generated < before.tokens_generated:
                if before:
                    self._count_unfinished(before)
                before = ActorStatus(name=name, at=status.at)
            if self._seen.get(name) is None or status.at != self._seen[name].at:
                tokens = status.tokens_generated - before.tokens_generated
                self._tokens.heard(now, status.at - before.at, tokens)
                self._engines.heard(status, before)
            self._seen[name] = status
            self._count_lost(status, status.tokens_wasted)
            if updates := status.updates - before.updates:
                stall_s = status.stall_s_total - before.stall_s_total
                # A new longest stall is known exactly. Otherwise use the mean: updates are rarer than heartbeats.
                longest = status.stall_s_max if status.stall_s_max > before.stall_s_max else stall_s / updates
                self._window.updates += updates
                self._window.stall_s += stall_s
                self._window.stall_s_max = max(self._window.stall_s_max, longest)
            if proofs := status.proofs - before.proofs:
                diff = status.proof_diff_total - before.proof_diff_total
                largest = status.proof_diff_max if status.proof_diff_max > before.proof_diff_max else diff / proofs
                self._window.proofs += proofs
                self._window.proof_diff += diff
                self._window.proof_diff_max = max(self._window.proof_diff_max, largest)
                self._window.proof_s += status.proof_s_total - before.proof_s_total
        self._engines.count(sum(status.up_s > 0 for status in statuses.values()))

    def died(self, name: str) -> None:
        """Count the unfinished work of an actor as lost. One that left in order has none."""
        if status := self._seen.get(name):
            self._count_unfinished(status)

    def _count_unfinished(self, gone: ActorStatus) -> None:
        self._count_lost(gone, gone.tokens_generated - gone.tokens_stored)

    def _count_lost(self, status: ActorStatus, tokens: int) -> None:
        """Count what this process has lost by now, except for what is counted already."""
        process = f"{status.name}/{status.pid}"
        if (more := tokens - self._counted[process]) > 0:
            self._counted[process] += more
            self._lost[process] += more

    def lost(self) -> dict[str, int]:
        """Tokens of lost attempts since the last call, by process of an actor."""
        lost, self._lost = self._lost, Counter()
        return dict(lost)

    def line(
        self,
        report: StepReport,
        facts: BatchFacts,
        state: LedgerState,
        counts: Counts,
        in_flight: int,
        now: float,
        *,
        data_ended: bool = False,
    ) -> dict[str, float | int | str | None]:
        """The line of a step that was just recorded. Later counts go to the next line."""
        seconds = max(now - self._last_line, 1e-9)
        generated = self._tokens.between(self._last_line, now)
        window, self._window, self._last_line = self._window, ActorTotals(), now
        batch = state.batches[report.step]
        fields: dict[str, float | int | str | None] = dict.fromkeys(metrics.ALWAYS)
        fields |= {
            "step": report.step,
            "incarnation": report.version.incarnation,
            "version": report.version.number,
            "wall_s": now - self._started,
            "batch_reward_mean": facts.reward_mean,
            "batch_groups": facts.groups,
            "batch_tokens": facts.tokens,
            "batch_tokens_not_finite": facts.not_finite,
            "draws_per_trained_group": 1 + batch.decided / facts.groups if facts.groups else None,
            "actor_tokens_per_s": generated / seconds,
            "useful_tokens_per_s": facts.trained_tokens / seconds,
            "weight_publish_s": self._publish_s,
            "weight_stall_s_mean": window.stall_s / window.updates if window.updates else None,
            "weight_stall_s_max": window.stall_s_max if window.updates else None,
            "weight_proof_diff_mean": window.proof_diff / window.proofs if window.proofs else None,
            "weight_proof_diff_max": window.proof_diff_max if window.proofs else None,
            "weight_proof_s_mean": window.proof_s / window.proofs if window.proofs else None,
            "lag_mean": facts.lag_mean,
            "lag_max": facts.lag_max,
            "groups_ready": self._ready.take(now),
            "data_ended": int(data_ended),
        }
        fields |= self._engines.fields()
        fields |= batch.score.batch_fields() | batch.tally.fields() | batch.tally.part_fields()
        fields |= totals(state, counts, in_flight)
        fields |= report.values
        publishing = sum(report.values.get(name, 0.0) for name in ("learner_snapshot_s", "learner_publish_wait_s"))
        if worked := publishing + report.values.get("learner_step_s", 0.0):
            fields["learner_publish_fraction"] = publishing / worked
        most = report.values.get("learner_peak_flops_per_s", 0.0) * report.values.get("learner_step_s", 0.0)
        if most and "learner_flops" in report.values:
            fields["learner_mfu"] = report.values["learner_flops"] / most
        return fields


def totals(state: LedgerState, counts: Counts, in_flight: int) -> dict[str, float | int | str | None]:
    """The fields `metrics.TOTALS`, for the surviving history.

    Generated tokens are counted for every draw that ended and every reported lost attempt. Each token has one
    outcome: trained, masked, zero gradient, stale, failed or lost.
    """
    decided, ended, trained = state.decided_tokens, state.outcomes, state.trained
    lost = sum(state.lost.values())
    return {
        "prompts_drawn_total": state.num_drawn,
        "groups_trained_total": ended[Outcome.TRAINED],
        "groups_zero_gradient_total": ended[Outcome.ZERO_GRADIENT],
        "groups_stale_total": ended[Outcome.STALE],
        "groups_failed_total": ended[Outcome.FAILED],
        "groups_in_flight": in_flight,
        "draws_unaccounted": state.num_drawn - ended.total() - in_flight,
        "duplicates_refused_total": counts.duplicates + counts.late,
        "tokens_generated_total": decided.total() + trained.scored + lost,
        "tokens_trained_total": trained.fed,
        "tokens_masked_total": trained.scored - trained.fed,
        "tokens_zero_gradient_total": decided[Outcome.ZERO_GRADIENT],
        "tokens_stale_total": decided[Outcome.STALE],
        "tokens_failed_total": decided[Outcome.FAILED],
        "tokens_lost_total": lost,
        "tokens_wasted_total": decided[Outcome.STALE] + decided[Outcome.FAILED] + lost,
        "prompt_tokens_total": state.decided_prompt_tokens + trained.prompt,
    }
