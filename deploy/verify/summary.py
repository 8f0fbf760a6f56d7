"""The output of `olmorl-verify`: its progress, and a table by verifier at the end."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from olmorl.deploy.verify.row_scoring import BAD_ROW, Scored
from olmorl.deploy.verify.writer import Line
from olmorl.deploy.view.console import SafeConsole
from olmorl.deploy.view.dashboard import duration
from olmorl.messages import Verdict
from olmorl.solved import is_solved
from olmorl.verifiers.registry import NAMES

TOGETHER = "(together)"
"""The table's name for the reward of a completion with several verdicts."""
PLAIN_S = 10.0
"""Pause between two lines of progress where there is no terminal."""
MAX_REASONS = 20


@dataclass
class _Row:
    """The counts of one verifier."""

    completions: int = 0
    scored: int = 0
    reward: float = 0.0
    solved: int = 0
    decided: int = 0
    zero: int = 0
    errors: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, verdict: Line, solved: bool | None) -> None:
        """`solved` is None when this verdict alone does not decide it."""
        self.completions += 1
        self.errors += verdict["error_kind"] is not None
        self.seconds += verdict["seconds"]
        self.longest = max(self.longest, verdict["seconds"])
        if verdict["reward"] is not None:
            self.scored += 1
            self.reward += verdict["reward"]
            self.solved += bool(solved)
            self.decided += solved is not None
            self.zero += verdict["reward"] == 0


@dataclass
class Tally:
    """Counts every line once, for each of its verifiers."""

    rows: int = 0
    completions: int = 0
    known: int = 0
    """Rows that were scored by an earlier command."""
    rewarded: int = 0
    """Completions that have a reward."""
    errors: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    """`file:line: reason` of the first completion without a reward."""
    reasons: list[str] = field(default_factory=list)
    """`file:line: reason` of the first unusable rows."""
    _verifiers: dict[str, _Row] = field(default_factory=dict)

    def add(self, scored: Scored) -> None:
        """Count the lines of a row."""
        self.rows += 1
        self.known += not scored.fresh
        for line in scored.lines:
            self.completions += 1
            self.rewarded += line["reward"] is not None
            if line["error_kind"] is not None:
                self.errors[line["error_kind"]] += 1
                self.first_error = self.first_error or f"{line['row']}: {line['detail']}"
            if line["error_kind"] == BAD_ROW:
                if len(self.reasons) < MAX_REASONS:
                    self.reasons.append(f"{line['row']}: {line['detail']}")
                continue
            self._add(line)

    def _add(self, line: Line) -> None:
        """Count a line for each of its verifiers, and for all together where there are several."""
        parts = line.get("verdicts")
        if not parts:
            self._verifiers.setdefault(line["verifier"] or "none", _Row()).add(line, line["solved"])
            return
        for name, verdict in parts.items():
            own = {name: Verdict(reward=verdict["reward"])}
            built_in = name.partition("#")[0] in NAMES
            self._verifiers.setdefault(name, _Row()).add(
                verdict, is_solved([name], own, 0, {}, "") if built_in else None
            )
        self._verifiers.setdefault(TOGETHER, _Row()).add(line, line["solved"])

    def table(self) -> Table:
        """Rewards, errors and times by verifier."""
        table = Table(title_justify="left")
        for heading in ("verifier", "scored", "reward", "solved", "zero", "errors", "mean s", "max s"):
            table.add_column(heading, justify="left" if heading == "verifier" else "right", no_wrap=True)
        for name, row in sorted(self._verifiers.items()):
            scored = row.scored or 1
            table.add_row(
                name, f"{row.scored:,}", f"{row.reward / scored:.3f}" if row.scored else "-",
                f"{row.solved / row.decided:.1%}" if row.decided else "-", f"{row.zero / scored:.1%}",
                f"{row.errors:,}", f"{row.seconds / row.completions:.4f}", f"{row.longest:.3f}",
            )  # fmt: skip
        return table


class People(SafeConsole):
    """Stops printing once its reader is gone. Scoring continues, because its output is a file."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Display:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, title: str, total: int | None) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._started = self._said = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
                TextColumn("{task.fields[counts]}"), TimeElapsedColumn(), TimeRemainingColumn(),
            )  # fmt: skip
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(title, total=total, counts="")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, tally: Tally, position: int) -> None:
        """Bring the display up to date; `position` belongs to the last row."""
        if self._bar is not None:
            self._bar.update(self._task, completed=position, counts=self._counts(tally))
        elif time.monotonic() - self._said >= PLAIN_S:
            self._said = time.monotonic()
            share = f" ({position / self._total:.0%})" if self._total else ""
            self.say(f"{self._title}: {self._counts(tally)}{share}")

    def _counts(self, tally: Tally) -> str:
        fresh = tally.rows - tally.known
        rate = fresh / max(time.monotonic() - self._started, 1e-3)
        return f"{tally.rows:,} rows, {rate:,.0f} rows/s, {tally.errors.total():,} errors"

    def say(self, text: str) -> None:
        """Print a separate line."""
        self._console.print(Text(text), soft_wrap=True)

    def conclude(self, tally: Tally, interrupted: bool) -> None:
        """Print the table, the errors and the unusable rows."""
        for reason in tally.reasons:
            self.say(f"unusable: {reason}")
        if tally.errors[BAD_ROW] > len(tally.reasons):
            self.say(f"and {tally.errors[BAD_ROW] - len(tally.reasons):,} more unusable rows")
        if tally.rewarded:
            self._console.print(tally.table())
        if tally.errors:
            self.say("errors: " + ", ".join(f"{number:,} {kind}" for kind, number in tally.errors.most_common()))
        seconds = time.monotonic() - self._started
        before = f", {tally.known:,} of them before" if tally.known else ""
        end = "interrupted after" if interrupted else "done:"
        self.say(f"{end} {tally.rows:,} rows{before}, {tally.completions:,} completions, {duration(seconds)}")
