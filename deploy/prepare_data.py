"""`olmorl-data`: converts known data sets, and others by their column names, to the learner's format."""

from __future__ import annotations

import argparse
import json
import math as numbers
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, check_verifier, column, count, nearest
from olmorl.deploy.preflight import hub
from olmorl.deploy.verify.input_files import STANDARD, check_writable, same
from olmorl.errors import ConfigError, DataError
from olmorl.learner.data.readers import check_there, read
from olmorl.learner.data.row_files import CONVERSATION, LABELS
from olmorl.printable import printable

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


class QuestionAnswer(NamedTuple):
    """The question and the answer that a converter finds in a row."""

    question: str
    answer: Any


class KnownDataset(NamedTuple):
    """A data set that is known by name."""

    source: str
    """Where it is on the hub."""
    convert: Callable[[dict[str, Any]], QuestionAnswer]
    keep: tuple[str, ...]
    about: str


def gsm8k(row: dict[str, Any]) -> QuestionAnswer:
    """The answer follows `####`, with commas in long numbers."""
    _, marker, answer = _text(row, "answer").rpartition("####")
    if not marker:
        raise ValueError("the answer has no ####")
    return QuestionAnswer(_text(row, "question"), answer.strip().replace(",", ""))


def math(row: dict[str, Any]) -> QuestionAnswer:
    """The answer is the last box of the solution."""
    return QuestionAnswer(_text(row, "problem"), last_box(_text(row, "solution")))


def deepscaler(row: dict[str, Any]) -> QuestionAnswer:
    """Question and answer have a column each."""
    return QuestionAnswer(_text(row, "problem"), _text(row, "answer"))


def dapo(row: dict[str, Any]) -> QuestionAnswer:
    """verl's layout. Its instruction around the problem asks for another form of answer, and is removed."""
    turns, model = row.get("prompt"), row.get("reward_model")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict) or not isinstance(model, dict):
        raise ValueError("not in verl's layout: prompt is no list of turns, or reward_model is missing")
    paragraphs = _text(turns[0], "content").split("\n\n")
    if len(paragraphs) >= 3 and paragraphs[0].startswith("Solve the following") and "Answer:" in paragraphs[-1]:
        paragraphs = paragraphs[1:-1]
    return QuestionAnswer("\n\n".join(paragraphs), _text(model, "ground_truth"))


KINDS = {
    "gsm8k": KnownDataset("openai/gsm8k@main", gsm8k, (), "grade-school word problems, answers behind ####"),
    "math": KnownDataset(
        "DigitalLearningGmbH/MATH-lighteval", math, ("level", "type"), "competition problems, boxed answers"
    ),
    "deepscaler": KnownDataset(
        "agentica-org/DeepScaleR-Preview-Dataset", deepscaler, (), "competition problems with answers"
    ),
    "dapo": KnownDataset("BytedTsinghua-SIA/DAPO-Math-17k", dapo, (), "competition problems in verl's layout"),
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
class RowCounts:
    """Counts the written, repeated and unusable rows."""

    written: int = 0
    repeated: int = 0
    unusable: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why the first unusable rows cannot be used, with file and line."""
    columns: dict[str, None] = field(default_factory=dict)
    """All columns that were seen, in their order."""


def convert(
    rows: Iterator[tuple[str, dict[str, Any]]],
    take: Callable[[dict[str, Any]], QuestionAnswer],
    verifier: str,
    keep: Sequence[str],
    suffix: str,
    outcome: RowCounts,
) -> Iterator[dict[str, Any]]:
    """Rows in the learner's format. Repeated questions are left out; unusable rows are counted and reported."""
    seen: set[str] = set()
    for place, row in rows:
        outcome.columns |= dict.fromkeys(row)
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
    """Write the rows to a new file. It appears only when it is complete and has a row."""
    part = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", dir=output.parent, prefix=f"{output.name}.", delete=False
        ) as file:
            part = Path(file.name)
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        if part.stat().st_size:
            part.chmod(0o666 & ~_umask())
            part.rename(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- command line -------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 2 a mistake to mend."""

    def do() -> int:
        arguments = _arguments(argv)
        outcome = prepare(arguments)
        for reason in outcome.reasons:
            print(printable(f"left out: {reason}"), file=sys.stderr)
        print(
            f"{arguments.output}: {outcome.written} rows; {outcome.repeated} repeated and {outcome.unusable} unusable "
            "ones left out"
        )
        return 0

    return run_command("olmorl-data", do)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, each checked alone and with the others. Raises ConfigError."""
    parser = _parser()
    arguments = parser.read(argv)
    check_verifier("--verifier", arguments.verifier)
    made = {*CONVERSATION, *LABELS}.intersection(arguments.keep)
    if made:
        raise ConfigError(f"--keep {min(made)}: this name has another meaning in the output; rename the column first")
    return arguments


def prepare(arguments: argparse.Namespace) -> RowCounts:
    """Convert the source on the command line.

    Raises:
        DataError: the source cannot be read, no row of it can be used, or the output exists or cannot be written.
        ConfigError: an option does not go with the source.
    """
    kind = KINDS.get(arguments.kind)
    take = (
        kind.convert
        if kind
        else lambda row: QuestionAnswer(_text(row, arguments.question), _answer(row, arguments.answer))
    )
    source = (kind.source if kind else "") if arguments.input is None else arguments.input
    _check_files(source, arguments)
    outcome = RowCounts()
    rows = convert(
        read(source, arguments.split or "train", columns=True), take, arguments.verifier,
        [*(kind.keep if kind else ()), *arguments.keep], arguments.suffix, outcome,
    )  # fmt: skip
    write(_kept(islice(rows, arguments.limit), arguments.keep, outcome), Path(arguments.output))
    if not outcome.written:
        reason = outcome.reasons[0] if outcome.reasons else "it is empty"
        raise DataError(f"{source}: no row can be used; {reason} (columns: {', '.join(outcome.columns) or 'none'})")
    return outcome


def _kept(rows: Iterable[dict[str, Any]], keep: Sequence[str], outcome: RowCounts) -> Iterator[dict[str, Any]]:
    """The rows. After the last one, raises ConfigError for a column of `keep` that no row has."""
    yield from rows
    for name in keep if outcome.written else ():
        if name not in outcome.columns:
            known = list(outcome.columns)
            raise ConfigError(
                f"--keep {name}: no row has such a column{nearest(name, known)}; columns: {', '.join(known)}"
            )


def _check_files(source: str, arguments: argparse.Namespace) -> None:
    """Raises ConfigError or DataError for a missing input, and for an output that is also an input."""
    output = arguments.output
    if STANDARD in (source, output):
        raise ConfigError("-: the input and the output are files; standard input and output are not read or written")
    if not source.strip():
        raise ConfigError("--input: the name is empty")
    if same(source, output):
        raise ConfigError(f"{output} is the input: give another -o")
    if os.path.lexists(source) and not Path(source).is_dir():
        if arguments.split is not None:
            raise ConfigError(
                f"--split {arguments.split}: only hub sets and folders have splits, and {source} is a file"
            )
    else:
        check_there(source)
        hub.check_data("--input", source)
    check_writable(output, arguments.force)
    if Path(output).exists() and not Path(output).is_file():
        raise DataError(f"{output}: it is no regular file; give another -o")


def _answer(row: dict[str, Any], column: str) -> Any:
    value = row.get(column)
    if value is None or value in ("", []):
        raise ValueError(f"the column {column} is missing or empty")
    if isinstance(value, float) and not numbers.isfinite(value):
        raise ValueError(f"the column {column} is {value}")
    return str(value) if isinstance(value, int | float) else value


def _parser() -> Parser:
    parser = Parser(
        "olmorl-data",
        allow_abbrev=False,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="SET")
    for name, kind in KINDS.items():
        about = f"{kind.about} ({kind.source})"
        command = kinds.add_parser(name, allow_abbrev=False, help=kind.about, description=about)
        command.add_argument("--input", help=f"a file or folder of rows, or a hub name (default: {kind.source})")
        _common(command)
    about = "any file, folder or hub set, by the names of its columns"
    command = kinds.add_parser("jsonl", allow_abbrev=False, help=about, description=about)
    command.add_argument("--input", required=True, help="a file or folder of rows, or a hub name (owner/name@config)")
    for name, what in (("question", "question"), ("answer", "label")):
        about = f"column of the {what} ({name})"
        command.add_argument(f"--{name}", type=column, default=name, metavar="COLUMN", help=about)
    _common(command)
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", required=True, metavar="OUT.jsonl", help="the file to make")
    command.add_argument("--split", help="split of a hub set or a folder (train)")
    command.add_argument("--verifier", default="math", help="which verifier scores the rows (math)")
    command.add_argument("--suffix", default="", help="text put behind every question")
    about = "other columns, for reward functions"
    command.add_argument("--keep", nargs="*", type=column, default=[], metavar="COLUMN", help=about)
    command.add_argument("--limit", type=count, metavar="N", help="stop after this many rows")
    command.add_argument("--force", action="store_true", help="replace the output if it exists")


if __name__ == "__main__":
    sys.exit(main())
