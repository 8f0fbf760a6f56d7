"""A history that lost, doubled or forgot something is found out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from olmorl.learner import ledger
from olmorl.learner.accounts import Drawn, Journaled, Started, Trained
from olmorl.learner.ledger import Ledger
from olmorl.learner.score import Score
from tests.chaos.history import violations

STEPS, BATCH, MAX_LAG = 3, 2, 2
Lines = list[dict[str, Any]]


def line(step: int) -> dict[str, Any]:
    ended = {"groups_trained_total": step * BATCH, "groups_zero_gradient_total": 1}
    none = {"groups_stale_total": 0, "groups_failed_total": 0}
    counts = {"prompts_drawn_total": step * BATCH + 3, "groups_in_flight": 2, "batch_groups": BATCH}
    return {"step": step, **ended, **none, **counts, "lag_mean": 0.5, "lag_max": 1}


def group(draw: int, step: int, *versions: int) -> dict[str, Any]:
    completions = [{"versions": [[version, 0, 9] for version in versions]}]
    return {"prompt_id": draw, "outcome": "trained", "step": step, "completions": completions}


def write(run_dir: Path, lines: Lines, groups: Lines, events: list[Any]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (run_dir / "rollouts").mkdir()
    data = "".join(json.dumps(each) + "\n" for each in groups).encode()
    (run_dir / "rollouts" / "step_000001.1.jsonl.zst").write_bytes(zstandard.compress(data))
    start = Started(incarnation=ledger.acquire(run_dir / "ledger"), step=0, replay_to=0, stream={})
    books = Ledger(run_dir / "ledger", start, ledger.fold(iter(())))
    for event in events:
        books.append(event)
    books.close()


def events() -> list[Any]:
    drawn = [Drawn(draw=draw, row=f"row {draw}", position=draw, version=0) for draw in range(STEPS * BATCH)]
    ended = []
    for step in range(1, STEPS + 1):
        draws = [(BATCH * (step - 1) + i, 1) for i in range(BATCH)]
        ended += [Journaled(step=step, draws=draws, score=Score()), Trained(step=step, tokens=9)]
    return drawn + ended


def lost(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[1]["groups_in_flight"] -= 1


def out_of_order(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[2]["step"] = 2


def half_empty(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[0]["batch_groups"] = 1


def too_old(lines: Lines, groups: Lines, events: list[Any]) -> None:
    lines[2]["lag_max"] = 3


def from_the_future(lines: Lines, groups: Lines, events: list[Any]) -> None:
    groups.append(group(9, 1, 0, 1))


def doubled(lines: Lines, groups: Lines, events: list[Any]) -> None:
    groups.append(group(0, 3, 2))


def not_trained(lines: Lines, groups: Lines, events: list[Any]) -> None:
    del events[-2:]


def never_drawn(lines: Lines, groups: Lines, events: list[Any]) -> None:
    events.insert(0, Drawn(draw=7, row="row 7", position=6, version=0))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lost, "step 2: 7 draws, and 5 ended with 1 in flight"),
        (out_of_order, r"metrics.jsonl has the steps \[1, 2, 2\]"),
        (half_empty, "step 1: a batch of 1 groups"),
        (too_old, r"step 3: lag 0.5 \(max 3\)"),
        (from_the_future, r"draw 9 was trained in step 1 with tokens of lag \{0, -1\}"),
        (doubled, r"draws that were trained more than once: \[0\]"),
        (not_trained, "2 of 3 steps have groups in the ledger"),
        (never_drawn, r"draws without a record: \[6\]"),
    ],
)
def test_damage_is_named(damage: Callable[[Lines, Lines, list[Any]], None], found: str, tmp_path: Path) -> None:
    lines, groups, booked = [line(step) for step in range(1, STEPS + 1)], [group(0, 1, 0), group(2, 2, 0, 1)], events()
    damage(lines, groups, booked)
    write(tmp_path, lines, groups, booked)
    problems = violations(tmp_path, BATCH, MAX_LAG)
    assert len(problems) == 1 and re.search(found, problems[0]), problems


def test_a_whole_history_has_nothing_to_be_named(tmp_path: Path) -> None:
    write(tmp_path, [line(step) for step in range(1, STEPS + 1)], [group(0, 1, 0), group(2, 2, 0, 1)], events())
    assert violations(tmp_path, BATCH, MAX_LAG) == []
