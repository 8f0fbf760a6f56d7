"""The table of a campaign counts the right faults."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tests.chaos.episode import Outcome, Record
from tests.chaos.table import show, summary


def test_times_are_of_faults_alone_and_counts_of_all() -> None:
    records = [
        Record("SIGKILL actor", "actor-0", "", noticed_s=0.5, recovered_s=2.0, gap_s=1.0, draws_again=3),
        Record("SIGKILL actor", "actor-1", "", noticed_s=1.5, recovered_s=6.0, gap_s=2.0, draws_again=1),
        Record("SIGKILL actor", "actor-1", "SIGSTOP rank", noticed_s=90.0, recovered_s=99.0, draws_again=2),
        Record("SIGSTOP rank", "learner-0", "SIGKILL actor", recovered_s=99.0, draws_lost=1, draws_doubled=2),
    ]
    found = summary([Outcome(1, records[:2], 10), Outcome(2, records[2:], 5, hung=True, violations=["an orphan"])])
    assert {name: found[name] for name in ("faults", "episodes", "steps", "hangs", "violations")} == {
        "faults": 4,
        "episodes": 2,
        "steps": 15,
        "hangs": 1,
        "violations": ["an orphan"],
    }
    assert (found["prompts_lost"], found["prompts_doubled"]) == (1, 2)
    actor, rank = found["rows"]
    assert (actor["times"], actor["with_another"], actor["draws_again"]) == (3, 1, 6)
    assert actor["noticed_s"] == {"median": 1.0, "worst": 1.5}
    assert actor["recovered_s"] == {"median": 4.0, "worst": 6.0}
    assert rank["noticed_s"] is None and rank["recovered_s"] == {"median": 99.0, "worst": 99.0}

    output = StringIO()
    show(found, "a campaign", Console(file=output, width=200))
    assert "4 faults in 2 runs of 15 steps: 1 hangs, 1 violations, 1 prompts lost, 2 doubled" in output.getvalue()
    assert "4.0 (6.0)" in output.getvalue()
