"""`olmorl-verify`: the rewards of a run, for completions that are in a file already.

job          the work                     completions   the rows
scoring      their lines, by verifiers    scores        the output, and going on with it
pass_rate    one row per prompt           tally         what one sees
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

from olmorl import __version__, config
from olmorl.deploy.arguments import dotted
from olmorl.errors import ConfigError, OlmoRLError

ABOUT = """\
Score completions with the verifiers of a training run, before or after one.

A row has the columns of training data (messages or prompt, ground_truth, dataset, and any other; Ai2's, verl's and
TRL's layouts) and a completion, or a list of them in the column completions. For each completion comes one line out,
in the order of the input:

  row            file:line of the input; id and the like are kept, if the row has them
  reward         a number, or null when it could not be scored: an error is never a 0
  extracted      the answer that was found in the completion
  method         how it was compared; "limit" is an answer that passed a limit, and scores 0
  error_kind     null, or a short word for why there is no reward; "bad_row" is a row that training would leave out
  detail         one line about it
  seconds        spent on it
  verdicts       the same by verifier, where a row has several

examples:
  olmorl-verify answers.jsonl -o scores.jsonl                  score a file, on all cores
  olmorl-verify answers.jsonl -o scores.jsonl --resume         go on after Ctrl-C; nothing is scored twice
  generate | olmorl-verify - -o - | jq .reward                 from a pipe, into a pipe
  olmorl-verify answers.jsonl -o scores.jsonl --config RECIPE.toml --verifiers.timeout_s 10
  olmorl-verify answers.jsonl -o scores.jsonl --function rewards.py:brevity*0.1
  olmorl-verify answers.jsonl -o hard.jsonl --pass-rate --max-pass-rate 0.625
                                                               one row per prompt that is not too easy: training data
  olmorl-verify --self-test                                    what locks programs in here, tried with attacks

exit codes: 0 done (look at the table for errors in rows), 1 the verifiers did not start or gave up, or an attack of
--self-test got through, 2 a mistake to mend: an option, a file, a function; 130 interrupted, the output is usable.
"""
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        arguments, rest = _parser().parse_known_args(argv)
        settings = _settings(arguments, dotted(rest))
        if arguments.self_test:
            return _self_test(settings)
        if arguments.input is None or arguments.output is None:
            raise ConfigError("give an input and an output: olmorl-verify IN.jsonl -o OUT.jsonl (see --help)")
        _check_apart(arguments.input, arguments.output)
        return asyncio.run(_verify(arguments, settings))
    except OlmoRLError as error:
        print(f"olmorl-verify: {error}", file=sys.stderr)
        return error.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads the output has enough. What is still buffered would raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("olmorl-verify", description=ABOUT, formatter_class=style, allow_abbrev=False)
    add = parser.add_argument
    add("input", nargs="?", metavar="IN.jsonl", help="rows with completions, JSONL or Parquet; - for standard input")
    add("-o", "--output", metavar="OUT.jsonl", help="where the lines go; - for standard output")
    add("--config", type=Path, metavar="RECIPE.toml", help="the verifiers' settings, as the run has them")
    add("--verifier", metavar="NAME", help="scores rows that name none (data.default_verifier)")
    add("--function", action="append", default=[], metavar="FILE.py:NAME",
        help="a reward function, as in verifiers.functions; may be repeated")  # fmt: skip
    add("--completion", default="completion", metavar="COLUMN", help="column of the completions (completion)")
    add("--thinking-opened", action="store_true", help="completions begin within the thinking tag")
    add("--workers", type=int, metavar="N", help="processes (one per core, whatever the recipe says)")
    add("--pass-rate", action="store_true", help="write one row per prompt, with num_samples and pass_rate")
    add("--min-pass-rate", type=float, metavar="P", help="with --pass-rate: leave out prompts solved less often")
    add("--max-pass-rate", type=float, metavar="P", help="with --pass-rate: leave out prompts solved more often")
    add("--resume", action="store_true", help="go on where the output ends")
    add("--force", action="store_true", help="replace the output if it exists")
    add("--self-test", action="store_true", help="try attacks on the sandbox that programs are run in, and stop")
    add("--version", action="version", version=f"olmorl {__version__}")
    add("--section.key", metavar="VALUE", dest="_", help="any key of the recipe, as with olmorl-launch")
    return parser


def _settings(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> config.Config:
    """The recipe with the options of the command line. Raises ConfigError."""
    if arguments.verifier:
        overrides.append(("data.default_verifier", json.dumps(arguments.verifier)))
    if arguments.workers or not any(key == "verifiers.workers" for key, _ in overrides):
        # A recipe says how many an actor has; here there is one scorer on all cores.
        overrides.append(("verifiers.workers", str(arguments.workers or len(os.sched_getaffinity(0)))))
    if not arguments.pass_rate and (arguments.min_pass_rate, arguments.max_pass_rate) != (None, None):
        raise ConfigError("--min-pass-rate and --max-pass-rate go with --pass-rate")
    settings = config.load(arguments.config, overrides)
    functions = [*settings.verifiers.functions, *arguments.function]
    return settings.model_copy(update={"verifiers": settings.verifiers.model_copy(update={"functions": functions})})


def _check_apart(source: str, output: str) -> None:
    """Raises ConfigError for an output that would replace the rows that are to be scored."""
    if Path(source).exists() and Path(output).exists() and Path(source).samefile(output):
        raise ConfigError(f"{output} is the input: give another -o")


async def _verify(arguments: argparse.Namespace, settings: config.Config) -> int:
    """Score the input. Returns the exit code."""
    from olmorl.deploy.completions import check_readable
    from olmorl.deploy.job import Job
    from olmorl.verifiers.combine import VerifierScorer

    check_readable(arguments.input)
    scorer = VerifierScorer(settings.verifiers)
    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    try:
        await scorer.start()
        await Job(arguments, settings, scorer).run()
        return 0
    finally:
        await scorer.stop()


def _self_test(settings: config.Config) -> int:
    """Print what locks programs in here and what each attack met."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from olmorl.verifiers.code import selftest

    result = asyncio.run(selftest.run(settings.verifiers))
    console = Console()
    for tier, reason in result.refused.items():
        console.print(f"{tier or 'programs'}: not here: {reason}", markup=False, soft_wrap=True)
    if not result.tier:
        console.print("no sandbox works on this machine: rows with code cannot be scored", soft_wrap=True)
        return 1
    table = Table("attack", "stopped", "what it met", title=f"programs run under: {result.tier}", title_justify="left")
    for finding in result.findings:
        table.add_row(finding.attack, "yes" if finding.stopped else "NO", Text(finding.met))
    console.print(table)
    stopped = sum(finding.stopped for finding in result.findings)
    console.print(f"{stopped} of {len(result.findings)} attacks stopped; "
                  f"a good program {'still passes' if result.alive else 'FAILS'} after them")  # fmt: skip
    return 0 if result.safe else 1


if __name__ == "__main__":
    sys.exit(main())
