"""What a launcher shows of its run: a full screen on a terminal, a line per step otherwise, a summary at the end."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from olmorl.deploy.view import terminal
from olmorl.deploy.view.console import SafeConsole
from olmorl.deploy.view.dashboard import Dashboard, RecentSample, RunView, accuracy, duration
from olmorl.deploy.view.run_history import RunHistory
from olmorl.deploy.view.start_phases import Phase, phases
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict
from olmorl.messages import ActorStatus, Wait
from olmorl.metrics import answered_by

log = logging.getLogger(__name__)
SAY_AFTER_S = 10.0
MOST_COMPARED = 5
"""Steps at either end of a run that the summary compares."""
LIKELY = 0.6
"""How sure a verdict is that is printed as a line."""
MOST_UNPRINTED = 200
"""Lines that were said while the view filled the screen. They are printed when it ends."""


@dataclass(frozen=True)
class Status:
    """The state of the run at one time, as the orchestrator reports it."""

    step: int
    steps: int
    lines: Sequence[dict[str, Any]] = ()
    """Metric lines that were not shown before, oldest first."""
    newest_line: int = 0
    """Number of the newest metric line."""
    queued: int = 0
    leased: int = 0
    results: int = 0
    actors: Sequence[ActorStatus] = ()
    """Their last heartbeats."""
    pulses: Mapping[str, float] = field(default_factory=dict)
    """The time of the last sign of life of each learner rank, by the orchestrator's clock."""
    waits: Sequence[Wait] = ()
    failures: tuple[int, str] = (0, "")
    """The number of draws that failed in a row, and a sentence about them."""
    checkpoint_every: int | None = None
    """Steps between checkpoints now."""
    sample: RecentSample | None = None
    """An answer of the last draw that ended with a group."""
    verdict: RunVerdict | None = None
    """The limit of the run; the launcher adds it."""


@contextmanager
def _if_written() -> Iterator[None]:
    """A run continues when its output cannot be written: a full disk, a terminal that is gone or halted."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno == errno.EIO:
            terminal.leave()


class Terminal(SafeConsole):
    """Prints what can be written, and ends with a closed pipe."""

    def print(self, *objects: Any, **options: Any) -> None:
        with _if_written():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        self.quiet = True


@dataclass
class LiveView:
    """Shows every metric line once."""

    title: str
    console: Console = field(default_factory=Terminal)
    engine_start: str = "starting"
    """The work of an engine before it generates."""
    started: float = field(default_factory=time.monotonic)
    latest: RunView = field(default_factory=lambda: RunView(title=""))
    """The view that was shown last."""
    _live: Live | None = None
    _history: RunHistory = field(default_factory=RunHistory)
    _unprinted: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_UNPRINTED))
    _first_step: tuple[int, float] | None = None
    _has_line: bool = False
    _said: set[tuple[str, str]] = field(default_factory=set)
    _limit: Bottleneck | None = None

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            # It has no thread: a write that waits for the terminal has to be in the thread that handles signals.
            self._live = Live(console=self.console, auto_refresh=False, screen=True)
            with _if_written():
                self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the full screen, and print what was said on it. May be called again."""
        if self._live is not None:
            live, self._live = self._live, None
            with _if_written():
                live.__exit__(None, None, None)
            while self._unprinted:
                self._print(self._unprinted.popleft())

    def say(self, text: str) -> None:
        """Print a line, or show it among the news, and write it to the log."""
        self._history.add_news(text)
        if self._live is not None:
            self._unprinted.append(text)
        self._tell(text)

    def doing(self, what: str) -> None:
        """Show the work of the launcher before the run has a status."""
        self._tell(what)
        if self._live is not None:
            self._draw(self._history.view(self._now(phases=[what]), [], None))

    @contextmanager
    def placing(self, what: str, wait_s: float) -> Iterator[None]:
        """Report a wait for places, unless it ends soon. Needs a running event loop."""
        text = f"waiting for Ray to have room for {what}, up to {wait_s:g} s: `ray status` says what there is"
        timer = asyncio.get_running_loop().call_later(SAY_AFTER_S, self.say, text)
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, text: str) -> None:
        """Write a line to the log, and print it unless the view fills the screen."""
        log.info(text)
        if self._live is None:
            self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def show(self, status: Status, slots: Sequence[Mapping[str, Any]] = ()) -> None:
        """Bring the view up to date.

        Args:
            slots: each actor with its state and its last fault, as `ActorSupervisor.describe` gives it.
        """
        for line in status.lines:
            self._has_line = True
            self._history.add_line(line)
            if not self.console.is_terminal:
                self._print(self._plain(line, status.steps))
        if not self.console.is_terminal:
            self._say_verdict(status.verdict)
            if not self._has_line:
                self._say_phases(status)
        if self._first_step is None and status.step:
            self._first_step = (status.step, time.monotonic())
        self._history.hear(status.actors)
        self._draw(self._view(status, slots))

    def _draw(self, view: RunView) -> None:
        self.latest = view
        if self._live is not None:
            with _if_written():
                self._live.update(Dashboard(view), refresh=True)

    def _phases(self, status: Status) -> Iterator[Phase]:
        return phases(status.waits, status.actors, status.results, self.engine_start)

    def _say_phases(self, status: Status) -> None:
        for phase in self._phases(status):
            if (phase.part, phase.what) not in self._said:
                self._said.add((phase.part, phase.what))
                self._tell(f"{phase.part}: {phase.what}")

    def _say_verdict(self, verdict: RunVerdict | None) -> None:
        """Print the limit of the run when it has changed and is likely."""
        if verdict is not None and verdict.limit is not self._limit and verdict.sure > LIKELY:
            self._limit = verdict.limit
            self._print(verdict.text)

    def _plain(self, line: dict[str, Any], steps: int) -> str:
        held_out = "".join(
            f"  {key.removeprefix('eval_')} {accuracy(value, answered_by(line, key))}"
            for key, value in line.items()
            if key.startswith("eval_") and key.endswith("_accuracy")
        )
        reward, batch = (_mean([(line[key], 1.0)], ".3f") for key in ("reward_mean", "batch_reward_mean"))
        return (
            f"step {line['step']:>4}/{steps}  reward {reward}  batch {batch}"
            f"  {line['actor_tokens_per_s']:,.0f} tok/s  lag {line['lag_mean']:.2f} (max {line['lag_max']:.0f})"
            f"  length {line['completion_tokens_mean']:.0f}  step {line['learner_step_s']:.1f}s"
            f"  wait {line['learner_wait_s']:.1f}s  in flight {line['groups_in_flight']}{held_out}"
        )

    def eta_s(self, status: Status) -> float | None:
        """Seconds to the last step at the pace since the first one seen."""
        if self._first_step is None or status.step <= self._first_step[0]:
            return None
        done, since = self._first_step
        return (time.monotonic() - since) / (status.step - done) * (status.steps - status.step)

    def _now(self, **values: Any) -> RunView:
        return RunView(title=self.title, elapsed_s=time.monotonic() - self.started, **values)

    def _view(self, status: Status, slots: Sequence[Mapping[str, Any]]) -> RunView:
        now = self._now(
            step=status.step,
            steps=status.steps,
            eta_s=self.eta_s(status),
            queued=status.queued,
            leased=status.leased,
            results=status.results,
            verdict=status.verdict.text if status.verdict else "",
            phases=[] if self._has_line else [str(phase) for phase in self._phases(status)],
        )
        return self._history.view(now, self._history.rows(status.actors, slots), status.sample)


def summary(lines: Sequence[dict[str, Any]], run_dir: Path, seconds: float) -> RenderableType:
    """The table at the end: where it started, where it ended, where the tokens went.

    A rate is of all tokens over all the time of its steps. An accuracy is of the first and the last evaluation. Every
    other number above the totals is the mean of its steps.
    """
    table = Table(title=f"{run_dir}: {len(lines)} steps; this start took {duration(seconds)}", show_header=True)
    table.add_column("")
    part = min(MOST_COMPARED, max(len(lines) // 2, 1))
    for end in ("first", "last"):
        table.add_column(f"{end} {part} steps" if part > 1 else f"{end} step", justify="right")
    if not lines:
        return table
    seconds_of = [after - before for before, after in pairwise([0.0, *(line["wall_s"] for line in lines)])]
    for key, form in (
        ("reward_mean", ".3f"),
        ("completion_tokens_mean", ".0f"),
        ("actor_tokens_per_s", ",.0f"),
        ("useful_tokens_per_s", ",.0f"),
        ("lag_mean", ".2f"),
        ("learner_step_s", ".2f"),
        ("learner_wait_s", ".2f"),
        ("weight_stall_s_mean", ".3f"),
    ):
        weights = seconds_of if key.endswith("_per_s") else [1.0] * len(lines)
        values = [(line[key], weight) for line, weight in zip(lines, weights, strict=True)]
        table.add_row(key, *(_mean(some, form) for some in (values[:part], values[-part:])))
    for key in dict.fromkeys(k for line in lines for k in line if k.startswith("eval_") and k.endswith("_accuracy")):
        first, *later = [accuracy(line[key], answered_by(line, key)) for line in lines if key in line]
        table.add_row(key, *(first, later[-1]) if later else ("", first))
    last = lines[-1]
    table.add_section()
    for key in (
        "prompts_drawn_total",
        "groups_trained_total",
        "groups_zero_gradient_total",
        "groups_stale_total",
        "groups_failed_total",
        "groups_in_flight",
        "tokens_generated_total",
        "tokens_trained_total",
    ):
        table.add_row(key, "", f"{last[key]:,}")
    return table


def _mean(values: Sequence[tuple[float | None, float]], form: str) -> str:
    """The mean of weighted values; a step may have none."""
    there = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in there)
    return format(sum(value * weight for value, weight in there) / total, form) if total else "-"
