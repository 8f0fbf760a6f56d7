"""The demo for an hour, with a fault a minute: does memory grow, do descriptors leak, does it still learn?"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any, NamedTuple

import psutil

from tests.chaos import faults, table
from tests.chaos.episode import Episode, order
from tests.chaos.rig import Rig
from tests.end_to_end.launching import ROOT, Launch

PATIENCE_S = 600.0
SAMPLE_S = 10.0
STEPS = 30
"""At the beginning and at the end, over which the reward is averaged."""
# As the demo, but slower: an hour is long enough to learn.
_INSTEAD = {
    'name = "demo"': 'name = "test"\ndirectory = "{folder}/runs"',
    "steps = 50": "steps = 100000",
    "learning_rate = 5e-4": "learning_rate = 1e-4",
    "every = 25\nkeep = 2": "every = 10\nkeep = 2",
    "kv_cache_gib = 0.25": "kv_cache_gib = 0.25\nstall_deadline_s = 20.0",
    "every = 25\nlimit = 200": "every = 100\nlimit = 100",
}
_LEFT_OUT = ("SIGKILL Ray's GCS", "SIGKILL Ray's raylet", "power cut, last writes lost")
_PROGRAMS = {
    "VLLM::EngineCore": "engine core",
    "VLLM::Worker": "engine worker",
    "olmorl.verifiers": "verifiers",
    "gcs_server": "Ray's GCS",
    "raylet/raylet": "Ray's raylet",
}


class Sample(NamedTuple):
    """One process at one moment."""

    minute: float
    role: str
    resident_mib: float
    descriptors: int


class Census:
    """What every process of the run uses, from time to time."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._began = time.monotonic()
        self._over = threading.Event()
        self.samples: list[Sample] = []

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """It is taken inside, in the background."""
        thread = threading.Thread(target=self._take)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _take(self) -> None:
        while not self._over.wait(SAMPLE_S):
            minute = (time.monotonic() - self._began) / 60
            names = {pid: name.rstrip("-0123456789") for name, pid in self._rig.pids().items()}
            for process in self._rig.run.processes():
                with suppress(psutil.Error):
                    role = names.get(process.pid) or _role(" ".join(process.cmdline()))
                    if role:
                        used = process.memory_info().rss / 2**20
                        self.samples.append(Sample(minute, role, used, process.num_fds()))

    def rows(self) -> list[dict[str, Any]]:
        """For each role the largest process, in the first third of the time and in the last."""
        by_role: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.samples:
            by_role[sample.role].append(sample)
        end = max(sample.minute for sample in self.samples)
        return [_growth(role, samples, end) for role, samples in sorted(by_role.items())]


def _role(command: str) -> str:
    return next((role for word, role in _PROGRAMS.items() if word in command), "")


def _growth(role: str, samples: list[Sample], end: float) -> dict[str, Any]:
    first = [sample for sample in samples if sample.minute < end / 3] or samples
    last = [sample for sample in samples if sample.minute > 2 * end / 3] or samples
    row: dict[str, Any] = {"process": role}
    for name in ("resident_mib", "descriptors"):
        for when, part in (("first", first), ("last", last)):
            values = sorted(getattr(sample, name) for sample in part)
            row[f"{name}_{when}"] = round(median(values), 1)
            row[f"{name}_{when}_most"] = round(values[-1], 1)
    return row


def run(minutes: float, seed: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run it; returns the table of the faults, with what was used and what was learned."""
    folder.mkdir(parents=True, exist_ok=True)
    rig = Rig(Launch(folder, _recipe(folder)), None, PATIENCE_S)
    kinds = {**faults.OF_REAL_ENGINES, **faults.EVERYWHERE}
    hand = order({name: kinds[name] for name in kinds if name not in _LEFT_OUT}, 2 * int(minutes) + 2, Random(seed))
    episode, census = Episode(rig, seed), Census(rig)

    def strike() -> None:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            struck = time.monotonic()
            episode.hit([hand.pop()])
            record = episode.outcome.records[-1]
            say(
                f"step {len(rig.run.lines())}: {record.fault} ({record.victim}): again after {record.recovered_s:.1f} s"
            )
            time.sleep(max(0.0, struck + 60 - time.monotonic()))

    with census.going_on():
        episode.run(strike)
    rewards = [line["reward_mean"] for line in rig.run.lines()]
    return {
        **table.summary([episode.outcome]),
        "minutes": minutes,
        "reward_first": round(mean(rewards[:STEPS]), 3),
        "reward_last": round(mean(rewards[-STEPS:]), 3),
        "processes": census.rows(),
    }


def _recipe(folder: Path) -> Path:
    text = (ROOT / "deploy" / "recipes" / "demo.toml").read_text()
    for old, new in _INSTEAD.items():
        assert text.count(old) == 1, f"the demo has changed: {old}"
        text = text.replace(old, new.replace("{folder}", str(folder)))
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    return recipe
