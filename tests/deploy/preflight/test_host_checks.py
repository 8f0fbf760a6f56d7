"""The checks in the places of a run: what is started where, what is freed, and what the table says. No Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight import host_checks
from olmorl.deploy.preflight.logprob_check import AskedEngine, AskedRank, EngineAnswer
from olmorl.errors import ModelError, ResourceError, StartError

ANSWER = EngineAnswer(prompt=[1], tokens=[2, 3], logprobs=[-1.0, -2.0], text="")
IB = ("InfiniBand 8 x 400 Gb/s", 400e9)


class FakeProcess:
    def __init__(self, cluster: FakeCluster, kind: type, name: str) -> None:
        self._cluster, self._kind, self._name = cluster, kind, name

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        self._cluster.calls.append((self._name, method, args))
        answer = self._cluster.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer(self._name) if callable(answer) else answer

    def kill(self) -> None:
        self._cluster.alive.remove(self._name)


class FakeCluster:
    """Places and processes as notes."""

    def __init__(self, settings: config.Config, **answers: Any) -> None:
        self.config = settings
        self.answers = {"meeting_point": "10.0.0.1:7", "join": None, "generate": ANSWER, "score": [-1.0, -2.0]}
        self.answers |= answers
        self.calls: list[Any] = []
        self.started: list[tuple[type, str, Any, float]] = []
        self.alive: list[str] = []
        self.places: list[str] = []

    async def place_learner(self) -> list[str]:
        self.places.append("learner")
        return ["learner"] * plan(self.config).ranks

    async def place_engine(self, wait_s: float, asked_by: str) -> str:
        assert self.places == ["learner"], "its place depends on the learner's"
        self.places.append("engine")
        return "engine"

    def give_up(self, place: str) -> None:
        self.places.remove(place)

    def start(self, kind: type, name: str, place: str, *args: Any, gpus: float, **options: Any) -> FakeProcess:
        self.started.append((kind, name, place, gpus))
        self.alive.append(name)
        return FakeProcess(self, kind, name)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the checks on a fake cluster of 2 learner nodes with 4 ranks each; returns it and the results."""
    monkeypatch.setattr(host_checks, "compare", lambda settings, answer, learner: f"{answer.tokens} {learner}")

    def run(nodes: int = 2, ranks: int = 4, **answers: Any) -> Any:
        tree = {
            "learner": {"nodes": nodes, "ranks_per_node": ranks, "device": "cuda"},
            "actors": {"nodes": 2, "tensor_parallel": 8},
        }
        cluster: Any = FakeCluster(config.build(tree), **{"all_gather": (5e9, IB), **answers})
        results = asyncio.run(host_checks._in_places(cluster, plan(cluster.config), {}))
        assert cluster.alive == cluster.places == [], "all is ended and freed"
        return cluster, results

    return run


def test_engine_and_ranks_have_the_places_and_gpus_of_the_run(check: Callable[..., Any]) -> None:
    cluster, results = check(all_gather=lambda name: (3e9 if name == "preflight-5" else 5e9, IB))
    assert cluster.started[:8] == [(AskedRank, f"preflight-{rank}", "learner", 1) for rank in range(8)]
    assert cluster.started[8:] == [(AskedEngine, "preflight-engine", "engine", 8)]
    asked = [call for call in cluster.calls if call[1] in ("join", "all_gather", "score")]
    assert [args for _, method, args in asked if method == "join"] == [("10.0.0.1:7", 8)] * 8
    assert [args for _, method, args in asked if method == "all_gather"] == [(4,)] * 8, "from the other host alone"
    assert [args for _, method, args in asked if method == "score"] == [(ANSWER,)] * 8
    assert [(result.check, result.passed) for result in results] == [("all-gather", True), ("log-probabilities", True)]
    assert results[0].said == (
        "3.00 GB/s into each host from the other hosts; its links should give 400.0 GB/s (InfiniBand 8 x 400 Gb/s)"
    )
    assert results[1].said == "[2, 3] [-1.0, -2.0]"


def test_ranks_of_one_host_and_a_single_rank(check: Callable[..., Any]) -> None:
    cluster, results = check(nodes=1)
    assert results[0].said == "5.00 GB/s into each rank on the host"
    assert ("preflight-0", "all_gather", (3,)) in cluster.calls
    _, results = check(nodes=1, ranks=1)
    assert [result.check for result in results] == ["log-probabilities"]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"generate": StartError("no memory")}, "no memory"),
        ({"join": ResourceError("no port")}, "no port"),
        ({"score": ModelError("no head")}, "no head"),
    ],
)
def test_what_fails_is_a_row_of_the_table(check: Callable[..., Any], answers: dict[str, Any], says: str) -> None:
    _, results = check(**answers)
    assert (results[-1].check, results[-1].passed, results[-1].said) == ("log-probabilities", False, says)


class FakeInspector:
    """An inspector whose answer is there at once."""

    class Asked:
        def remote(self) -> int:
            return host_checks.Inspector({}).memory()

    memory = Asked()


def test_each_host_is_asked_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has no place of the run. Ray reports the object store, the host its memory."""
    for name in ("host_memory", "object_store"):
        monkeypatch.setattr(host_checks.checks, name, lambda settings, there: str(there))
    monkeypatch.setattr(host_checks, "_result", lambda answer, *given: answer)
    tree = {"learner": {"device": "cuda", "ranks_per_node": 8}, "cluster": {"address": "auto", "gpus_per_node": 8}}
    settings = config.build(tree)
    nodes = {
        "head": {"Resources": {"object_store_memory": 1.0}},
        "worker": {"Resources": {"CPU": 64.0, "GPU": 8.0, "object_store_memory": 2.0}},
    }
    inspectors = dict.fromkeys(nodes, FakeInspector())

    def found(settings: config.Config) -> list[tuple[str, str, str]]:
        results = host_checks._memory_of_hosts(settings, plan(settings), nodes, inspectors)
        return [(result.check, result.host, result.said) for result in results]

    memory = ("host memory", "worker", str(host_checks.host_memory()))
    assert found(settings) == [("object store", "worker", "2.0"), memory]
    alone = config.with_key(settings, "cluster.address", None)
    assert found(alone) == [], "the plan has the memory of this machine"
    assert found(config.with_key(alone, "cluster.host_memory_gib", 64)) == [memory], "the recipe may say more"
