"""A history that lost, doubled or forgot something is found out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl.learner.storage import ledger
from olmorl.learner.storage.group_stats import Score
from olmorl.learner.storage.ledger import Ledger
from olmorl.learner.storage.ledger_state import Drawn, Journaled, Started, Trained
from tests import rollout_files
from tests.chaos.history import journaled_otherwise, violations

STEPS, BATCH, MAX_LAG = 3, 2, 2
DRAWN = STEPS * BATCH + 3
Lines = list[dict[str, Any]]


def line(step: int) -> dict[str, Any]:
    ended = {"groups_trained_total": step * BATCH, "groups_zero_gradient_total": 1}
    none = {"groups_stale_total": 0, "groups_failed_total": 0}
    counts = {"prompts_drawn_total": step * BATCH + 3, "groups_in_flight": 2, "batch_groups": BATCH}
    return {"step": step, **ended, **none, **counts, "lag_mean": 0.5, "lag_max": 1}


def group(draw: int, step: int, *versions: int) -> dict[str, Any]:
    completions = [{"versions": [[version, 0, 9] for version in versions]}]
    return {"prompt_id": draw, "outcome": "trained", "step": step, "completions": completions}


def groups_of(step: int) -> Lines:
    return [group(BATCH * (step - 1) + i, step, step - 1) for i in range(BATCH)]


def write(run_dir: Path, lines: Lines, groups: Lines, events: list[Any]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (run_dir / "rollouts").mkdir()
    rollout_files.write(
        [json.dumps(each).encode() for each in groups], run_dir / "rollouts" / "step_000001.1.jsonl.zst"
    )
    start = Started(incarnation=ledger.acquire(run_dir / "ledger"), step=0, replay_to=0, stream={})
    books = Ledger(run_dir / "ledger", start, ledger.fold(iter(())))
    for event in events:
        books.append(event)
    books.close()


def events() -> list[Any]:
    drawn = [Drawn(draw=draw, row=f"row {draw}", position=draw, version=0) for draw in range(DRAWN)]
    ended = []
    for step in range(1, STEPS + 1):
        draws = [(BATCH * (step - 1) + i, 1) for i in range(BATCH)]
        ended += [Journaled(step=step, draws=draws, score=Score()), Trained(step=step, tokens=9)]
    return drawn + ended


def history() -> tuple[Lines, Lines, list[Any]]:
    steps = range(1, STEPS + 1)
    return [line(step) for step in steps], [group for step in steps for group in groups_of(step)], events()


def lost(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[1]["groups_in_flight"] -= 1


def out_of_order(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[2]["step"] = 2


def half_empty(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[0]["batch_groups"] = 1


def too_old(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[2]["lag_max"] = 3


def from_the_future(lines: Lines, groups: Lines, events: list[Any]) -> None:
    groups[0] = group(0, 1, 0, 1)


def doubled(lines: Lines, groups: Lines, events: list[Any]) -> None:
    groups.append(group(0, 3, 2))


def not_trained(lines: Lines, groups: Lines, events: list[Any]) -> None:
    del events[-2:], groups[-2:]


def forgotten(lines: Lines, groups: Lines, events: list[Any]) -> None:
    del events[DRAWN - 1]


def not_written(lines: Lines, groups: Lines, events: list[Any]) -> None:
    del groups[3]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lost, "step 2: 7 draws, and 5 ended with 1 in flight"),
        (out_of_order, r"metrics.jsonl has the steps \[1, 2, 2\]"),
        (half_empty, "step 1: a batch of 1 groups"),
        (too_old, r"step 3: lag 0.5 \(max 3\)"),
        (from_the_future, r"draw 0 was trained in step 1 with tokens of lag \{0, -1\}"),
        (doubled, r"ledger and rollouts differ in these steps and draws: \[\(3, 0\)\]"),
        (not_trained, "2 of 3 steps have groups in the ledger"),
        (forgotten, r"draws without a record: \[8\]"),
        (not_written, r"ledger and rollouts differ in these steps and draws: \[\(2, 3\)\]"),
    ],
)
def test_damage_is_named(damage: Callable[[Lines, Lines, list[Any]], None], found: str, tmp_path: Path) -> None:
    lines, groups, booked = history()
    damage(lines, groups, booked)
    write(tmp_path, lines, groups, booked)
    problems = violations(tmp_path, BATCH, MAX_LAG)
    assert len(problems) == 1 and re.search(found, problems[0]), problems


def test_a_whole_history_has_nothing_to_be_named(tmp_path: Path) -> None:
    write(tmp_path, *history())
    assert violations(tmp_path, BATCH, MAX_LAG) == []


def test_a_step_that_is_not_what_its_journal_was_is_named(tmp_path: Path) -> None:
    write(tmp_path, *history())
    assert list(journaled_otherwise(tmp_path, [(1, [0, 1]), (3, [4, 5])])) == []
    assert list(journaled_otherwise(tmp_path, [(1, [0, 1]), (2, [3, 2]), (4, [6, 7])])) == [
        "step 2 trained on [2, 3], and [3, 2] were in its journal",
        "step 4 trained on None, and [6, 7] were in its journal",
    ]
