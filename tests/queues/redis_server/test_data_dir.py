"""The file of the embedded Redis, when the run moves from host to host."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from olmorl.queues.redis_server.data_dir import own_folder
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis


def client(server: EmbeddedRedis) -> Redis:
    return Redis.from_url(server.url, password=server.password, decode_responses=True)


@pytest.mark.cluster
def test_a_redis_that_is_cut_off_and_goes_on_does_not_reach_its_successor(tmp_path: Path) -> None:
    cut_off = EmbeddedRedis(own_folder(tmp_path, "one"), fsync="always")
    with cut_off:
        client(cut_off).set("before", "1")
        with EmbeddedRedis(own_folder(tmp_path, "two"), fsync="always") as successor:
            client(cut_off).set("after", "1")
            client(successor).set("own", "1")
            assert set(client(successor).keys()) == {"before", "own"}
    with EmbeddedRedis(own_folder(tmp_path, "two"), fsync="always") as again:
        assert set(client(again).keys()) == {"before", "own"}
    with EmbeddedRedis(own_folder(tmp_path, "one"), fsync="always") as back:
        assert set(client(back).keys()) == {"before", "own"}, "not what it wrote itself when it was cut off"


def test_a_host_goes_on_in_its_folder_and_the_one_before_stays_as_it_was(tmp_path: Path) -> None:
    for host in ("one", "one", "two", "three"):
        folder = own_folder(tmp_path, host)
        file = folder / "appendonly.aof"
        file.write_text((file.read_text() if file.exists() else "") + f"{host} ")
    assert file.read_text() == "one one two three "
    assert (tmp_path / "two" / "appendonly.aof").read_text() == "one one two "
    assert not (tmp_path / "one").exists(), "two copies are enough"
    (folder / "appendonlydir").mkdir()
    (folder / "appendonlydir" / "base").write_text("of a newer Redis")
    (folder / "redis.log").write_text("stays with its host")
    moved = own_folder(tmp_path, "four")
    assert sorted(path.name for path in moved.iterdir()) == ["appendonly.aof", "appendonlydir"]
    assert (moved / "appendonlydir" / "base").exists()
