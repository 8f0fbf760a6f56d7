"""What a launcher says when a run stops early."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy import cluster, wiring
from olmorl.deploy.service import Service, StoppedAtOnce
from olmorl.errors import ResourceError
from olmorl.learner import ledger
from olmorl.messages import Version

AT_ONCE, AT_THE_START = "stopped at once, without a checkpoint; ", "stopped while it started; "


class Stopped(Service):
    """Its user stops it twice, or while it starts."""

    async def _live(self) -> None:
        raise asyncio.CancelledError

    async def _start(self) -> None:
        self._signals.stop_asked.set()
        await asyncio.sleep(60)


@pytest.fixture
def service(tmp_path: Path) -> Stopped:
    settings = config.build({"run": {"directory": tmp_path, "name": "t", "mode": "simulated"}})
    settings.run_dir.mkdir()
    return Stopped(settings, resume=False, from_step=None, examine=False)


@pytest.mark.parametrize(
    ("begun", "way_on"),
    [(False, "nothing has begun: start it again, without --resume"), (True, "--resume goes on from the last check")],
)
async def test_who_stops_a_run_is_told_how_to_go_on(service: Stopped, tmp_path: Path, begun: bool, way_on: str) -> None:
    if begun:
        ledger.acquire(tmp_path / "t" / "ledger")
    with pytest.raises(StoppedAtOnce, match=AT_ONCE + way_on):
        await service._run()
    with pytest.raises(StoppedAtOnce, match=AT_THE_START + way_on):
        await service._start_unless_stopped()


def test_a_start_that_finds_no_cluster_leaves_alone_what_a_run_without_a_launcher_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "HEAD_DEADLINE_S", 0.0)
    settings = config.build(
        {
            "run": {"directory": tmp_path, "name": "t", "mode": "simulated"},
            "cluster": {"address": "127.0.0.1:1"},
            "weights": {"directory": tmp_path / "weights"},
        }
    )
    weights = wiring.weight_store(settings)
    weights.publish(Version(1, 0), [])
    with (
        pytest.raises(ResourceError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"),
        Service(settings, True, None, False),
    ):
        pass
    assert weights.latest() == Version(1, 0)
