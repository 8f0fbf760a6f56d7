"""`olmorl-plan`: predicts the speed of a run from simulated runs of the service.

cli        the command line                    simulated_service  the service in simulated time
workload   rates and answers                   figures            the figures of a run
measured   rates of a finished run             sweep              variants and the recommended one
report     tables, JSON and the picture
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from olmorl import __version__, config
from olmorl.config import Config
from olmorl.deploy.arguments import dotted
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, count
from olmorl.deploy.plan import report
from olmorl.deploy.plan.measured import FinishedRun, finished_run
from olmorl.deploy.plan.sweep import Axes, Prediction, Sweep, choice_of, default_axes, predict
from olmorl.deploy.plan.workload import ANSWER_KEYS, Workload
from olmorl.deploy.preflight import checks, memory
from olmorl.deploy.preflight.disk_room import published_bytes
from olmorl.deploy.preflight.publishing import PublishingPlan, publishing_plan
from olmorl.errors import ConfigError
from olmorl.run_dir import RunFiles

ABOUT = """\
Predict what a run would achieve, and how to split the nodes.

The service's own orchestrator, actors and loop run in simulated time around an engine and a learner that only take
time. So the answer has the waiting, filtering and staleness of a real run. It needs no GPU, no model and no data.

  olmorl-plan --from runs/demo                            the configuration of a finished run, with its own rates
  olmorl-plan --from runs/demo --schedule.max_lag 4       the same with another key
  olmorl-plan RECIPE.toml --from runs/small               another recipe, with the rates of that run
  olmorl-plan RECIPE.toml --learner-nodes 8 --actor-nodes 20 \\
      --mean-tokens 14628 --train-s 125 --engine-tokens-per-s 2100
                                                          a recipe, with rates that you know
  olmorl-plan RECIPE.toml --from runs/small --figure plan.svg --json plan.json

Rates without --from are the keys of the recipe's [simulation] section, so --simulation.solve_rate 0.3 works as well.
The options set the three that are known for most clusters.

A plan tries the recipe itself, then other splits of the same nodes, then other lags, then other batches. It recommends
the fastest in trained tokens per second; among those within 3% the smallest lag, then the smallest batch.

columns:
  s/step        seconds from step to step            lag mean      versions between sampling and training, over tokens
  trained/s     tokens that feed the loss            wait          share of the time in which the learner has no batch
  generated/s   tokens of all engines                engines busy  share of their slots that hold a sequence
  not trained   share of the generated tokens: groups without a gradient, stale and failed ones

Not simulated: start-up, evaluation, checkpoints, faults, preemption in a full KV cache. docs/cluster.md has more.

exit codes: 0 done, 2 a mistake to mend, 130 interrupted.
"""
RATES = ("mean_tokens", "turns", "tool_s", "train_s", "engine_tokens_per_s")
STEPS = 20
"""Counted steps of the recipe itself. Other batches are counted over as many groups."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""

    def do() -> int:
        words, overrides = dotted(sys.argv[1:] if argv is None else argv)
        _plan(_parser().read(words), overrides)
        return 0

    return run_command("olmorl-plan", do)


def _parser() -> Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser("olmorl-plan", description=ABOUT, formatter_class=style, allow_abbrev=False)
    add = parser.add_argument
    add("recipe", nargs="?", type=Path, metavar="RECIPE.toml", help="the configuration (default: the --from run's)")
    add("--from", dest="run", type=Path, metavar="RUN", help="directory of a finished run: its rates and answers")
    add("--learner-nodes", type=count, metavar="N", help="nodes of the learner")
    add("--actor-nodes", type=count, metavar="M", help="nodes of the actors")
    add("--mean-tokens", type=positive, metavar="T", help="mean length of an answer, the limit included")
    add("--turns", type=count, metavar="N", help="answers of an episode, each of --mean-tokens (default: 1)")
    add("--tool-s", type=positive, metavar="S", help="seconds of a tool after each answer of an episode (default: 0)")
    add("--train-s", type=positive, metavar="S", help="seconds in which the learner trains a step of this recipe")
    about_engine = "speed of one engine with actors.max_running sequences"
    add("--engine-tokens-per-s", type=positive, metavar="R", help=about_engine)
    add("--dry-run", action="store_true", help="show the rates and what would be tried, then stop")
    add("--no-sweep", action="store_true", help="predict this configuration alone")
    add("--splits", type=listed(split), metavar="N+M,..", help="splits to try, as in 4+24,8+20")
    add("--lags", type=listed(lag), metavar="L,..", help="values of schedule.max_lag to try")
    add("--batches", type=listed(count), metavar="B,..", help="values of schedule.prompts_per_step to try")
    add(
        "--steps",
        type=count,
        metavar="K",
        help=f"steps of the recipe that are counted (default: as in the --from run, else {STEPS})",
    )
    add("--processes", type=count, default=1, metavar="P", help="configurations that are simulated in parallel (1)")
    add("--figure", type=Path, metavar="FILE.svg", help="draw the sweep (svg, png or pdf)")
    add("--json", type=Path, metavar="FILE.json", help="write rates and predictions")
    add("--version", action="version", version=f"olmorl {__version__}")
    return parser


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def lag(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def split(text: str) -> tuple[int, int]:
    """Learner and actor nodes, as in 8+20."""
    learner, plus, actors = text.partition("+")
    if not plus:
        raise argparse.ArgumentTypeError(f"{text!r} is not a split; learner and actor nodes are written 8+20")
    return count(learner), count(actors)


def listed(one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Several values with commas between them."""
    return lambda text: [one(part.strip()) for part in text.split(",")]


def _plan(arguments: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> None:
    run = None if arguments.run is None else finished_run(arguments.run)
    settings = _settings(arguments, overrides, run)
    load = _workload(arguments, settings, overrides, run)
    own = choice_of(settings)
    groups = own.batch * (arguments.steps or (run.steps if run else STEPS))
    out = report.console()
    report.show_inputs(out, settings, load, _publishing(settings))
    if arguments.dry_run:
        if not arguments.no_sweep:
            out.print(_axes(arguments, settings).text())
        return
    if arguments.no_sweep:
        chosen, tried = predict(settings, load, own, groups), {}
        tried[own] = chosen
    else:
        sweep = Sweep(settings, load, groups, arguments.processes, _note)
        chosen = sweep.run(own, _axes(arguments, settings))
        tried = sweep.tried
    predictions = sorted(tried.values(), key=lambda one: one.choice)
    # The run itself can be compared with a prediction of its own configuration and rates only.
    rates = tuple(getattr(arguments, name) for name in RATES)
    changed = overrides or arguments.recipe or any(rates)
    real = run if run and choice_of(run.settings) == own and not changed else None
    report.show(out, settings, predictions, None if arguments.no_sweep else chosen, real)
    if not arguments.no_sweep:
        out.print(_advice(tried[own], chosen, settings.schedule.depth is not None))
    if arguments.json:
        report.write_json(arguments.json, load, predictions, chosen, real)
    if arguments.figure:
        report.draw(predictions, chosen, arguments.figure, f"plan of {settings.run.name}")


def _settings(arguments: argparse.Namespace, overrides: Sequence[tuple[str, str]], run: FinishedRun | None) -> Config:
    recipe: Path | None = arguments.recipe
    if recipe is None:
        if run is None:
            raise ConfigError("give a recipe, a finished run, or both: olmorl-plan RECIPE.toml --from RUN (see --help)")
        recipe = RunFiles(arguments.run).config
    given = [
        (key, str(value))
        for key, value in (("learner.nodes", arguments.learner_nodes), ("actors.nodes", arguments.actor_nodes))
        if value is not None
    ]
    return config.load(recipe, [*given, *overrides], of_run=arguments.recipe is None)


def _workload(
    arguments: argparse.Namespace, settings: Config, overrides: Sequence[tuple[str, str]], run: FinishedRun | None
) -> Workload:
    """The rates of the run or of the recipe, changed by the rates on the command line."""
    load = Workload(settings.simulation) if run is None else run.workload
    if run is not None:
        keys = [key.partition(".")[2].replace("-", "_") for key, _ in overrides if key.startswith("simulation.")]
        recorded = sorted(set(keys) & ANSWER_KEYS)
        if recorded and arguments.mean_tokens is None:
            raise ConfigError(
                f"--simulation.{recorded[0]}: the answers are those that {arguments.run} has recorded; leave out this "
                "key, or --from and give the recipe with its rates"
            )
        random = () if arguments.mean_tokens is None else ANSWER_KEYS  # then no recorded answer is used
        given = {key: getattr(settings.simulation, key) for key in {*keys, *random}}
        load = replace(load, simulation=load.simulation.model_copy(update=given))
    limit = settings.sampling.max_tokens
    if (mean := arguments.mean_tokens) is not None:
        if mean >= limit:
            raise ConfigError(
                f"--mean-tokens {mean:g} is not below sampling.max_tokens = {limit}: no answer is longer than that; "
                "give a smaller mean, or raise --sampling.max_tokens"
            )
        load = load.with_mean(mean, limit)
    rates: dict[str, float] = {
        key: value for key in ("turns", "tool_s") if (value := getattr(arguments, key)) is not None
    }
    turns = rates.get("turns", load.simulation.turns)
    if load.groups and (turns > 1 or "tool_s" in rates):
        raise ConfigError("--turns, --tool-s: recorded answers are whole episodes; give --mean-tokens, of one answer")
    if (train_s := arguments.train_s) is not None:
        answers = settings.schedule.prompts_per_step * settings.sampling.group_size * turns
        tokens = answers * load.expected_tokens(limit)
        rates |= {"train_overhead_s": 0.0, "train_tokens_per_s": tokens / train_s / plan(settings).ranks}
    if (speed := arguments.engine_tokens_per_s) is not None:
        slots = settings.actors.max_running
        rates["tokens_per_s"] = speed / slots * (1 + load.simulation.batch_slowdown * (slots - 1))
    return replace(load, simulation=load.simulation.model_copy(update=rates))


def _publishing(settings: Config) -> PublishingPlan | None:
    """What publishing costs the learner; None where the model is not here."""
    here = memory.known(settings) if settings.run.mode == "real" else None
    if here is None:
        return None
    size = checks.size_of(here.model.path, here.model.dtype, here.model.trust_remote_code)
    return publishing_plan(here, size.parameters, published_bytes(here, size.parameters))


def _axes(arguments: argparse.Namespace, settings: Config) -> Axes:
    """The values to try. Raises ConfigError for a value on the command line that the recipe does not allow."""
    own, usual = choice_of(settings), default_axes(settings)
    for learner_nodes, actor_nodes in arguments.splits or ():
        own._replace(learner_nodes=learner_nodes, actor_nodes=actor_nodes).apply(settings)
    for max_lag in arguments.lags or ():
        own._replace(max_lag=max_lag).apply(settings)
    for batch in arguments.batches or ():
        own._replace(batch=batch).apply(settings)
    return Axes(
        splits=arguments.splits or usual.splits,
        lags=arguments.lags or usual.lags,
        batches=arguments.batches or usual.batches,
    )


def _note(done: Prediction) -> None:
    choice = done.choice
    print(
        f"{choice.learner_nodes}+{choice.actor_nodes} nodes, lag {choice.max_lag}, {choice.batch} prompts a step: "
        f"{done.figures.trained_per_s:,.0f} trained tokens/s",
        file=sys.stderr,
    )


def _advice(own: Prediction, chosen: Prediction, has_depth: bool) -> str:
    """The options that give the chosen configuration. `has_depth`: the recipe sets `schedule.depth`."""
    if own is chosen:
        return "recommended: the recipe as it is"
    choice, gain = chosen.choice, chosen.figures.trained_per_s / own.figures.trained_per_s
    changes = [
        f"--learner-nodes {choice.learner_nodes} --actor-nodes {choice.actor_nodes}",
        f"--schedule.max_lag {choice.max_lag}",
        f"--schedule.prompts_per_step {choice.batch}",
    ]
    if has_depth and choice.max_lag != own.choice.max_lag:  # the sweep lets the depth follow the lag
        changes.append(f"--schedule.depth {choice.max_lag}")
    return f"recommended: {' '.join(changes)}: {gain:.2f} times the trained tokens per second of the recipe"


if __name__ == "__main__":
    sys.exit(main())
