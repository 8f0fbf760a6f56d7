"""Plays episodes of agents: a command of the user asks the policy over HTTP, until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from olmorl.actors.episodes import agent_process
from olmorl.actors.episodes.agent_play import AgentPlay
from olmorl.actors.episodes.agent_process import AgentProcess
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.chat_request import MODEL
from olmorl.actors.episodes.endpoint import Endpoint
from olmorl.actors.episodes.runner import TRIES, pause_before
from olmorl.actors.episodes.turns import DONE, OUT_OF_TIME
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import Clock
from olmorl.errors import EnvironmentFailed, Unscorable
from olmorl.messages import ENVIRONMENT, Completion, Verdict
from olmorl.ports import Engine, Sampling


class Agents(AgentPlay):
    """What an actor needs for episodes of agents."""

    def player(self, engine: Engine, clock: Clock, note_change: Callable[[], None]) -> AgentRunner:
        """`note_change` is called when an episode begins or ends to wait for its agent."""
        return AgentRunner(engine, self, clock, note_change)


class AgentRunner:
    """An agent that asked and ended is scored; one that failed is started again, and then its group fails."""

    def __init__(self, engine: Engine, play: AgentPlay, clock: Clock, note_change: Callable[[], None]) -> None:
        self._engine = engine
        self._play = play
        self._clock = clock
        self._note_change = note_change
        self._endpoint = Endpoint(play.tool_role, play.max_sequence, play.host)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._begun = self._failed = 0

    async def start(self) -> None:
        """Serve the policy."""
        await self._endpoint.start()

    async def stop(self) -> None:
        await self._endpoint.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def counts(self) -> dict[str, float]:
        return {"episodes": self._begun, "failures": self._failed, "processes": self._endpoint.num_sessions}

    async def run(self, work: LeasedGroup, index: int, request_id: str, sampling: Sampling) -> Completion:
        """Play the episode `index` of a group. Tokens of failed tries count as lost.

        Raises:
            Unscorable: its agent failed `TRIES` times.
        """
        causes = []
        for number in range(TRIES):
            await pause_before(number, work, self._clock, self._note_change)
            episode = _Episode(self._play, work, self._note_change)
            self._begun += 1
            try:
                async with asyncio.TaskGroup() as tasks:
                    session = AgentSession(
                        self._engine,
                        self._play,
                        self._clock,
                        work,
                        f"{request_id}/{number}",
                        sampling,
                        tasks=tasks,
                        thread=self._thread,
                        note_waiting=episode.note_waiting,
                    )
                    await episode.play(session, index, self._endpoint)
                return episode.completion(session)
            except EnvironmentFailed as error:
                self._failed += 1
                work.discard(session.turns.num_sampled)
                causes.append(str(error))
        raise Unscorable("agent", f"failed {TRIES} times, at last: {causes[-1]}")


class _Episode:
    """One run of the command. Its time counts only while it is not waiting for the policy."""

    def __init__(self, play: AgentPlay, work: LeasedGroup, note_change: Callable[[], None]) -> None:
        self._play = play
        self._work = work
        self._note_change = note_change
        self._is_waiting = False
        self._has_asked = False
        self._deadline: asyncio.Timeout | None = None
        self._code: int | None = None
        """The exit code of the command; None: it was ended."""
        self._last_words = ""
        self._verdict: Verdict | None = None
        self._failure: EnvironmentFailed | None = None

    async def play(self, session: AgentSession, index: int, endpoint: Endpoint) -> None:
        """Run the command to its end. Returns after everything that it started has ended."""
        with endpoint.serving(session) as key:
            address = {
                "OPENAI_BASE_URL": endpoint.url,
                "OPENAI_API_KEY": key,
                "OPENAI_MODEL": MODEL,
                "OLMORL_MAX_TURNS": str(self._play.max_turns),
            }
            async with agent_process.running(self._play.command, self._work.prompt, index, address) as process:
                await self._wait(process)
                self._last_words = process.last_words()
                try:
                    self._verdict = process.verdict()
                except EnvironmentFailed as error:
                    self._failure = error
        session.cancel()

    async def _wait(self, process: AgentProcess) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._deadline:
                try:
                    self.note_waiting(True)
                    self._code = await process.wait()
                finally:
                    self.note_waiting(False)
                    self._deadline = None

    def note_waiting(self, is_waiting: bool) -> None:
        """The policy waits for the agent, or no longer. The agent's time begins, or stops."""
        if self._deadline is None or self._deadline.expired():
            is_waiting = False
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self._work.count_waiting(1 if is_waiting else -1, lends=self._has_asked)
            self._has_asked |= not is_waiting
            self._note_change()
            if self._deadline is not None and not self._deadline.expired():
                until = asyncio.get_running_loop().time() + self._play.timeout_s
                self._deadline.reschedule(until if is_waiting else None)

    def completion(self, session: AgentSession) -> Completion:
        """Raises EnvironmentFailed: the episode cannot be scored."""
        if cause := self._cause(session):
            raise EnvironmentFailed(
                "; ".join(filter(None, (cause, "" if session.fault else session.refusal, self._last_words)))
            )
        if self._failure is not None:
            raise self._failure
        exit_ = session.exit or (OUT_OF_TIME if self._code is None else DONE)
        return session.turns.completion(exit_, {} if self._verdict is None else {ENVIRONMENT: self._verdict})

    def _cause(self, session: AgentSession) -> str:
        if session.fault:
            return f"the policy could not be asked: {session.fault}"
        ended = f"took longer than episodes.timeout_s = {self._play.timeout_s:g} s to ask"
        if self._code is not None:
            ended = f"ended with exit code {self._code}"
        if not session.turns.turns:
            return f"the agent {ended}, and never got an answer"
        return f"the agent {ended}" if self._code and not session.exit else ""
