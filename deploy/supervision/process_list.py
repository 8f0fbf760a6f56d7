"""The processes of a run and their hosts: `processes.json` for people, `targets.json` for Prometheus.

`process_events.jsonl` keeps their history: one line for every start, state and end.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.processes.prometheus import Entries, Targets, target_entries
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)


class ProcessList:
    """Lists each process from its start to its end, by the name of its log."""

    def __init__(self, run_dir: Path) -> None:
        files = RunFiles(run_dir)
        self._path = files.processes
        self._run = run_dir.name
        self._events = files.process_events
        self._targets = Targets(files.targets, self._run)
        self._members: dict[str, Identity] = {}
        self._is_current = True

    def add(self, name: str, identity: Identity) -> None:
        """Add the process `name`, or its new place."""
        self._members[name] = identity
        self._record({"process": name, "state": "started", "host": identity.host, "pid": identity.pid})
        self._write()

    def remove(self, name: str) -> None:
        """Remove the process `name`, which has ended."""
        if self._members.pop(name, None):
            self._record({"process": name, "state": "ended"})
            self._write()

    def targets(self) -> Entries:
        """Where each process serves its metrics, for Prometheus' discovery over HTTP."""
        return target_entries(self._addresses, self._run)

    @property
    def _addresses(self) -> dict[str, str]:
        return {name: one.metrics for name, one in self._members.items() if one.metrics}

    def note(self, name: str, state: str, cause: str = "") -> None:
        """Record a new state of `name`. With a `cause` it is a fault."""
        self._record({"process": name, "state": state} | ({"cause": cause} if cause else {}))

    def mend(self) -> None:
        """Write the list if the last attempt failed."""
        if not self._is_current:
            self._write()

    def _record(self, event: Mapping[str, str | int]) -> None:
        try:
            with self._events.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"at": round(time.time(), 3), **event}) + "\n")
        except OSError as error:
            # Such as a full disk: the run does not depend on this file.
            log.warning("%s: a line could not be written: %s", self._events, error)

    def _write(self) -> None:
        members = {name: {"host": one.host, "pid": one.pid} for name, one in sorted(self._members.items())}
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")
            partial.replace(self._path)
            self._targets.write(self._addresses)
        except OSError as error:
            # Such as a full disk: the run does not depend on this file.
            if self._is_current:
                log.warning("%s is not current: %s", self._path, error)
            self._is_current = False
        else:
            self._is_current = True

    def close(self) -> None:
        """Remove all processes, which have ended."""
        for name in list(self._members):
            self._record({"process": name, "state": "ended"})
        self._members.clear()
        self._write()
