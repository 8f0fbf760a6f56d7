"""The base of every process of a run: its recipe, its log, its metrics, and its orphan watch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.processes import orphan_watch
from olmorl.deploy.processes.log_files import log_to
from olmorl.deploy.processes.orphan_watch import OrphanWatch
from olmorl.deploy.processes.prometheus import Entries, Telemetry
from olmorl.parent_death import leave_stop_to_launcher

Tree = Mapping[str, Any]
"""The recipe as plain data: only text and numbers cross processes."""


class RunProcess:
    """Ray starts each subclass in a separate process, which builds its part of the run from the recipe."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.settings = config.build(tree)
        self.name = name
        leave_stop_to_launcher()
        log_to(self.settings.run_dir, name)
        self.telemetry = metrics_server(self.settings, name)
        if self.settings.cluster.address is not None:
            sweep_here = partial(wiring.sweep_here, self.settings)
            OrphanWatch(
                self.settings.supervision, orphan_watch.needed, partial(orphan_watch.end, sweep=sweep_here)
            ).start()

    def identity(self) -> Identity:
        """Where this process is. Any answer is a sign of life."""
        return Identity(socket.gethostname(), os.getpid(), self.telemetry.address)


def sweep(tree: Tree) -> None:
    """Remove the run's files from shared memory of this host."""
    wiring.sweep(config.build(tree))


def metrics_server(
    settings: config.Config, process: str, port: int = 0, targets: Callable[[], Entries] | None = None
) -> Telemetry:
    """Serve the metrics of one process, only on the address that the other hosts of the run reach.

    Raises:
        ResourceError: the port is taken.
    """
    return Telemetry(process, settings.run.name, wiring.own_address(settings), port, targets)
