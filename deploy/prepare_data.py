"""`olmorl-data`: makes rows for training of known data sets, of others by their column names, and of parts of sets."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shutil import which
from typing import Any

from olmorl import config
from olmorl.deploy.arguments import dotted
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, check_verifier, column, count, nearest, share
from olmorl.deploy.data_sets import constraints, mixing
from olmorl.deploy.data_sets.conversion import Asked, RowCounts, Rows, convert, write
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

  olmorl-data dolci-think-rl --rows 10000 --weight omega=0.5 --seed 1 -o mixture.jsonl
  olmorl-data mix --input rows.parquet --by source --take math=500 code=200 -o mixture.jsonl
  olmorl-data constraints --input prompts.jsonl -o constrained.jsonl
  olmorl-data difficulty RECIPE.toml --samples 8 -o difficulty       answers, pass rates, and the prompts to keep
  olmorl-data verifiers VENV/bin/python gsm8k -n 1000 > rows.jsonl   the tasks of a taskset; options of vf-eval

Then, in a recipe:   [data] train = ["gsm8k.jsonl", "math.jsonl:2"]     (a weight behind a colon)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 an engine failed, 2 a mistake to mend."""

    def do() -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        if words[:1] == ["difficulty"]:
            return _difficulty(words)
        if words[:1] == [TASKSET] and "--help" not in words:
            return _taskset(words[1:])
        arguments = _arguments(words)
        outcome = MADE.get(arguments.kind, prepare)(arguments)
        for reason in outcome.reasons:
            print(printable(f"left out: {reason}"), file=sys.stderr)
        for line in outcome.lines:
            print(printable(line))
        over_long = f", {outcome.over_long} over-long" if outcome.over_long else ""
        print(
            f"{arguments.output}: {outcome.written} rows; {outcome.repeated} repeated{over_long} and "
            f"{outcome.unusable} unusable ones left out"
        )
        return 0

    return run_command("olmorl-data", do)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options, each checked alone and with the others. Raises ConfigError."""
    arguments = _parser().read(words)
    if getattr(arguments, "verifier", None) is not None:
        check_verifier("--verifier", arguments.verifier)
    made = {*CONVERSATION, *LABELS}.intersection(arguments.keep)
    if made:
        raise ConfigError(f"--keep {min(made)}: this name has another meaning in the output; rename the column first")
    limits = getattr(arguments, "max_solution_tokens", None), getattr(arguments, "tokenizer", None)
    if limits.count(None) == 1:
        raise ConfigError("--max-solution-tokens N and --tokenizer MODEL go together: give both or none")
    return arguments


def _difficulty(words: Sequence[str]) -> int:
    """Pass rates of the start policy. Takes keys of the recipe, as olmorl-launch does."""
    from olmorl.deploy.evaluation import difficulty
    from olmorl.deploy.evaluation.cli import until_signal

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    others, overrides = dotted(words)
    arguments = _parser().read(others)
    settings = config.load(arguments.recipe, overrides)
    difficulty.check(arguments, settings)
    measured = difficulty.Difficulty(arguments, settings)
    asyncio.run(until_signal(measured.run))
    for line in measured.lines:
        print(printable(line))
    return 0


def _taskset(words: Sequence[str]) -> int:
    """Write the rows of a taskset for verifiers to the standard output. Raises ConfigError without a Python."""
    from olmorl.actors.episodes import verifiers_agent

    python = which(words[0]) if words else None
    if python is None:
        given = f"{words[0]} is no program" if words else "no Python is given"
        raise ConfigError(f"{given}: olmorl-data verifiers VENV/bin/python TASKSET [options of vf-eval] > rows.jsonl")
    return subprocess.run([python, verifiers_agent.__file__, *words[1:]]).returncode


def mixed(arguments: argparse.Namespace) -> RowCounts:
    """Rows by source. Raises ConfigError or DataError."""
    source = arguments.input or "allenai/Dolci-Think-RL-7B"
    check_files(source, arguments)

    def rows() -> Rows:
        return read(source, arguments.split or "train", columns=True)

    column, counts = mixing.sources(rows, arguments.by)
    wanted = mixing.quotas(counts, dict(arguments.take), dict(arguments.weight), arguments.rows)
    outcome = RowCounts()
    keep = arguments.keep
    write(
        _kept(mixing.mix(rows, column, counts, wanted, arguments.seed, keep, outcome), keep, outcome),
        Path(arguments.output),
    )
    outcome.lines = mixing.compared(wanted, mixing.DOLCI_THINK_RL if arguments.kind == DOLCI else {})
    return _some(outcome, source)


def composed(arguments: argparse.Namespace) -> RowCounts:
    """Prompts with sampled constraints. Raises ConfigError or DataError."""
    check_files(arguments.input, arguments)
    outcome = RowCounts()
    rows = read(arguments.input, arguments.split or "train", columns=True)
    made = constraints.compose(rows, arguments.most, arguments.seed, arguments.keep, outcome)
    write(_kept(islice(made, arguments.limit), arguments.keep, outcome), Path(arguments.output))
    return _some(outcome, arguments.input)


def _some(outcome: RowCounts, source: str) -> RowCounts:
    """The counts, if a row was written. Raises DataError."""
    if not outcome.written:
        reason = outcome.reasons[0] if outcome.reasons else "all are over-long" if outcome.over_long else "it is empty"
        raise DataError(f"{source}: no row can be used; {reason} (columns: {', '.join(outcome.columns) or 'none'})")
    return outcome


DOLCI, TASKSET = "dolci-think-rl", "verifiers"
MADE: dict[str, Callable[[argparse.Namespace], RowCounts]] = {DOLCI: mixed, "mix": mixed, "constraints": composed}


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
    return _some(outcome, source)


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
    _mixing(kinds.add_parser(DOLCI, allow_abbrev=False, help="the mixture of Olmo 3 Think, by source"), hub=True)
    _mixing(kinds.add_parser("mix", allow_abbrev=False, help="rows for training, so many of each source"), hub=False)
    about = "prompts with up to five sampled constraints, as IF-RLVR; the verifier is ifeval"
    command = kinds.add_parser("constraints", allow_abbrev=False, help=about, description=about)
    command.add_argument("--input", required=True, help="rows with messages or prompt: a file, a folder or a hub name")
    command.add_argument("--most", type=count, default=5, metavar="N", help="most constraints of a prompt (5)")
    command.add_argument("--seed", type=int, default=0, help="chooses the constraints (0)")
    _output(command)
    _measuring(kinds)
    about = "the rows of a taskset for verifiers, by the Python that has it, to standard output"
    kinds.add_parser(TASKSET, help=about, description=about, usage=f"olmorl-data {TASKSET} PYTHON TASKSET [OPTIONS]")
    return parser


def _mixing(command: argparse.ArgumentParser, hub: bool) -> None:
    command.add_argument("--input", required=not hub, help="a file, a folder or a hub name with a column of sources")
    command.add_argument(
        "--by", type=column, metavar="COLUMN", help="the column of sources (original_dataset and the like)"
    )
    about = "exactly N rows of a source, named by its name or a part of it"
    command.add_argument("--take", nargs="*", type=_number_of(int), default=[], metavar="SOURCE=N", help=about)
    about = "W times the rows of a source (1)"
    command.add_argument("--weight", nargs="*", type=_number_of(float), default=[], metavar="SOURCE=W", help=about)
    about = "rows of all sources together, in their proportions times their weights"
    command.add_argument("--rows", type=count, metavar="N", help=about)
    command.add_argument("--seed", type=int, default=0, help="chooses the rows (0)")
    _output(command, limit=False)


def _number_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[str, Any]]:
    """Reads `SOURCE=NUMBER`, of 0 and more."""

    def read_pair(text: str) -> tuple[str, Any]:
        name, equals, number = text.rpartition("=")
        try:
            value = kind(number)
        except ValueError:
            value = -1
        if not (equals and name) or not 0 <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE=NUMBER, with a number of 0 or more")
        return name, value

    return read_pair


def _measuring(kinds: Any) -> None:
    about = "pass rates of the start policy of a recipe, and the prompts that are not too easy"
    command = kinds.add_parser("difficulty", allow_abbrev=False, help=about, description=about)
    command.add_argument("recipe", type=Path, metavar="RECIPE.toml", help="its model, data, sampling and verifiers")
    about = "folder of the answers, the pass rates and the prompts that are left"
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=about)
    command.add_argument("--samples", type=count, default=8, metavar="N", help="answers for each prompt (8)")
    command.add_argument("--min-pass-rate", type=share, metavar="P", help="leave out prompts solved less often")
    about = "leave out prompts solved more often (0.625)"
    command.add_argument("--max-pass-rate", type=share, default=0.625, metavar="P", help=about)
    command.add_argument("--limit", type=count, metavar="N", help="the first N prompts of each source")
    command.add_argument("--resume", action="store_true", help="go on after a kill: no answer is sampled twice")
    command.add_argument("--force", action="store_true", help="replace the answers in the folder")
    command.add_argument("--section.key", metavar="VALUE", dest="example", help="any key of the recipe")


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--verifier", help="which verifier scores the rows (the set's own; math)")
    command.add_argument("--suffix", default="", help="text put behind every question")
    about = "ask for <think> and <answer> in a system prompt, and score them too (format, tag_count)"
    command.add_argument("--tags", action="store_true", help=about)
    about = "show the first question with its solution before every other one"
    command.add_argument("--one-shot", action="store_true", help=about)
    about = "leave out questions whose solution is longer, by --tokenizer"
    command.add_argument("--max-solution-tokens", type=count, metavar="N", help=about)
    command.add_argument("--tokenizer", metavar="MODEL", help="a model folder or hub name")
    _output(command)


def _output(command: argparse.ArgumentParser, limit: bool = True) -> None:
    command.add_argument("-o", "--output", required=True, metavar="OUT.jsonl", help="the file to make")
    command.add_argument("--split", help="split of a hub set or a folder (train)")
    about = "other columns, for reward functions"
    command.add_argument("--keep", nargs="*", type=column, default=[], metavar="COLUMN", help=about)
    if limit:
        command.add_argument("--limit", type=count, metavar="N", help="stop after this many rows")
    command.add_argument("--force", action="store_true", help="replace the output if it exists")


if __name__ == "__main__":
    sys.exit(main())
