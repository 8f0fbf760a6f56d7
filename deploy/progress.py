"""What a run shows while it runs: a live table on a terminal, a line per step otherwise, a summary at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from olmorl.learner.waiting import Wait
from olmorl.messages import ActorStatus

log = logging.getLogger(__name__)
SAY_AFTER_S = 10.0
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Status:
    """One look at the run, as the assembler tells it."""

    step: int
    steps: int
    lines: Sequence[dict[str, Any]] = ()
    """Metric lines that were not shown before, oldest first."""
    queued: int = 0
    leased: int = 0
    results: int = 0
    actors: Sequence[ActorStatus] = ()
    """Their last heartbeats."""
    pulses: Mapping[str, float] = field(default_factory=dict)
    """When each learner rank last gave a sign of life, by the assembler's clock."""
    waits: Sequence[Wait] = ()


class Terminal(Console):
    """A run goes on when nobody can read what it says: a pipe that is closed, a full disk below the output."""

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        self.quiet = True


@dataclass
class Progress:
    """Shows every metric line once."""

    title: str
    console: Console = field(default_factory=Terminal)
    started: float = field(default_factory=time.monotonic)
    _live: Live | None = None
    _rewards: list[float] = field(default_factory=list)
    _last: dict[str, Any] = field(default_factory=dict)
    _first_step: tuple[int, float] | None = None

    def __enter__(self) -> Progress:
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
        """News: a line of its own above the live view, and in the log."""
        log.info(text)
        self._print(text)

    @contextmanager
    def placing(self, what: str, wait_s: float) -> Iterator[None]:
        """A wait for places, which people hear of unless it is over soon. Within a running loop."""
        text = f"waiting for Ray to have room for {what}, up to {wait_s:g} s: `ray status` says what there is"
        timer = asyncio.get_running_loop().call_later(SAY_AFTER_S, self.say, text)
        try:
            yield
        finally:
            timer.cancel()

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def show(self, status: Status, troubles: Sequence[str] = ()) -> None:
        """Bring the view up to date; `troubles` are lines about what does not go as it should."""
        for line in status.lines:
            self._last = line
            self._rewards.append(float(line.get("reward_mean", 0.0)))
            if not self.console.is_terminal:
                self._print(self._plain(line, status.steps))
        if self._first_step is None and status.step:
            self._first_step = (status.step, time.monotonic())
        if self._live is not None:
            self._live.update(self.view(status, troubles))

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
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.title, style="bold"),
            f"step {status.step}/{status.steps}",
            ProgressBar(total=status.steps, completed=status.step, width=30),
            f"elapsed {duration(time.monotonic() - self.started)}",
            f"ETA {self.eta(status)}",
        )
        parts: list[RenderableType] = [head]
        if line:
            parts.append(_numbers(line, self._rewards))
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
    """The table at the end: where it started, where it ended, where the tokens went."""
    table = Table(title=f"{run_dir}: {len(lines)} steps, {duration(seconds)} this time", show_header=True)
    table.add_column("")
    table.add_column("first 5 steps", justify="right")
    table.add_column("last 5 steps", justify="right")
    if not lines:
        return table
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
        table.add_row(key, *(format(_mean(part, key), form) for part in (lines[:5], lines[-5:])))
    for key in dict.fromkeys(k for line in lines for k in line if k.startswith("eval_") and k.endswith("_accuracy")):
        values = [line[key] for line in lines if key in line]
        table.add_row(key, _accuracy(values[0]), _accuracy(values[-1]))
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
    """Of an evaluation round, which has none when no prompt of it was answered."""
    return "unanswered" if value is None else f"{value:.3f}"


def _mean(lines: Sequence[dict[str, Any]], key: str) -> float:
    return sum(float(line[key]) for line in lines) / len(lines)
