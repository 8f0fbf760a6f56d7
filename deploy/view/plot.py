"""Draws the curves of a run as one picture: reward, learning and time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from olmorl.deploy.view.curves import PANELS, EvaluationPoint, Panel, evaluation_points, number
from olmorl.errors import DataError

Lines = Sequence[dict[str, Any]]
Values = npt.NDArray[np.float64]
_SHOWN: Final = (
    *("Reward", "Held-out accuracy", "Solve rate", "Reward by verifier", "Answer length", "Truncated answers"),
    *("Loss", "Entropy", "Gradient norm", "KL engine against learner", "Lag", "Throughput", "Time of the learner"),
)
_COMPARED: Final = ("Reward by verifier",)
"""Panels that one curve alone does not need."""
_COLUMNS = 3
_FEW = 40
"""Steps up to which every point has a mark."""
_MANY = 200
"""Steps from which a running mean is drawn over the pale single values."""
_MOST_NAMES = 8
"""Names in the legend of one panel."""
_HEADROOM = 1.15
_FREE = ("", "nats")
"""Units of values of any size and sign. The scale of the others begins at zero."""


def draw(lines: Lines, path: Path, title: str) -> None:
    """Draw the metric lines of a run into `path` (png, svg or pdf). Values that are missing or not finite are gaps.

    Raises:
        DataError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("a figure needs matplotlib: pip install matplotlib") from None
    panels = [panel for name in _SHOWN if (panel := _DrawnPanel(PANELS[name], lines)).is_needed]
    if not panels:
        raise DataError(f"{title}: its metric lines have no numbers to draw")
    num_columns = min(_COLUMNS, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure = Figure(figsize=(4.4 * num_columns, 0.6 + 2.6 * num_rows), layout="constrained")
    figure.suptitle(_plain(title), fontsize="x-large")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True).flat
    for place, axes in enumerate(grid):
        if place >= len(panels):
            axes.remove()
            continue
        panels[place].draw_into(axes)
        if place + num_columns >= len(panels):
            axes.set_xlabel("learner step")
            axes.tick_params(labelbottom=True)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; name a .png, .svg or .pdf in a folder that is there") from None


class _DrawnPanel:
    """A panel over the learner steps. The first step of a start waits for processes, and sets no scale of seconds."""

    def __init__(self, panel: Panel, lines: Lines) -> None:
        self._panel = panel
        self._steps = _values(lines, "step")
        self._is_start = _first_of_each([line.get("incarnation") for line in lines]) & (panel.unit == "s")
        self._curves: list[tuple[str, Values]] = []
        self._points: list[tuple[str, list[EvaluationPoint]]] = []
        for field, label in panel.labels(dict.fromkeys(key for line in lines for key in line)).items():
            if not field.startswith("eval_"):
                if np.isfinite(values := _values(lines, field)).any():
                    self._curves.append((label, values))
            elif points := evaluation_points(lines, field):
                self._points.append((label, points))

    @property
    def is_needed(self) -> bool:
        return len(self._curves) + len(self._points) > (self._panel.title in _COMPARED)

    def draw_into(self, axes: Any) -> None:
        """Draw everything, with a legend where there is more than one thing."""
        from matplotlib.ticker import MaxNLocator

        axes.set_title(self._panel.heading, fontsize="medium", loc="left")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        top = self._top()
        handles = [_draw_curve(axes, label, self._steps, self._below(top, values)) for label, values in self._curves]
        for label, points in self._points:
            xs, ys, oldest, newest, _ = zip(*points, strict=True)
            (handle,) = axes.plot(xs, ys, "o--", markersize=4, linewidth=1, label=_plain(label))
            axes.hlines(ys, oldest, newest, colors=handle.get_color(), linewidth=2.5, alpha=0.4)
            handles.append(handle)
        self._set_scale(axes, top)
        if len(handles) > 1 or self._points:
            shown = handles if len(handles) <= _MOST_NAMES else handles[: _MOST_NAMES - 1] + handles[-1:]
            axes.legend(shown, [each.get_label() for each in shown], fontsize="x-small", framealpha=0.6, loc="best")

    def _top(self) -> float:
        """The top of the scale: the highest value outside the first steps of starts; infinite without one."""
        usual = [np.nanmax(values[~self._is_start], initial=0.0) for _, values in self._curves]
        return float(max(usual, default=0.0)) * _HEADROOM or inf

    def _below(self, top: float, values: Values) -> Values:
        return np.where(self._is_start & (values > top), nan, values)

    def _set_scale(self, axes: Any, top: float) -> None:
        if self._panel.unit == "share":
            axes.set_ylim(-0.03, 1.03)
        elif self._panel.unit not in _FREE:
            axes.set_ylim(0.0, top if isfinite(top) else None)
        for curve, (_, values) in zip(axes.get_lines(), self._curves, strict=False):
            for step, value in zip(self._steps[values > top], values[values > top], strict=True):
                style = {"fontsize": "x-small", "color": curve.get_color(), "textcoords": "offset points"}
                axes.annotate(f"\u2191 {value:.3g}", (step, top), (0, -3), ha="center", va="top", **style)


def _draw_curve(axes: Any, label: str, steps: Values, values: Values) -> Any:
    mark = "." if len(values) <= _FEW else ""
    if len(values) < _MANY:
        return axes.plot(steps, values, marker=mark, linewidth=1.6, label=_plain(label))[0]
    (pale,) = axes.plot(steps, values, linewidth=0.6, alpha=0.3)
    mean = _running_mean(values, len(values) // 50)
    return axes.plot(steps, mean, color=pale.get_color(), linewidth=1.6, label=_plain(label))[0]


def _values(lines: Lines, field: str) -> Values:
    """One number a line; NaN where there is none."""
    return np.array([number(line.get(field)) for line in lines])


def _first_of_each(seen: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.array([not i or one != seen[i - 1] for i, one in enumerate(seen)])


def _running_mean(values: Values, window: int) -> Values:
    """The mean of the last `window` values; NaN where all of them are missing."""
    there = np.isfinite(values)
    sums, counts = (np.concatenate([[0.0], np.cumsum(each)]) for each in (np.where(there, values, 0.0), there))
    since = np.maximum(np.arange(len(values)) + 1 - window, 0)
    counted = counts[1:] - counts[since]
    means: Values = np.divide(sums[1:] - sums[since], counted, out=np.full(len(values), nan), where=counted > 0)
    return means


def _plain(text: str) -> str:
    """Escape a text: matplotlib reads dollars as a formula, and hides names that begin with an underscore."""
    return ("\u2009" if text.startswith("_") else "") + text.replace("$", r"\$")
