"""Shows a plan: tables for people, JSON for programs, a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from olmorl.config import Config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.plan.measured import FinishedRun
from olmorl.deploy.plan.sweep import Choice, Prediction
from olmorl.deploy.plan.workload import Workload
from olmorl.deploy.preflight.publishing import PublishingPlan
from olmorl.deploy.view.console import SafeConsole
from olmorl.errors import DataError

_WIDTH = 150
"""Width of the output without a terminal."""


def console() -> Console:
    """Standard output, wide enough for the tables in a file too."""
    return SafeConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH)


def show_inputs(out: Console, settings: Config, load: Workload, publishing: PublishingPlan | None) -> None:
    """The numbers that the predictions rest on, and what publishing costs the learner, if the model is here."""
    simulation, placed = load.simulation, plan(settings)
    slots = settings.actors.max_running
    full = slots * simulation.tokens_per_s / (1 + simulation.batch_slowdown * (slots - 1))
    mean = load.expected_tokens(settings.sampling.max_tokens)
    tokens = settings.schedule.prompts_per_step * settings.sampling.group_size * mean
    trained = simulation.train_overhead_s + tokens / (simulation.train_tokens_per_s * placed.ranks)
    out.print(f"rates from {load.origin}", soft_wrap=True)
    table = Table("input", "value")
    table.add_row("an engine", f"{full:,.0f} tokens/s with {slots} sequences, {simulation.tokens_per_s:,.1f} with one")
    table.add_row("a training step", f"{trained:,.2f} s for {tokens:,.0f} tokens on {placed.ranks} rank(s)")
    kind = f"{len(load.groups):,} recorded groups" if load.groups else f"log-normal, sigma {simulation.tail:g}"
    table.add_row("answers", f"{mean:,.0f} tokens, at most {settings.sampling.max_tokens:,}; {kind}")
    if not load.groups:
        table.add_row(
            "solve rate", f"{simulation.solve_rate:g}, log-odds +{simulation.learned_per_version:g} a version"
        )
    table.add_row(
        "delays",
        f"verdicts {simulation.verify_s:.3g} s, publishing {simulation.publish_s:.3g} s, stall of an update "
        f"{simulation.update_s:.3g} s",
    )
    if publishing is not None:
        waited = f"{publishing.copy_s + publishing.probe_s:.2g} s for each version"
        table.add_row("publishing", f"the learner waits {waited}, {publishing.share(trained):.1%} of its step")
    out.print(table)


def show(
    out: Console, settings: Config, tried: Sequence[Prediction], chosen: Prediction | None, real: FinishedRun | None
) -> None:
    """A row for each configuration; the recommended one is marked."""
    unit = "GPU" if plan(settings).on_gpu else "core"
    columns = ["", "nodes", "lag", "prompts", "s/step", "trained/s", "generated/s", "lag mean", "lag max"]
    columns += ["wait", "engines busy", "not trained", "hours", f"{unit} hours"]
    table = Table(*columns, title=f"{settings.schedule.steps:,} steps", title_justify="left")
    table.columns[0].no_wrap = True
    if real is not None:
        done, own = real.figures, real.settings
        nodes = f"{own.learner.nodes}+{own.actors.nodes}"
        lag, batch = str(own.schedule.max_lag), str(own.schedule.prompts_per_step)
        table.add_row("the run", nodes, lag, batch, *_figures(done), "", f"{done.wasted:.0%}", "", "")
    for one in tried:
        mark = "recommended" if one is chosen else ""
        choice = one.choice
        table.add_row(
            mark,
            f"{choice.learner_nodes}+{choice.actor_nodes}",
            str(choice.max_lag),
            str(choice.batch),
            *_figures(one.figures),
            f"{one.busy:.0%}",
            f"{one.figures.wasted:.0%}",
            f"{one.hours:,.2f}",
            f"{one.device_hours:,.2f}",
        )
    out.print(table)


def _figures(found: Any) -> list[str]:
    return [
        f"{found.step_s:,.2f}",
        f"{found.trained_per_s:,.0f}",
        f"{found.generated_per_s:,.0f}",
        f"{found.lag:.2f}",
        str(found.lag_max),
        f"{found.wait:.1%}",
    ]


def fields(one: Prediction) -> dict[str, Any]:
    """A prediction as plain values."""
    return {
        **one.choice._asdict(),
        **one.figures._asdict(),
        "engines_busy": one.busy,
        "hours": one.hours,
        "device_hours": one.device_hours,
    }


def write_json(
    path: Path, load: Workload, tried: Sequence[Prediction], chosen: Prediction, real: FinishedRun | None
) -> None:
    """Inputs and predictions, one object.

    Raises:
        DataError: the file cannot be written.
    """
    document = {
        "rates": {"origin": load.origin, "recorded_groups": len(load.groups), **load.simulation.model_dump()},
        "run": None if real is None else {"steps": real.steps, **real.figures._asdict()},
        "predictions": [fields(one) for one in tried],
        "recommended": chosen.choice._asdict(),
    }
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; name a file in a folder that is there") from None


def draw(tried: Sequence[Prediction], chosen: Prediction, path: Path, title: str) -> None:
    """Draw speed, wait and lag along each axis that was varied into `path` (svg, png or pdf); a line marks `chosen`.

    Raises:
        DataError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("a picture needs matplotlib: pip install matplotlib") from None
    panels = [(name, along) for name, along in _varied(tried) if len(along) > 1]
    panels = panels or [("this configuration", [("", chosen)])]
    figure = Figure(figsize=(4.6 * len(panels), 6.4), layout="constrained")
    figure.suptitle(title.replace("$", r"\$"), fontsize="x-large")
    grid = figure.subplots(3, len(panels), squeeze=False, sharex="col")
    for column, (name, along) in enumerate(panels):
        labels = [label for label, _ in along]
        for row, (what, values) in enumerate(_curves([one for _, one in along])):
            axes = grid[row][column]
            for label, numbers in values:
                axes.plot(range(len(labels)), numbers, marker="o", label=label)
            for place in [number for number, (_, one) in enumerate(along) if one is chosen]:
                axes.axvline(place, color="tab:green", linestyle=":")
            axes.set_ylim(bottom=0)
            axes.set_title(what, fontsize="medium")
            axes.legend(fontsize="x-small")
        grid[2][column].set_xticks(range(len(labels)), labels)
        grid[2][column].set_xlabel(name)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; name a .svg, .png or .pdf in a folder that is there") from None


def _varied(tried: Sequence[Prediction]) -> list[tuple[str, list[tuple[str, Prediction]]]]:
    """For each axis the largest set of predictions that differ on this axis alone, with their labels."""
    return [
        ("nodes, learner + actors", _family(tried, lambda c: (c[2:], f"{c.learner_nodes} + {c.actor_nodes}"))),
        ("max_lag", _family(tried, lambda c: ((*c[:2], c.batch), str(c.max_lag)))),
        ("prompts a step", _family(tried, lambda c: (c[:3], str(c.batch)))),
    ]


def _family(
    tried: Sequence[Prediction], split: Callable[[Choice], tuple[tuple[int, ...], str]]
) -> list[tuple[str, Prediction]]:
    """`split` gives the common part of a family, and the label of one member."""
    families: dict[tuple[int, ...], list[tuple[str, Prediction]]] = {}
    for one in sorted(tried, key=lambda prediction: prediction.choice):
        common, label = split(one.choice)
        families.setdefault(common, []).append((label, one))
    return max(families.values(), key=len)


def _curves(along: Sequence[Prediction]) -> list[tuple[str, list[tuple[str, list[float]]]]]:
    return [
        (
            "tokens/s",
            [
                ("generated", [one.figures.generated_per_s for one in along]),
                ("trained", [one.figures.trained_per_s for one in along]),
            ],
        ),
        (
            "share of the time, %",
            [
                ("learner waits", [100 * one.figures.wait for one in along]),
                ("slots of the engines in use", [100 * one.busy for one in along]),
            ],
        ),
        ("lag, versions", [("mean over tokens", [one.figures.lag for one in along])]),
    ]
