"""A server of OpenEnv whose environment takes two actions, rewarded for different letters. Its argument is the port."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str


class Heard(Observation):
    text: str = ""


class Letters(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    _state = State(step_count=0)

    def reset(self, **_: Any) -> Heard:
        self._state = State(step_count=0)
        return Heard(text="say letters", done=False, reward=0.0)

    def step(self, action: Say, **_: Any) -> Heard:
        self._state.step_count += 1
        reward = len(set(action.message)) / 20
        return Heard(text=action.message[::-1], done=self._state.step_count == 2, reward=reward)

    @property
    def state(self) -> State:
        return self._state


uvicorn.run(create_app(Letters, Say, Heard, env_name="letters"), host="127.0.0.1", port=int(sys.argv[1]))
