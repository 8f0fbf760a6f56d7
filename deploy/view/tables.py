"""The output of `olmorl-ctl`: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.live import Live
from rich.table import Table

from olmorl.config import load, value_of
from olmorl.deploy.view.console import SafeConsole
from olmorl.deploy.view.dashboard import Dashboard, RunView, accuracy
from olmorl.deploy.view.plot import draw
from olmorl.deploy.view.prompt_story import prompt_story
from olmorl.deploy.view.run_state import metric_lines, no_step_yet, sandbox_of, verdict_of
from olmorl.deploy.view.verdict import RunVerdict
from olmorl.errors import DataError
from olmorl.learner.orchestrator.changes import CHANGEABLE, describe, settings_at
from olmorl.learner.storage.checkpoint_dir import newest_state
from olmorl.learner.storage.ledger import read_ledger
from olmorl.learner.storage.metrics_log import missing_steps
from olmorl.metrics import answered_by, of_evaluation
from olmorl.printable import printable
from olmorl.run_dir import RunFiles

_STATUS_FIELDS = (
    "reward_mean",
    "solve_rate_mean",
    "lag_mean",
    "lag_max",
    "completion_tokens_mean",
    "actor_tokens_per_s",
    "useful_tokens_per_s",
    "learner_step_s",
    "learner_wait_s",
    "prompts_drawn_total",
    "groups_trained_total",
    "groups_zero_gradient_total",
    "groups_stale_total",
    "groups_failed_total",
    "groups_in_flight",
)
_PAYLOAD_SHOWN = 60
_SHORT_WAIT_S = 5.0
REFRESH_S = 1.0
"""Time between two looks of `top`."""
_FILE_WIDTH = 160
"""Width of the output without a terminal."""


def show_figure(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Draw the run's curves into a file."""
    lines = _lines(run_dir)
    draw(lines, arguments.file, f"{run_dir.resolve().name}: {len(lines):,} steps")
    message = f"{arguments.file}: {len(lines):,} steps of {run_dir}"
    show_message({"message": message, "file": str(arguments.file)}, arguments.json)


def show_ledger(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Show one object per draw with `--json`, else the number of draws by outcome."""
    if arguments.json:
        for record in read_ledger(run_dir):
            print(json.dumps(record))
        return
    state = newest_state(RunFiles(run_dir))
    counts = Counter({str(outcome): number for outcome, number in state.outcomes.items()})
    counts["in_flight"] = len(state.open) + state.journaled
    table = Table("outcome", "draws", title=f"{run_dir}: {counts.total():,} draws")
    for outcome, number in (+counts).most_common():
        table.add_row(outcome, f"{number:,}")
    console = _console()
    console.print(table)
    console.print(f"attempts: {', '.join(f'{n:,} draws took {a}' for a, n in sorted(state.attempts.items()) if n)}")


def show_trace(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Show the story of one prompt, one moment a line."""
    moments = prompt_story(run_dir, arguments.prompt)
    if arguments.json:
        print(json.dumps({"prompt_id": arguments.prompt, "moments": [moment._asdict() for moment in moments]}))
        return
    table = Table("time", "what", "", title=f"{run_dir}: prompt {arguments.prompt}", title_justify="left")
    for moment in moments:
        time = "" if moment.at is None else datetime.fromtimestamp(moment.at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        table.add_row(time, moment.what, moment.text)
    _console().print(table)


def show_status(run_dir: Path, live: Mapping[str, Any] | None, silence: str, as_json: bool) -> None:
    """Show the last metrics line, and the launcher's answer or the reason why there is none."""
    lines = metric_lines(run_dir)
    if not lines and live is None:
        raise DataError(no_step_yet(run_dir))
    sandbox = sandbox_of(run_dir, lines)
    if as_json:
        found = live.get("verdict") if live else _fields(verdict_of(run_dir))
        last = {**(lines[-1] if lines else {}), "live": live, "silence": silence, "verdict": found}
        print(json.dumps({**last, "sandbox": sandbox} if sandbox else last))
        return
    console = _console()
    if lines:
        console.print(_last_line(run_dir, lines[-1]))
    for text in _newest_accuracies(lines):
        console.print(text)
    if sandbox:
        console.print(f"programs run in the sandbox {sandbox}")
    if missing := missing_steps(lines):
        console.print(f"{run_dir / 'metrics.jsonl'}: {missing}")
    if live is None:
        if found := verdict_of(run_dir):
            console.print(found.text)
        console.print(silence)
        return
    _show_live(console, live)


def _newest_accuracies(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The newest accuracy of each evaluation set, with the versions that answered."""
    newest = {key: line for line in lines for key in of_evaluation(line) if key.endswith("_accuracy")}
    return [f"{key}: {accuracy(line[key], answered_by(line, key))}" for key, line in newest.items()]


def _show_live(console: SafeConsole, live: Mapping[str, Any]) -> None:
    """Show the launcher's answer."""
    if live.get("verdict"):
        console.print(live["verdict"]["text"])
    console.print(
        f"{live['state']}, step {live['step']} of {live['steps']}, incarnation {live['incarnation']}; "
        f"{live['queued']} queued, {live['leased']} leased, {live['results']} results; "
        f"{live['actor_deaths']} death(s) of actors, {live['learner_restarts']} restart(s) of the learner"
    )
    show_actors(live["actors"], as_json=False)
    for wait in live["waits"]:
        if wait["waited_s"] < _SHORT_WAIT_S:
            continue
        console.print(
            f"waiting for {wait['what']}, which {wait['owner']} owns: "
            f"{wait['waited_s']:.0f} of {wait['deadline_s']:.0f} s"
        )


def _fields(found: RunVerdict | None) -> dict[str, Any] | None:
    return found.fields() if found else None


def _last_line(run_dir: Path, last: Mapping[str, Any]) -> Table:
    table = Table("", "", title=f"{run_dir}: step {last['step']}, incarnation {last['incarnation']}", show_header=False)
    for key in _STATUS_FIELDS:
        value = last.get(key)
        if isinstance(value, int | float):
            table.add_row(key, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    return table


def show_view(view: Mapping[str, Any], as_json: bool) -> None:
    """The live view at one moment."""
    if as_json:
        print(json.dumps(view))
        return
    console = _console()
    console.print(Dashboard(msgspec.convert(view, RunView)))


def follow_view(view: Mapping[str, Any], ask: Callable[[], Mapping[str, Any]]) -> None:
    """The live view on the whole terminal, asked for again each second, until Ctrl-C or an error of `ask`."""
    with suppress(KeyboardInterrupt), Live(console=_console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(Dashboard(msgspec.convert(view, RunView)), refresh=True)
            time.sleep(REFRESH_S)
            view = ask()


def show_actors(actors: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Show one row for each actor."""
    if as_json:
        print(json.dumps(actors))
        return
    table = Table("actor", "state", "version", "process", "running", "waiting", "KV", "deaths", "last death")
    for actor in actors:
        place = f"{actor['host']}:{actor['pid']}" if "pid" in actor else "-"
        load = [str(actor.get(key, "-")) for key in ("running", "waiting")]
        used = f"{actor['kv_used']:.0%}" if "kv_used" in actor else "-"
        ends = (str(actor["deaths"]), actor["last_cause"])
        table.add_row(actor["name"], actor["state"], actor["version"] or "-", place, *load, used, *ends)
    _console().print(table)


def show_dead_letters(found: Mapping[str, Any], as_json: bool) -> None:
    """Show one row for each dead letter."""
    if as_json:
        print(json.dumps(found))
        return
    table = Table("draw", "row", "reason", "payload")
    for letter in found["letters"]:
        payload = base64.b64decode(letter["payload"])
        shown = payload[:_PAYLOAD_SHOWN].decode("ascii", errors="backslashreplace")
        table.add_row(str(letter["draw"]), letter["row"], letter["reason"], f"{len(payload):,} bytes: {shown!r}")
    console = _console()
    console.print(table if found["letters"] else "no dead letters")
    if found["replayed"]:
        console.print(f"drawn again, as the lag allows: {', '.join(map(str, found['replayed']))}")


def show_changes(run_dir: Path, as_json: bool) -> None:
    """Show the keys that can change while a run goes on, with their values, and every change so far."""
    changes = newest_state(RunFiles(run_dir)).changes
    settings = settings_at(load(RunFiles(run_dir).config, of_run=True), changes, sys.maxsize)
    values = {key: value_of(settings, key) for key in CHANGEABLE}
    if as_json:
        print(json.dumps({"values": values, "changes": msgspec.to_builtins(changes)}))
        return
    table = Table("key", "value", "why it can change")
    for key, value in values.items():
        table.add_row(key, str(value), CHANGEABLE[key])
    console = _console()
    console.print(table)
    for change in changes:
        console.print(describe(change))


def show_message(answer: Mapping[str, Any], as_json: bool) -> None:
    """Show the launcher's message."""
    print(json.dumps(answer) if as_json else printable(answer["message"]))


def _console() -> SafeConsole:
    # No markup: the causes of deaths contain brackets.
    return SafeConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    if lines := metric_lines(run_dir):
        return lines
    raise DataError(no_step_yet(run_dir))
