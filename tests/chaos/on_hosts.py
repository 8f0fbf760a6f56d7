"""Faults of hosts: their links are cut, half open or slow, or all of a host is dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from random import Random

from tests.chaos.host_rig import HostRig
from tests.chaos.rig import Rig
from tests.chaos.strike import Fault, Strike, always
from tests.hosts.lan import Host

_STEPS_MEANWHILE = 2
"""Steps of the other hosts before a host comes back."""
_Choice = Callable[[HostRig, Random], Host]


def _on_hosts(rig: Rig) -> HostRig:
    assert isinstance(rig, HostRig), "a run on hosts of its own"
    return rig


def of_actors(rig: HostRig, random: Random) -> Host:
    """A host with actors."""
    return random.choice(rig.hosts_of("actor"))


def of_second_rank(rig: HostRig, random: Random) -> Host:
    """All hosts of the learner except its first."""
    (first,) = rig.hosts_of("orchestrator")
    return next(host for host in rig.hosts_of("learner") if host is not first)


# --- nothing is lost --------------------------------------------------------------------------------------


def short_cut(choose: _Choice) -> Fault:
    """The link is back before a process there counts as lost."""

    def strike(rig: Rig, random: Random) -> Strike:
        host = choose(_on_hosts(rig), random)
        return _for_a_while(rig, host, host.cut, random.uniform(0.5, 2.0))

    return strike


def slow_link(choose: _Choice) -> Fault:
    """Every packet is late for some seconds."""

    def strike(rig: Rig, random: Random) -> Strike:
        host, delay_s = choose(_on_hosts(rig), random), random.uniform(0.05, 0.3)
        return _for_a_while(rig, host, lambda: host.delay(delay_s), random.uniform(3.0, 8.0))

    return strike


def _for_a_while(rig: Rig, host: Host, worsen: Callable[[], None], seconds: float) -> Strike:
    """Heal the link after `seconds`. One deadline later the same processes must be there."""
    before = rig.run.roster()
    worsen()
    threading.Timer(seconds, host.heal).start()
    over = time.monotonic() + seconds + rig.settings.supervision.deadlines.heartbeat_s
    return Strike(
        f"{host.name}, for {seconds:.1f} s", None, lambda: time.monotonic() > over and rig.run.roster() == before
    )


# --- actors are lost --------------------------------------------------------------------------------------


def long_outage(worsen: Callable[[Host], None]) -> Fault:
    """The link is bad until the actors there are given up and the others go on; when it is healed they come back."""

    def strike(rig: Rig, random: Random) -> Strike:
        rig = _on_hosts(rig)
        host = of_actors(rig, random)
        worsen(host)
        return _lost(rig, host, host.heal)

    return strike


def kill_host(rig: Rig, random: Random) -> Strike:
    """The host is dead and stays dead; another one joins once that was seen."""
    rig = _on_hosts(rig)
    host = of_actors(rig, random)
    strike = _lost(rig, host, rig.join_another)
    host.kill()
    return strike


def _lost(rig: HostRig, host: Host, mend: Callable[[], object]) -> Strike:
    """Until the actors of `host` are lost, the others have done some steps, and after `mend` all actors are there."""
    actors, everybody = rig.on(host), rig.run.roster().keys()

    def noticed() -> bool:
        return not actors & rig.run.roster().keys()

    def course() -> Iterator[bool]:
        while not noticed():
            yield False
        wanted = len(rig.steps) + _STEPS_MEANWHILE
        while len(rig.steps) < wanted:
            yield False
        mend()
        while rig.run.roster().keys() != everybody:
            yield False
        while True:
            yield True

    mended = course()
    return Strike(f"{host.name} with {', '.join(sorted(actors))}", noticed, lambda: next(mended))


# --- the cluster is lost ----------------------------------------------------------------------------------


def kill_head(rig: Rig, random: Random) -> Strike:
    """Ray has no head any more: the run ends with the cause, and is resumed on a cluster that was started again."""
    rig = _on_hosts(rig)
    before = len(rig.said())
    rig.kill_head()
    return Strike("gcs_server", lambda: "Ray's head" in rig.said()[before:], always, ends_run=True)
