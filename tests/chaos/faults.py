"""Lists the faults. Each strikes a run once and has checks for its detection and its recovery."""

from __future__ import annotations

from signal import SIGKILL, SIGSTOP

from tests.chaos import on_deltas as deltas
from tests.chaos import on_everything as world
from tests.chaos import on_hosts as hosts
from tests.chaos import on_messages as messages
from tests.chaos import on_processes as processes
from tests.chaos.disk import Disk
from tests.chaos.strike import Fault
from tests.hosts.lan import Host

OF_PROCESSES: dict[str, Fault] = {
    "SIGKILL actor": processes.on_actor(SIGKILL),
    "SIGSTOP actor": processes.on_actor(SIGSTOP),
    "SIGKILL starting actor": processes.on_starting_actor(SIGKILL),
    "SIGSTOP starting actor": processes.on_starting_actor(SIGSTOP),
    "SIGKILL all actors": processes.on_all_actors(SIGKILL),
    "SIGSTOP all actors": processes.on_all_actors(SIGSTOP),
    "SIGKILL learner rank": processes.on_learner("rank", SIGKILL),
    "SIGSTOP learner rank": processes.on_learner("rank", SIGSTOP),
    "SIGKILL orchestrator": processes.on_learner("orchestrator", SIGKILL),
    "SIGSTOP orchestrator": processes.on_learner("orchestrator", SIGSTOP),
    "SIGKILL redis-server": messages.on_redis("redis-server", SIGKILL),
    "SIGSTOP redis-server": messages.on_redis("redis-server", SIGSTOP),
    "SIGKILL host of Redis": messages.on_redis("redis", SIGKILL),
    "SIGSTOP host of Redis": messages.on_redis("redis", SIGSTOP),
}
EVERYWHERE: dict[str, Fault] = {
    **OF_PROCESSES,
    "SIGKILL actors for ever": processes.kill_actors_for_ever,
    "Redis cuts connections": messages.cut_connections,
    "Redis silent": messages.silence_redis,
    "corrupt prompt": messages.damage_prompt,
    "corrupt result": messages.damage_result,
    "corrupt weights": messages.damage_weights,
    "SIGKILL launcher": world.kill_launcher,
    "SIGSTOP launcher": world.stop_launcher,
    "SIGKILL everything": world.kill_everything,
    "SIGKILL everything in a checkpoint": world.kill_everything_while_it_saves,
    "power cut, last writes lost": world.lose_last_writes,
    "SIGKILL Ray's GCS": world.on_ray("gcs_server"),
    "SIGKILL Ray's raylet": world.on_ray("raylet/raylet"),
}
OF_REAL_ENGINES: dict[str, Fault] = {
    "SIGKILL engine core": processes.on_part_of_actor(SIGKILL, "VLLM::EngineCore"),
    "SIGSTOP engine core": processes.on_part_of_actor(SIGSTOP, "VLLM::EngineCore"),
    "SIGKILL verifier": processes.on_helper(SIGKILL, "olmorl.verifiers.pool.worker", stays=False),
    "SIGSTOP verifier": processes.on_helper(SIGSTOP, "olmorl.verifiers.pool.worker", stays=False),
}
OF_ENVIRONMENTS: dict[str, Fault] = {
    "SIGKILL tool": processes.on_helper(SIGKILL, "olmorl-test-tool", stays=False, settled_s=0.0),
    "SIGSTOP tool": processes.on_helper(SIGSTOP, "olmorl-test-tool", stays=False, settled_s=0.0),
    "SIGKILL environment": processes.on_environment(SIGKILL),
    "SIGSTOP environment": processes.on_environment(SIGSTOP),
}
"""In the middle of a turn: a tool runs."""
OF_WEIGHTS_IN_RAY: dict[str, Fault] = {
    "SIGKILL weight board": processes.on_helper(SIGKILL, "ray::Board", stays=True),
    "SIGSTOP weight board": processes.on_helper(SIGSTOP, "ray::Board", stays=True),
}
OF_DELTAS: dict[str, Fault] = {
    "versions missed": deltas.miss_versions,
    "corrupt base of a delta": deltas.damage_base,
    "back to a checkpoint": world.go_back,
    **{name: OF_PROCESSES[name] for name in ("SIGKILL actor", "SIGKILL all actors", "SIGKILL learner rank")},
    "SIGKILL engine core": OF_REAL_ENGINES["SIGKILL engine core"],
    "SIGKILL everything in a checkpoint": EVERYWHERE["SIGKILL everything in a checkpoint"],
}
"""Versions that are missed, a crash and a rollback, for versions that are stored as deltas."""
OF_SHARDS_IN_FILES: dict[str, Fault] = {"SIGKILL learner rank in a publish": deltas.kill_publisher}
"""For two ranks or more, which each publish a shard, in shared memory or on a disk."""
OF_DELTAS_IN_FILES: dict[str, Fault] = {"corrupt delta": deltas.damage_delta}
OF_OWN_DISK: dict[str, Fault] = {
    "disk full": world.disk_for_a_while(Disk.fill, Disk.empty),
    "disk slow": world.slow_disk,
    "disk hangs": world.disk_for_a_while(Disk.freeze, Disk.thaw),
}
OF_HOSTS: dict[str, Fault] = {
    "short cut, actor host": hosts.short_cut(hosts.of_actors),
    "short cut, learner host": hosts.short_cut(hosts.of_second_rank),
    "long cut, actor host": hosts.long_outage(Host.cut),
    "half-open link, actor host": hosts.long_outage(Host.mute),
    "slow link, actor host": hosts.slow_link(hosts.of_actors),
    "actor host killed, another joins": hosts.kill_host,
    "SIGKILL Ray's head": hosts.kill_head,
}
SIDE_BY_SIDE = OF_PROCESSES.keys() | OF_REAL_ENGINES.keys()
"""Two of these may strike at once."""
