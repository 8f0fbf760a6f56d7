"""Who runs where: `processes.json` for people and tools, `targets.json` for Prometheus, kept current."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from olmorl.deploy.process import Identity
from olmorl.deploy.telemetry import Targets

log = logging.getLogger(__name__)


class Roster:
    """A process stands in it from its start to its end, under the name of its log."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "processes.json"
        self._targets = Targets(run_dir / "targets.json")
        self._members: dict[str, Identity] = {}
        self._is_current = True

    def add(self, name: str, who: Identity) -> None:
        """`name` runs, or runs again somewhere else."""
        self._members[name] = who
        self._write()

    def remove(self, name: str) -> None:
        """`name` runs no more, if it ever did."""
        if self._members.pop(name, None):
            self._write()

    def mend(self) -> None:
        """Write again what could not be written."""
        if not self._is_current:
            self._write()

    def _write(self) -> None:
        members = {name: {"host": who.host, "pid": who.pid} for name, who in sorted(self._members.items())}
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")
            partial.replace(self._path)
            self._targets.write({name: who.metrics for name, who in self._members.items() if who.metrics})
        except OSError as error:
            # A full disk, say: the run does not depend on it.
            if self._is_current:
                log.warning("%s is not current: %s", self._path, error)
            self._is_current = False
        else:
            self._is_current = True

    def close(self) -> None:
        """Nobody runs any more."""
        self._members.clear()
        self._write()
