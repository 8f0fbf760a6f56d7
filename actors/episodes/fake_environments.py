"""Environments and a renderer without processes, templates or texts, for fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from olmorl.errors import EnvironmentFailed
from olmorl.messages import Completion, Prompt, TokenIds, Verdict
from olmorl.ports import EnvironmentStep

ADDED = 90
"""The first of the tokens of a fake reply; each further one is larger by 1."""


class FakeEnvironments:
    """Every episode takes the same number of turns, and each start and each reply the same time."""

    def __init__(self, turns: int = 2, reply_s: float = 0.0, failures: int = 0, start_s: float = 0.0) -> None:
        """The first `failures` episodes fail at the end of their first turn."""
        self._turns = turns
        self._reply_s = reply_s
        self._start_s = start_s
        self._failures = failures
        self.open_now = self.most_open = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> FakeEnvironment:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        self._failures -= 1
        return FakeEnvironment(self, self._turns, self._reply_s, fails=self._failures >= 0, start_s=self._start_s)

    def counts(self) -> dict[str, float]:
        return {"processes": self.open_now}


class FakeEnvironment:
    """Says "go on" until its turns are over."""

    def __init__(
        self, owner: FakeEnvironments, turns: int, reply_s: float, *, fails: bool, start_s: float = 0.0
    ) -> None:
        self._owner = owner
        self._turns_left = turns
        self._start_s = start_s
        self._reply_s = reply_s
        self._fails = fails

    async def reset(self, prompt: Prompt, index: int) -> list[dict[str, Any]] | None:
        await asyncio.sleep(self._start_s)
        return None

    async def step(self, reply: dict[str, Any]) -> EnvironmentStep:
        await asyncio.sleep(self._reply_s)
        if self._fails:
            raise EnvironmentFailed("a fake failure")
        self._turns_left -= 1
        return EnvironmentStep([{"role": "user", "content": "go on"}], done=not self._turns_left)

    async def reward(self, episode: Completion) -> dict[str, Verdict]:
        return {}

    async def close(self) -> None:
        self._owner.open_now -= 1


class FakeRenderer:
    """Each message has the same number of tokens."""

    def __init__(self, tokens: int = 3) -> None:
        self._tokens = tokens

    def prompt(self, messages: Sequence[dict[str, Any]]) -> TokenIds:
        return np.arange(ADDED, ADDED + self._tokens * len(messages), dtype=np.int32)

    def reply(self, answer: Completion) -> dict[str, Any]:
        return {"role": "assistant", "content": answer.text}

    def added(
        self,
        conversation: Sequence[dict[str, Any]],
        reply: dict[str, Any],
        messages: Sequence[dict[str, Any]],
        answer: Completion,
    ) -> TokenIds:
        return self.prompt(messages)
