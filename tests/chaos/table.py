"""Summarises a campaign: one row for each kind of fault, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.episode import Outcome, Record

COLUMNS = (
    ("noticed_s", "noticed s"),
    ("recovered_s", "recovered s"),
    ("gap_s", "longest gap s"),
    ("elsewhere_s", "prompts elsewhere s"),
)
COUNTS = (
    ("steps_replayed", "steps again"),
    ("draws_again", "draws again"),
    ("tokens_wasted", "tokens wasted"),
    ("draws_lost", "lost"),
    ("draws_doubled", "doubled"),
)


def judged(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The totals, and how often each kind of fault struck, of a campaign that only judges its runs."""
    records = [record for outcome in outcomes for record in outcome.records]
    return {
        "faults": len(records),
        "episodes": len(outcomes),
        "steps": sum(outcome.steps for outcome in outcomes),
        "hangs": sum(outcome.hung for outcome in outcomes),
        "violations": [violation for outcome in outcomes for violation in outcome.violations],
        "rows": [
            {"fault": kind, "times": times} for kind, times in sorted(Counter(each.fault for each in records).items())
        ],
    }


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same with what each fault cost: median and worst of each time, and sums."""
    records = [record for outcome in outcomes for record in outcome.records]
    found = judged(outcomes)
    return found | {
        "prompts_lost": sum(record.draws_lost for record in records),
        "prompts_doubled": sum(record.draws_doubled for record in records),
        "rows": [
            _row(row["fault"], [record for record in records if record.fault == row["fault"]]) for row in found["rows"]
        ],
    }


def _row(kind: str, records: Sequence[Record]) -> dict[str, Any]:
    # Of two faults at once, neither's times are its own.
    alone = [record for record in records if not record.together_with] or records
    times = {name: _spread(getattr(record, name) for record in alone) for name, _ in COLUMNS}
    return {
        "fault": kind,
        "times": len(records),
        "with_another": sum(bool(record.together_with) for record in records),
        **times,
        **{name: sum(getattr(record, name) for record in records) for name, _ in COUNTS},
    }


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median and worst of those that there are."""
    seen = [value for value in values if value is not None]
    return {"median": round(median(seen), 2), "worst": round(max(seen), 2)} if seen else None


def show(found: dict[str, Any], title: str, console: Console) -> None:
    """Print it."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("fault")
    costs = (COLUMNS, COUNTS) if "prompts_lost" in found else ((), ())
    for heading in ("times", *(heading for _, heading in (*costs[0], *costs[1]))):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        times = [_cell(row[name]) for name, _ in costs[0]]
        counts = [f"{row[name]:,}" for name, _ in costs[1]]
        table.add_row(row["fault"], str(row["times"]), *times, *counts)
    table.caption = (
        f"{found['faults']} faults in {found['episodes']} runs of {found['steps']:,} steps: {found['hangs']} hangs, "
        f"{len(found['violations'])} violations"
    )
    if "prompts_lost" in found:
        table.caption += (
            f", {found['prompts_lost']} prompts lost, {found['prompts_doubled']} doubled. Times: median (worst)"
        )
    console.print(table)
    if processes := found.get("processes"):
        _show_processes(found, processes, console)


def _show_processes(found: dict[str, Any], processes: Sequence[dict[str, Any]], console: Console) -> None:
    title = (
        f"what processes used: median (most) of {found['minutes']:g} minutes' first and last third; then in the calm"
    )
    table = Table("process", title=title, title_justify="left")
    for what in ("MiB", "descriptors"):
        for when in ("first", "last", "calm"):
            table.add_column(f"{what}, {when}", justify="right")
    for row in processes:
        cells = [cell for name in ("resident_mib", "descriptors") for cell in _used(row, name)]
        table.add_row(row["process"], *cells)
    table.caption = f"reward, from the first steps to the last: {', '.join(f'{part:.2f}' for part in found['rewards'])}"
    console.print(table)


def _used(row: dict[str, Any], name: str) -> list[str]:
    cells = [
        "" if row[f"{name}_{when}"] is None else f"{row[f'{name}_{when}']:,.0f} ({row[f'{name}_{when}_most']:,.0f})"
        for when in ("first", "last")
    ]
    calm = row[f"{name}_calm"]
    return [*cells, "" if calm is None else " -> ".join(f"{value:,.0f}" for value in calm)]


def _cell(spread: dict[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.1f} ({spread['worst']:.1f})"
