"""Environments and agents that break in the middle of turns, in simulated time."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from olmorl.actors.episodes.agent_play import AgentPlay
from olmorl.actors.episodes.agent_process import AgentProcess
from olmorl.actors.episodes.agent_runner import AgentRunner
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.fake_environments import FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.clock import Clock
from olmorl.errors import EnvironmentFailed
from olmorl.messages import ENVIRONMENT, Completion, Prompt, Verdict
from olmorl.ports import Engine, EnvironmentStep
from tests.actors.episodes.test_agent_session import ASKED, MORE, Renderer, asks

TIMEOUT_S = 5.0
"""`episodes.timeout_s`. A part that hangs is given up after it."""
MAX_TURNS, MAX_TOKENS, MAX_PROMPT, MAX_CACHE_AGE = 6, 400, 100, 2


class Part:
    """An environment process, a tool, a sandbox or an agent: one that was struck never ends its work well."""

    def __init__(self, owner: Parts, number: int, seed: int) -> None:
        self.number = number
        self.random = Random(seed)
        self.is_busy = False
        self._owner = owner
        self._fate: asyncio.Future[tuple[float, str]] = asyncio.get_running_loop().create_future()
        owner.live[number] = self

    def strike(self, cause: str, after_s: float) -> None:
        """Break it: its work fails for `cause` after so long."""
        if not self._fate.done():
            self._owner.struck.add(self.number)
            self._fate.set_result((after_s, cause))

    async def work(self, seconds: float) -> None:
        """Work for so long. Raises EnvironmentFailed if it is struck before it is done."""
        if self._owner.are_down:
            self.strike("an outage of all", 0.1)
        self.is_busy = True
        try:
            await asyncio.wait([self._fate], timeout=seconds)
            if self._fate.done():
                after_s, cause = self._fate.result()
                await asyncio.sleep(after_s)
                raise EnvironmentFailed(cause)
        finally:
            self.is_busy = False

    def end(self) -> None:
        """Its episode is over."""
        del self._owner.live[self.number]


class Parts:
    """The parts of all episodes that are played, and the numbers of those that were struck."""

    def __init__(self, seed: int) -> None:
        self.live: dict[int, Part] = {}
        self.struck: set[int] = set()
        self.are_down = False
        self._random = Random(seed)
        self._number = 0

    def another(self) -> Part:
        """The part of an episode that begins."""
        self._number += 1
        return Part(self, self._number, self._random.getrandbits(32))

    def busy(self) -> list[Part]:
        """Those in the middle of a turn."""
        return [part for part in self.live.values() if part.is_busy]

    def play(self) -> Play:
        """What an actor needs for episodes in environments."""
        return Play(_Environments(self), FakeRenderer(), MAX_TURNS, MAX_PROMPT, MAX_TOKENS, MAX_CACHE_AGE)

    def agents(self) -> Agents:
        """What an actor needs for episodes of agents."""
        bounds = (TIMEOUT_S, MAX_TURNS, MAX_PROMPT + MAX_TOKENS, MAX_CACHE_AGE)
        return Agents(self, AgentPlay("an agent", lambda tools: Renderer(tools), "tool", *bounds))

    def marked(self, part: Part) -> dict[str, Verdict]:
        """A verdict that names the part, so that the records show who was scored."""
        return {ENVIRONMENT: Verdict(reward=float(part.number), method=ENVIRONMENT)}


class _Environments:
    """Environments in one process each."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> _Environment:
        return _Environment(self._parts)

    def counts(self) -> dict[str, float]:
        return {}


class _Environment:
    """Replies up to three times, each after some time."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._part = parts.another()
        self._turns_left = self._part.random.randint(1, 4)

    async def reset(self, prompt: Prompt, index: int) -> list[dict[str, Any]] | None:
        await self._part.work(0.2)
        return None

    async def step(self, reply: dict[str, Any]) -> EnvironmentStep:
        await self._part.work(self._part.random.uniform(0.1, 1.0))
        self._turns_left -= 1
        return EnvironmentStep([MORE], done=not self._turns_left)

    async def reward(self, episode: Completion) -> dict[str, Verdict]:
        await self._part.work(0.2)
        return self._parts.marked(self._part)

    async def close(self) -> None:
        self._part.end()


class Agents:
    """Agents without processes and HTTP. The runner and the sessions are the service's."""

    def __init__(self, parts: Parts, play: AgentPlay) -> None:
        self._parts = parts
        self._play = play

    def player(self, engine: Engine, clock: Clock, note_change: Callable[[], None]) -> AgentRunner:
        runner: Any = AgentRunner(engine, self._play, clock, note_change)
        runner._endpoint = _Sessions()
        return runner  # type: ignore[no-any-return]

    @asynccontextmanager
    async def running(
        self, command: str, prompt: Prompt, index: int, address: Mapping[str, Any]
    ) -> AsyncIterator[AgentProcess]:
        """In place of `agent_process.running`."""
        with tempfile.TemporaryDirectory() as folder:
            agent: Any = _Agent(self._parts.another(), Path(folder))
            talk = asyncio.create_task(agent.talk(address["OPENAI_API_KEY"]))
            try:
                yield AgentProcess(agent, Path(folder))
            finally:
                talk.cancel()
                await asyncio.wait([talk])
                agent.part.end()


class _Sessions:
    """In place of the endpoint: the key is the session."""

    url = ""
    num_sessions = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @contextmanager
    def serving(self, session: AgentSession) -> Iterator[AgentSession]:
        yield session


class _Agent:
    """Asks up to three times, with a history that grows or is rewritten, and writes its reward."""

    def __init__(self, part: Part, folder: Path) -> None:
        self.part = part
        self._folder = folder
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        (folder / "output.txt").touch()

    async def talk(self, session: AgentSession) -> None:
        random, history = self.part.random, [ASKED]
        try:
            for _ in range(random.randint(1, 3)):
                await self.part.work(random.uniform(0.1, 1.0))
                answer = await session.answer(asks(*history))
                history = [MORE, ASKED] if random.random() < 0.3 else [*history, answer.message, MORE]
            await self.part.work(0.1)
            (self._folder / "reward").write_text(str(self.part.number))
            self._code.set_result(0)
        except EnvironmentFailed:
            self._code.set_result(137)

    async def wait(self) -> int:
        return await self._code
