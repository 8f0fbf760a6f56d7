"""The demo for an hour, with a fault a minute: does memory grow, do descriptors leak, does it still learn?

Faults end processes before anything in them can grow much. So a while without faults follows, in which each process is
compared with itself; the hour before says whether starts, restarts and deaths leave anything behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
CALM_MINUTES = 18.0
"""In the first third, processes that the last fault ended warm up: libraries fill their caches."""
GROWTH, GROWTH_MIB, GROWTH_DESCRIPTORS = 0.03, 8.0, 3
"""Growth of a process in the calm: a share and MiB of memory, both exceeded, or a number of descriptors."""
PARTS = 6
"""Parts of all steps. The reward is averaged in each."""
# As the demo, but slower: an hour is long enough to learn.
_INSTEAD = {
    'name = "demo"': 'name = "test"\ndirectory = "{folder}/runs"',
    "steps = 50": "steps = 100000",
    "learning_rate = 5e-4": "learning_rate = 2e-5",
    "every = 25\nkeep = 2": "every = 10\nkeep = 2",
    "kv_cache_gib = 0.25": "kv_cache_gib = 0.25\nstall_deadline_s = 20.0\nstart_deadline_s = 120.0",
    "every = 25\nlimit = 200": "every = 100\nlimit = 100",
}
_LEFT_OUT = ("SIGKILL Ray's GCS", "SIGKILL Ray's raylet", "power cut, last writes lost")
_PROGRAMS = {
    "VLLM::EngineCore": "engine core",
    "olmorl.verifiers": "verifiers",
    "gcs_server": "Ray's GCS",
    "raylet/raylet": "Ray's raylet",
}


class Sample(NamedTuple):
    """One process at one moment."""

    minute: float
    role: str
    process: tuple[int, float]
    """Its number and when it began."""
    resident_mib: float
    descriptors: int


class Census:
    """Samples the resources of every process of the run."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._began = time.monotonic()
        self._over = threading.Event()
        self.samples: list[Sample] = []
        self._calm_since: float | None = None

    @property
    def _minute(self) -> float:
        return (time.monotonic() - self._began) / 60

    def calm(self) -> None:
        """From now on no fault strikes."""
        self._calm_since = self._minute

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Samples are taken in the background during the block."""
        thread = threading.Thread(target=self._take)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _take(self) -> None:
        while not self._over.wait(SAMPLE_S):
            names = {pid: name.rstrip("-0123456789") for name, pid in self._rig.pids().items()}
            for process in self._rig.run.processes():
                with suppress(psutil.Error):
                    role = names.get(process.pid) or _role(" ".join(process.cmdline()))
                    if role:
                        used = process.memory_info().rss / 2**20
                        who = (process.pid, process.create_time())
                        self.samples.append(Sample(self._minute, role, who, used, process.num_fds()))

    def rows(self) -> list[dict[str, Any]]:
        """For each role, what its processes used while faults struck and in the calm."""
        assert self._calm_since is not None
        roles = sorted({sample.role for sample in self.samples})
        return [
            row(role, [sample for sample in self.samples if sample.role == role], self._calm_since) for role in roles
        ]


def _role(command: str) -> str:
    return next((role for word, role in _PROGRAMS.items() if word in command), "")


def row(role: str, samples: Sequence[Sample], calm_since: float) -> dict[str, Any]:
    """One row of the table.

    The time of the faults gives the median and the maximum of its first and last third. The calm gives the medians of
    its second and last third, for the process that grew most.
    """
    faults = [sample for sample in samples if sample.minute < calm_since]
    end = max(sample.minute for sample in samples)
    found: dict[str, Any] = {"process": role}
    for name in ("resident_mib", "descriptors"):
        for when, part in (("first", _third(0, faults, 0, calm_since)), ("last", _third(2, faults, 0, calm_since))):
            values = [getattr(sample, name) for sample in part]
            found[f"{name}_{when}"] = round(median(values), 1) if values else None
            found[f"{name}_{when}_most"] = round(max(values), 1) if values else None
        grown = []
        for process in {sample.process for sample in samples}:
            calm = [sample for sample in samples if sample.process == process and sample.minute >= calm_since]
            parts = [_third(which, calm, calm_since, end) for which in (1, 2)]
            if all(parts):
                grown.append([round(median(getattr(sample, name) for sample in part), 1) for part in parts])
        found[f"{name}_calm"] = max(grown, key=lambda pair: pair[1] - pair[0], default=None)
    return found


def _third(which: int, samples: Sequence[Sample], begin: float, end: float) -> list[Sample]:
    """The first (0), second or last (2) third of the time."""
    limits = [begin + (end - begin) * part / 3 for part in (which, which + 1)]
    return [sample for sample in samples if limits[0] <= sample.minute <= limits[1]]


def growths(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The resources that grow, as messages."""
    for found in rows:
        before, after = found["resident_mib_calm"] or (0.0, 0.0)
        if after - before > max(GROWTH_MIB, GROWTH * before):
            yield f"the memory of {found['process']} grew from {before} to {after} MiB in the calm"
        few, many = found["descriptors_calm"] or (0, 0)
        if many - few > GROWTH_DESCRIPTORS:
            yield f"{found['process']} had {few} descriptors and then {many} in the calm"


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
        census.calm()
        end = time.monotonic() + 60 * CALM_MINUTES
        while time.monotonic() < end:
            rig.more_steps(1)

    with census.going_on():
        episode.run(strike)
    rewards = [line["reward_mean"] for line in rig.run.lines()]
    size = -(-len(rewards) // PARTS)
    parts = [round(mean(rewards[i : i + size]), 3) for i in range(0, len(rewards), size)]
    rows = census.rows()
    episode.outcome.violations += growths(rows)
    if parts[-1] <= parts[0]:
        episode.outcome.violations.append(f"the reward did not rise: {parts}")
    return {
        **table.summary([episode.outcome]),
        "minutes": minutes,
        "calm_minutes": CALM_MINUTES,
        "rewards": parts,
        "processes": rows,
    }


def _recipe(folder: Path) -> Path:
    text = (ROOT / "deploy" / "recipes" / "demo.toml").read_text()
    for old, new in _INSTEAD.items():
        assert text.count(old) == 1, f"the demo has changed: {old}"
        text = text.replace(old, new.replace("{folder}", str(folder)))
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    return recipe
