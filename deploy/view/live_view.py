"""The view of a run: a live table on a terminal, a line per step otherwise, a summary at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from olmorl.deploy.view.start_phases import Phase, phases
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict
from olmorl.messages import ActorStatus, Wait

log = logging.getLogger(__name__)
SAY_AFTER_S = 10.0
MOST_COMPARED = 5
"""Steps at either end of a run that the summary compares."""
LIKELY = 0.6
"""How sure a verdict is that is printed as a line."""
_BARS = "▁▂▃▄▅▆▇█"


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
    verdict: RunVerdict | None = None
    """The limit of the run; the launcher adds it."""


class Terminal(Console):
    """A run continues when its output cannot be written: a closed pipe, a full disk."""

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
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
    _live: Live | None = None
    _rewards: list[float] = field(default_factory=list)
    _last: dict[str, Any] = field(default_factory=dict)
    _first_step: tuple[int, float] | None = None
    _said: set[tuple[str, str]] = field(default_factory=set)
    _limit: Bottleneck | None = None

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # a terminal that is gone
                self._live.__exit__(None, None, None)
            self._live = None

    def say(self, text: str) -> None:
        """Print a line above the live view, and write it to the log."""
        log.info(text)
        self._print(text)

    def doing(self, what: str) -> None:
        """Show the work of the launcher before the run has a status."""
        if self._live is None:
            self.say(what)
        else:
            log.info(what)
            self._live.update(Group(self._head(), Text(what)))

    @contextmanager
    def placing(self, what: str, wait_s: float) -> Iterator[None]:
        """Report a wait for places, unless it ends soon. Needs a running event loop."""
        text = f"waiting for Ray to have room for {what}, up to {wait_s:g} s: `ray status` says what there is"
        timer = asyncio.get_running_loop().call_later(SAY_AFTER_S, self.say, text)
        try:
            yield
        finally:
            timer.cancel()

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def show(self, status: Status, troubles: Sequence[str] = ()) -> None:
        """Bring the view up to date; `troubles` has a line for each problem."""
        for line in status.lines:
            self._last = line
            self._rewards.append(float(line.get("reward_mean", 0.0)))
            if not self.console.is_terminal:
                self._print(self._plain(line, status.steps))
        if not self.console.is_terminal:
            self._say_verdict(status.verdict)
            if not self._last:
                self._say_phases(status)
        if self._first_step is None and status.step:
            self._first_step = (status.step, time.monotonic())
        if self._live is not None:
            self._live.update(self.view(status, troubles))

    def _phases(self, status: Status) -> Iterator[Phase]:
        return phases(status.waits, status.actors, status.results, self.engine_start)

    def _say_phases(self, status: Status) -> None:
        for phase in self._phases(status):
            if (phase.part, phase.what) not in self._said:
                self._said.add((phase.part, phase.what))
                self.say(f"{phase.part}: {phase.what}")

    def _say_verdict(self, verdict: RunVerdict | None) -> None:
        """Print the limit of the run when it has changed and is likely."""
        if verdict is not None and verdict.limit is not self._limit and verdict.sure > LIKELY:
            self._limit = verdict.limit
            self._print(verdict.text)

    def _plain(self, line: dict[str, Any], steps: int) -> str:
        held_out = "".join(
            f"  {key.removeprefix('eval_')} {_accuracy(value)}"
            for key, value in line.items()
            if key.startswith("eval_") and key.endswith("_accuracy")
        )
        return (
            f"step {line['step']:>4}/{steps}  reward {line['reward_mean']:.3f}  batch {line['batch_reward_mean']:.3f}"
            f"  {line['actor_tokens_per_s']:,.0f} tok/s  lag {line['lag_mean']:.2f} (max {line['lag_max']:.0f})"
            f"  length {line['completion_tokens_mean']:.0f}  step {line['learner_step_s']:.1f}s"
            f"  wait {line['learner_wait_s']:.1f}s  in flight {line['groups_in_flight']}{held_out}"
        )

    def eta(self, status: Status) -> str:
        """Time to the last step at the pace since the first one seen."""
        if self._first_step is None or status.step <= self._first_step[0]:
            return "--"
        done, since = self._first_step
        seconds = (time.monotonic() - since) / (status.step - done) * (status.steps - status.step)
        return duration(seconds)

    def view(self, status: Status, troubles: Sequence[str] = ()) -> RenderableType:
        """The live view."""
        line = self._last
        parts: list[RenderableType] = [self._head(status)]
        if line:
            parts.append(_numbers(line, self._rewards))
        else:
            parts += [Text(str(phase)) for phase in self._phases(status)]
        if status.verdict is not None:
            parts.append(Text(status.verdict.text))
        parts.append(Text(f"queue: {status.queued} queued  {status.leased} leased  {status.results} results"))
        actors = Table(
            "actor", "state", "version", "running", "waiting", "KV", box=None, header_style="dim", padding=(0, 2)
        )
        for actor in status.actors[:20]:
            load = (str(actor.running), str(actor.waiting), f"{actor.kv_used:.0%}")
            actors.add_row(actor.name, actor.state, str(actor.version or "-"), *load)
        parts.append(actors)
        if len(status.actors) > 20:
            parts.append(Text(f"... and {len(status.actors) - 20} more actors", style="dim"))
        parts += [Text(trouble, style="red") for trouble in troubles]
        return Group(*parts)

    def _head(self, status: Status | None = None) -> Table:
        head = Table.grid(padding=(0, 2))
        elapsed = f"elapsed {duration(time.monotonic() - self.started)}"
        if status is None:
            head.add_row(Text(self.title, style="bold"), elapsed)
        else:
            bar = ProgressBar(total=status.steps, completed=status.step, width=30)
            step = f"step {status.step}/{status.steps}"
            head.add_row(Text(self.title, style="bold"), step, bar, elapsed, f"ETA {self.eta(status)}")
        return head


def _numbers(line: dict[str, Any], rewards: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row(
        f"reward {line['reward_mean']:.3f} {sparkline(rewards[-40:])}",
        f"{line['actor_tokens_per_s']:,.0f} generated tok/s",
        f"{line['useful_tokens_per_s']:,.0f} trained tok/s",
        f"lag {line['lag_mean']:.2f} / {line['lag_max']:.0f}",
        f"learner step {line['learner_step_s']:.1f}s, wait {line['learner_wait_s']:.1f}s",
    )
    return table


def sparkline(values: Sequence[float]) -> str:
    """Eight-level bars, from the smallest value to the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((v - low) * scale)] for v in values)


def duration(seconds: float) -> str:
    """`1h02m`, `3m05s` or `7s`."""
    minutes, secs = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{secs:02d}s" if minutes else f"{secs}s"


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
        first, *later = [line[key] for line in lines if key in line]
        table.add_row(key, *map(_accuracy, (first, later[-1])) if later else ("", _accuracy(first)))
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


def _accuracy(value: float | None) -> str:
    """The accuracy of an evaluation round; none when none of its prompts was answered."""
    return "unanswered" if value is None else f"{value:.3f}"


def _mean(values: Sequence[tuple[float | None, float]], form: str) -> str:
    """The mean of weighted values; a step may have none."""
    there = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in there)
    return format(sum(value * weight for value, weight in there) / total, form) if total else "-"
