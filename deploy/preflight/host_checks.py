"""The table of checks before a run: `olmorl-launch RECIPE.toml --preflight`, and always before a run of several nodes.

Each host check runs in parallel on the hosts that it concerns; the other checks run once. The last ones run in the
places of an engine and of the learner. All checks run, so that one table shows everything to mend.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmorl import config
from olmorl.deploy.cluster.placement import Placement, plan
from olmorl.deploy.cluster.ray_cluster import BY_NODES, RayCluster
from olmorl.deploy.cluster.remote_process import RemoteProcess
from olmorl.deploy.preflight import checks
from olmorl.deploy.preflight.logprob_check import AskedEngine, AskedRank, compare
from olmorl.deploy.processes import actor_process, rank_process
from olmorl.errors import OlmoRLError, ResourceError, unwritable
from olmorl.host_memory import host_memory
from olmorl.run_dir import RunFiles

_AGREEMENT, _ENGINE_AND_RANKS = "log-probabilities", "an engine and the ranks"
HOST_DEADLINE_S = 180.0
CLOCKS_MAY_DIFFER_S = 2.0


class CheckResult(NamedTuple):
    """The result of one check."""

    check: str
    host: str
    passed: bool
    said: str
    """The finding, or the error with its fix."""


def examine(cluster: RayCluster, console: Console) -> None:
    """Run every check on the cluster that this process has joined, and print the table.

    Raises:
        ResourceError: at least one failed.
    """
    with console.status("preflight") as status:
        results = []
        for result in _results(cluster):
            results.append(result)
            status.update(f"preflight: {result.check} on {result.host} done")
    console.print(_table(results))
    if failed := [result for result in results if not result.passed]:
        names = ", ".join(sorted({result.check for result in failed}))
        raise ResourceError(
            f"preflight: {len(failed)} of {len(results)} checks failed ({names}); the table says what to do"
        )


def _results(cluster: RayCluster) -> Iterator[CheckResult]:
    settings = cluster.config
    placed = plan(settings)
    tree = settings.model_dump(mode="json")
    real, passed = settings.run.mode == "real", True
    for name, check in checks.ONCE.items():
        if checks.applies(name, settings):
            result = _attempt(name, "launcher", partial(check, settings))
            passed = passed and result.passed
            yield result
    names = [name for name in checks.ON_HOSTS if checks.applies(name, settings)]
    yield from _of_hosts(settings, _shared_folders(settings), placed, names)
    if real and passed:
        yield from asyncio.run(_in_places(cluster, placed, tree))
    elif real:
        yield _attempt(_AGREEMENT, _ENGINE_AND_RANKS, _not_yet)


class Inspector:
    """Runs checks on its host."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._settings = config.build(tree)

    def now(self) -> float:
        return time.time()

    def memory(self) -> int:
        return host_memory()

    def check(self, name: str) -> str:
        return checks.ON_HOSTS[name](self._settings)

    def sees(self, file: Path) -> bool:
        return file.exists()


def _of_hosts(
    settings: config.Config, folders: Mapping[str, Path], placed: Placement, names: Sequence[str]
) -> Iterator[CheckResult]:
    """The results of all hosts, which are asked at the same time."""
    tree = settings.model_dump(mode="json")
    inspector = ray.remote(num_cpus=0)(Inspector)
    nodes = {node["NodeManagerAddress"]: node for node in ray.nodes() if node["Alive"]}
    inspectors = {
        host: inspector.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            tree
        )
        for host, node in nodes.items()
    }
    # The first answer waits for the start of a process. A host that gives none is not asked again.
    started_at, first = time.monotonic(), {host: there.now.remote() for host, there in inspectors.items()}
    for host, answer in first.items():
        found = _attempt("clock", host, partial(_clock, inspectors[host], answer, started_at))
        yield found
        if not found.passed and ray.wait([answer], timeout=0)[1]:
            del nodes[host], inspectors[host]
    for (name, folder), (host, node) in product(folders.items(), nodes.items()):
        if checks.concerns(name, placed, node["Resources"]):
            yield _attempt(name, host, partial(_shared, inspectors[host], name, folder))
    if settings.run.mode == "real":
        yield from _memory_of_hosts(settings, placed, nodes, inspectors)
    asked_at = time.monotonic()
    answers = {
        (check, host): inspectors[host].check.remote(check)
        for check in names
        for host, node in nodes.items()
        if checks.concerns(check, placed, node["Resources"])
    }
    for (check, host), answer in answers.items():
        yield _attempt(check, host, partial(_result, answer, HOST_DEADLINE_S, asked_at))


def _memory_of_hosts(
    settings: config.Config, placed: Placement, nodes: Mapping[str, Any], inspectors: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """The memory plan against what Ray and the hosts report. On this machine alone the plan knows the memory itself."""
    asks_memory = settings.cluster.address is not None or settings.cluster.host_memory_gib is not None
    for host, node in nodes.items():
        resources = node["Resources"]
        if settings.weight_store == "ray" and checks.concerns("object store", placed, resources):
            there = resources.get("object_store_memory", 0.0)
            yield _attempt("object store", host, partial(checks.object_store, settings, there))
        if asks_memory and checks.concerns("host memory", placed, resources):
            yield _attempt("host memory", host, partial(_host_memory, inspectors[host], settings))


def _attempt(name: str, host: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, host, True, check())
    except OlmoRLError as error:
        return CheckResult(name, host, False, str(error))
    except Exception as error:  # the other checks run all the same
        return CheckResult(name, host, False, f"the check failed: {error!r}")


def _clock(inspector: Any, first: Any, started_at: float) -> str:
    """A host's clock must show a time between our question and its answer, with some tolerance.

    Args:
        first: the host's first answer, still to come, which was asked for at `started_at`.
    """
    _result(first, HOST_DEADLINE_S, started_at)
    asked_at = time.time()
    there = _result(inspector.now.remote(), HOST_DEADLINE_S)
    heard_at = time.time()
    off = max(asked_at - there, there - heard_at)
    if off > CLOCKS_MAY_DIFFER_S:
        raise ResourceError(
            f"the clock is {off:.1f} s off the launcher's: heartbeats would be wrong; run NTP on all hosts"
        )
    return f"within {heard_at - asked_at + max(off, 0):.2f} s of the launcher's"


def _host_memory(inspector: Any, settings: config.Config) -> str:
    """The host tells its memory. The plan is made here, where the model is."""
    return checks.host_memory(settings, _result(inspector.memory.remote(), HOST_DEADLINE_S))


def _shared_folders(settings: config.Config) -> dict[str, Path]:
    """The folders that several hosts share, by the name of their check."""
    folders = {"run directory": settings.run_dir}
    if settings.cluster.address is not None and settings.weight_store == "file":
        folders["weights directory"] = settings.weights.directory or RunFiles(settings.run_dir).weights
    return folders


def _shared(inspector: Any, name: str, folder: Path) -> str:
    """A host must see the files that the launcher's host writes there."""
    key = name.replace(" ", ".")
    file = folder / f"preflight.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.touch()
        try:
            seen = _result(inspector.sees.remote(file), HOST_DEADLINE_S)
        finally:
            file.unlink()
    except OSError as error:
        raise unwritable(folder, error, key) from None
    if not seen:
        raise ResourceError(
            f"{folder} is not the launcher's here: set {key} to storage that the launcher and this host share"
        )
    return f"{folder} is the launcher's too"


def _not_yet() -> str:
    raise ResourceError("not tried: mend what the launcher found first")


async def _in_places(cluster: RayCluster, placed: Placement, tree: Mapping[str, Any]) -> list[CheckResult]:
    """The checks that need the processes of a run, which are placed, sharded and configured as in the run."""
    settings, results = cluster.config, []
    try:
        async with _ranks(cluster, placed, tree) as ranks:
            if placed.ranks > 1:
                speed = await _gathered(placed, ranks)
                results.append(CheckResult("all-gather", f"{placed.learner_nodes} learner host(s)", True, speed))
            async with _engine(cluster, placed, tree) as engine:
                answer = await engine.call("generate", timeout_s=settings.actors.start_deadline_s)
            scores = await _of_all(ranks, "score", answer, timeout_s=settings.actors.start_deadline_s)
        results.append(CheckResult(_AGREEMENT, _ENGINE_AND_RANKS, True, compare(settings, answer, scores[0])))
    except OlmoRLError as error:
        results.append(CheckResult(_AGREEMENT, _ENGINE_AND_RANKS, False, str(error)))
    return results


@asynccontextmanager
async def _ranks(cluster: RayCluster, placed: Placement, tree: Mapping[str, Any]) -> AsyncIterator[list[RemoteProcess]]:
    """All ranks of the learner, connected to each other."""
    places = await cluster.place_learner()
    ranks: list[RemoteProcess] = []
    try:
        for rank, place in enumerate(places):
            asked = (tree, rank, placed.rank_cores[rank])
            ranks.append(rank_process.start(cluster, placed, AskedRank, f"preflight-{rank}", place, *asked))
        meeting_point = await ranks[0].call("meeting_point", timeout_s=HOST_DEADLINE_S)
        await _of_all(ranks, "join", meeting_point, placed.ranks, timeout_s=HOST_DEADLINE_S)
        yield ranks
    finally:
        for process in ranks:
            process.kill()
        cluster.give_up(places[0])


@asynccontextmanager
async def _engine(cluster: RayCluster, placed: Placement, tree: Mapping[str, Any]) -> AsyncIterator[RemoteProcess]:
    place = await cluster.place_engine(cluster.config.actors.start_deadline_s, BY_NODES)
    asked = (tree, placed.engine_cores[0])
    process = actor_process.start(cluster, placed, AskedEngine, "preflight-engine", place, *asked)
    try:
        yield process
    finally:
        process.kill()
        cluster.give_up(place)


async def _of_all(ranks: Sequence[RemoteProcess], method: str, *args: Any, timeout_s: float) -> list[Any]:
    """The answers of all ranks. The first error ends the wait: the other ranks would wait for that rank."""
    return await asyncio.gather(*(rank.call(method, *args, timeout_s=timeout_s) for rank in ranks))


async def _gathered(placed: Placement, ranks: Sequence[RemoteProcess]) -> str:
    """The speed of an all-gather, and the speed that the links should give."""
    several = placed.learner_nodes > 1
    outside = placed.ranks - (placed.ranks_per_node if several else 1)
    answers = await _of_all(ranks, "all_gather", outside, timeout_s=HOST_DEADLINE_S)
    slowest = min(speed for speed, _ in answers)
    said = f"{slowest / 1e9:.2f} GB/s into each {'host from the other hosts' if several else 'rank on the host'}"
    known = [link for _, link in answers if link is not None]
    if not several or not known:
        return said
    name, link = min(known, key=lambda found: found[1])
    return f"{said}; its links should give {link / 1e9:.1f} GB/s ({name})"


def _result(task: Any, deadline_s: float, asked_at: float | None = None) -> Any:
    waited_s = 0.0 if asked_at is None else time.monotonic() - asked_at
    try:
        return ray.get(task, timeout=max(0.0, deadline_s - waited_s))
    except GetTimeoutError:
        raise ResourceError(f"no answer within {deadline_s:g} s: the host hangs, or lacks free CPUs or GPUs") from None
    except RayTaskError as error:
        if isinstance(error.cause, OlmoRLError):
            raise error.cause from None
        raise ResourceError(f"the check failed: {error.cause!r}") from None
    except RayError as error:
        raise ResourceError(f"the host, or the process that looked at it, is gone: {error}") from None


def _table(results: list[CheckResult]) -> Table:
    table = Table("check", "host", "", "found, or how to mend it", title="preflight", title_justify="left")
    for result in results:
        mark = "[green]ok[/]" if result.passed else "[red]FAILED[/]"
        table.add_row(result.check, result.host, mark, Text(result.said))
    return table
