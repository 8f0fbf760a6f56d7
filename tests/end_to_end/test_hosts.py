"""Two learner hosts and two actor hosts, each with an address, shared memory and processes of its own, and a head."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.learner.storage import rollout_log
from olmorl.queues.redis_server.embedded_server import find_server
from olmorl.queues.redis_server.url import PASSWORD
from tests.end_to_end.recipes import ON_FOUR_HOSTS
from tests.hosts.lan import Host, Lan, missing, program
from tests.hosts.ray_cluster import RayCluster, programs

HOSTS = ("one", "two", "three", "four")
# More groups in flight than the actors can lease, so that every lost actor has leased groups.
MAX_LAG = 4
REAL = f"""
[sampling]
group_size = 4
max_tokens = 96
[schedule]
steps = 1000
prompts_per_step = 4
max_lag = {MAX_LAG}
[learner]
nodes = 2
zero_stage = 2
learning_rate = 1e-3
cores = [1]
[actors]
nodes = 2
cores = [0]
max_running = 8
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 4
[supervision]
patience = 0.6
"""
ON_TWO_HOSTS = ("--actors.nodes_per_engine=2", "--actors.tensor_parallel=2", "--actors.start_deadline_s=400")
SIMULATED = f"""
[schedule]
steps = 1000
prompts_per_step = 4
max_lag = {MAX_LAG}
[checkpoint]
every = 5
[supervision]
patience = 0.5
[cluster]
"""
NOTICED_S = ELSEWHERE_S = 60.0
MOVED_S = 240.0
"""Ray gives a host a minute before it counts as lost."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    if reason := missing():
        pytest.skip(reason)
    with Lan(tmp_path_factory.mktemp("hosts")) as lan:
        cluster = RayCluster(lan, [tmp_path_factory.getbasetemp()])
        cluster.join(*HOSTS, cpus=2)
        yield cluster


def places(run: Any) -> dict[str, str]:
    """The host of each process."""
    return {name: entry["host"] for name, entry in run.roster().items()}


def groups_of(run: Any) -> list[dict[str, Any]]:
    """Every group that was answered."""
    records = [record for path in rollout_log.files(run.run_dir / "rollouts") for record in rollout_log.read(path)]
    return [record for record in records if record["completions"]]


def listening(process: psutil.Process) -> list[str]:
    """The addresses it listens on."""
    return [each.laddr.ip for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def check_sockets(cluster: RayCluster, engines_meet_on: Collection[str] = ()) -> None:
    """Each process listens on its host's own address, and Ray once in each on all.

    An engine listens inside of its host only, unless its nodes meet: `engines_meet_on` has the names of these hosts.
    """
    for host in cluster.hosts.values():
        for process in programs(host):
            heard = Counter(listening(process))
            everywhere = heard.pop("::", 0) + heard.pop("0.0.0.0", 0)
            assert everywhere <= process.name().startswith(("ray::", "python")), (host.name, process.name(), heard)
            inside_only = process.name().startswith("VLLM") and host.name not in engines_meet_on
            own = {"127.0.0.1"} if inside_only else {"127.0.0.1", host.address}
            assert set(heard) <= own, (host.name, process.name(), heard)


def actors_on(run: Any, host: Host) -> set[str]:
    """The actors there."""
    return {name for name, place in places(run).items() if name.startswith("actor") and place == host.name}


def at_work(cluster: RayCluster, run: Any) -> set[str]:
    """The actors whose engines run."""
    return {actor["name"] for actor in cluster.control(run.run_dir, "actors") if actor["state"] == "run"}


def actors_after(run: Any, moment: float) -> set[str]:
    """The actors, by their places, of groups that were begun after a moment by a newer start than the first."""
    return {
        group["actor"].partition(".")[0]
        for group in groups_of(run)
        if "." in group["actor"] and group["started_at"] > moment
    }


def until_lost(run: Any, actors: set[str]) -> float:
    """Until they are ended; returns when they were, by the clock on the wall."""
    run.until(lambda: not actors & run.roster().keys(), timeout_s=NOTICED_S)
    return time.time()


def until_steps(run: Any, number: int) -> None:
    """Until so many more are done."""
    run.until_step(len(run.lines()) + number, timeout_s=60)


@pytest.mark.engine
def test_two_learner_hosts_and_two_actor_hosts_train(
    cluster: RayCluster, launch: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = launch(REAL)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address)
    run.until_step(2, timeout_s=400)
    where = places(run)
    assert {where[name] for name in ("learner-0", "learner-1", "actor-0", "actor-1")} == set(HOSTS)
    assert where["orchestrator"] == where["redis"] == where["learner-0"]
    check_sockets(cluster)
    before, actors = run.roster(), cluster.hosts[where["actor-0"]]
    actors.cut()
    time.sleep(1.5)
    actors.heal()
    until_steps(run, 2)
    assert run.roster() == before, "a link that is back within the deadlines costs no process"

    (guest,) = cluster.join("guest", cpus=2)
    cluster.control(run.run_dir, "actors", "--count", "3")
    run.until(lambda: "actor-2" in at_work(cluster, run), timeout_s=200)
    assert actors_on(run, guest) == {"actor-2"}
    run.until(lambda: "actor-2" in {group["actor"] for group in groups_of(run)}, timeout_s=60)
    until_steps(run, 12)
    muted_at = time.time()
    guest.mute()
    noticed_at = until_lost(run, {"actor-2"})
    until_steps(run, MAX_LAG + 1)
    cluster.control(run.run_dir, "actors", "--count", "2")
    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)
    guest.kill()
    assert cluster.left_behind() == []
    groups = groups_of(run)
    assert {group["actor"] for group in groups} >= {"actor-0", "actor-1", "actor-2"}
    check_moved(groups, {"actor-2"}, muted_at, noticed_at)
    begun = min(group["started_at"] for group in groups if group["actor"] == "actor-2")
    meanwhile = Counter(group["actor"] for group in groups if begun <= group["started_at"] < muted_at)
    assert meanwhile["actor-2"] > sum(meanwhile.values()) / 6, "a third host takes its share"
    assert all(group["finished_at"] < noticed_at for group in groups if group["actor"] == "actor-2")
    versions = {span[0] for group in groups for completion in group["completions"] for span in completion["versions"]}
    assert len(versions) > 2, "weights came to the actors' hosts"


@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_an_engine_on_two_hosts_fits_the_learner_and_outlives_the_loss_of_a_worker(
    cluster: RayCluster, launch: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = launch(REAL)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address, *ON_TWO_HOSTS, "--preflight")
    assert run.wait(500) == 0, run.output()
    assert "log-probabilities" in run.output() and "FAILED" not in run.output()
    assert cluster.left_behind() == []

    run.start("--ray-address", cluster.address, *ON_TWO_HOSTS)
    run.until_step(2, timeout_s=500)
    where = places(run)
    assert {where[name] for name in ("learner-0", "learner-1", "actor-0", "actor-0-node-1")} == set(HOSTS)
    check_sockets(cluster, engines_meet_on={where["actor-0"], where["actor-0-node-1"]})
    lost = next(each for each in programs(cluster.hosts[where["actor-0-node-1"]]) if each.name().startswith("VLLM"))
    lost.kill()
    killed_at = time.time()
    # The cause is the lost node, or the end of the engine that noticed it first.
    run.until(lambda: actors_after(run, killed_at) & actors_on(run, cluster.hosts[where["actor-0"]]), timeout_s=600)
    until_steps(run, MAX_LAG + 2)
    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)
    assert cluster.left_behind() == []
    versions = {span[0] for group in groups_of(run) for each in group["completions"] for span in each["versions"]}
    assert len(versions) > 2, "weights came to both hosts"


def test_links_break_and_heal_and_hosts_come_and_go(
    cluster: RayCluster, simulate: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = simulate(SIMULATED)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address, *ON_FOUR_HOSTS)
    run.until_step(2)
    before = run.roster()
    one, other = (cluster.hosts[name] for name in {places(run)[f"actor-{index}"] for index in range(4)})

    one.cut()
    time.sleep(1.5)
    one.heal()
    until_steps(run, 2)
    assert run.roster() == before, "a link that is back within the deadlines costs no process"

    muted, muted_at = actors_on(run, other), time.time()
    other.mute()
    noticed_at = until_lost(run, muted)
    until_steps(run, 3)
    other.heal()
    run.until(lambda: actors_on(run, other) == muted)

    (five,) = cluster.join("five")
    joined_at = time.time()
    cluster.control(run.run_dir, "actors", "--count", "5")
    run.until(lambda: actors_on(run, five) == {"actor-4"})
    until_steps(run, 6)

    killed_at = time.time()
    five.kill()
    until_lost(run, {"actor-4"})
    until_steps(run, 3)
    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)
    assert cluster.left_behind() == []
    groups = groups_of(run)
    check_moved(groups, muted, muted_at, noticed_at)
    assert any(group["actor"] in {f"{name}.2" for name in muted} for group in groups), "the host came back to work"
    assert sum(group["actor"] == "actor-4" and group["started_at"] > joined_at for group in groups) >= 3
    check_moved(groups, {"actor-4"}, killed_at, time.time())


def test_a_learner_that_loses_its_first_host_trains_on_elsewhere(
    cluster: RayCluster, simulate: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    cluster.join("spare", "second", cpus=2)
    run = simulate(SIMULATED)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address, *ON_FOUR_HOSTS)
    run.until_step(6)

    cut_off = cluster.hosts[places(run)["orchestrator"]]
    cut_off.mute()
    until_moved(run, cut_off)
    until_steps(run, 3)
    cut_off.heal()
    killed = cluster.hosts[places(run)["orchestrator"]]
    killed.kill()
    until_moved(run, killed)
    until_steps(run, 3)

    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)
    assert cluster.left_behind() == []
    attempts = [record["attempt"] for record in groups_of(run)]
    assert attempts.count(1) > len(attempts) / 2, "what was in the queue was not lost with it"


@pytest.fixture
def redis_of_their_own(cluster: RayCluster, tmp_path: Path) -> Iterator[str]:
    """A Redis on the head that the run has not started: the options that name it."""
    password, port = secrets.token_hex(8), "6390"
    command = [str(find_server()), "--bind", cluster.head.address, "--port", port, "--requirepass", password]
    process = cluster.head.start([*command, "--appendonly", "yes", "--dir", str(tmp_path)], subprocess.DEVNULL)
    cluster.environment[PASSWORD] = password
    yield f"redis://{cluster.head.address}:{port}/0"
    del cluster.environment[PASSWORD]
    program(process).kill()
    process.wait()


def test_with_a_redis_elsewhere_only_the_learner_moves(
    cluster: RayCluster,
    redis_of_their_own: str,
    simulate: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
) -> None:
    cluster.join("third", cpus=2)
    run = simulate(SIMULATED)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address, f"--queue.url={redis_of_their_own}", *ON_FOUR_HOSTS)
    run.until_step(6)
    actors = {name: entry for name, entry in run.roster().items() if name.startswith("actor")}
    killed = cluster.hosts[places(run)["orchestrator"]]
    killed.kill()
    until_moved(run, killed)
    until_steps(run, 3)
    assert run.roster().items() >= actors.items()
    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)


def test_hosts_that_do_not_share_the_run_directory_are_found(
    cluster: RayCluster, simulate: Callable[[str], Any]
) -> None:
    run = simulate(SIMULATED)
    run.spawn = cluster.spawn
    run.environment["COLUMNS"], own = "200", "/tmp/not-shared"
    run.start("--ray-address", cluster.address, *ON_FOUR_HOSTS, f"--run.directory={own}", "--preflight")
    assert run.wait() == 2
    assert f"{own}/test is not the launcher's here: set run.directory" in " ".join(run.output().split()), run.output()


def until_moved(run: Any, host: Host) -> None:
    """Wait until the learner trains again. It must not use that host."""
    incarnation = run.lines()[-1]["incarnation"]
    run.until(lambda: run.lines() and run.lines()[-1]["incarnation"] > incarnation, timeout_s=MOVED_S)
    assert host.name not in places(run).values()


def check_moved(groups: list[dict[str, Any]], actors: set[str], lost_at: float, noticed_at: float) -> None:
    """Checks that other actors soon answered the lost draws, and that no late answer counts."""
    again = [group for group in groups if group["attempt"] > 1 and lost_at < group["started_at"]]
    assert again and all(group["actor"] not in actors for group in again)
    assert min(group["started_at"] for group in again) < lost_at + ELSEWHERE_S
    late = [group for group in groups if group["started_at"] < noticed_at < group["finished_at"]]
    assert all(group["actor"] not in actors for group in late)


def test_without_its_head_the_run_ends_by_name_and_goes_on_when_ray_was_started_again(
    cluster: RayCluster, simulate: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = simulate(SIMULATED)
    run.spawn = cluster.spawn
    run.start("--ray-address", cluster.address, *ON_FOUR_HOSTS)
    run.until_step(6)
    before = len(run.lines())
    cluster.kill_head()
    assert run.wait(120) == 1, run.output()
    assert f"Ray's head at {cluster.address} has not answered for 45 s: start Ray" in run.output()
    assert len(run.lines()) > before, "meanwhile it trained on"
    run.until_gone()
    cluster.start_again()

    run.start("--ray-address", cluster.address, *ON_FOUR_HOSTS, "--resume")
    run.until(lambda: run.lines()[-1]["incarnation"] == 2)
    until_steps(run, 3)
    cluster.control(run.run_dir, "stop")
    assert run.wait() == 0, run.output()
    check_history(run, len(run.lines()), MAX_LAG)
    assert cluster.left_behind() == []
