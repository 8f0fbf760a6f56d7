"""Ray: starting or joining a cluster, and placing processes on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from olmorl.config import Config
from olmorl.deploy.cluster import compat, hardware, named_actors
from olmorl.deploy.cluster.local_ray import OwnRay
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.deploy.cluster.ray_health import Head, LastAct, OwnDaemons, RayWatch, check_health
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.control import signals
from olmorl.deploy.credentials import PATIENCE
from olmorl.errors import ResourceError

_ROOM_TO_GROW = 16
"""Engines that may join a run on one machine. Ray gets CPUs for them; the run is the only program that uses it."""
MOST_ENGINES = 1024
"""Engines of one run. Each place takes one call, and a cluster that can grow has no other bound."""
BY_NODES = "--learner-nodes and --actor-nodes"
"""The options with which people ask for fewer places at the start of a run."""
_LOOK_S, _LONGEST_PAUSE_S = 0.05, 2.0
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RECONNECT_S = 60
"""Ray's default: after so long without its head, a Ray process ends itself."""
HEAD_DEADLINE_S = 60.0
"""Time for the head of a cluster to listen: it may start at the same time as the run."""
ReservedPlace = tuple[PlacementGroup, int]
"""A placement group and the index of a bundle in it."""


class RayCluster:
    """All processes of a run are in one namespace of Ray, and do not end with the launcher that started them.

    Args:
        run: the name of that namespace.
        outlives_launcher: False for checks, whose processes and places end with the launcher.
    """

    def __init__(self, config: Config, run: str, outlives_launcher: bool = True) -> None:
        self.config = config
        """The recipe. Within the cluster its device is decided."""
        self._settings = config.cluster
        self._run = run
        self._lifetime: str | None = "detached" if outlives_launcher else None
        self._learner: PlacementGroup | None = None
        self._watch: RayWatch | None = None
        self._own: OwnRay | None = None

    def __enter__(self) -> RayCluster:
        logging.getLogger("ray").setLevel(logging.ERROR)
        if self._settings.address is None:
            self._start_here()
        else:
            self._join(self._settings.address)
        try:
            self._decide_hardware()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    @property
    def _plan(self) -> Placement:
        return plan(self.config)

    @property
    def hardware(self) -> str:
        """The hardware that the run uses, for people."""
        return hardware.describe(self.config, _gpus_of_nodes())

    def _decide_hardware(self) -> None:
        """Decide between GPUs and CPU. Nodes may still be joining, so too few of them are waited for.

        Raises:
            UserError: the plan does not fit the nodes.
        """
        give_up = time.monotonic() + (0.0 if self._own else self.config.actors.start_deadline_s)
        while True:
            try:
                self.config = hardware.decide(self.config, _gpus_of_nodes())
            except ResourceError:
                if time.monotonic() > give_up:
                    raise
                with signals.raising():
                    time.sleep(_LONGEST_PAUSE_S)
            else:
                return

    def _start_here(self) -> None:
        plan = self._plan
        plan.check_one_machine()
        self._own = OwnRay(max(os.cpu_count() or 1, plan.ranks + plan.engines + _ROOM_TO_GROW), self._run)
        node, gcs = ray.nodes()[0], ray.get_runtime_context().gcs_address
        raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
        asks = {"gcs_server": partial(check_health, gcs), "raylet": partial(check_health, raylet)}
        self._watch = RayWatch(OwnDaemons(asks, self.config.supervision.deadlines.answer_s))

    def _join(self, address: str) -> None:
        with signals.raising():
            _await_head(address)
        try:
            with compat.own_handlers():
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    namespace=self._run,
                    runtime_env={"env_vars": {name: os.environ[name] for name in PATIENCE}},
                )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise _no_cluster(address, (str(error).strip() or repr(error)).splitlines()[-1]) from None
        head = ray.get_runtime_context().gcs_address  # `address` may be "auto"
        self._watch = RayWatch(Head(head, ray.nodes, float(os.environ.get(_RECONNECT, _RECONNECT_S))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.release()
        if self._own is None:
            ray.shutdown()
        else:
            self._own.end(keep_logs=self.is_broken)

    def processes(self) -> list[RemoteProcess]:
        """Every process of the run, including the processes of an earlier launcher."""
        return [RemoteProcess(name, handle) for name, handle in named_actors.starts()]

    async def watch(self, last_act: LastAct) -> None:
        """Wait until Ray is lost. If this process then hangs in a call to it, it is ended after its `last_act`.

        Raises:
            RunEnded: a daemon of its own Ray died or hangs, or the head of the cluster does not answer.
        """
        assert self._watch is not None, "within the cluster"
        await self._watch.raise_when_lost(last_act)

    def hold(self, longest_s: float) -> None:
        """A stop has begun: if Ray is lost from now on, the last checkpoint is still given `longest_s`."""
        assert self._watch is not None, "within the cluster"
        self._watch.hold(longest_s)

    def let_go(self) -> None:
        """The last checkpoint is complete."""
        assert self._watch is not None, "within the cluster"
        self._watch.let_go()

    @property
    def is_broken(self) -> bool:
        """Whether Ray is lost."""
        return self._watch is not None and self._watch.broken

    def end_all(self) -> None:
        """End every process of the run and free its places, including the places of an earlier launcher."""
        if self.is_broken:
            return
        give_up = time.monotonic() + self.config.supervision.deadlines.stop_s
        while found := list(named_actors.starts()):
            for _, handle in found:
                ray.kill(handle)
            if time.monotonic() > give_up:
                break
            time.sleep(_LOOK_S)
        for entry in placement_group_table().values():
            if entry["name"].startswith(f"{self._run}/") and entry["state"] != "REMOVED":
                with contextlib.suppress(ValueError):  # a process of the run has removed it meanwhile
                    self.give_up((get_placement_group(entry["name"]), 0))

    def on_other_hosts(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function` on every host but this one. A host that does not answer in time is skipped."""
        if self.is_broken:
            return
        here = ray.get_runtime_context().get_node_id()
        others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
        calls = [
            ray.remote(
                num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(other, soft=False)
            )(function).remote(*args)
            for other in others
        ]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=self.config.supervision.deadlines.stop_s)

    async def place_learner(self) -> list[ReservedPlace]:
        """Reserve one bundle for each learner node, on different nodes. Returns the place of each rank."""
        plan = self._plan
        bundles = [plan.learner_bundle()] * plan.learner_nodes
        self._learner = group = await self._place(
            bundles, "STRICT_SPREAD", "the learner", self.config.actors.start_deadline_s, BY_NODES
        )
        return [(group, rank // plan.ranks_per_node) for rank in range(plan.ranks)]

    def host_of(self, place: ReservedPlace) -> str:
        """Ray's name for the host of a place."""
        group, index = place
        return str(placement_group_table(group)["bundles_to_node_id"][index])

    def lives(self, host: str) -> bool:
        """Whether Ray counts a host as alive."""
        return any(node["NodeID"] == host and node["Alive"] for node in ray.nodes())

    @property
    def most_engines(self) -> int:
        """The largest number of engines that can ever have a place."""
        if self._settings.address is not None:
            return MOST_ENGINES
        return min(MOST_ENGINES, _room(ray.cluster_resources(), self._plan))

    async def place_engine(self, wait_s: float, asked_by: str) -> ReservedPlace:
        """Reserve the nodes of one engine, so that each joins and leaves alone. On several hosts: not on learner nodes.

        Returns the place of its actor. The other bundles of the group are for the followers.

        Args:
            asked_by: the option by which people asked for it.

        Raises:
            ResourceError: there is no place for it.
        """
        apart, bundles = None, [self._plan.engine_bundle()] * self._plan.nodes_per_engine
        if self._plan.several_hosts:
            learner = placement_group_table(self._learner)["bundles_to_node_id"].values()
            apart = [{"ray.io/node-id": f"!in({','.join(learner)})"}] * len(bundles)
        return await self._place(bundles, "STRICT_SPREAD", "an engine", wait_s, asked_by, apart), 0

    async def _place(
        self,
        bundles: list[dict[str, float]],
        strategy: str,
        what: str,
        wait_s: float,
        asked_by: str,
        labels: list[dict[str, str]] | None = None,
    ) -> PlacementGroup:
        group = placement_group(
            bundles,
            strategy=strategy,
            name=f"{self._run}/{secrets.token_hex(4)}",
            lifetime=self._lifetime,
            bundle_label_selector=labels,
        )
        wait_s = 0.0 if self._settings.address is None and not _possible(bundles) else wait_s
        give_up, pause_s = time.monotonic() + wait_s, _LOOK_S
        while placement_group_table(group)["state"] != "CREATED":
            if time.monotonic() > give_up:
                self.give_up((group, 0))
                raise ResourceError(_missing(bundles, what, wait_s, asked_by))
            await asyncio.sleep(pause_s)
            # Each pause is longer: a run may wait for hundreds of places, and each question goes to Ray's head.
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return group

    def give_up(self, place: ReservedPlace) -> None:
        """Free a place."""
        if self.is_broken:  # the call would wait for minutes
            return
        group, _ = place
        with contextlib.suppress(RuntimeError, ValueError):
            remove_placement_group(group)

    def start(
        self,
        kind: type,
        name: str,
        place: ReservedPlace,
        *args: Any,
        gpus: float = 0,
        calls: int = 1,
        env: dict[str, str] | None = None,
    ) -> RemoteProcess:
        """Start a process of `kind` and return at once; it serves `calls` calls in parallel."""
        return start_process(kind, name, place, *args, gpus=gpus, calls=calls, env=env, lifetime=self._lifetime)


def start_process(
    kind: type,
    name: str,
    place: ReservedPlace,
    *args: Any,
    gpus: float,
    calls: int,
    env: dict[str, str] | None,
    lifetime: str | None = None,
) -> RemoteProcess:
    """Start a process of `kind`. Without a `lifetime` it ends with the process that started it."""
    group, index = place
    options: dict[str, Any] = {
        "name": named_actors.start_of(name),
        "lifetime": lifetime,
        "num_cpus": 0,
        "num_gpus": gpus,
        "max_restarts": 0,
        "max_concurrency": calls,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False
        ),
    }
    if env:
        options["runtime_env"] = {"env_vars": env}
    return RemoteProcess(name, ray.remote(kind).options(**options).remote(*args))


def other_places() -> list[ReservedPlace]:
    """The other places of the group that this process was started in."""
    group = ray.util.get_current_placement_group()
    return [] if group is None else [(group, index) for index in range(1, group.bundle_count)]


def _await_head(address: str) -> None:
    """Wait until the head listens. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return None  # such as "auto"
    began_at, said = time.monotonic(), False
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        except (OverflowError, ValueError) as error:  # no port, or no name of a host
            raise _no_cluster(address, str(error)) from None
        except OSError as error:
            if time.monotonic() - began_at > HEAD_DEADLINE_S:
                raise _no_cluster(address, f"{error}, for {HEAD_DEADLINE_S:g} s") from None
            if not said:
                print(f"waiting for a Ray cluster at {address} ({error})", file=sys.stderr)
                said = True
        time.sleep(_LONGEST_PAUSE_S)


def _no_cluster(address: str, why: str) -> ResourceError:
    return ResourceError(
        f"no Ray cluster answers at {address} ({why}): start one with `ray start --head`, have this host join it with "
        "`ray start --address HEAD:6379`, and give every host the same RAY_AUTH_TOKEN"
    )


def _gpus_of_nodes() -> list[int]:
    """GPUs of each node that can hold processes."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [int(node.get("GPU", 0)) for node in nodes if node.get("CPU") or node.get("GPU")]


def _possible(bundles: list[dict[str, float]]) -> bool:
    have = ray.cluster_resources()
    return all(sum(b.get(key, 0) for b in bundles) <= have.get(key, 0) for key in ("CPU", "GPU"))


def _room(have: Mapping[str, float], plan: Placement) -> int:
    """How many engines fit in addition to the learner."""
    learner = plan.learner_bundle()
    return int(min((have.get(key, 0) - learner[key]) // need for key, need in plan.engine_bundle().items()))


def _missing(bundles: list[dict[str, float]], what: str, waited_s: float, asked_by: str) -> str:
    need = f"{len(bundles)} node(s) with {_resources(bundles[0])} each"
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    have = "; ".join(_resources(node) for node in nodes)
    return (
        f"{what} needs {need}, and after {waited_s:.0f} s the cluster does not have them. It has {len(nodes)} node(s): "
        f"{have}; free now: {_resources(ray.available_resources())}. Add nodes, or ask for "
        f"fewer with {asked_by}"
    )


def _resources(have: dict[str, float]) -> str:
    return ", ".join(f"{have.get(key, 0):.0f} {key}s" for key in ("CPU", "GPU"))


def node_address() -> str:
    """The address of this host in the cluster."""
    return str(ray.util.get_node_ip_address())
