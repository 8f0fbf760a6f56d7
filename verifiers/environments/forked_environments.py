"""Python environments in worker processes, one process for each episode under way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from msgspec import UNSET

from olmorl.config import Episodes, Verifiers, box_tools
from olmorl.errors import ConfigError, EnvironmentFailed
from olmorl.messages import ENVIRONMENT, Completion, Prompt, Verdict
from olmorl.ports import EnvironmentStep
from olmorl.verifiers.box import box, search_tool
from olmorl.verifiers.environments.played import Setup, Start
from olmorl.verifiers.environments.tools import KEY, UNKNOWN, CountedCall, ToolCounts
from olmorl.verifiers.functions.function_scorer import call_of, parse, verdicts_of
from olmorl.verifiers.pool import pool_protocol
from olmorl.verifiers.pool.fork_server import DeadlineMissed, ForkServer, Worker, WorkerLost, WorkerStartFailed
from olmorl.verifiers.pool.worker import WorkerSettings

_TASKS = "olmorl.verifiers.environments.played:"
_SHARE = "olmorl.verifiers.box.search_tool:share"
START_S = 60.0
"""Deadline of the start of a process, the import of the user's code included."""
CLOSE_S = 5.0
"""Deadline of an environment's `close`."""


NO_LIMIT_MIB = 1 << 30
_OF_PROGRAMS = {"memory_mib", "code_tier", "code_test_timeout_s", "code_allow_numpy"}
"""The keys of `verifiers` for programs of the policy."""


@lru_cache
def schemas(settings: Episodes) -> tuple[dict[str, Any], ...]:
    """Make the environment once, in a process of its own with the deadlines of episodes, and describe its tools.

    Raises:
        ConfigError: it cannot be loaded or made, or not in time, or a tool has no type hints or no docstring.
    """

    async def ask() -> tuple[dict[str, Any], ...]:
        # The library that writes schemas needs more memory than an environment.
        environments = ForkedEnvironments(settings, Verifiers(memory_mib=NO_LIMIT_MIB), shares=False)
        try:
            await environments.start_first()
            return tuple(await environments.ask(await environments.lend(), "make", None))
        finally:
            await environments.stop()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may be on an event loop
            return thread.submit(asyncio.run, ask()).result()
    except EnvironmentFailed as error:
        cause = str(error).removeprefix("make: ")
        raise ConfigError(f"{KEY} = {settings.environment!r} cannot be made: {cause}") from None


class ForkedEnvironments:
    """A process has one episode at a time. One that failed, or did not answer in time, is killed."""

    def __init__(self, settings: Episodes, verifiers: Verifiers, max_steps: int = 0, shares: bool = True) -> None:
        """`verifiers` has the memory of a process, and reward functions. They may ask for `max_steps` of the run.

        With `shares` the first start takes as long as an index of `search`, which all processes then share.
        """
        assert settings.environment is not None
        self._name = settings.environment
        self._timeout_s = settings.timeout_s
        self._verifiers = verifiers
        self.functions = parse(verifiers.functions)
        self.max_steps = max_steps
        specs = [function.spec for function in self.functions]
        programs = verifiers.model_dump(include=_OF_PROGRAMS)
        setup = Setup(
            settings.environment, settings.tool_role, verifiers.think_tags, specs, settings.timeout_s, programs
        )
        texts = box_tools(settings.environment).get("search")
        of_fork_server = WorkerSettings(
            preload=(f"{_TASKS}shared",),
            setup=(f"{_TASKS}load", setup),
            memory_mib=verifiers.memory_mib,
            shared=(_SHARE, texts) if shares and texts else None,
        )
        indexing_s = search_tool.longest_share_s(texts) if of_fork_server.shared and texts else 0.0
        self._fork_server = ForkServer(of_fork_server, START_S + indexing_s)
        self._idle: list[Worker] = []
        self.tools = ToolCounts()

    async def start(self) -> None:
        """Start one process. Raises ConfigError with the cause if it cannot, or if the sandbox of its tools fails."""
        await box.check(self._name, self._verifiers)
        await self.start_first()

    async def start_first(self) -> None:
        """Start one process. Raises ConfigError with the cause if it cannot load the environment."""
        try:
            self._idle.append(await self._fork_server.start_worker())
        except WorkerStartFailed as error:
            cause = str(error).removeprefix("ConfigError: ")
            raise ConfigError(cause if cause != str(error) else f"{KEY} = {self._name!r}: {cause}") from None

    def open(self) -> ForkedEnvironment:
        return ForkedEnvironment(self)

    def counts(self) -> dict[str, float]:
        return {"processes": self._fork_server.num_workers, **self.tools.counts()}

    async def stop(self) -> None:
        """End all processes."""
        self._idle.clear()
        self._fork_server.close()

    async def lend(self) -> Worker:
        """A process without an episode. Raises EnvironmentFailed if none can be started."""
        while self._idle:
            if (worker := self._idle.pop()).alive:
                return worker
        try:
            return await self._fork_server.start_worker()
        except WorkerStartFailed as error:
            raise EnvironmentFailed(str(error)) from None

    def give_back(self, worker: Worker) -> None:
        """The episode of a process is closed."""
        self._idle.append(worker)

    async def ask(self, worker: Worker, task: str, args: Any, timeout_s: float | None = None) -> Any:
        """Call a function of `played` in a process. Raises EnvironmentFailed, and then the process is gone."""
        timeout_s = timeout_s or self._timeout_s
        try:
            call = pool_protocol.encode(pool_protocol.TaskCall(_TASKS + task, args))
            reply = await worker.ask(call, timeout_s)
        except DeadlineMissed:
            raise EnvironmentFailed(f"{task} took longer than episodes.timeout_s = {timeout_s:g}") from None
        except WorkerLost as error:
            cause = f"its process ended in {task} (signal {await worker.cause()}) {error}".rstrip()
            raise EnvironmentFailed(cause) from None
        except (TypeError, ValueError, OverflowError) as error:
            raise EnvironmentFailed(f"{task} cannot be sent: {error}") from None
        if reply.kind != "done":
            raise EnvironmentFailed(
                f"{task} exceeded its memory" if reply.kind == "memory" else f"{task}: {reply.detail}"
            )
        return reply.value


class ForkedEnvironment:
    """The environment of one episode, in a process that is its own until `close`."""

    def __init__(self, owner: ForkedEnvironments) -> None:
        self._owner = owner
        self._prompt: Prompt | None = None
        self._worker: Worker | None = None
        self._is_clean = False

    async def reset(self, prompt: Prompt, index: int) -> list[dict[str, Any]] | None:
        """The row's columns reach the environment by name, with `prompt` and `ground_truth`."""
        self._worker = await self._owner.lend()
        self._prompt = prompt
        truths = prompt.ground_truths
        row = {**prompt.columns, "prompt": prompt.messages, "ground_truth": truths[0] if len(truths) == 1 else truths}
        messages: list[dict[str, Any]] | None = await self._ask(
            "reset", Start(row, prompt.draw_id, prompt.thinking_opened)
        )
        return messages

    async def step(self, reply: dict[str, Any]) -> EnvironmentStep:
        began = time.perf_counter()
        try:
            found = await self._ask("step", reply)
        except EnvironmentFailed:
            seconds = time.perf_counter() - began
            self._owner.tools.add(CountedCall(tool, seconds, is_error=True) for tool in self._called(reply))
            raise
        self._owner.tools.add(CountedCall(*call) for call in found.pop("calls"))
        return EnvironmentStep(**found)

    def _called(self, reply: dict[str, Any]) -> set[str]:
        """The tools of an answer."""
        assert self._prompt is not None
        start = self._prompt.episode
        known: set[str] = set() if start is UNSET else {tool["function"]["name"] for tool in start.tools}
        names = {call["function"]["name"] for call in reply.get("tool_calls", ()) if known}
        return {name if name in known else UNKNOWN for name in names}

    async def reward(self, episode: Completion) -> dict[str, Verdict]:
        """A reward function gets lists of one: the other episodes of the group are in processes of their own."""
        assert self._prompt is not None
        found = await self._ask("reward", call_of("", self._prompt, [episode], self._owner.max_steps))
        verdicts = {}
        if found["own"] is not None:
            verdicts[ENVIRONMENT] = Verdict(reward=found["own"], method=ENVIRONMENT)
        for function in self._owner.functions:
            if function.spec in found["results"]:
                (verdicts[function.name],) = verdicts_of(found["results"][function.spec], [len(episode.token_ids)])
            elif (detail := found["errors"].get(function.spec)) is not None:
                verdicts[function.name] = Verdict(reward=None, error_kind="function_raised", detail=detail)
        return verdicts

    async def close(self) -> None:
        """The process takes another episode if this one ended well."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if self._is_clean:
                with contextlib.suppress(EnvironmentFailed):
                    await self._owner.ask(worker, "close", None, CLOSE_S)
                    self._owner.give_back(worker)
                    worker = None
        finally:
            if worker is not None:
                worker.kill()

    async def _ask(self, task: str, args: Any) -> Any:
        assert self._worker is not None
        self._is_clean = False
        found = await self._owner.ask(self._worker, task, args)
        self._is_clean = True
        return found
