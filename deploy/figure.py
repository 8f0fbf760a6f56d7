"""The curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmorl.errors import DataError


def draw(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw reward, held-out accuracy, tokens a second and lag over the steps into `path` (png, svg or pdf).

    Raises:
        DataError: matplotlib is not installed, or the ending is none it writes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("a figure needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    reward, speed, lag, wait = figure.subplots(2, 2, sharex=True).flat
    steps = [line["step"] for line in lines]
    reward.plot(steps, [line["reward_mean"] for line in lines], label="reward, all scored groups")
    for name in sorted(
        {key for line in lines for key in line if key.startswith("eval_") and key.endswith("_accuracy")}
    ):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            reward.plot(*zip(*points, strict=True), "o--", label=name.removeprefix("eval_").replace("_", " "))
    reward.set_ylim(0, 1)
    speed.plot(steps, [line["actor_tokens_per_s"] for line in lines], label="generated tokens/s")
    speed.plot(steps, [line["useful_tokens_per_s"] for line in lines], label="trained tokens/s")
    lag.plot(steps, [line["lag_mean"] for line in lines], label="lag, mean over tokens")
    lag.plot(steps, [line["lag_max"] for line in lines], label="lag, largest")
    wait.plot(steps, [line["learner_step_s"] for line in lines], label="learner step, s")
    wait.plot(steps, [line["learner_wait_s"] for line in lines], label="learner wait, s")
    for axes in (reward, speed, lag, wait):
        axes.legend(frameon=False, fontsize="small")
        axes.grid(alpha=0.3)
    for axes in (lag, wait):
        axes.set_xlabel("learner step")
    try:
        figure.savefig(path, dpi=140)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; name a .png, .svg or .pdf in a folder that is there") from None
