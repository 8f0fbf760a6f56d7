"""One training run from its launch to its stop: watches the process, and holds its results."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, Protocol

from olmorl.errors import RunEnded
from olmorl.parent_death import die_with_parent

KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Python's own default: a second start finds the modules compiled."""
POLL_S = 1.0
STOP_S = 60.0
"""Longest time for a run to end after a stop."""


class EndRule(Protocol):
    """Says when a run is long enough."""

    def ends(self, found: Sequence[float], /) -> bool:
        """Whether the run ends, given one value for each step so far."""
        ...


class StopRule(NamedTuple):
    """Ends a run when sampled answers are so good that greedy ones have been good for some versions."""

    reward: float
    """Mean reward of `steps` steps at which the run ends."""
    steps: int
    limit: int
    """Most steps."""

    def good(self, rewards: Sequence[float]) -> bool:
        """Whether the last steps have the reward."""
        return len(rewards) >= self.steps and mean(rewards[-self.steps :]) >= self.reward

    def ends(self, rewards: Sequence[float]) -> bool:
        return self.good(rewards) or len(rewards) >= self.limit


class TimedRun(NamedTuple):
    """The results of a run. Entry i of a sequence belongs to step i + 1, which makes version i + 1."""

    start_s: float
    """From the launch to the start of the first step, which begins with its generation."""
    seconds: Sequence[float]
    """From the start of the first step until the version exists."""
    rewards: Sequence[float]
    """Mean reward of the sampled answers, the useless groups included."""
    more: dict[str, Sequence[float]]
    """Other values by name."""
    weights: Sequence[Path]
    """A safetensors file for each version, with the names of the Hugging Face model."""


def watch(
    command: Sequence[str],
    environment: dict[str, str],
    log: Path,
    values: Callable[[], Sequence[float]],
    rule: EndRule,
    timeout_s: float,
) -> float:
    """Run a command until the rule, given `values`, ends it; returns the Unix time of its launch.

    Raises:
        RunEnded: the command ended by itself before the rule, or ran into the timeout.
    """
    with log.open("wb") as output:
        launched_at = time.time()
        parent = os.getpid()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **KEEPS_BYTECODE, **environment},
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )
        try:
            while not rule.ends(found := values()):
                if process.poll() is not None:
                    if rule.ends(values()):
                        break
                    raise RunEnded(f"{command[1]}: ended after {len(found)} steps; its output is in {log}")
                if time.time() - launched_at > timeout_s:
                    raise RunEnded(f"{command[1]}: {len(found)} steps in {timeout_s:g} s; its output is in {log}")
                time.sleep(POLL_S)
        finally:
            _stop(process)
    return launched_at


def _stop(process: subprocess.Popen[Any]) -> None:
    """End a process: with a request first, then its whole session."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
