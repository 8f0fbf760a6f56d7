"""Real runs, as a user starts them: the launcher is a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "OLMORL_TEST_RUN"


def here(command: list[str], output: IO[str], **env: str) -> subprocess.Popen[str]:
    """Start a program on this host."""
    return subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env={**os.environ, **env}
    )


@dataclass
class Launch:
    """One run directory, and the launcher processes started on it."""

    folder: Path
    recipe: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    spawn: Callable[..., subprocess.Popen[str]] = here
    """How to start a program where the launcher is to run."""

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / "test"

    def start(self, *arguments: str) -> None:
        with (self.folder / "output.txt").open("a") as output:
            command = [sys.executable, "-m", "olmorl.deploy.launch", str(self.recipe), *arguments]
            own = {MARK: self.mark, "PYTHONUNBUFFERED": "1"}
            self.process = self.spawn(command, output, **own, **self.environment)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 240) -> int:
        assert self.process is not None
        return self.process.wait(timeout_s)

    def output(self) -> str:
        logs = sorted((self.run_dir / "logs").glob("*.log")) if (self.run_dir / "logs").exists() else []
        ends = [f"--- {log.name}\n" + log.read_text(errors="replace")[-2000:] for log in logs]
        return "\n".join([(self.folder / "output.txt").read_text(), *ends])

    def lines(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def until_step(self, step: int, timeout_s: float = 240) -> None:
        self.until(lambda: len(self.lines()) >= step, timeout_s)

    def roster(self) -> dict[str, dict[str, Any]]:
        """`processes.json`."""
        path = self.run_dir / "processes.json"
        roster: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        return roster

    def until(self, ready: Callable[[], object], timeout_s: float = 120) -> None:
        """Until something holds; the run has to go on meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.process is not None and self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """Everything that this run started, its parents dead or not, and that still runs."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return found

    def until_gone(self, timeout_s: float = 60) -> None:
        """Until nothing of the run is alive."""
        deadline = time.monotonic() + timeout_s
        while left := self.processes():
            assert time.monotonic() < deadline, [" ".join(p.cmdline())[:100] for p in left]
            time.sleep(0.2)

    def end(self) -> None:
        """Kill what is left of it."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
