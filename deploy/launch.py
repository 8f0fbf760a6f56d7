"""`olmorl-launch`: from a recipe to a trained model. The table of contents of the service.

arguments   the command line                     plan       what runs where
ray_watch   whether the Ray below is still there
preflight   what can be known to fail, first     cluster    Ray: places             process  Ray: calls
checklist   every host looked at, as a table     checks     what is looked at
hosts       what each process is made of         service    start order, watching, stopping
lock        one launcher at a time               takeover   from a launcher that is gone
lifeline    how long processes wait for one      namespace  Ray: who is there
supervise   who is lost, who starts again        fleet, learner_group, queue_server     each kept alive
commands    what people can ask for              endpoint   who may ask
progress    what one sees meanwhile              roster     which process runs where
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.deploy import demo
from olmorl.deploy.access import guard_ray
from olmorl.deploy.arguments import Arguments, parse
from olmorl.deploy.plan import plan
from olmorl.deploy.preflight import check_directory, check_objective, preflight, prepare
from olmorl.errors import OlmoRLError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 ended with a named cause, 2 a mistake to mend."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        settings = config.load(arguments.recipe, arguments.overrides)
        if arguments.dry_run:
            check_objective(settings)
            if arguments.resume:
                check_directory(settings, resume=True)
            show_plan(demo.resolve(settings))
            return 0
        return launch(settings, arguments)
    except OlmoRLError as error:
        print(f"olmorl-launch: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("olmorl-launch: stopped before the run had begun", file=sys.stderr)
        return 130


def show_plan(settings: config.Config) -> None:
    """Print the resolved configuration, as a recipe, and the placement."""
    console = Console(highlight=False)
    console.print(config.to_toml(settings), markup=False, soft_wrap=True)
    table = Table("placement", "", title=f"plan of {settings.run.name}", title_justify="left")
    for what, value in plan(settings).rows(settings):
        table.add_row(what, value)
    console.print(table)


def launch(settings: config.Config, arguments: Arguments) -> int:
    """Check, start, watch, stop."""
    guard_ray(own=settings.cluster.address is None)
    # Imported here, so that --help and --dry-run answer without Ray.
    from olmorl.deploy import checklist
    from olmorl.deploy.cluster import Cluster
    from olmorl.deploy.service import Service

    if arguments.preflight:
        settings = prepare(settings, arguments.resume)
        with Cluster(settings.cluster, plan(settings), "preflight"):
            checklist.examine(settings, Console())
        return 0
    settings = preflight(settings, arguments.resume)
    examine = settings.run.mode == "real" and plan(settings).several_hosts
    with Service(settings, arguments.resume, arguments.from_step, examine) as service:
        return service.run()


if __name__ == "__main__":
    sys.exit(main())
