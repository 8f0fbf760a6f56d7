"""The timeline of a run: learner steps, starts, checkpoints, states and faults of the processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from olmorl.learner.storage.ledger_state import Line, Started, Trained
from olmorl.run_dir import RunFiles

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\w+) [\w.]+: (.*)")
_MOST_MESSAGES = 2000


def timeline(run_dir: Path, events: Iterable[Line], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The timeline of a run. All times are Unix seconds.

    `versions` are [version, time] of the learner's policy; a start goes back to its checkpoint. `steps` are [step, end,
    seconds of training, seconds of waiting] of the surviving history, `lost` are [step, end, begin] of the steps that a
    later start undid.

    Args:
        events: of the ledger.
        lines: of the metrics.
    """
    starts, versions, lost = [], [], []
    trained: dict[int, float] = {}
    before: dict[int, float] = {}
    """For each step, the time at which the step before it was trained."""
    newest = 0.0
    for event in events:
        if event.at is not None and isinstance(event, Started):
            starts.append({"at": event.at, "incarnation": event.incarnation, "step": event.step})
            lost += [[step, at, before[step]] for step, at in trained.items() if step > event.step]
            trained = {step: at for step, at in trained.items() if step <= event.step}
            versions.append([event.step, event.at])
            newest = event.at
        elif event.at is not None and isinstance(event, Trained):
            trained[event.step], before[event.step] = event.at, newest
            versions.append([event.step, event.at])
            newest = event.at
    steps = [
        [line["step"], trained[line["step"]], line.get("learner_step_s") or 0.0, line.get("learner_wait_s") or 0.0]
        for line in lines
        if line["step"] in trained
    ]
    process_events = list(_read_events(RunFiles(run_dir).process_events))
    return {
        "starts": starts,
        "versions": versions,
        "steps": steps,
        "lost": lost,
        "checkpoints": [[step, at] for step, at in _checkpoints(run_dir)],
        "processes": states(process_events),
        "faults": [
            {"at": event["at"], "process": event["process"], "state": event["state"], "cause": event["cause"]}
            for event in process_events
            if event.get("cause")
        ],
        "messages": list(_messages(RunFiles(run_dir).logs / "launcher.log"))[-_MOST_MESSAGES:],
    }


def states(events: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """For each process its states, as [state, from, to]; `to` is None for the last state of one that still runs.

    A launcher that starts ends everything before it, because an earlier launcher that was killed recorded no end.
    `restarting` records a fault, so it is no state here.
    """
    found: dict[str, list[list[Any]]] = {}
    for event in events:
        name, state, at = event["process"], event["state"], event["at"]
        if state == "restarting":
            continue
        for spans in found.values() if name == "launcher" else [found.get(name, [])]:
            if spans and spans[-1][2] is None:
                spans[-1][2] = at
        if state != "ended":
            found.setdefault(name, []).append([state, at, None])
    return found


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of `process_events.jsonl`; none before the first."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
            yield {**event, "at": float(event["at"]), "process": str(event["process"]), "state": str(event["state"])}
        except (ValueError, LookupError, TypeError):
            continue  # a line that a full disk or a crash cut off


def _checkpoints(run_dir: Path) -> list[tuple[int, float]]:
    """Step and time of the complete checkpoints that are still there."""
    found = []
    for marker in RunFiles(run_dir).checkpoints.glob("step_*/complete"):
        step = marker.parent.name.removeprefix("step_")
        with suppress(FileNotFoundError):  # the run has pruned it
            if step.isdigit():
                found.append((int(step), marker.stat().st_mtime))
    return sorted(found)


def _messages(path: Path) -> Iterator[list[Any]]:
    """Time, level and text of the launcher's messages."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if found := _LOG_LINE.match(line):
            at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            yield [at, found[2], found[3]]
