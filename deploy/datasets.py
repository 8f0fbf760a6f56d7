"""`olmorl-data`: known data sets, or any other by the names of its columns, in the format that the learner reads."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError, UserError
from olmorl.learner.rows import read

EXAMPLES = """\
The result has one JSON object a line: messages, ground_truth, dataset (the verifier), and the columns you keep.

  olmorl-data gsm8k -o gsm8k.jsonl                              from the hub
  olmorl-data gsm8k --split test -o gsm8k-test.jsonl            its held-out problems
  olmorl-data gsm8k --input train.parquet -o gsm8k.jsonl        from a file you have
  olmorl-data math --suffix ' Put the answer in \\boxed{}.' -o math.jsonl
  olmorl-data jsonl --input mine.jsonl --question problem --answer solution -o ready.jsonl
  olmorl-data jsonl --input mine.parquet --question q --answer tests --verifier code --keep level -o ready.jsonl

Then, in a recipe:   [data] train = ["gsm8k.jsonl", "math.jsonl"]
"""


class Problem(NamedTuple):
    """What a converter takes out of a row."""

    question: str
    answer: Any


class Kind(NamedTuple):
    """A data set that is known by name."""

    source: str
    """Where it is on the hub."""
    convert: Callable[[dict[str, Any]], Problem]
    keep: tuple[str, ...]
    about: str


def gsm8k(row: dict[str, Any]) -> Problem:
    """The answer stands behind `####`, with commas in long numbers."""
    _, marker, answer = _text(row, "answer").rpartition("####")
    if not marker:
        raise ValueError("the answer has no ####")
    return Problem(_text(row, "question"), answer.strip().replace(",", ""))


def math(row: dict[str, Any]) -> Problem:
    """The answer is the last box of the solution."""
    return Problem(_text(row, "problem"), last_box(_text(row, "solution")))


def deepscaler(row: dict[str, Any]) -> Problem:
    """Question and answer stand in columns of their own."""
    return Problem(_text(row, "problem"), _text(row, "answer"))


def dapo(row: dict[str, Any]) -> Problem:
    """verl's layout, with an instruction around the problem that asks for another form of answer."""
    turns, model = row.get("prompt"), row.get("reward_model")
    if not isinstance(turns, list) or not turns or not isinstance(model, dict):
        raise ValueError("not in verl's layout: prompt is no list of turns, or reward_model is missing")
    paragraphs = _text(turns[0], "content").split("\n\n")
    if len(paragraphs) >= 3 and paragraphs[0].startswith("Solve the following") and "Answer:" in paragraphs[-1]:
        paragraphs = paragraphs[1:-1]
    return Problem("\n\n".join(paragraphs), _text(model, "ground_truth"))


KINDS = {
    "gsm8k": Kind("openai/gsm8k@main", gsm8k, (), "grade-school word problems, answers behind ####"),
    "math": Kind("DigitalLearningGmbH/MATH-lighteval", math, ("level", "type"), "competition problems, boxed answers"),
    "deepscaler": Kind("agentica-org/DeepScaleR-Preview-Dataset", deepscaler, (), "competition problems with answers"),
    "dapo": Kind("BytedTsinghua-SIA/DAPO-Math-17k", dapo, (), "competition problems in verl's layout"),
}


def last_box(text: str) -> str:
    """The content of the last `\\boxed{...}` or `\\fbox{...}`, braces balanced. Raises ValueError without one."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        raise ValueError("the solution has no \\boxed{}")
    begin = text.index("{", start) + 1
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[begin:]):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[begin : begin + brace.start()].strip()
    raise ValueError("the box of the solution is not closed")


def _text(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the column {column} is missing or empty")
    return value.strip()


# --- conversion ---------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of the rows."""

    written: int = 0
    repeated: int = 0
    unusable: int = 0
    reasons: list[str] = field(default_factory=list)
    """Of the first unusable rows, with file and line."""


def convert(
    rows: Iterator[tuple[str, dict[str, Any]]],
    take: Callable[[dict[str, Any]], Problem],
    verifier: str,
    keep: Sequence[str],
    suffix: str,
    outcome: Outcome,
) -> Iterator[dict[str, Any]]:
    """Rows in the learner's format. Repeated questions are left out; unusable rows are counted and reported."""
    seen: set[str] = set()
    for place, row in rows:
        try:
            question, answer = take(row)
        except ValueError as error:
            outcome.unusable += 1
            if len(outcome.reasons) < 10:
                outcome.reasons.append(f"{place}: {error}")
            continue
        if question in seen:
            outcome.repeated += 1
            continue
        seen.add(question)
        outcome.written += 1
        columns = {name: row[name] for name in keep if row.get(name) is not None}
        turns = [{"role": "user", "content": question + suffix}]
        yield {"messages": turns, "ground_truth": answer, "dataset": verifier, **columns}


def write(rows: Iterable[dict[str, Any]], output: Path) -> None:
    """Write the rows to a new file, which appears when it is whole, and not at all without a row."""
    part = output.with_name(output.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        if part.stat().st_size:
            part.rename(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


# --- command line -------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 2 a mistake to mend."""
    try:
        arguments = _parser().parse_args(argv)
        outcome = prepare(arguments)
    except UserError as error:
        print(f"olmorl-data: {error}", file=sys.stderr)
        return error.exit_code
    for reason in outcome.reasons:
        print(f"left out: {reason}", file=sys.stderr)
    print(
        f"{arguments.output}: {outcome.written} rows; {outcome.repeated} repeated and {outcome.unusable} unusable ones "
        "left out"
    )
    return 0


def prepare(arguments: argparse.Namespace) -> Outcome:
    """Convert what the command line names.

    Raises:
        DataError: the source cannot be read, no row of it can be used, or the output exists.
    """
    output = Path(arguments.output)
    if output.exists() and not arguments.force:
        raise DataError(f"{output} exists: give another -o, or --force to replace it")
    kind = KINDS.get(arguments.kind)
    take = kind.convert if kind else lambda row: Problem(_text(row, arguments.question), _answer(row, arguments.answer))
    source = arguments.input or (kind.source if kind else "")
    outcome = Outcome()
    rows = convert(
        read(source, arguments.split, columns=True), take, arguments.verifier,
        [*(kind.keep if kind else ()), *arguments.keep], arguments.suffix, outcome,
    )  # fmt: skip
    write(islice(rows, arguments.limit), output)
    if not outcome.written:
        raise DataError(f"{source}: no row can be used; " + (outcome.reasons[0] if outcome.reasons else "it is empty"))
    return outcome


def _answer(row: dict[str, Any], column: str) -> Any:
    value = row.get(column)
    if value is None or value in ("", []):
        raise ValueError(f"the column {column} is missing or empty")
    return str(value) if isinstance(value, int | float) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "olmorl-data", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="SET")
    for name, kind in KINDS.items():
        command = kinds.add_parser(name, help=kind.about, description=f"{kind.about} ({kind.source})")
        command.add_argument("--input", help=f"a JSONL or Parquet file, or a hub name (default: {kind.source})")
        _common(command)
    command = kinds.add_parser("jsonl", help="any JSONL, Parquet or hub set, by the names of its columns")
    command.add_argument("--input", required=True, help="a JSONL or Parquet file, or a hub name (owner/name@config)")
    command.add_argument("--question", default="question", metavar="COLUMN", help="column of the question (question)")
    command.add_argument("--answer", default="answer", metavar="COLUMN", help="column of the label (answer)")
    _common(command)
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", required=True, metavar="OUT.jsonl", help="the file to make")
    command.add_argument("--split", default="train", help="split of a hub set (train)")
    command.add_argument("--verifier", default="math", help="which verifier scores the rows (math)")
    command.add_argument("--suffix", default="", help="text put behind every question")
    command.add_argument("--keep", nargs="*", default=[], metavar="COLUMN", help="other columns, for reward functions")
    command.add_argument("--limit", type=int, help="stop after this many rows")
    command.add_argument("--force", action="store_true", help="replace the output if it exists")


if __name__ == "__main__":
    sys.exit(main())
