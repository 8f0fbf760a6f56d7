"""The fields of a metric line."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from olmorl.clock import LoopClock
from olmorl.learner.batching.batch import BatchFacts
from olmorl.learner.orchestrator.step_metrics import StepMetrics, TokenCount, totals
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.group_stats import Score
from olmorl.learner.storage.ledger_state import BatchRecord, Decided, Drawn, LedgerState, Outcome
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.messages import ActorStatus, StepReport, Version
from olmorl.ports import Counts

NOWHERE = MetricsLog(Path("unused")), DiskWriter(LoopClock(), 0.0)


def test_stalls_are_those_since_the_line_before() -> None:
    accounts = LedgerState(batches={step: BatchRecord([], Score(), Score()) for step in (1, 2, 3)})
    facts = BatchFacts(0, 0, 0, 0.0, 0.0, 0)
    meter, found = StepMetrics(*NOWHERE, 0.0, 0.0, {}, {}), []
    # Of one actor: updates so far, the seconds they took, the longest of them.
    for step, beats in enumerate(([(1, 4.0, 4.0)], [(2, 4.5, 4.0), (4, 5.0, 4.0)], []), 1):
        for updates, total, longest in beats:
            status = ActorStatus(name="a0", at=0.0, pid=1, updates=updates, stall_s_total=total, stall_s_max=longest)
            meter.heard({"a0": status}, float(step))
        report = StepReport(step=step, version=Version(1, step), values={})
        line = meter.line(report, facts, accounts, Counts(0, 0, 0, 0, 0), 0, float(step))
        found.append((line["weight_stall_s_mean"], line["weight_stall_s_max"]))
    assert found == [(4.0, 4.0), (1.0 / 3, 0.5), (None, None)]


def test_a_dead_actor_has_lost_what_it_had_not_committed() -> None:
    meter = StepMetrics(*NOWHERE, 0.0, 0.0, {}, {})
    beat = ActorStatus(name="a0", at=5.0, pid=1, tokens_generated=100, tokens_stored=40, tokens_wasted=10)
    meter.heard({"a0": beat}, 5.0)
    assert sum(meter.lost().values()) == 10
    # Of the 50 tokens in work at its last heartbeat, it committed 30 before it died.
    meter.heard({"a0": replace(beat, tokens_stored=70)}, 9.0)
    for lost in (20, 0):
        meter.died("a0")
        assert sum(meter.lost().values()) == lost
    meter.heard({}, 10.0)
    meter.died("a0")
    assert sum(meter.lost().values()) == 0


def test_an_orchestrator_that_starts_again_counts_what_the_ledger_does_not_have() -> None:
    beat = ActorStatus(name="a0", at=5.0, pid=1, tokens_generated=100, tokens_stored=40, tokens_wasted=30)
    meter = StepMetrics(*NOWHERE, 0.0, 0.0, {"a0": beat}, {"a0/1": 10})
    meter.heard({"a0": replace(beat, at=6.0)}, 6.0)
    assert meter.lost() == {"a0/1": 20}
    meter.died("a0")
    assert meter.lost() == {"a0/1": 30}
    meter.heard({}, 7.0)
    # It was taken for dead, and says something after all.
    meter.heard({"a0": replace(beat, tokens_generated=105, tokens_wasted=65)}, 8.0)
    assert meter.lost() == {"a0/1": 5}


def test_an_actor_that_comes_back_under_its_name_has_lost_its_work() -> None:
    meter = StepMetrics(*NOWHERE, 0.0, 0.0, {}, {})
    meter.heard({"a0": ActorStatus(name="a0", at=5.0, pid=1, tokens_generated=100, tokens_stored=40)}, 5.0)
    meter.heard({"a0": ActorStatus(name="a0", at=8.0, pid=2, tokens_generated=7)}, 8.0)
    assert sum(meter.lost().values()) == 60
    # One that leaves in order has stored or counted everything.
    meter.heard(
        {"a0": ActorStatus(name="a0", at=9.0, pid=2, tokens_generated=20, tokens_stored=15, tokens_wasted=5)}, 9.0
    )
    assert sum(meter.lost().values()) == 5
    meter.died("a0")
    assert sum(meter.lost().values()) == 0


def test_proofs_are_those_since_the_line_before() -> None:
    accounts = LedgerState(batches={step: BatchRecord([], Score(), Score()) for step in (1, 2, 3)})
    facts = BatchFacts(0, 0, 0, 0.0, 0.0, 0)
    meter, found = StepMetrics(*NOWHERE, 0.0, 0.0, {}, {}), []
    # Of one actor: proofs so far, the sum of their differences, the largest of them, the seconds they took.
    for step, beats in enumerate(([(1, 0.25, 0.25, 1.0)], [(3, 0.75, 0.375, 2.0)], []), 1):
        for proofs, total, largest, seconds in beats:
            status = ActorStatus(
                name="a0",
                at=0.0,
                pid=1,
                proofs=proofs,
                proof_diff_total=total,
                proof_diff_max=largest,
                proof_s_total=seconds,
            )
            meter.heard({"a0": status}, float(step))
        report = StepReport(step=step, version=Version(1, step), values={})
        line = meter.line(report, facts, accounts, Counts(0, 0, 0, 0, 0), 0, float(step))
        found.append([line[f"weight_proof_{name}"] for name in ("diff_mean", "diff_max", "s_mean")])
    assert found == [[0.25, 0.25, 1.0], [0.25, 0.375, 0.5], [None, None, None]]


def test_the_share_of_publishing_is_of_the_time_in_which_the_learner_has_a_batch() -> None:
    accounts = LedgerState(batches={step: BatchRecord([], Score(), Score()) for step in (1, 2)})
    meter, facts = StepMetrics(*NOWHERE, 0.0, 0.0, {}, {}), BatchFacts(0, 0, 0, 0.0, 0.0, 0)
    times = {"learner_step_s": 1.9, "learner_wait_s": 5.0, "learner_snapshot_s": 0.02, "learner_publish_wait_s": 0.08}
    found = []
    for step, values in ((1, times), (2, {})):
        report = StepReport(step=step, version=Version(1, step), values=values)
        line = meter.line(report, facts, accounts, Counts(0, 0, 0, 0, 0), 0, float(step))
        found.append(line["learner_publish_fraction"])
    assert found == [pytest.approx(0.1 / 2.0), None]


RATES = {
    "steady": lambda second: 5000,
    "two paces": lambda second: 5000 if second < 30 else 1000,
    "uneven": lambda second: 1000 + 700 * (second * 7 % 11),
    "pauses": lambda second: 0 if 20 <= second < 25 else 4000,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("step_s", [0.15, 0.4, 1.0, 2.3])
def test_generated_tokens_are_in_every_step_and_in_sum_what_was_counted(rate: str, step_s: float) -> None:
    """Heartbeats once a second, heard a little later; the engine is up for ten seconds before the first step."""
    totals = [0]
    for second in range(90):
        totals.append(totals[-1] + RATES[rate](second))
    accounts = LedgerState(batches={step: BatchRecord([], Score(), Score()) for step in range(1000)})
    facts, counts = BatchFacts(0, 0, 0, 0.0, 0.0, 0), Counts(0, 0, 0, 0, 0)
    meter, told, rates, step, wall, second = (
        StepMetrics(*NOWHERE, 100.0, 0.0, {}, {}),
        0.0,
        list[tuple[float, float]](),
        0,
        10.0,
        0,
    )
    before = 0.0
    while wall < 80:
        step += 1
        while second < wall:
            beat = ActorStatus(name="a0", at=float(second), pid=1, tokens_generated=totals[second])
            meter.heard({"a0": beat}, 100.0 + min(second + 0.3 * (second % 3 / 2), wall))
            second += 1
        report = StepReport(step=step, version=Version(1, step), values={})
        line = meter.line(report, facts, accounts, counts, 0, 100.0 + wall)
        rates.append((wall, float(line["actor_tokens_per_s"] or 0.0)))
        told += rates[-1][1] * (wall - before)
        before, wall = wall, wall + step_s
    highest, lowest = max(map(RATES[rate], range(80))), min(map(RATES[rate], range(80)))
    later = [each for at, each in rates if at > 12]
    assert told == pytest.approx(totals[second - 1], abs=2 * highest)
    assert lowest == pytest.approx(0.0) or min(each for _, each in rates) > lowest / 3
    assert max(later) < 1.6 * highest
    if rate == "steady":
        assert min(later) >= 0.5 * 5000 and sum(later) / len(later) == pytest.approx(5000, rel=0.02)


def test_no_token_is_counted_twice_or_lost() -> None:
    count = TokenCount()
    count.heard(10.0, 0.0, 500)
    assert [count.between(0.0, 10.0), count.between(10.0, 11.0)] == [500, 0], "when the next one comes is not known"
    count.heard(11.0, 1.0, 1000)
    assert [count.between(11.0, 11.5), count.between(11.5, 12.0)] == [250, 250]
    count.heard(12.0, 4.0, 800)
    assert [count.between(12.0, 13.0), count.between(13.0, 30.0)] == [500 + 100, 700]
    count.heard(30.0, -3.0, 100)
    assert [count.between(30.0, 30.1), count.between(30.1, 40.0)] == [100, 0], "its clock was set back"


def test_heartbeats_without_tokens_are_not_kept() -> None:
    count = TokenCount()
    for second in range(1000):
        count.heard(float(second), 1.0, 0)
    assert not count._parts


def test_an_actor_that_starts_again_counts_from_zero() -> None:
    accounts, facts = LedgerState(batches={1: BatchRecord([], Score(), Score())}), BatchFacts(0, 0, 0, 0.0, 0.0, 0)
    meter = StepMetrics(*NOWHERE, 0.0, 0.0, {"a0": ActorStatus(name="a0", at=0.0, pid=1, tokens_generated=900)}, {})
    for at, pid, tokens in ((1.0, 1, 1000), (1.0, 1, 1000), (2.0, 2, 300), (3.0, 2, 350)):
        meter.heard({"a0": ActorStatus(name="a0", at=at, pid=pid, tokens_generated=tokens)}, at)
    report = StepReport(step=1, version=Version(1, 1), values={})
    line = meter.line(report, facts, accounts, Counts(0, 0, 0, 0, 0), 0, 5.0)
    assert line["actor_tokens_per_s"] == (100 + 300 + 50) / 5


def test_tokens_of_failed_draws_are_generated_and_wasted() -> None:
    accounts = LedgerState()
    prompts = [Drawn(draw=draw, row="r:1", position=draw, version=0) for draw in range(3)]
    scores = {Outcome.STALE: Score(tokens=70), Outcome.ZERO_GRADIENT: Score(tokens=5), Outcome.FAILED: Score()}
    ends = [
        Decided(draw=draw, attempt=1, outcome=outcome, score=score, wasted=0 if score.tokens else 300)
        for draw, (outcome, score) in enumerate(scores.items())
    ]
    for event in [*prompts, *ends]:
        accounts.apply(event)
    found = totals(accounts, Counts(0, 0, 0, 0, 0), 0)
    assert (found["tokens_generated_total"], found["tokens_wasted_total"]) == (375, 370)
    assert accounts.open_score.tokens == 75, "lengths are of scored groups"
