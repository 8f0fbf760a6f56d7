"""`olmorl-launch`: from a recipe to a trained model. Start reading here.

arguments       the command line                       credentials   of Redis, Ray and the run
wiring          builds every part from the recipe
preflight/      checks before anything starts
cluster/        Ray: placement, remote processes, health
processes/      the process of Redis, of the orchestrator, of a rank and of an actor
supervision/    starts, watches and restarts these processes
tracking/       TensorBoard, Weights & Biases, trackio; OpenTelemetry
control/        signals, the control endpoint, `olmorl-ctl`
view/           the live view, tables, figures
verify/         `olmorl-verify`: scores a file of completions
plan/           `olmorl-plan`: predicts a run in simulated time
evaluation/     `olmorl-eval`: evaluates models outside of a run
data_sets/      layouts and mixtures of known data sets; prepare_data is `olmorl-data`
demo/           the model and the data of the demo
api             the same commands from Python          trl_script, verl_script    scripts of TRL and verl, run here
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from olmorl.deploy.control import signals

if __name__ == "__main__" or sys.argv[0].endswith("olmorl-launch"):  # not when this module is imported
    signals.install()  # first, because the other imports take a second

from rich.table import Table

from olmorl import config
from olmorl.deploy import verl_script
from olmorl.deploy.arguments import Arguments, parse
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.credentials import guard_ray
from olmorl.deploy.demo import demo
from olmorl.deploy.preflight import memory, memory_auto
from olmorl.deploy.preflight.local_checks import absolute, check_resume, over, preflight, prepare
from olmorl.deploy.preflight.recipe_checks import check_recipe
from olmorl.deploy.supervision import on_end, recipe_history
from olmorl.deploy.supervision.refused_start import left_as_found
from olmorl.deploy.view.console import SafeConsole
from olmorl.errors import OlmoRLError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 ended with a named cause, 2 a mistake to mend.

    130, 143 and 129 mean Ctrl-C, SIGTERM and SIGHUP before the first step of this start, or twice: no checkpoint.
    """
    signals.begin()
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        keys = verl_script.keys_of(arguments.recipe) if arguments.recipe.suffix == ".sh" else None
        settings = recipe_history.spelled_out(config.load(arguments.recipe, arguments.overrides, keys=keys))
        settings = hardware.on_this_machine(settings)
        if arguments.dry_run:
            check_recipe(settings)
            if arguments.resume:
                check_resume(absolute(settings), arguments.change, arguments.from_step)
            settings = by_memory(demo.resolve(settings))
            show_plan(settings)
            show_memory(settings)
            return 0
        if arguments.preflight:
            return launch(settings, arguments)
        return on_end.reported(settings, lambda: launch(settings, arguments))
    except OlmoRLError as error:
        print(f"olmorl-launch: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # A reader such as `head` has closed the pipe: nothing can be printed, not even at the interpreter's exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as asked:
        print(f"olmorl-launch: {str(asked) or 'Ctrl-C'}: stopped before the run had begun", file=sys.stderr)
        return getattr(asked, "exit_code", 130)


def show_plan(settings: config.Config) -> None:
    """Print the resolved configuration, as a recipe, and the placement."""
    console = SafeConsole(highlight=False)
    console.print(config.to_toml(settings), markup=False, soft_wrap=True)
    table = Table("placement", "", title=f"plan of {settings.run.name}", title_justify="left")
    if hardware.is_open(settings):
        table.add_row("hardware", "GPUs if Ray reports them at the start, else the CPU as below; see learner.device")
    for what, value in plan(settings).rows(settings):
        table.add_row(what, value)
    console.print(table)


def show_memory(settings: config.Config) -> None:
    """Print the memory plan, if the model is here. A plan that does not fit is printed, then refused."""
    if settings.run.mode == "simulated":
        return
    here = memory.known(settings)
    if here is None:
        print(memory.not_known(settings))
        return
    found = memory.memory_plan(here)
    table = Table("where", "what", "", title="memory and disk", title_justify="left")
    for row in found.rows():
        table.add_row(*row)
    SafeConsole(highlight=False).print(table)
    memory.refuse_too_little(here, found)


def by_memory(settings: config.Config) -> config.Config:
    """What is left to the memory plan is decided, and printed with the reason."""
    found = memory_auto.decided(settings)
    if found.why:
        print(found.why)
    return found.settings


def launch(settings: config.Config, arguments: Arguments) -> int:
    """Check, start, watch, stop."""
    check = prepare if arguments.preflight else preflight
    settings = by_memory(check(settings, arguments))
    if arguments.resume and not arguments.preflight and (end := over(settings, arguments.from_step)):
        print(end)
        return 0
    guard_ray(own=settings.cluster.address is None)
    # Imported here, so that --help, --dry-run and every mistake are answered without Ray.
    from olmorl.deploy.cluster.ray_cluster import RayCluster
    from olmorl.deploy.preflight import host_checks
    from olmorl.deploy.supervision.service import open_service

    if arguments.preflight:
        found = left_as_found(settings.run_dir, always=True)
        with (
            found,
            signals.held(),
            RayCluster(settings, "preflight", outlives_launcher=False) as cluster,
            signals.raising(),
        ):
            print(cluster.hardware)
            host_checks.examine(cluster, SafeConsole())
        return 0
    several_hosts = settings.run.mode == "real" and plan(settings).several_hosts
    examine = host_checks.examine if several_hosts else None
    with ExitStack() as stack:
        with left_as_found(settings.run_dir, always=False):
            stack.enter_context(signals.held())
            service = stack.enter_context(open_service(settings, arguments.resume, arguments.from_step, examine))
            recipe_history.record_start(settings, arguments.command_line)
        return service.run()


if __name__ == "__main__":
    sys.exit(main())
