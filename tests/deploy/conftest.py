"""A fake cluster without Ray. Tests end and stop its processes and read the calls to them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl import config, deadlines
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.supervision.policies import Context
from olmorl.deploy.supervision.process_list import ProcessList
from olmorl.errors import OlmoRLError, ProcessLost, ResourceError
from tests.waiting import set_deadline


class FakeProcess:
    """A fake `RemoteProcess`. `answers` has its answers by method: an error is raised, a function is called."""

    def __init__(self, name: str, arguments: tuple[Any, ...], answers: dict[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.handle = self
        self.answers: dict[str, Any] = {"identity": Identity("here", 1), **answers}
        self.calls: list[tuple[Any, ...]] = []
        self.killed = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, method: str, *args: Any) -> None:
        self.calls.append((method, *args))

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        self.calls.append((method, *args))
        if self.lost:
            raise ProcessLost(f"{self.name} died")
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        given = answer(*args) if callable(answer) else answer
        return await given if inspect.isawaitable(given) else given

    async def ended(self) -> None:
        await asyncio.shield(self._end)

    def kill(self, cause: str = "") -> None:
        self.killed = True
        self.end(ProcessLost(f"{self.name} {cause}"))

    @property
    def lost(self) -> bool:
        return self._end.done() and self._end.exception() is not None

    def end(self, error: OlmoRLError | None = None) -> None:
        """Its work is over."""
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)
            self._end.exception()  # marks the error as read: a test need not await it


class FakeCluster:
    """A fake `RayCluster` with space for this many engines."""

    def __init__(self, settings: config.Config, room: int = 100) -> None:
        self.config = settings
        self.room = room
        self.most_engines = 1024
        self.started: list[FakeProcess] = []
        self.answers: dict[str, dict[str, Any]] = {}
        """Answers of processes to come, by the beginning of their names."""
        self.hosts = {"first", "second"}
        """Those that live; the learner's place is on the first."""
        self.num_asked = 0

    def host_of(self, place: object) -> str:
        return "first"

    def lives(self, host: str) -> bool:
        return host in self.hosts

    async def place_engine(self, wait_s: float, asked_by: str) -> object:
        self.num_asked += 1
        if not self.room:
            raise ResourceError(f"no room for an engine: ask for fewer with {asked_by}")
        self.room -= 1
        return object()

    def give_up(self, place: object) -> None:
        self.room += 1

    def start(self, kind: type, name: str, place: object, *args: Any, **options: Any) -> FakeProcess:
        answers = next((a for begin, a in self.answers.items() if name.startswith(begin)), {})
        self.started.append(FakeProcess(name, args, answers))
        return self.started[-1]

    def newest(self, name: str) -> FakeProcess:
        return [process for process in self.started if process.name == name][-1]

    @property
    def names(self) -> list[str]:
        return [process.name for process in self.started]


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Lets the tasks run until something holds."""

    async def wait(ready: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while True:
                if ready():
                    return
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes the parts of the supervisors on a fake cluster. `said` collects their messages.

    It takes the built-in deadlines by their names.
    """
    monkeypatch.setattr(deadlines, "BETWEEN_HEARTBEATS_S", 0.01)

    def make(restarts: int = 2, **built_in: float) -> Any:
        quick = {"MOST_RESTARTS": restarts, "RESTART_PAUSE_S": 0.01, "LONGEST_RESTART_PAUSE_S": 0.02, **built_in}
        for name, value in quick.items():
            set_deadline(monkeypatch, name, value)
        settings = config.build(
            {
                "run": {"directory": tmp_path, "mode": "simulated"},
                "actors": {"engines_per_node": 3},
                "learner": {"ranks_per_node": 2},
            }
        )
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        said: list[str] = []
        cluster: Any = FakeCluster(settings)
        made: Any = Context(settings, plan(settings), cluster, ProcessList(settings.run_dir), said.append)
        made.said = said
        return made

    return make
