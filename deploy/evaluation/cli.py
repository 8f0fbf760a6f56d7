"""`olmorl-eval`: evaluates models outside of a run.

models      the models of the command line       sampler      generates and scores
protocol    which data, asked how                answer_file  one row an answer, resumed after a kill
questions   rows to prompts                      votes        which answers are equal
measures    pass@k, avg@n, maj@k, intervals      report       the table and the JSON
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from olmorl import __version__, config
from olmorl.deploy.arguments import dotted
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, count
from olmorl.deploy.evaluation import protocol as protocols
from olmorl.deploy.evaluation.protocol import Protocol
from olmorl.errors import ConfigError

ABOUT = """\
Evaluate models outside of a run: sample answers with vLLM on this machine, score them with the verifiers of a run.

MODEL  a model folder, an export, a hub name, a run directory (newest checkpoint), RUN@STEP, RUN@best, or a step folder
DATA   rows as for training (a file, a folder or a hub name), a protocol by its name, or your own protocol.toml

Protocols: {protocols}
A protocol names the layout and the source of its data, the template of a question, samples and sampling;
--help-protocol lists its keys. --input gives it rows that are here.

The table has a line for each model, and the paired difference of each other one to the first:
{methods}
Without a reward (an outage of a verifier) an answer counts in none of these; the line unscored answers has the number.
An episode that fails three times is no answer: it is listed with its cause, and --resume tries it again.

The answers are rows, JSON lines or Parquet by the name of -o:
{columns}

examples:
  olmorl-eval runs/demo held-out.jsonl --samples 4 --temperature 1
  olmorl-eval my/model runs/mine@100 aime24 -o answers.parquet
  olmorl-eval my/model gsm8k --input test.parquet --limit 200 --json > gsm8k.json
  olmorl-eval my/model runs/mine gsm8k --resume                go on after a kill, or add a model: no answer twice
  olmorl-eval my/model math500 --actors.tensor_parallel 8      any key of [model], [data], [actors] and [verifiers]

exit codes: 0 done, 1 an engine, all verifiers or all episodes failed, 2 a mistake to mend, 130 Ctrl-C; --resume goes on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command("olmorl-eval", lambda: _evaluate(argv))


def _evaluate(argv: Sequence[str] | None) -> int:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    words, overrides = dotted(sys.argv[1:] if argv is None else argv)
    arguments = _parser().read(words)
    *models, data = arguments.names
    if not models:
        raise ConfigError(f"{data}: give at least one model and then the data: olmorl-eval MODEL DATA (see --help)")
    if repeated := [name for name in models if models.count(name) > 1]:
        raise ConfigError(f"{repeated[0]}: this model is given twice")
    if arguments.resume and arguments.force:
        raise ConfigError("--resume goes on with the answers and --force replaces them: give one of them")
    file = protocols.find(data)
    settings = config.load(arguments.config, overrides)
    chosen = protocols.load(file, _options(arguments, settings, plain=file is None))
    source = arguments.input if file else data
    if file is None and arguments.input is not None:
        raise ConfigError(f"--input gives a protocol its rows, and {data} is no protocol; leave one of them out")
    return _asyncio_run(arguments, settings, chosen, models, source, file.stem if file else Path(data).stem)


def _asyncio_run(
    arguments: argparse.Namespace,
    settings: config.Config,
    protocol: Protocol,
    models: Sequence[str],
    source: str | None,
    name: str,
) -> int:
    from olmorl.deploy.evaluation.evaluation import Evaluation

    evaluation = Evaluation(arguments, settings, protocol, models, source, name)
    return asyncio.run(until_signal(evaluation.run))


async def until_signal(work: Callable[[], Any]) -> int:
    """Await the work; SIGINT and SIGTERM cancel it, so that engines are ended."""
    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    await work()
    return 0


def _options(arguments: argparse.Namespace, settings: config.Config, plain: bool) -> dict[str, Any]:
    """The values of the command line; for plain data those of [evaluation] where they are not given."""
    evaluation, sampling = settings.evaluation, settings.sampling
    own = {
        "samples": evaluation.samples,
        "temperature": evaluation.temperature,
        "max_tokens": evaluation.max_tokens or sampling.max_tokens,
    }
    given = {name: getattr(arguments, name) for name in ("samples", "k", "temperature", "top_p", "max_tokens", "split")}
    return (own if plain else {}) | {name: value for name, value in given.items() if value is not None}


class _Keys(argparse.Action):
    """`--help-protocol`: every key of a protocol file, and a shipped one as an example."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for name, key in Protocol.model_fields.items():
            print(f"{name:14} {key.description or ''}  [default: {key.get_default(call_default_factory=True)!r}]")
        print(f"\n# math500.toml\n{(protocols.FOLDER / 'math500.toml').read_text()}")
        parser.exit()


def _parser() -> Parser:
    from olmorl.deploy.evaluation.answer_file import COLUMNS
    from olmorl.deploy.evaluation.measures import METHODS

    style = argparse.RawDescriptionHelpFormatter
    about = ABOUT.format(
        protocols=", ".join(protocols.names()),
        methods="\n".join(
            textwrap.fill(f"  {name:12} {how}", 116, subsequent_indent=" " * 15) for name, how in METHODS.items()
        ),
        columns="\n".join(f"  {name:14} {what}" for name, (_, what) in COLUMNS.items()),
    )
    parser = Parser("olmorl-eval", description=about, formatter_class=style, allow_abbrev=False)
    add = parser.add_argument
    add("names", nargs="+", metavar="MODEL ... DATA", help="one or more models, then the data or a protocol")
    add("-o", "--output", type=Path, metavar="ANSWERS", help="the file of answers (DATA-answers.jsonl)")
    add("--input", metavar="ROWS", help="rows for the protocol: a file, a folder or a hub name")
    add("--config", type=Path, metavar="RECIPE.toml", help="a recipe: its model, prompts, episodes, engine, verifiers")
    add("--samples", type=count, metavar="N", help="answers for each prompt")
    add("--k", type=count, nargs="+", metavar="K", help="of pass@k and maj@k (powers of two up to N)")
    add("--temperature", type=float, metavar="T", help="0: greedy")
    add("--top-p", type=float, metavar="P", help="sample from the most likely tokens of this total probability")
    add("--max-tokens", type=count, metavar="N", help="longest answer")
    add("--limit", type=count, metavar="N", help="the first N prompts")
    add("--split", help="split of a hub set or a folder")
    add("--json", action="store_true", help="print the numbers as JSON")
    add("--resume", action="store_true", help="go on with the file of answers")
    add("--force", action="store_true", help="replace the file of answers")
    add("--help-protocol", action=_Keys, nargs=0, help="list the keys of a protocol file")
    add("--version", action="version", version=f"olmorl {__version__}")
    add("--section.key", metavar="VALUE", dest="example", help="any key of the recipe, as with olmorl-launch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
