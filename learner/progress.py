"""What makes a line of `metrics.jsonl`. Rates are counts over measured wall time between two lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from olmorl import metrics
from olmorl.learner.accounts import Accounts, Outcome
from olmorl.messages import ActorStatus, StepReport
from olmorl.ports import Counts


class BatchFacts(NamedTuple):
    """What the assembler knows of the batch of a step."""

    groups: int
    tokens: int
    """Completion tokens."""
    trained_tokens: int
    """Those that feed the loss; the others were masked."""
    reward_mean: float
    lag_mean: float
    """Over the tokens that feed the loss, in versions."""
    lag_max: int


@dataclass
class ActorTotals:
    """Sums over all actors since a point in time; an actor that started again counts from zero."""

    tokens: int = 0
    wasted: int = 0
    updates: int = 0
    stall_s: float = 0.0
    stall_s_max: float = 0.0


class Meter:
    """Every heartbeat counts once, whichever line it ends up in."""

    def __init__(self, now: float, wall_s: float, statuses: Mapping[str, ActorStatus]) -> None:
        """`wall_s` is what the run had used before this start; `statuses` what actors had counted before it."""
        self._started = now - wall_s
        self._last_line = now
        self._seen = dict(statuses)
        self._window = ActorTotals()
        self._publish_s = 0.0

    def published(self, seconds: float) -> None:
        self._publish_s = seconds

    def heard(self, statuses: Mapping[str, ActorStatus]) -> None:
        """Add what the actors counted since their last heartbeats."""
        for name, status in statuses.items():
            before = self._seen.get(name)
            if before is None or status.pid != before.pid or status.tokens_generated < before.tokens_generated:
                before = ActorStatus(name=name, at=0.0)
            self._seen[name] = status
            self._window.tokens += status.tokens_generated - before.tokens_generated
            self._window.wasted += max(0, status.tokens_wasted - before.tokens_wasted)
            if updates := status.updates - before.updates:
                stall_s = status.stall_s_total - before.stall_s_total
                # A record is known; of others, hardly more than one between two heartbeats, the mean.
                longest = status.stall_s_max if status.stall_s_max > before.stall_s_max else stall_s / updates
                self._window.updates += updates
                self._window.stall_s += stall_s
                self._window.stall_s_max = max(self._window.stall_s_max, longest)

    def wasted(self) -> int:
        """Tokens of lost attempts reported since the last call."""
        wasted, self._window.wasted = self._window.wasted, 0
        return wasted

    def line(
        self, report: StepReport, facts: BatchFacts, accounts: Accounts, counts: Counts, in_flight: int, now: float
    ) -> dict[str, float | int | str | None]:
        """The line of a step that has just been booked; starts the window of the next."""
        seconds = max(now - self._last_line, 1e-9)
        window, self._window, self._last_line = self._window, ActorTotals(), now
        batch = accounts.batches[report.step]
        fields: dict[str, float | int | str | None] = dict.fromkeys(metrics.ALWAYS)
        fields |= {
            "step": report.step,
            "incarnation": report.version.incarnation,
            "version": report.version.number,
            "wall_s": now - self._started,
            "batch_reward_mean": facts.reward_mean,
            "batch_groups": facts.groups,
            "batch_tokens": facts.tokens,
            "actor_tokens_per_s": window.tokens / seconds,
            "useful_tokens_per_s": facts.trained_tokens / seconds,
            "weight_publish_s": self._publish_s,
            "weight_stall_s_mean": window.stall_s / window.updates if window.updates else 0.0,
            "weight_stall_s_max": window.stall_s_max,
            "lag_mean": facts.lag_mean,
            "lag_max": facts.lag_max,
        }
        return fields | batch.tally.fields() | totals(accounts, counts, in_flight) | dict(report.values)


def totals(accounts: Accounts, counts: Counts, in_flight: int) -> dict[str, float | int | str | None]:
    """The fields `metrics.TOTALS`, of the surviving history.

    Generated are the completion tokens of every draw that ended with a group, and those of lost attempts as far as
    actors reported them before they died; wasted are those of stale groups and of lost attempts. The rest of what was
    generated and not trained is zero-gradient groups and masked tokens.
    """
    trained = [batch for batch in accounts.batches.values() if batch.trained]
    lost = sum(batch.wasted for batch in trained)
    ended = accounts.decided_tokens.total() + sum(batch.score.tokens for batch in trained)
    return {
        "prompts_drawn_total": len(accounts.draws),
        "groups_trained_total": accounts.outcomes[Outcome.TRAINED],
        "groups_zero_gradient_total": accounts.outcomes[Outcome.ZERO_GRADIENT],
        "groups_stale_total": accounts.outcomes[Outcome.STALE],
        "groups_failed_total": accounts.outcomes[Outcome.FAILED],
        "groups_in_flight": in_flight,
        "duplicates_refused_total": counts.duplicates + counts.late,
        "tokens_generated_total": ended + lost,
        "tokens_trained_total": sum(batch.tokens for batch in trained),
        "tokens_wasted_total": accounts.decided_tokens[Outcome.STALE] + lost,
    }
