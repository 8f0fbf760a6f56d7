"""Which way the weights of a recipe travel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.deploy import credentials, wiring
from olmorl.deploy.preflight.local_checks import absolute
from olmorl.errors import ConfigError
from olmorl.messages import Version
from olmorl.ports import NamedBuffer


def settings(address: str | None, **weights: Any) -> config.Config:
    return config.build({"cluster": {"address": address}, "weights": weights})


@pytest.mark.parametrize(
    ("address", "weights", "expected"),
    [
        (None, {}, "file"),
        (None, {"store": "ray"}, "ray"),
        ("head:6379", {}, "ray"),
        ("head:6379", {"directory": "/mnt/shared"}, "file"),
        ("head:6379", {"store": "file"}, "file"),
        ("head:6379", {"store": "file", "directory": "/mnt/shared"}, "file"),
    ],
)
def test_auto_takes_the_object_store_only_where_hosts_share_nothing(
    address: str | None, weights: dict[str, Any], expected: str
) -> None:
    assert settings(address, **weights).weight_store == expected


def test_a_directory_does_not_go_with_the_object_store() -> None:
    with pytest.raises(ConfigError, match=r"weights\.directory needs weights\.store = .file."):
        settings("head:6379", store="ray", directory="/mnt/shared")


def test_on_a_cluster_files_lie_in_the_run_directory(tmp_path: Path) -> None:
    tree = {"run": {"directory": tmp_path}, "cluster": {"address": "head:6379"}, "weights": {"store": "file"}}
    recipe = config.build(tree)
    store = wiring.weight_store(recipe)
    store.publish(Version(1, 0), [NamedBuffer("w", "uint8", (2,), np.zeros(2, np.uint8).data)])
    assert [path.name for path in (recipe.run_dir / "weights").rglob("*.shard_0")] == ["1.0.shard_0"]
    assert not Path(f"/dev/shm/olmorl-{credentials.run_id(recipe.run_dir)}").exists(), "staged before it is fetched"


@pytest.mark.parametrize(
    ("address", "weights", "expected"),
    [
        (None, {"full_every": 3}, False),
        (None, {"full_every": 3, "store": "ray"}, True),
        ("head:6379", {"full_every": 3}, True),
        ("head:6379", {}, False),
    ],
)
def test_only_versions_that_travel_are_published_as_changes(
    address: str | None, weights: dict[str, Any], expected: bool
) -> None:
    assert settings(address, **weights).has_deltas is expected


def test_the_recipe_says_how_often_a_version_is_whole(tmp_path: Path) -> None:
    tree = {"run": {"directory": tmp_path}, "weights": {"directory": tmp_path / "mounted", "full_every": 3}}
    store: Any = wiring.weight_store(config.build(tree))
    whole = []
    for number in range(5):
        buffer = NamedBuffer("w", "uint8", (64,), np.full(64, number, np.uint8).data)
        store.publish(Version(1, number), [buffer])
        whole.append(store._published.open(Version(1, number)).manifest.shards[0].delta is None)
    assert whole == [True, False, False, True, False]


def test_other_processes_of_the_run_know_its_folders_wherever_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = absolute(config.build({"run": {"directory": "runs"}, "weights": {"directory": "shared"}}))
    monkeypatch.chdir("/")
    assert recipe.run_dir == tmp_path / "runs" / "run"
    assert recipe.weights.directory == tmp_path / "shared"
    assert credentials.run_id(recipe.run_dir) == credentials.run_id(
        config.build(recipe.model_dump(mode="json")).run_dir
    )
    assert absolute(config.build({})).weights.directory is None
