"""Faults of versions that travel as deltas: each needs the version before, on its host or in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP

from olmorl import codec
from olmorl.deploy import credentials
from olmorl.deploy.control.endpoint import send_command
from olmorl.errors import OlmoRLError
from olmorl.messages import Version, WeightsReady
from olmorl.queues.weights.deltas import bases
from olmorl.queues.weights.file_publisher import DIGEST_BYTES
from tests.chaos.on_messages import REFUSAL, flip_bit
from tests.chaos.on_processes import on_learner
from tests.chaos.rig import Rig
from tests.chaos.strike import Strike, send

_MISSED, _STOPPED_S = 3, 6.0
"""Steps that actors miss, and the longest time for that: after it they would count as dead."""
_BETWEEN_STOPS_S = 2.0
_REBUILT = "was built from the last whole one"


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        send(pid, SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, SIGCONT)


def _pids(rig: Rig, kind: str) -> list[int]:
    return [rig.pid(name) for name in rig.named(kind)]


def _staged(rig: Rig) -> list[Version]:
    """The versions in the shared memory of the host, that all hashes were compared of."""
    return sorted(Version.parse(file.stem) for file in rig.staged.glob("*.checked"))


def _published(rig: Rig) -> Path:
    """The folder in which versions are published."""
    directory = rig.settings.weights.directory
    return rig.staged if directory is None else directory / f"olmorl-{credentials.run_id(rig.settings.run_dir)}"


def miss_versions(rig: Rig, random: Random) -> Strike:
    """No actor fetches anything while the learner goes on: the next delta is to a version that the host lacks."""
    rig.steps.look()
    first, until = len(rig.steps), time.monotonic() + _STOPPED_S
    with _stopped(_pids(rig, "actor")):
        while len(rig.steps) < first + _MISSED and time.monotonic() < until:
            time.sleep(0.05)
            rig.steps.look()
    before, missed = _staged(rig)[-1:], len(rig.steps) - first
    return Strike(f"{missed} steps", None, lambda: _staged(rig)[-1:] > before)


def damage_base(rig: Rig, random: Random) -> Strike:
    """The version on the host is damaged, and looks as it was: the next delta is applied to it.

    The host must build the next version from the last whole one, and no actor may notice. Where the next version is
    whole, nothing shows: then another version is damaged.
    """
    refusals, rebuilt = _logged(rig, REFUSAL), _logged(rig, _REBUILT)

    def noticed() -> bool:
        return _logged(rig, _REBUILT) > rebuilt

    def unnoticed() -> bool:
        """An actor was refused a version that its host could build from the last whole one."""
        return _logged(rig, REFUSAL) == refusals

    def damage_one() -> Strike:
        version = rig.until(lambda: _damaged_base(rig, random), "a version that all actors have", _BETWEEN_STOPS_S)
        strike = Strike(f"{version}", noticed, lambda: max(_staged(rig), default=version) > version, kept=unnoticed)
        rig.until(lambda: noticed() or _is_left(rig, version), f"all actors leave {version}")
        return strike

    strike = damage_one()
    while not noticed():
        strike = damage_one()
    return strike


def _logged(rig: Rig, words: str) -> int:
    """How often the logs of the actors have something like `words`."""
    logs = (rig.run.run_dir / "logs").glob("actor-*.log")
    return sum(rig.logged(log.stem, words) for log in logs)


def _is_left(rig: Rig, version: Version) -> bool:
    """Whether engines compute, and none of them with this version."""
    versions = _versions(rig)
    return bool(versions) and str(version) not in versions


def _damaged_base(rig: Rig, random: Random) -> Version | None:
    """Damages the version that all actors have, if they all have the same. Stops the ranks meanwhile."""
    with _stopped(_pids(rig, "learner")):
        until = time.monotonic() + _STOPPED_S
        while len(versions := set(_versions(rig))) != 1 or {str(one) for one in _staged(rig)[-1:]} != versions:
            if time.monotonic() > until:
                return None
            time.sleep(0.2)
        version = Version.parse(versions.pop())
        file = rig.staged / f"{version}.weights"
        before = file.stat()
        flip_bit(file, random)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return version


def _versions(rig: Rig) -> list[str]:
    """What the engines compute with. One entry that is no version while an actor is not there."""
    try:
        actors = send_command(rig.run.run_dir, "status", timeout_s=5.0)["actors"]
    except (OlmoRLError, OSError, ValueError):
        return []
    return [str(actor["version"]) for actor in actors]


def damage_delta(rig: Rig, random: Random) -> Strike:
    """A delta is damaged where it is published, before an actor fetches it: no host can build the version."""
    refusals = _logged(rig, REFUSAL)

    def refused() -> bool:
        return _logged(rig, REFUSAL) > refusals

    ranks = _pids(rig, "learner")
    try:
        version = rig.until(lambda: _damaged_delta(rig, random, ranks), "a delta that no actor has", _BETWEEN_STOPS_S)
        rig.until(refused, f"an actor refuses {version}")
    finally:
        for pid in ranks:
            send(pid, SIGCONT)
    # The learner goes on to the next whole version, or starts again when no actor can follow.
    return Strike(f"{version}", refused, lambda: max(_staged(rig), default=version) > version)


def _damaged_delta(rig: Rig, random: Random, ranks: Sequence[int]) -> Version | None:
    """Damages the next version if it is a delta. The actors are stopped meanwhile, and the ranks from then on."""
    folder = _published(rig)
    with _stopped(_pids(rig, "actor")):
        before, until = _latest(folder), time.monotonic() + _STOPPED_S
        while (latest := _latest(folder)) == before:
            if time.monotonic() > until:
                return None
            time.sleep(0.001)
        for pid in ranks:
            send(pid, SIGSTOP)
        manifest = codec.decode((folder / f"{latest}.manifest").read_bytes()[:-DIGEST_BYTES], WeightsReady)
        if bases(manifest):
            shard = random.randrange(len(manifest.shards))
            flip_bit(folder / f"{latest}.shard_{shard}", random)
            return Version.parse(latest)
    for pid in ranks:
        send(pid, SIGCONT)
    return None


def _latest(folder: Path) -> str:
    """The newest version; empty before a start that found nothing has published."""
    file = folder / "latest"
    return file.read_bytes()[:-DIGEST_BYTES].decode() if file.exists() else ""


def kill_publisher(rig: Rig, random: Random) -> Strike:
    """A rank dies between its shard and the version."""
    folder = _published(rig)

    def unfinished() -> bool:
        begun = {file.name.rpartition(".")[0] for file in folder.glob("*.part_*")}
        return bool(begun - {file.stem for file in folder.glob("*.manifest")})

    rig.until(unfinished, "a version that is being published", every_s=0.001)
    return on_learner("rank", SIGKILL)(rig, random)
