"""The full-screen view of a run. The important parts fit 80 x 24 characters; a larger screen shows more."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from olmorl.deploy.view.curves import PANELS

WIDE = 120
"""Columns from which actors stand next to faults and sample."""
LEAST_ACTORS, LEAST_FAULTS, LEAST_SAMPLE = 3, 1, 3
"""Lines that the parts keep on a small screen."""
_BARS = "▁▂▃▄▅▆▇█"
_LABEL = 8
"""Columns of the words at the left."""
_MARK = "▲"
_FORMS = {"s": "{:.1f} s", "versions": "{:.3g}"}
"""How a value is written, by its unit; the others are whole numbers."""


class ActorRow(msgspec.Struct, frozen=True):
    """One actor."""

    name: str
    state: str
    version: str = "-"
    lag: int | None = None
    """Versions behind the newest one."""
    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    tokens_per_s: float | None = None
    fault: str = ""
    """Its last one."""


class RecentSample(msgspec.Struct, frozen=True):
    """One answer of the policy."""

    draw: int
    prompt: str
    answer: str
    reward: float | None
    outcome: str


class EvaluationCurve(msgspec.Struct, frozen=True):
    """The accuracy of one evaluation set: the first and the last one."""

    name: str
    first: float | None
    last: float | None
    first_by: str = ""
    """The versions that answered, such as `0-6`."""
    last_by: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the live view at one moment. The control endpoint sends it as a table of plain values."""

    title: str
    state: str = "running"
    step: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None
    rewards: Sequence[float | None] = ()
    """The reward of each step, the newest last."""
    evaluated: Sequence[int] = ()
    """Indices in `rewards` of the steps with an evaluation."""
    evaluations: Sequence[EvaluationCurve] = ()
    line: Mapping[str, Any] = {}
    """The newest metrics line."""
    queued: int = 0
    leased: int = 0
    results: int = 0
    verdict: str = ""
    phases: Sequence[str] = ()
    """The work of each part before the first step."""
    actors: Sequence[ActorRow] = ()
    faults: Sequence[str] = ()
    """The newest last."""
    sample: RecentSample | None = None


class Dashboard:
    """Draws a view into the console's width and height: no line is wider, and there are no more lines."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self.lines(options.max_width, options.height or console.size.height))

    def lines(self, width: int, height: int) -> list[RenderableType]:
        """The rows, for a screen of this size."""
        top = list(self._top(width))[:height]
        room = height - len(top)
        if width >= WIDE:
            return [*top, self._columns(width, room)] if room else top
        faults, sample = list(self._faults(width)), list(self._sample(width))
        for_faults, for_sample = min(len(faults), 1 + LEAST_FAULTS), min(len(sample), 1 + LEAST_SAMPLE)
        actors = list(self._actors(width, max(room - for_faults - for_sample, 1 + LEAST_ACTORS)))
        room -= len(actors)
        for_sample = max(min(len(sample), room - for_faults), 0)
        faults = _newest(faults, room - for_sample)
        return [*top, *actors, *faults, *sample[:for_sample]][:height]

    # --- the parts ----------------------------------------------------------------------------------

    def _top(self, width: int) -> Iterator[RenderableType]:
        view = self._view
        eta = "--" if view.eta_s is None else duration(view.eta_s)
        right = f"step {view.step}/{view.steps}   {duration(view.elapsed_s)} elapsed   ETA {eta}"
        state = "" if view.state == "running" else f"  {view.state}"
        head = Text(_fit(view.title, width - len(right) - len(state) - 2), style="bold", no_wrap=True)
        head.append(_fit(state, width - head.cell_len - len(right) - 1), style="yellow")
        head.append(" " * max(width - head.cell_len - len(right), 0))
        yield head.append(_fit(right, width - head.cell_len), style="default")
        yield _bar(view.step, view.steps, width)
        if not view.rewards:
            yield from (_line("", phase, width) for phase in view.phases)
        else:
            yield from self._curves(width)
            yield _line("tokens/s", self._values("Throughput"), width)
            yield _line("learner", f"{self._values('Time of the learner')}   lag: {self._values('Lag')}", width)
        ready = view.line.get("groups_ready")
        queue = f"{view.queued} prompts queued, {view.leased} leased, {view.results} results"
        yield _line("queue", queue + ("" if ready is None else f", {ready:.0f} groups ready"), width)
        for number, text in enumerate(_wrapped(view.verdict, width - _LABEL)):
            yield _line("" if number else "verdict", text, width, "bold")

    def _curves(self, width: int) -> Iterator[Text]:
        view = self._view
        last = next((reward for reward in reversed(view.rewards) if reward is not None), None)
        value = "-" if last is None else f"{last:.3f}"
        room = max(width - _LABEL - len(value) - 1, 1)
        shown = view.rewards[-room:]
        yield _line("reward", f"{value} {sparkline(shown)}", width, "green")
        if not view.evaluated:
            return
        skipped = len(view.rewards) - len(shown)
        marks = [" "] * len(shown)
        for index in view.evaluated:
            if index >= skipped:
                marks[index - skipped] = _MARK
        yield _line("", " " * (len(value) + 1) + "".join(marks), width, "cyan")
        found = "   ".join(
            f"{each.name} {accuracy(each.first, each.first_by)} -> {accuracy(each.last, each.last_by)}"
            for each in view.evaluations
        )
        yield _line("eval", found, width, "cyan")

    def _values(self, title: str) -> str:
        """The curves of a panel with their newest values."""
        form = _FORMS.get(PANELS[title].unit, "{:,.0f}")
        values = {label: self._view.line.get(field) for field, label in PANELS[title].curves.items()}
        return "   ".join(f"{label} {'-' if value is None else form.format(value)}" for label, value in values.items())

    def _actors(self, width: int, height: int) -> Iterator[Text]:
        """A head and a row for each actor; those with a fault come first when there is no room for all."""
        rows = list(self._view.actors)
        names = max([len("actor"), *(len(row.name) for row in rows)])
        head = (
            f"{'actor':<{names}}  {'state':<11} {'version':>8} {'lag':>3} {'run':>5} {'wait':>5} {'KV':>4} {'tok/s':>7}"
        )
        yield Text(_fit(f"{head}  last fault", width), style="reverse" if width < WIDE else "dim", no_wrap=True)
        more = 0
        if len(rows) > height - 1:
            more = len(rows) - (height - 2)
            kept = sorted(rows, key=lambda row: not row.fault)[: height - 2]
            rows = [row for row in rows if row in kept]
        for row in rows:
            lag = "-" if row.lag is None else str(row.lag)
            text = (
                f"{row.name:<{names}}  {row.state[:11]:<11} {row.version:>8} {lag:>3} {row.running:>5} "
                f"{row.waiting:>5} {row.kv_used:>4.0%} {_number(row.tokens_per_s):>7}"
            )
            found = Text(_fit(text, width), no_wrap=True)
            if row.fault and (room := width - len(found) - 2) > 0:
                found.append("  " + _fit(row.fault, room), style="red")
            yield found
        if more:
            yield Text(f"... and {more} more actors", style="dim")

    def _faults(self, width: int) -> Iterator[Text]:
        yield _title("last faults and news", width)
        if not self._view.faults:
            yield Text("none", style="dim")
        for fault in self._view.faults:
            yield Text(_fit(fault, width), no_wrap=True)

    def _sample(self, width: int) -> Iterator[Text]:
        sample = self._view.sample
        if sample is None:
            return
        reward = "-" if sample.reward is None else f"{sample.reward:g}"
        yield _title(f"answer of prompt {sample.draw}: reward {reward}, {sample.outcome.replace('_', ' ')}", width)
        yield Text(_fit("> " + " ".join(_printable(sample.prompt).split()), width), style="dim", no_wrap=True)
        for text in _wrapped(sample.answer, width):
            yield Text(text, no_wrap=True)

    def _columns(self, width: int, height: int) -> RenderableType:
        left = width * 3 // 5
        right = width - left - 2
        faults, sample = list(self._faults(right)), list(self._sample(right))
        faults = _newest(faults, max(height - len(sample), height // 2))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=left)
        grid.add_column(width=right)
        grid.add_row(Group(*self._actors(left, height)), Group(*[*faults, *sample][:height]))
        return grid


def _newest(lines: Sequence[Text], room: int) -> list[Text]:
    """A title and as many of the newest lines after it as there is room for."""
    if room < 2:
        return []
    return [lines[0], *lines[1:][-(room - 1) :]]


def _line(label: str, text: str, width: int, style: str = "") -> Text:
    found = Text(f"{label:<{_LABEL}}", style="dim", no_wrap=True)
    separator = "" if len(label) < _LABEL else " "
    return found.append(_fit(separator + text, width - _LABEL), style=style)


def _title(text: str, width: int) -> Text:
    return Text(f"{'─ ' + _fit(text, width - 4) + ' ':─<{width}}", style="dim", no_wrap=True)


def _bar(done: int, total: int, width: int) -> Text:
    share = min(done / total, 1.0) if total else 0.0
    percent = f" {share:.0%}"
    room = width - len(percent)
    full = round(share * room)
    return Text("━" * full, style="green").append("─" * (room - full), style="dim").append(percent, style="default")


def _fit(text: str, width: int) -> str:
    """A text of at most this width, in one line, without control characters."""
    text = _printable(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def _printable(text: str) -> str:
    """The text without control characters: an answer of a model may hold commands for the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most this width."""
    text = " ".join(_printable(text).split())
    if cell_len(text) == len(text):
        return textwrap.wrap(text, width)
    return [line.rstrip() for line in chop_cells(text, width)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def accuracy(value: float | None, by: str) -> str:
    """The accuracy of an evaluation and the versions that answered it; none when no prompt of it was answered."""
    return "unanswered" if value is None else f"{value:.3f}" + (f" (v{by})" if by else "")


def sparkline(values: Sequence[float | None]) -> str:
    """Eight-level bars, from the smallest value to the largest; a blank for a value that is missing."""
    there = [value for value in values if value is not None]
    if not there:
        return ""
    low, high = min(there), max(there)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else _BARS[round((value - low) * scale)] for value in values)


def duration(seconds: float) -> str:
    """`1h02m`, `3m05s` or `7s`."""
    minutes, secs = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{secs:02d}s" if minutes else f"{secs}s"
