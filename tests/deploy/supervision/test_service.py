"""Messages of the launcher when a run stops early."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster import ray_cluster
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.processes.prometheus import Telemetry
from olmorl.deploy.supervision.policies import Context
from olmorl.deploy.supervision.process_list import ProcessList
from olmorl.deploy.supervision.service import Parts, Service, StoppedAtOnce, open_service
from olmorl.deploy.view.live_view import LiveView
from olmorl.errors import ProcessLost, ResourceError
from olmorl.learner.storage import ledger
from olmorl.messages import Version

AT_ONCE, AT_THE_START = "stopped at once, without a checkpoint; ", "stopped while it started; "


class Stopped(Service):
    """Its user stops it twice, or while it starts."""

    async def _live(self) -> None:
        raise asyncio.CancelledError

    async def _start(self) -> Parts:
        self._signals.stop_asked.set()
        await asyncio.sleep(60)
        raise AssertionError("a stop ends it earlier")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Stopped]:
    settings = config.build({"run": {"directory": tmp_path, "name": "t", "mode": "simulated"}})
    settings.run_dir.mkdir()
    progress, telemetry = LiveView("t"), Telemetry("launcher", "t", "127.0.0.1")
    cluster: Any = SimpleNamespace(is_broken=False, hold=lambda _: None)
    context = Context(settings, plan(settings), cluster, ProcessList(settings.run_dir), progress.say)
    yield Stopped(context, progress, telemetry, "token", resume=False, from_step=None)
    telemetry.close()


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


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        (signal.SIGINT, "Ctrl-C", 130),
        (signal.SIGTERM, "SIGTERM", 143),
        (signal.SIGHUP, "SIGHUP (the terminal was closed)", 129),
        (None, "a stop was asked for", 1),
    ],
)
async def test_a_stop_before_the_first_step_ends_the_run_with_the_code_of_its_signal(
    service: Stopped, number: signal.Signals | None, name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: Any = SimpleNamespace(
        actors=SimpleNamespace(stopping=False),
        learner=SimpleNamespace(is_fresh=True),
        statuses=SimpleNamespace(update=_starts, show=lambda _: None),
    )
    service._signals.number = number
    service._signals.stop_asked.set()
    with pytest.raises(StoppedAtOnce, match="stopped before a step was taken") as stopped:
        await service._obey_stop(parts)
    assert stopped.value.exit_code == code
    assert capsys.readouterr().out == f"{name}: stopping; no step was taken since the start\n"


async def _starts(*_: object, **__: object) -> None:
    raise ProcessLost("the learner starts")


def test_a_start_that_finds_no_cluster_leaves_alone_what_a_run_without_a_launcher_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "HEAD_DEADLINE_S", 0.0)
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
        open_service(settings, True, None),
    ):
        pass
    assert weights.latest() == Version(1, 0)
