"""`python -m tests.verifiers.fuzz`: pairs whose truth is known by construction, against the math verifier."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.verifiers.fuzz import opinions, report
from tests.verifiers.fuzz.generate import FAMILIES, pairs
from tests.verifiers.fuzz.judge import judge

MAX_UNPAID = 0.005


def main() -> int:
    """Run the command; returns 0 when nothing was paid though wrong and few right answers were not paid."""
    arguments = _parse()
    console = Console(width=160)
    started = time.monotonic()
    judged = asyncio.run(judge(pairs(arguments.pairs, arguments.seed, arguments.family), arguments.workers))
    taken = time.monotonic() - started
    second = asyncio.run(opinions.ask(one.pair for one in judged)) if arguments.second_opinions else ()
    console.print(report.table(judged, second))
    console.print(f"{len(judged)} pairs, seed {arguments.seed}, {taken:.0f} s")
    text = report.grouped(judged, arguments.examples)
    console.print(text, markup=False, highlight=False)
    if arguments.list:
        arguments.list.write_text("\n".join(map(report.line, report.disagreements(judged))) + "\n", encoding="utf-8")
    found = sum(report.counts(judged).values(), start=report.Counter())
    acceptable = found[report.UNPAID] <= MAX_UNPAID * found["equal"]
    return 0 if acceptable and not found[report.WRONG] and not found[report.ERROR] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.verifiers.fuzz", description="Compare the math verifier with pairs whose truth is known."
    )
    parser.add_argument("--pairs", type=int, default=20_000, metavar="N", help="how many; default 20000")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed makes the same pairs; default 1"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes of the verifier's pool; default 1"
    )
    parser.add_argument(
        "--family", action="append", default=[], choices=sorted(FAMILIES), metavar="NAME", help="only this"
    )
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="pairs shown of each group; default 3")
    parser.add_argument("--list", type=Path, metavar="FILE", help="write every disagreement there")
    parser.add_argument("--second-opinions", action="store_true", help="also ask math-verify and SymPy; slow")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
