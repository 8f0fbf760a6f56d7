"""What stands in a line of the metrics."""

from __future__ import annotations

from olmorl.learner.accounts import Accounts, Batch
from olmorl.learner.progress import BatchFacts, Meter
from olmorl.learner.score import Score
from olmorl.messages import ActorStatus, StepReport, Version
from olmorl.ports import Counts


def test_stalls_are_those_since_the_line_before() -> None:
    accounts = Accounts(batches={step: Batch([], Score(), Score()) for step in (1, 2, 3)})
    facts = BatchFacts(0, 0, 0, 0.0, 0.0, 0)
    meter, found = Meter(0.0, 0.0, {}), []
    # Of one actor: updates so far, the seconds they took, the longest of them.
    for step, beats in enumerate(([(1, 4.0, 4.0)], [(2, 4.5, 4.0), (4, 5.0, 4.0)], []), 1):
        for updates, total, longest in beats:
            status = ActorStatus(name="a0", at=0.0, pid=1, updates=updates, stall_s_total=total, stall_s_max=longest)
            meter.heard({"a0": status})
        report = StepReport(step=step, version=Version(1, step), values={})
        line = meter.line(report, facts, accounts, Counts(0, 0, 0, 0, 0), 0, float(step))
        found.append((line["weight_stall_s_mean"], line["weight_stall_s_max"]))
    assert found == [(4.0, 4.0), (1.0 / 3, 0.5), (0.0, 0.0)]
