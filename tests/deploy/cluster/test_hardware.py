"""GPUs or CPU: decided from what Ray reports, and refused by name where the plan does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from olmorl import config
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.ray_cluster import RayCluster
from olmorl.deploy.preflight.recipe_checks import check_machine
from olmorl.deploy.supervision.recipe_history import differences
from olmorl.errors import ConfigError, ResourceError

EIGHTS = [0] + [8] * 28
"""A head without GPUs and 28 nodes with 8."""


@pytest.fixture(autouse=True)
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version", lambda name: "2.13.0")


def recipe(learner: int = 1, actors: int = 1, device: str = "auto", gpus: int | None = None, **more: Any) -> Any:
    sections: dict[str, dict[str, Any]] = {
        "learner": {"nodes": learner, "device": device},
        "actors": {"nodes": actors},
        "cluster": {"address": "10.0.0.1:6379", "gpus_per_node": gpus},
    }
    for key, value in more.items():
        section, _, name = key.partition("__")
        sections.setdefault(section, {})[name] = value
    return config.build(sections)


def several(nodes: int, gpus: int) -> dict[str, int]:
    """Keys of an engine on several nodes."""
    return {"actors__nodes_per_engine": nodes, "actors__tensor_parallel": gpus}


def test_an_engine_may_have_several_whole_nodes() -> None:
    settings = hardware.decide(recipe(1, 4, **several(2, 16)), [8] * 5)
    placed = plan(settings)
    assert (placed.engines, placed.gpus_per_engine, placed.engine_gpus_of_a_node) == (2, 16, 8)
    assert placed.engine_bundle() == {"CPU": 1.0, "GPU": 8.0}, "on each of its nodes"
    rows = dict(placed.rows(settings))
    assert rows["actors"] == "4 node(s), 2 engine(s) of 2 nodes, 16 GPU(s) each"
    assert rows["in all"] == "1 learner rank(s), 2 engine(s), 33 GPUs"
    on_cpu = plan(hardware.decide(recipe(1, 2, **several(2, 2)), [0, 0, 0]))
    assert (on_cpu.engines, on_cpu.engine_bundle()) == (1, {"CPU": 1.0}), "one worker on each node"


@pytest.mark.parametrize(
    ("actors", "says"),
    [
        ({"nodes": 3, "tensor_parallel": 16}, r"nodes_per_engine = 2 does not divide actors\.nodes = 3"),
        ({"nodes": 2, "tensor_parallel": 7}, r"nodes_per_engine = 2 does not divide actors\.tensor_parallel = 7"),
        ({"nodes": 2, "tensor_parallel": 16, "engines_per_node": 2}, r"leave actors\.engines_per_node out"),
    ],
    ids=["nodes", "GPUs", "shared nodes"],
)
def test_nodes_of_engines_that_do_not_go_together_are_refused(actors: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config.build({"actors": {"nodes_per_engine": 2, **actors}})


def test_a_cluster_with_gpus_trains_on_them_without_being_told() -> None:
    settings = hardware.decide(recipe(8, 20, learner__ranks_per_node=8, actors__tensor_parallel=8), EIGHTS)
    placed = plan(settings)
    assert (settings.learner.device, settings.cluster.gpus_per_node) == ("cuda", 8)
    assert (placed.on_gpu, placed.ranks, placed.engines, placed.gpus_per_engine) == (True, 64, 20, 8)
    assert placed.learner_bundle()["GPU"] == placed.engine_bundle()["GPU"] == 8
    assert set(placed.engine_cores) == {None}, "an engine on a GPU keeps all cores"
    assert "28 node(s) with 8 GPU(s)" in hardware.describe(settings, EIGHTS)


def test_engines_of_a_node_follow_from_its_gpus() -> None:
    assert plan(hardware.decide(recipe(1, 2), [4, 4, 4])).engines_per_node == 4
    assert plan(hardware.decide(recipe(1, 2, "cuda"), [4, 4, 4])).engines_per_node == 4, "8 were assumed before"
    assert plan(hardware.decide(recipe(1, 2), [8, 4, 4])).engines_per_node == 4, "as many as every node has"


def test_a_cluster_without_gpus_trains_on_the_cpu_and_says_so() -> None:
    settings = hardware.decide(recipe(1, 2), [0, 0, 0])
    assert settings.learner.device == "cpu" and not plan(settings).on_gpu
    assert hardware.describe(settings, [0, 0, 0]) == "hardware: CPU; Ray reports no GPU"


@pytest.mark.parametrize(
    ("settings", "gpus", "says"),
    [
        (recipe(device="cuda"), [0, 0], r'learner\.device = "cuda", and Ray reports no GPU on its 2 node'),
        (recipe(gpus=8), [0], r"cluster\.gpus_per_node = 8, and Ray reports no GPU on its 1 node"),
        (recipe(8, 20, gpus=8), [8] * 27, r"8 learner node\(s\) .* 27 node\(s\) with 8 GPU\(s\).*learner\.nodes"),
        (recipe(1, 1, gpus=8), [4, 4], r"8 engine\(s\) .* 2 node\(s\) with 4 GPU\(s\): add nodes, or lower"),
        (recipe(1, 3, actors__tensor_parallel=4), [8, 2, 2, 2], r"over the GPUs of a node, 2: lower it"),
        (
            recipe(1, 3, actors__tensor_parallel=12),
            [8, 8, 8, 8],
            r"= 12 is over the GPUs of a node, 8: lower it, set actors\.nodes_per_engine = 2 and .*parallel = 16, or",
        ),
        (
            recipe(1, 2, **several(2, 18)),
            [8, 8, 8],
            r"= 18 is over the GPUs of 2 nodes, 16: .*nodes_per_engine = 3 and",
        ),
        (
            recipe(1, 4, **several(2, 12)),
            [8] * 5,
            r"whole nodes with 16 GPUs, .*tensor_parallel is 12: set .*= 2 and actors\.tensor_parallel = 16",
        ),
        (recipe(1, 4, gpus=8, **several(2, 16)), [8, 8, 8, 4, 4], r"2 engine\(s\) with 16 GPU\(s\) each on 2 nodes"),
        (
            recipe(1, 2, **several(2, 4)),
            [0, 0, 0],
            r"tensor_parallel = 4 splits an engine over GPUs, .*set it to 2, or",
        ),
        (recipe(2, 2, actors__engines_per_node=1), [8, 8], r"on other nodes, and Ray reports 2 node\(s\)"),
        (recipe(3, 1), [0, 0], r"3 learner node\(s\) and 1 actor node\(s\), and Ray reports 2: add nodes"),
    ],
    ids=[
        "cuda",
        "gpus",
        "nodes",
        "engines",
        "tensor parallel",
        "more than a node",
        "more than its nodes",
        "parts of nodes",
        "nodes of engines",
        "nodes of the CPU",
        "apart",
        "nodes without GPUs",
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_name(settings: config.Config, gpus: list[int], says: str) -> None:
    with pytest.raises((ResourceError, ConfigError), match=says) as refused:
        hardware.decide(settings, gpus)
    assert refused.value.exit_code == 2


def test_a_cpu_build_on_a_gpu_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version", lambda name: "2.13.0+cpu")
    with pytest.raises(ConfigError, match=r'2 node\(s\) with 8 GPU.* torch here is a CPU build: .*device = "cpu"'):
        hardware.decide(recipe(), [8, 8])
    on_cpu = recipe(device="cpu")
    assert hardware.decide(on_cpu, [8, 8]) is on_cpu
    assert hardware.describe(on_cpu, [8]).endswith("and torch here is a CPU build")


def test_engines_may_share_large_nodes() -> None:
    two = recipe(1, 2, actors__engines_per_node=1, actors__tensor_parallel=4)
    assert plan(hardware.decide(two, [8, 8])).engines == 2


@pytest.mark.parametrize(
    ("here", "build", "device", "engines"),
    [(4, "2.13.0", "cuda", 3), (4, "2.13.0+cpu", "cpu", 1), (0, "2.13.0", "cpu", 1), (None, "2.13.0", "auto", 1)],
    ids=["GPUs", "CPU build", "no GPU", "cannot be told"],
)
def test_a_run_of_this_machine_looks_at_its_gpus(
    monkeypatch: pytest.MonkeyPatch, here: int | None, build: str, device: str, engines: int
) -> None:
    monkeypatch.setattr(hardware, "gpus_here", lambda: here)
    monkeypatch.setattr(hardware, "version", lambda name: build)
    settings = hardware.on_this_machine(config.build({}))
    assert (settings.learner.device, plan(settings).engines_per_node) == (device, engines)


def test_learner_and_engine_share_a_single_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpus_here", lambda: 1)
    settings = hardware.decide(hardware.on_this_machine(config.build({})), [1])
    placed = plan(settings)
    assert (placed.shares_gpu, placed.ranks, placed.engines, placed.devices) == (True, 1, 1, 1)
    assert placed.learner_bundle() == placed.engine_bundle() == {"CPU": 1.0, "GPU": 0.5}
    assert (placed.gpus_of_rank, placed.gpus_of_engine) == (0.5, 0.5), "Ray gives both the same GPU"
    assert dict(placed.rows(settings))["in all"] == "1 learner rank(s), 1 engine(s), 1 GPU that they share"
    check_machine(settings)
    with pytest.raises(
        ConfigError, match=r"engines_per_node x actors\.tensor_parallel = 2 is over the GPUs of a node, 1"
    ):
        hardware.decide(config.build({"actors": {"engines_per_node": 2}}), [1])
    with pytest.raises(ConfigError, match=r"learner\.ranks_per_node = 2 is over the GPUs of a node, 1"):
        hardware.decide(config.build({"learner": {"ranks_per_node": 2}}), [1])


@pytest.mark.parametrize(("gpus", "on_gpu"), [(2, True), (8, True), (0, False)])
def test_with_more_gpus_or_none_nothing_is_shared(gpus: int, on_gpu: bool) -> None:
    placed = plan(hardware.decide(config.build({}), [gpus]))
    assert not placed.shares_gpu
    assert (placed.gpus_of_rank, placed.gpus_of_engine) == (float(on_gpu), float(on_gpu))


def test_a_recipe_that_says_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpus_here", lambda: 4)
    for settings in (recipe(), config.build({"learner": {"device": "cpu"}}), config.build({"learner": {"nodes": 2}})):
        assert hardware.on_this_machine(settings) is settings
    simulated = config.build({"run": {"mode": "simulated"}})
    assert hardware.on_this_machine(simulated) is hardware.decide(simulated, EIGHTS) is simulated


def test_gpus_without_a_device_of_theirs_are_a_contradiction() -> None:
    with pytest.raises(ConfigError, match=r'learner\.device = "cpu" with cluster\.gpus_per_node = 8: remove'):
        recipe(device="cpu", gpus=8)


def test_a_device_without_gpus_of_its_own_is_a_contradiction() -> None:
    with pytest.raises(ConfigError, match=r'learner\.device = "cuda" with cluster\.gpus_per_node = 0: set'):
        recipe(device="cuda", gpus=0)


def test_nodes_that_join_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(gpus: int) -> dict[str, Any]:
        return {"Alive": True, "Resources": {"CPU": 8.0, "GPU": float(gpus)}}

    seen = iter([[node(0)], [node(0), node(8)], [node(0), node(8), node(8)]])
    monkeypatch.setattr(ray, "nodes", lambda: next(seen))
    monkeypatch.setattr("olmorl.deploy.cluster.ray_cluster._LONGEST_PAUSE_S", 0.01)
    cluster = RayCluster(
        recipe(1, 1, actors__engines_per_node=1, learner__ranks_per_node=8, actors__start_deadline_s=5), "run"
    )
    assert cluster.config.learner.device == "auto"
    cluster._decide_hardware()
    assert cluster.config.learner.device == "cpu", "a head without GPUs could hold this plan"
    cluster = RayCluster(
        recipe(1, 2, actors__engines_per_node=1, learner__ranks_per_node=8, actors__start_deadline_s=5), "run"
    )
    seen = iter([[node(0)], [node(0), node(8)], [node(0), node(8), node(8)]])
    cluster._decide_hardware()
    assert cluster.config.cluster.gpus_per_node == 8


def test_nodes_that_never_join_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}])
    monkeypatch.setattr("olmorl.deploy.cluster.ray_cluster._LONGEST_PAUSE_S", 0.01)
    cluster = RayCluster(recipe(1, 1, learner__ranks_per_node=2, actors__start_deadline_s=0.1), "run")
    with pytest.raises(ResourceError, match=r"2 engine\(s\) .* Ray reports 1 node\(s\) with 2 GPU"):
        cluster._decide_hardware()


def test_a_decision_of_the_hardware_is_no_change_of_the_recipe() -> None:
    before = hardware.decide(recipe(), [8, 8])
    assert differences(before, recipe()) == [] == differences(recipe(), before)
    assert [d.key for d in differences(before, recipe(device="cpu"))] == ["learner.device"]
