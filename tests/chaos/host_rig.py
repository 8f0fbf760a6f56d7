"""A run on separate hosts, each a Ray node: two for the learner, two for actors, and a head for the launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.rig import Hang, Rig
from tests.end_to_end.launching import Launch
from tests.end_to_end.recipes import ON_FOUR_HOSTS
from tests.hosts.lan import Host, Lan
from tests.hosts.ray_cluster import RayCluster

NUM_HOSTS, CPUS = 4, 2
NUM_ACTORS = 2 * CPUS


class HostRig(Rig):
    """Signals and addresses from here do not reach such a run: it is asked through its cluster."""

    def __init__(self, run: Launch, cluster: RayCluster, patience_s: float) -> None:
        super().__init__(run, None, patience_s)
        self._cluster = cluster
        self._num_joined = 0
        run.spawn = cluster.spawn

    def start(self, *arguments: str) -> None:
        if not self._cluster.has_head:
            self._cluster.start_again()
        where = [option for option in ON_FOUR_HOSTS if option.partition("=")[0] not in arguments]
        super().start("--ray-address", self._cluster.address, *where, *arguments)

    def stop(self) -> None:
        self._cluster.control(self.run.run_dir, "stop")

    def left_behind(self) -> Iterator[str]:
        yield from super().left_behind()
        try:
            self.until(lambda: not self._cluster.left_behind(), "nothing left on the hosts")
        except Hang:
            yield f"left behind: {', '.join(self._cluster.left_behind())}"

    def hosts_of(self, kind: str) -> list[Host]:
        """Where all actors are, all ranks of the learner, or the orchestrator."""
        self.until(lambda: len(self.named("actor")) == NUM_ACTORS, "all actors in processes.json")
        names = {entry["host"] for name, entry in self.run.roster().items() if name.startswith(kind)}
        return [self._cluster.hosts[name] for name in sorted(names)]

    def on(self, host: Host) -> set[str]:
        """The names of the processes there."""
        return {name for name, entry in self.run.roster().items() if entry["host"] == host.name}

    def kill_head(self) -> None:
        """Kill the head of the Ray cluster. Its host and the launcher stay alive."""
        self._cluster.kill_head()

    def join_another(self) -> None:
        """One more host."""
        self._num_joined += 1
        self._cluster.join(f"another-{self._num_joined}", cpus=CPUS)


@contextmanager
def on_four_hosts(make: Callable[[Path], Launch], patience_s: float, folder: Path) -> Iterator[HostRig]:
    """A run of `make` in `folder`, which all hosts see; they end with it."""
    with Lan(folder / "hosts") as lan:
        cluster = RayCluster(lan, [folder])
        # One by one, as Ray gives its own agents on a host 15 s to start, also on a busy machine.
        for number in range(1, NUM_HOSTS + 1):
            cluster.join(f"host-{number}", cpus=CPUS)
        yield HostRig(make(folder), cluster, patience_s)
