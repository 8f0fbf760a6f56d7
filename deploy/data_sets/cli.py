"""`olmorl-data`: converts known data sets, and others by their column names, to the learner's format.

layouts      what a row of a known set says         mixing       rows by source
conversion   rows for the learner                   constraints  prompts with sampled constraints
difficulty   pass rates of the start policy
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, check_verifier, column, count, nearest
from olmorl.deploy.data_sets.conversion import Asked, RowCounts, convert, write
from olmorl.deploy.data_sets.layouts import KINDS, by_columns
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
  olmorl-data gsm8k --tags --one-shot --max-solution-tokens 200 --tokenizer my/model -o gsm8k.jsonl
  olmorl-data math --suffix ' Put the answer in \\boxed{}.' -o math.jsonl
  olmorl-data jsonl --input mine.jsonl --question problem --answer solution -o ready.jsonl
  olmorl-data jsonl --input mine.parquet --question q --answer tests --verifier code --keep level -o ready.jsonl

Then, in a recipe:   [data] train = ["gsm8k.jsonl", "math.jsonl:2"]     (a weight behind a colon)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 2 a mistake to mend."""

    def do() -> int:
        arguments = _arguments(argv)
        outcome = prepare(arguments)
        for reason in outcome.reasons:
            print(printable(f"left out: {reason}"), file=sys.stderr)
        over_long = f", {outcome.over_long} over-long" if outcome.over_long else ""
        print(
            f"{arguments.output}: {outcome.written} rows; {outcome.repeated} repeated{over_long} and "
            f"{outcome.unusable} unusable ones left out"
        )
        return 0

    return run_command("olmorl-data", do)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, each checked alone and with the others. Raises ConfigError."""
    arguments = _parser().read(argv)
    if arguments.verifier is not None:
        check_verifier("--verifier", arguments.verifier)
    made = {*CONVERSATION, *LABELS}.intersection(arguments.keep)
    if made:
        raise ConfigError(f"--keep {min(made)}: this name has another meaning in the output; rename the column first")
    if (arguments.max_solution_tokens is None) != (arguments.tokenizer is None):
        raise ConfigError("--max-solution-tokens N and --tokenizer MODEL go together: give both or none")
    return arguments


def prepare(arguments: argparse.Namespace) -> RowCounts:
    """Convert the source on the command line.

    Raises:
        DataError: the source cannot be read, no row of it can be used, or the output exists or cannot be written.
        ConfigError: an option does not go with the source.
    """
    kind = KINDS.get(arguments.kind)
    take = kind.convert if kind else by_columns(arguments.question, arguments.answer)
    source = (kind.source if kind else "") if arguments.input is None else arguments.input
    check_files(source, arguments)
    asked = Asked(
        arguments.verifier or (kind.verifier if kind else "math"), f"{{question}}{arguments.suffix}", arguments.tags,
        arguments.one_shot, [*(kind.keep if kind else ()), *arguments.keep], _fits(arguments),
    )  # fmt: skip
    outcome = RowCounts()
    rows = convert(read(source, arguments.split or "train", columns=True), take, asked, outcome)
    write(_kept(islice(rows, arguments.limit), arguments.keep, outcome), Path(arguments.output))
    if not outcome.written:
        reason = outcome.reasons[0] if outcome.reasons else "all are over-long" if outcome.over_long else "it is empty"
        raise DataError(f"{source}: no row can be used; {reason} (columns: {', '.join(outcome.columns) or 'none'})")
    return outcome


def _fits(arguments: argparse.Namespace) -> Callable[[str], bool]:
    """Whether a solution is within `--max-solution-tokens`. Raises ModelError without a tokenizer."""
    if arguments.tokenizer is None:
        return lambda solution: True
    from olmorl.config import Model
    from olmorl.learner.data.loader import open_tokenizer

    tokenizer, most = open_tokenizer(Model(path=arguments.tokenizer)), arguments.max_solution_tokens
    return lambda solution: len(tokenizer(solution, add_special_tokens=False)["input_ids"]) <= most


def _kept(rows: Iterable[dict[str, Any]], keep: Sequence[str], outcome: RowCounts) -> Iterator[dict[str, Any]]:
    """The rows. After the last one, raises ConfigError for a column of `keep` that no row has."""
    yield from rows
    for name in keep if outcome.written else ():
        if name not in outcome.columns:
            known = list(outcome.columns)
            raise ConfigError(
                f"--keep {name}: no row has such a column{nearest(name, known)}; columns: {', '.join(known)}"
            )


def check_files(source: str, arguments: argparse.Namespace) -> None:
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
    command.add_argument("--verifier", help="which verifier scores the rows (the set's own; math)")
    command.add_argument("--suffix", default="", help="text put behind every question")
    about = "ask for <think> and <answer> in a system prompt, and score them too (format, tag_count)"
    command.add_argument("--tags", action="store_true", help=about)
    about = "show the first question with its solution before every other one"
    command.add_argument("--one-shot", action="store_true", help=about)
    about = "leave out questions whose solution is longer, by --tokenizer"
    command.add_argument("--max-solution-tokens", type=count, metavar="N", help=about)
    command.add_argument("--tokenizer", metavar="MODEL", help="a model folder or hub name")
    about = "other columns, for reward functions"
    command.add_argument("--keep", nargs="*", type=column, default=[], metavar="COLUMN", help=about)
    command.add_argument("--limit", type=count, metavar="N", help="stop after this many rows")
    command.add_argument("--force", action="store_true", help="replace the output if it exists")


if __name__ == "__main__":
    sys.exit(main())
