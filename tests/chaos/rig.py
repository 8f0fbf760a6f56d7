"""Controls and observes a run from outside, to attack it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import redis

from olmorl import config
from olmorl.deploy import credentials
from olmorl.deploy.control.endpoint import send_command
from olmorl.errors import OlmoRLError
from olmorl.learner.storage.journal import Journal
from olmorl.queues.redis_server.url import PASSWORD
from olmorl.run_dir import RunFiles
from tests.chaos.disk import Disk
from tests.chaos.steps import Steps
from tests.end_to_end.launching import Launch
from tests.end_to_end.leftovers import staged, until_clean, unused


class Hang(AssertionError):
    """Something did not happen within the time that anything here may take."""


class Ended(AssertionError):
    """The run ended without a request to stop."""


def nothing() -> None:
    pass


class Rig:
    """One run directory and everything that works on it.

    Args:
        disk: of the run directory, if it has one of its own.
        patience_s: after this long without what has to happen the run hangs.
    """

    def __init__(self, run: Launch, disk: Disk | None, patience_s: float) -> None:
        self.run = run
        self.disk = disk
        self.patience_s = patience_s
        self.steps = Steps(run.run_dir / "metrics.jsonl")
        self.settings = config.load(run.recipe, [])
        self.staged = staged(run)
        self.meanwhile: Callable[[], None] = nothing
        """Called during each wait."""
        run.environment[PASSWORD] = run.mark
        self._output = run.folder / "output.txt"
        self._unused_before = unused()

    # --- its life ---------------------------------------------------------------------------------

    def start(self, *arguments: str) -> None:
        """Start a launcher with the recipe and more arguments."""
        self.run.start(*arguments)

    def stop(self) -> None:
        """Ask the run to end."""
        self.run.signal(signal.SIGINT)

    def left_behind(self) -> Iterator[str]:
        """Processes and shared memory that outlived the run, and files with the password, as messages."""
        try:
            self.run.until_gone()
        except AssertionError as left:
            yield f"orphans: {left}"
        try:
            until_clean(self.run, self._unused_before)
        except AssertionError as left:
            yield f"shared memory: {left}"
        directory = self.settings.weights.directory
        if directory is not None and (left_there := sorted(str(path) for path in directory.rglob("*"))):
            yield f"published weights: {left_there[:5]}"
        for file in self.run.run_dir.rglob("*"):
            if file.is_file() and self.run.mark.encode() in file.read_bytes():
                yield f"{file} holds the password of Redis"

    def end(self) -> None:
        """Kill the remaining processes."""
        for process in self.run.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    # --- what is seen -----------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The processes that `processes.json` names."""
        return {name: entry["pid"] for name, entry in self.run.roster().items()}

    def pid(self, name: str) -> int:
        """The pid of a process. Waits for the process."""
        self.until(lambda: name in self.pids(), f"{name} in processes.json")
        return self.pids()[name]

    def named(self, kind: str) -> list[str]:
        """The names of all actors, or of all ranks of the learner."""
        self.until(lambda: any(name.startswith(f"{kind}-") for name in self.pids()), f"a {kind} in processes.json")
        return sorted(name for name in self.pids() if name.startswith(f"{kind}-"))

    def programs(self, *words: str) -> list[psutil.Process]:
        """The processes here with one of these words in the command line."""
        found = []
        for process in self.run.processes():
            try:
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if any(word in command for word in words):
                found.append(process)
        return found

    def working(self) -> dict[str, int]:
        """The running actors and their processes."""
        try:
            actors = send_command(self.run.run_dir, "status", timeout_s=5.0)["actors"]
        except (OlmoRLError, OSError, ValueError):
            return {}
        return {actor["name"]: actor["pid"] for actor in actors if actor["state"] == "run"}

    def busy(self) -> dict[str, int]:
        """The actors with several leased draws, and their processes. All actors while Redis does not answer.

        An actor with one draw may just have answered it.
        """
        pids = self.pids()
        with suppress(redis.RedisError), self.redis() as link:
            pending = [link.xpending(self.key(stream), "actors") for stream in ("again", "fresh")]
            # Each start of an actor has a name of its own: actor-1, then actor-1.2.
            names = {
                each["name"].decode().partition(".")[0]
                for found in pending
                for each in found["consumers"]
                if each["pending"] > 1
            }
            return {name: pid for name, pid in pids.items() if name in names}
        return {name: pid for name, pid in pids.items() if name.startswith("actor-")}

    def orphans(self) -> list[str]:
        """Processes of the run whose parent is not a process of the run. The launcher is no orphan."""
        processes = {process.pid: process for process in self.run.processes()}
        found = []
        for process in processes.values():
            with suppress(psutil.NoSuchProcess):
                if process.ppid() not in processes and not self._may_be_alone(process):
                    command = " ".join(process.cmdline()) or process.name()
                    found.append(f"{process.pid}, {process.status()}, of {process.ppid()}: {command}")
        return found

    def until_no_orphans(self) -> None:
        """Wait until no orphan is left. Raises Hang with their names."""
        try:
            self.until(lambda: not self.orphans(), "the end of all orphans")
        except Hang as hang:
            raise Hang(f"{self.orphans()}: {hang}") from None

    def _may_be_alone(self, process: psutil.Process) -> bool:
        """The launcher, and what waits for the death of an engine's owner."""
        launcher = self.run.process.pid if self.run.process else None
        return process.pid == launcher or any(
            part.endswith("actors/vllm_engine/reaper.py") for part in process.cmdline()
        )

    def journaled(self) -> list[tuple[int, list[int]]]:
        """The steps in the journal and their draws in order; of a stopped run."""
        journal = Journal(RunFiles(self.run.run_dir).journal)
        return [(step, [group.prompt.draw_id for group in journal.read(step)]) for step in journal.steps()]

    def said(self) -> str:
        """The output of the launcher."""
        return self._output.read_text(errors="replace")

    def logged(self, process: str, words: str) -> int:
        """How often the log of a process has something like `words`, a pattern."""
        log = self.run.run_dir / "logs" / f"{process}.log"
        return len(re.findall(words, log.read_text(errors="replace"))) if log.exists() else 0

    @property
    def alive(self) -> bool:
        """Whether the launcher runs."""
        return self.run.process is not None and self.run.process.poll() is None

    def redis(self) -> redis.Redis:
        """A connection to the embedded Redis, as its owner."""
        host, _, port = self.until(self._address_of_redis, "a Redis that lives").partition(":")
        return redis.Redis(host, int(port), password=self.run.mark, socket_timeout=5)

    def _address_of_redis(self) -> str:
        """Where it listens, which it puts into its title; empty while it is dead."""
        try:
            title = " ".join(psutil.Process(self.pid("redis-server")).cmdline())
        except psutil.NoSuchProcess:
            return ""
        return next((word for word in reversed(title.split()) if ":" in word), "")

    def key(self, name: str) -> str:
        """The key of the training lane in Redis."""
        return f"olmorl:{{{credentials.run_id(self.settings.run_dir)}}}:train:{name}"

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, ready: Callable[[], object], what: str, every_s: float = 0.05) -> Any:
        """Until something holds; returns it. Raises Hang."""
        give_up = time.monotonic() + self.patience_s
        while not (found := ready()):
            if time.monotonic() > give_up:
                raise Hang(f"{what}: not within {self.patience_s:g} s\n{self.run.output()}")
            self.meanwhile()
            time.sleep(every_s)
        return found

    def more_steps(self, number: int) -> None:
        """Until so many more steps are done."""
        self.steps.look()
        wanted = len(self.steps) + number

        def done() -> bool:
            self.steps.look()
            if not self.alive:
                raise Ended(f"the launcher ended, nobody having asked it to:\n{self.run.output()}")
            return len(self.steps) >= wanted

        self.until(done, f"{number} more steps")
