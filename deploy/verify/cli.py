"""`olmorl-verify`: scores completions in a file as a run would.

scoring_job  input to output              reader             the rows
row_scoring  their lines, by verifiers    recorded_episodes  episodes, played again
pass_rate    one row per prompt           writer             the output, and going on with it
input_files  checks of the files          summary            progress and the table
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from olmorl import __version__, config
from olmorl.deploy.arguments import dotted
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, check_verifier, column, count, nearest, share
from olmorl.deploy.verify.input_files import STANDARD, check_readable, check_writable, same
from olmorl.errors import ConfigError

ABOUT = """\
Score completions with the verifiers of a training run, before or after one.

A row has the columns of training data (messages or prompt, ground_truth, dataset, and any other; Ai2's, verl's and
TRL's layouts) and a completion, or a list of them in the column completions. Each completion gives one line of output,
in the order of the input:

  row            file:line of the input; id and the like are kept, if the row has them
  reward         a number, or null when it could not be scored: an error is never a 0
  solved         whether training counts it as solved: all built-in verifiers of the row give 1
  extracted      the answer that was found in the completion
  method         how it was compared; "limit" is an answer that passed a limit, and scores 0
  error_kind     null, or a short word for why there is no reward; "bad_row" is a row that training would leave out
  detail         one line about it
  seconds        spent on it
  verdicts       the same by verifier, where a row has several
  exit           why an episode ended, and num_turns, its answers

With episodes.environment in the recipe, a completion is an episode: messages, of which the answers are played into the
environment again, or a completion of rollouts/, or a row of answers of olmorl-eval. An environment that fails, or does
not end with the last answer, is an error_kind ("environment", "recording").

examples:
  olmorl-verify answers.jsonl -o scores.jsonl                  score a file, on all cores
  olmorl-verify answers.jsonl -o scores.jsonl --resume         go on after Ctrl-C; nothing is scored twice
  generate | olmorl-verify - -o - | jq .reward                 from a pipe, into a pipe
  olmorl-verify answers.jsonl -o scores.jsonl --config RECIPE.toml --verifiers.timeout_s 10
  olmorl-verify answers.jsonl -o scores.jsonl --function rewards.py:brevity*0.1
  olmorl-verify answers.jsonl -o hard.jsonl --pass-rate --max-pass-rate 0.625
                                                               one row per prompt that is not too easy: training data
  olmorl-verify --self-test                                    the sandbox of this machine, tried with attacks

exit codes: 0 done (look at the table for errors in rows), 1 the verifiers did not start or gave up, no completion could
be scored, or an attack of --self-test got through, 2 a mistake to mend: an option, a file without a row that can be
used, a function that always fails; 130 interrupted, the output is usable.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("olmorl-verify", lambda: _score(argv))


def _score(argv: Sequence[str] | None) -> int:
    words, overrides = dotted(sys.argv[1:] if argv is None else argv)
    arguments = _parser().read(words)
    settings = _settings(arguments, overrides)
    if arguments.self_test:
        return _self_test(settings)
    if arguments.input is None or arguments.output is None:
        raise ConfigError("give an input and an output: olmorl-verify IN.jsonl -o OUT.jsonl (see --help)")
    if settings.episodes.agent is not None:
        raise ConfigError(
            "episodes.agent: an agent asks the policy itself, so recorded answers cannot be played to it; a recipe "
            "without it scores their last answers with the verifiers"
        )
    _check_files(arguments)
    return asyncio.run(_verify(arguments, settings))


def _parser() -> Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser("olmorl-verify", description=ABOUT, formatter_class=style, allow_abbrev=False)
    add = parser.add_argument
    add("input", nargs="?", metavar="IN.jsonl", help="rows with completions, JSONL or Parquet; - for standard input")
    add("-o", "--output", metavar="OUT.jsonl", help="where the lines go; - for standard output")
    add("--config", type=Path, metavar="RECIPE.toml", help="the verifiers' settings, as the run has them")
    add("--verifier", metavar="NAME", help="scores rows that name none (data.default_verifier)")
    add("--function", action="append", default=[], metavar="FILE.py:NAME",
        help="a reward function, as in verifiers.functions; may be repeated")  # fmt: skip
    add(
        "--completion",
        type=column,
        default="completion",
        metavar="COLUMN",
        help="column of the completions (completion)",
    )
    add("--thinking-opened", action="store_true", help="completions begin within the thinking tag")
    add("--workers", type=count, metavar="N", help="processes (default: one per core; the recipe's number is not used)")
    add("--pass-rate", action="store_true", help="write one row per prompt, with num_samples and pass_rate")
    add("--min-pass-rate", type=share, metavar="P", help="with --pass-rate: leave out prompts solved less often")
    add("--max-pass-rate", type=share, metavar="P", help="with --pass-rate: leave out prompts solved more often")
    add("--resume", action="store_true", help="go on where the output ends")
    add("--force", action="store_true", help="replace the output if it exists")
    add("--self-test", action="store_true", help="try attacks on the sandbox that programs are run in, and stop")
    add("--version", action="version", version=f"olmorl {__version__}")
    add("--section.key", metavar="VALUE", dest="example", help="any key of the recipe, as with olmorl-launch")
    return parser


def _settings(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> config.Config:
    """The recipe with the options of the command line. Raises ConfigError."""
    if arguments.verifier is not None:
        check_verifier("--verifier", arguments.verifier)
        overrides.append(("data.default_verifier", json.dumps(arguments.verifier)))
    if arguments.example is not None:
        overrides.append(("section.key", arguments.example))  # refused like any other unknown key
    if arguments.workers or not any(key == "verifiers.workers" for key, _ in overrides):
        # The recipe's number is for one actor; here one scorer uses all cores.
        overrides.append(("verifiers.workers", str(arguments.workers or len(os.sched_getaffinity(0)))))
    if not arguments.pass_rate and (arguments.min_pass_rate, arguments.max_pass_rate) != (None, None):
        raise ConfigError("--min-pass-rate and --max-pass-rate go with --pass-rate")
    lowest, highest = arguments.min_pass_rate, arguments.max_pass_rate
    if lowest is not None and highest is not None and lowest > highest:
        raise ConfigError(f"--min-pass-rate {lowest:g} is over --max-pass-rate {highest:g}: no prompt would be left")
    if arguments.resume and arguments.force:
        raise ConfigError("--resume goes on with the output and --force replaces it: give one of them")
    settings = config.load(arguments.config, overrides)
    functions = [*settings.verifiers.functions, *arguments.function]
    verifiers = settings.verifiers.model_copy(update={"functions": functions})
    settings = settings.model_copy(update={"verifiers": verifiers})
    _check_names(settings)
    return settings


def _check_names(settings: config.Config) -> None:
    """Raises ConfigError for an unknown verifier in the recipe, RewardFunctionError for an unusable function."""
    from olmorl.verifiers.functions.function_scorer import parse
    from olmorl.verifiers.registry import names

    if settings.data.default_verifier is not None and settings.data.default_verifier not in settings.verifiers.own:
        check_verifier("data.default_verifier", settings.data.default_verifier)
    known = [*names(settings.verifiers), *(function.name for function in parse(settings.verifiers.functions))]
    for name in settings.verifiers.weights:
        if name.partition("#")[0] not in known:
            raise ConfigError(
                f"verifiers.weights: no verifier or function is named {name!r}{nearest(name, known)}; known: "
                + ", ".join(known)
            )


def _check_files(arguments: argparse.Namespace) -> None:
    """Raises ConfigError or DataError for a missing input, and for an output that is also an input."""
    source, output = arguments.input, arguments.output
    given = _descriptor(sys.stdin) if source == STANDARD else source
    made = [_descriptor(sys.stdout)] if output == STANDARD else [output, f"{output}.scores"]
    if any(same(given, one) for one in made):
        raise ConfigError(f"{output} is the input: give another -o")
    for kept in [arguments.config, *(entry.rpartition(":")[0] for entry in arguments.function)]:
        if kept and any(same(str(kept), one) for one in made):
            raise ConfigError(f"{output} is read here: give another -o")
    check_readable(source)
    check_writable(output, arguments.force or not arguments.pass_rate)


def _descriptor(stream: TextIO | None) -> int:
    """The descriptor of a standard stream; -1 without one."""
    try:
        return stream.fileno() if stream else -1
    except (OSError, ValueError):
        return -1


async def _verify(arguments: argparse.Namespace, settings: config.Config) -> int:
    """Score the input. Returns the exit code."""
    from olmorl.deploy.verify.recorded_episodes import RecordedEpisodes
    from olmorl.deploy.verify.scoring_job import ScoringJob
    from olmorl.verifiers.scorer import VerifierScorer

    episodes = RecordedEpisodes(settings) if settings.episodes.environment else None
    scorer = VerifierScorer(settings.verifiers, settings.schedule.steps)
    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    try:
        await scorer.start()
        if episodes is not None:
            await episodes.start()
        await ScoringJob(arguments, settings, scorer, episodes).run()
        return 0
    finally:
        await scorer.stop()
        if episodes is not None:
            await episodes.stop()


def _self_test(settings: config.Config) -> int:
    """Print the sandbox of this machine, and the outcome of each attack."""
    from rich.table import Table
    from rich.text import Text

    from olmorl.deploy.view.console import SafeConsole
    from olmorl.verifiers.code.sandbox import self_test

    result = asyncio.run(self_test.run(settings.verifiers))
    console = SafeConsole()
    for tier, reason in result.refused.items():
        console.print(f"{tier or 'programs'}: not here: {reason}", markup=False, soft_wrap=True)
    if not result.tier:
        console.print("no sandbox works on this machine: rows with code cannot be scored", soft_wrap=True)
        return 1
    table = Table("attack", "stopped", "outcome", title=f"programs run under: {result.tier}", title_justify="left")
    for finding in result.findings:
        table.add_row(finding.attack, "yes" if finding.stopped else "NO", Text(finding.met))
    console.print(table)
    stopped = sum(finding.stopped for finding in result.findings)
    console.print(f"{stopped} of {len(result.findings)} attacks stopped; "
                  f"a good program {'still passes' if result.alive else 'FAILS'} after them")  # fmt: skip
    return 0 if result.safe else 1


if __name__ == "__main__":
    sys.exit(main())
