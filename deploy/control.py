"""`olmorl-ctl`: look at a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from olmorl.deploy.figure import draw
from olmorl.deploy.rundir import metric_lines
from olmorl.errors import DataError, OlmoRLError, UserError
from olmorl.learner.ledger import read_ledger

_ABOUT = """\
Look at a run.

  olmorl-ctl runs/demo status              where it stands
  olmorl-ctl runs/demo ledger              how its draws ended
  olmorl-ctl runs/demo ledger --json       one object per draw: prompt_id, attempt, outcome, step
  olmorl-ctl runs/demo figure reward.png   its curves as a picture
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        run_dir: Path = arguments.run
        if not run_dir.is_dir():
            raise DataError(f"{run_dir}: no such run directory; runs are made under run.directory (default: runs/)")
        arguments.show(run_dir, arguments)
    except OlmoRLError as error:
        print(f"olmorl-ctl: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="olmorl-ctl", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, show, about in (
        ("status", show_status, "the last metrics line, in short"),
        ("ledger", show_ledger, "every draw and its outcome"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--json", action="store_true", help="for programs")
        command.set_defaults(show=show)
    figure = commands.add_parser("figure", help="its curves as a picture", description="its curves as a picture")
    figure.add_argument("file", type=Path, help="where to: .png, .svg or .pdf")
    figure.set_defaults(show=show_figure)
    return parser


def show_figure(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Draw the run's curves into a file."""
    draw(_lines(run_dir), arguments.file)


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    lines = metric_lines(run_dir)
    if not lines:
        raise DataError(f"{run_dir}: no step is done yet; the logs are in {run_dir / 'logs'}")
    return lines


def show_ledger(run_dir: Path, arguments: argparse.Namespace) -> None:
    """One object per draw with `--json`, else how many ended how."""
    records = read_ledger(run_dir)
    if arguments.json:
        for record in records:
            print(json.dumps(record))
        return
    counts = Counter(record["outcome"] for record in records)
    attempts = Counter(record["attempt"] for record in records)
    table = Table("outcome", "draws", title=f"{run_dir}: {sum(counts.values()):,} draws")
    for outcome, number in counts.most_common():
        table.add_row(str(outcome), f"{number:,}")
    console = Console()
    console.print(table)
    console.print(f"attempts: {', '.join(f'{n:,} draws took {a}' for a, n in sorted(attempts.items()))}")


def show_status(run_dir: Path, arguments: argparse.Namespace) -> None:
    """The last metrics line."""
    last = _lines(run_dir)[-1]
    if arguments.json:
        print(json.dumps(last))
        return
    table = Table("", "", title=f"{run_dir}: step {last['step']}, incarnation {last['incarnation']}", show_header=False)
    for key in (
        "reward_mean",
        "solve_rate_mean",
        "lag_mean",
        "lag_max",
        "completion_tokens_mean",
        "actor_tokens_per_s",
        "useful_tokens_per_s",
        "learner_step_s",
        "learner_wait_s",
        "prompts_drawn_total",
        "groups_trained_total",
        "groups_zero_gradient_total",
        "groups_stale_total",
        "groups_failed_total",
        "groups_in_flight",
    ):
        value = last[key]
        table.add_row(key, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
