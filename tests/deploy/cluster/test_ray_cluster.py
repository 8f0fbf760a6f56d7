"""The free resources of the cluster, and their messages."""

from __future__ import annotations

import socket
from threading import Timer
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray.exceptions import AuthenticationError

from olmorl import config
from olmorl.deploy.cluster import ray_cluster
from olmorl.deploy.cluster.ray_cluster import MOST_ENGINES, RayCluster
from olmorl.errors import ResourceError


def made(**sections: Any) -> RayCluster:
    settings = config.build({"run": {"mode": "simulated"}, **sections})
    return RayCluster(settings, "run")


def test_engines_have_the_room_that_the_learner_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 20.0, "GPU": 8.0})
    assert made(learner={"ranks_per_node": 2}).most_engines == 18
    gpus = {"learner": {"ranks_per_node": 3, "device": "cuda"}, "actors": {"tensor_parallel": 2}}
    assert made(**gpus).most_engines == 2
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1e6})
    assert made().most_engines == MOST_ENGINES


def test_a_cluster_that_can_grow_has_a_bound_too() -> None:
    assert made(cluster={"address": "auto"}).most_engines == MOST_ENGINES


def test_a_ray_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", Mock(side_effect=OSError("AF_UNIX path length cannot exceed 107 bytes")))
    with pytest.raises(ResourceError, match=r"AF_UNIX path length .* set RAY_TMPDIR to a short folder"):
        made().__enter__()


def test_a_cluster_that_knows_another_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: Any) -> None:
        raise AuthenticationError("no token")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray_cluster, "_await_head", lambda address: None)
    with pytest.raises(ResourceError, match=r"no Ray cluster answers at h:6379 .*give every host the same RAY_AUTH"):
        made(cluster={"address": "h:6379"}).__enter__()


def test_a_head_that_starts_meanwhile_is_waited_for_and_one_that_does_not_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "HEAD_DEADLINE_S", 1.0)
    monkeypatch.setattr(ray_cluster, "_LONGEST_PAUSE_S", 0.05)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(ResourceError, match=rf"answers at {address} \(.*refused, for 1 s\): start one"):
            ray_cluster._await_head(address)
        starting = Timer(0.3, head.listen)
        starting.start()
        ray_cluster._await_head(address)
        starting.join()
    assert capsys.readouterr().err.count(f"waiting for a Ray cluster at {address}") == 2


def test_who_has_no_room_is_told_how_to_ask_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "available_resources", dict)
    assert ray_cluster._missing([{"CPU": 1.0}], "an engine", 30.0, "--count").endswith("ask for fewer with --count")
