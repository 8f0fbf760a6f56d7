"""Draws the curves of a run as one picture: reward, learning and time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from olmorl.errors import DataError
from olmorl.metrics import answered_by

Lines = Sequence[dict[str, Any]]
Values = npt.NDArray[np.float64]
_COLUMNS = 3
_FEW = 40
"""Steps up to which every point has a mark."""
_MANY = 200
"""Steps from which a running mean is drawn over the pale single values."""
_MOST_NAMES = 8
"""Names in the legend of one panel."""
_HEADROOM = 1.15


def draw(lines: Lines, path: Path, title: str) -> None:
    """Draw the metric lines of a run into `path` (png, svg or pdf). Values that are missing or not finite are gaps.

    Raises:
        DataError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("a figure needs matplotlib: pip install matplotlib") from None
    panels = [panel for panel in _panels(lines) if panel.has_values]
    if not panels:
        raise DataError(f"{title}: its metric lines have no numbers to draw")
    num_columns = min(_COLUMNS, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure = Figure(figsize=(4.4 * num_columns, 0.6 + 2.6 * num_rows), layout="constrained")
    figure.suptitle(_plain(title), fontsize="x-large")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True).flat
    for number, axes in enumerate(grid):
        if number >= len(panels):
            axes.remove()
            continue
        panels[number].draw_into(axes)
        if number + num_columns >= len(panels):
            axes.set_xlabel("learner step")
            axes.tick_params(labelbottom=True)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; name a .png, .svg or .pdf in a folder that is there") from None


def _panels(lines: Lines) -> list[Panel]:
    reward = Panel("reward", lines)
    reward.curve("reward_mean", "all scored groups")
    verifiers = sorted({key for line in lines for key in line if re.fullmatch(r"reward_.+_mean", key)})
    for key in verifiers:
        if not np.array_equal(reward.values(key), reward.values("reward_mean"), equal_nan=True):
            reward.curve(key, key.removeprefix("reward_").removesuffix("_mean"), width=1.0)
    reward.points("_reward_mean")
    accuracy = Panel("held-out accuracy", lines, bounds=(-0.03, 1.03))
    accuracy.points("_accuracy")
    length = Panel("completion length, tokens", lines, from_zero=True)
    length.curve("completion_tokens_mean", "mean")
    length.share("truncated_fraction", "truncated (right)")
    seconds = Panel("time of the learner, s", lines, from_zero=True, past_starts=True)
    seconds.curve("learner_step_s", "step")
    seconds.curve("learner_wait_s", "wait for a batch")
    speed = Panel("tokens/s", lines, from_zero=True)
    speed.curve("actor_tokens_per_s", "generated")
    speed.curve("useful_tokens_per_s", "trained")
    lag = Panel("lag, versions", lines, from_zero=True)
    lag.curve("lag_mean", "mean over tokens")
    lag.curve("lag_max", "largest")
    single = [Panel(name, lines) for name in ("loss", "entropy", "gradient norm")]
    for panel, key in zip(single, ("loss", "entropy_mean", "grad_norm"), strict=True):
        panel.curve(key)
    return [reward, accuracy, length, *single, seconds, speed, lag]


class Panel:
    """Curves over the learner steps. The first step of a start does not set their scale."""

    def __init__(
        self,
        title: str,
        lines: Lines,
        *,
        bounds: tuple[float, float] | None = None,
        from_zero: bool = False,
        past_starts: bool = False,
    ) -> None:
        """`past_starts`: the first step of a start, which waits for processes to start, may exceed the scale."""
        self._title = title
        self._lines = lines
        self._steps = self.values("step")
        self._bounds = bounds
        self._from_zero = from_zero
        self._is_start = _first_of_each([line.get("incarnation") for line in lines]) & past_starts
        self._curves: list[tuple[str, Values, float]] = []
        self._points: list[tuple[str, list[tuple[float, float, float, float]]]] = []
        """The label of each evaluation; its version, value, and the oldest and newest version that answered."""
        self._share: tuple[str, Values] | None = None

    def values(self, key: str) -> Values:
        """One number a line; NaN where there is none."""
        return np.array([_number(line.get(key)) for line in self._lines])

    def curve(self, key: str, label: str = "", width: float = 1.6) -> None:
        """Add the field `key` of every line."""
        values = self.values(key)
        if np.isfinite(values).any():
            self._curves.append((label, values, width))

    def points(self, ending: str) -> None:
        """Add the fields `eval_<name><ending>`, each at the version that it evaluates."""
        names = {key.removesuffix(ending) for line in self._lines for key in line if key.endswith(ending)}
        for name in sorted(name for name in names if name.startswith("eval_")):
            found = [
                (_version(line, name), _number(line.get(name + ending)), *_range(line, name)) for line in self._lines
            ]
            if points := sorted(point for point in found if isfinite(point[0]) and isfinite(point[1])):
                self._points.append((f"evaluation: {name.removeprefix('eval_')}", points))

    def share(self, key: str, label: str) -> None:
        """Add a field between 0 and 1, with its own scale on the right."""
        values = self.values(key)
        if np.isfinite(values).any():
            self._share = (label, values)

    @property
    def has_values(self) -> bool:
        return bool(self._curves or self._points)

    def draw_into(self, axes: Any) -> None:
        """Draw everything, with a legend where there is more than one thing."""
        from matplotlib.ticker import MaxNLocator

        axes.set_title(self._title, fontsize="medium", loc="left")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        top = self._top()
        handles = [_draw_curve(axes, label, self._steps, self._below(top, v), w) for label, v, w in self._curves]
        for label, points in self._points:
            xs, ys, oldest, newest = zip(*points, strict=True)
            (handle,) = axes.plot(xs, ys, "o--", markersize=4, linewidth=1, label=_plain(label))
            axes.hlines(ys, oldest, newest, colors=handle.get_color(), linewidth=2.5, alpha=0.4)
            handles.append(handle)
        self._set_scale(axes, top)
        if self._share is not None:
            label, values = self._share
            handles.append(_draw_share(axes.twinx(), label, self._steps, values))
        if len(handles) > 1 or self._points:
            shown = handles if len(handles) <= _MOST_NAMES else handles[: _MOST_NAMES - 1] + handles[-1:]
            place = "best" if self._share is None else "center left"
            axes.legend(shown, [each.get_label() for each in shown], fontsize="x-small", framealpha=0.6, loc=place)

    def _top(self) -> float:
        """The top of the scale: the highest value outside the first steps of starts; infinite without one."""
        usual = [np.nanmax(values[~self._is_start], initial=0.0) for _, values, _ in self._curves]
        return float(max(usual, default=0.0)) * _HEADROOM or inf

    def _below(self, top: float, values: Values) -> Values:
        return np.where(self._is_start & (values > top), nan, values)

    def _set_scale(self, axes: Any, top: float) -> None:
        if self._bounds is not None:
            axes.set_ylim(*self._bounds)
        elif self._from_zero:
            axes.set_ylim(0.0, top if isfinite(top) else None)
        for curve, (_, values, _) in zip(axes.get_lines(), self._curves, strict=False):
            for step, value in zip(self._steps[values > top], values[values > top], strict=True):
                style = {"fontsize": "x-small", "color": curve.get_color(), "textcoords": "offset points"}
                axes.annotate(f"\u2191 {value:.3g}", (step, top), (0, -3), ha="center", va="top", **style)


def _draw_curve(axes: Any, label: str, steps: Values, values: Values, width: float) -> Any:
    mark = "." if len(values) <= _FEW else ""
    if len(values) < _MANY:
        return axes.plot(steps, values, marker=mark, linewidth=width, label=_plain(label))[0]
    (pale,) = axes.plot(steps, values, linewidth=0.6, alpha=0.3)
    mean = _running_mean(values, len(values) // 50)
    return axes.plot(steps, mean, color=pale.get_color(), linewidth=width, label=_plain(label))[0]


def _draw_share(axes: Any, label: str, steps: Values, values: Values) -> Any:
    axes.set_ylim(-0.03, 1.03)
    shown = values if len(values) < _MANY else _running_mean(values, len(values) // 50)
    return axes.plot(steps, shown, ":", color="tab:red", linewidth=1.4, label=_plain(label))[0]


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isfinite(value) else nan


def _version(line: dict[str, Any], name: str) -> float:
    """The version that the evaluation `name` measured; a part of a set has the version of the set."""
    while name.startswith("eval_"):
        if isfinite(version := _number(line.get(f"{name}_version"))):
            return version
        name = name.rpartition("_")[0]
    return nan


def _range(line: dict[str, Any], name: str) -> tuple[float, float]:
    """The oldest and the newest version that answered; the version that was asked where they are not known."""
    oldest, _, newest = answered_by(line, name).partition("-")
    asked = _version(line, name)
    return (float(oldest), float(newest or oldest)) if oldest else (asked, asked)


def _first_of_each(seen: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.array([not i or one != seen[i - 1] for i, one in enumerate(seen)])


def _running_mean(values: Values, window: int) -> Values:
    """The mean of the last `window` values; NaN where all of them are missing."""
    there = np.isfinite(values)
    sums, counts = (np.concatenate([[0.0], np.cumsum(each)]) for each in (np.where(there, values, 0.0), there))
    since = np.maximum(np.arange(len(values)) + 1 - window, 0)
    number = counts[1:] - counts[since]
    means: Values = np.divide(sums[1:] - sums[since], number, out=np.full(len(values), nan), where=number > 0)
    return means


def _plain(text: str) -> str:
    """Escape a text: matplotlib reads dollars as a formula, and hides names that begin with an underscore."""
    return ("\u2009" if text.startswith("_") else "") + text.replace("$", r"\$")
