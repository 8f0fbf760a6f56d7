"""The soak test tells growth from replacement."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tests.chaos.episode import Outcome
from tests.chaos.soak import Sample, growths, row
from tests.chaos.table import show, summary

CALM = 60.0


def samples(process: int, begin: float, end: float, mib_a_minute: float, descriptors: int = 40) -> list[Sample]:
    """One a minute."""
    minutes = [begin + i for i in range(int(end - begin))]
    return [Sample(m, "actor", (process, begin), 500 + mib_a_minute * (m - begin), descriptors) for m in minutes]


def test_a_leak_that_restarts_hide_is_seen_in_the_calm() -> None:
    often = [sample for i in range(6) for sample in samples(i, 10.0 * i, 10.0 * (i + 1), mib_a_minute=20)]
    found = row("actor", often + samples(9, CALM, 75, mib_a_minute=20), CALM)
    assert abs(found["resident_mib_first"] - found["resident_mib_last"]) <= 20
    assert found["resident_mib_calm"] == [640, 740]
    assert list(growths([found])) == ["the memory of actor grew from 640.0 to 740.0 MiB in the calm"]


def test_who_gets_warm_at_the_beginning_of_the_calm_does_not_leak() -> None:
    young = samples(1, CALM, CALM + 6, mib_a_minute=50) + [
        sample._replace(process=(1, CALM), resident_mib=800) for sample in samples(2, CALM + 6, 78, mib_a_minute=0)
    ]
    assert list(growths([row("learner", young, CALM)])) == []


def test_what_is_flat_is_no_growth() -> None:
    found = row("actor", samples(1, 0, 75, mib_a_minute=0.1), CALM)
    assert found["descriptors_calm"] == [40, 40]
    assert list(growths([found])) == []


def test_descriptors_that_one_of_two_processes_keeps_are_seen() -> None:
    leaks = samples(2, 0, 70, 0) + samples(2, 70, 75, 0, descriptors=44)
    leaks = [sample._replace(process=(2, 0.0)) for sample in leaks]
    found = row("actor", samples(1, 0, 75, 0) + leaks, CALM)
    assert list(growths([found])) == ["actor had 40 descriptors and then 44 in the calm"]


def test_a_soak_that_ended_before_the_calm_is_shown_all_the_same() -> None:
    found = row("actor", samples(1, 0, 30, 0), 30.0)
    assert found["resident_mib_calm"] is None and list(growths([found])) == []
    output = StringIO()
    table = summary([Outcome(1)]) | {"minutes": 30, "rewards": [0.5, 0.75], "processes": [found]}
    show(table, "a soak", Console(file=output, width=200))
    assert "500 (500)" in output.getvalue() and "0.50, 0.75" in output.getvalue()
