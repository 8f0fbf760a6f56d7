"""Actors join and leave by `actors.autoscale` in a run without a model, with kills in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.learner.storage import ledger
from olmorl.learner.storage.ledger_state import Changed
from olmorl.run_dir import RunFiles
from tests.end_to_end.test_supervision import ctl

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]
SETTINGS = """
tokens_per_s = {speed}
train_tokens_per_s = {train}
learned_per_version = 0.0
[schedule]
steps = 1000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
"""


@pytest.mark.parametrize(
    ("start", "end", "speed", "train", "victims"),
    [(1, 3, 80.0, 780.0, ["actor-1", "learner-0"]), (3, 1, 120.0, 250.0, ["actor-2"])],
)
def test_kills_while_actors_join_or_leave_lose_and_double_nothing(
    simulate: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
    capsys: pytest.CaptureFixture[str],
    start: int,
    end: int,
    speed: float,
    train: float,
    victims: list[str],
) -> None:
    run = simulate(SETTINGS.format(speed=speed, train=train))
    text = run.recipe.read_text().replace("tokens_per_s = 200\n", "", 1)
    run.recipe.write_text(
        text.replace(
            "engines_per_node = 2\nmax_running = 16\n",
            f"engines_per_node = {start}\nmax_running = 8\nautoscale = [1, 3]\n",
        )
    )
    run.start()
    events = RunFiles(run.run_dir).process_events
    run.until(events.exists)
    run.until(lambda: "actor-1" in run.roster() if start == 1 else '"leaving"' in events.read_text(), 240)
    for victim in victims:
        os.kill(run.roster()[victim]["pid"], signal.SIGKILL)
    run.until(lambda: run.lines()[-1]["engines"] == end and len(run.lines()) > 25, 240)
    run.until_step(len(run.lines()) + 4)
    ctl(run, capsys, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), 2)
    made = [event for event in ledger.history(run.run_dir) if isinstance(event, Changed)]
    assert (made[0].key, made[0].old, made[-1].new, made[0].who) == ("actors", start, end, "actors.autoscale")
