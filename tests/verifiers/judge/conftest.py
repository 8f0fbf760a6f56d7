"""A judge on a real socket with its fault switch, and the verifiers that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from olmorl.config import Judge, RewardModel, Verifiers
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.judge.model_verifier import ModelVerifier
from olmorl.verifiers.judge.registry import model_verifiers
from olmorl.verifiers.judge.server import JudgeServer
from olmorl.verifiers.judge.service import client
from olmorl.verifiers.judge.service.call_counts import CallCounts

REQUEST = "What is the capital of France?"
REFERENCE = "The capital of France is Paris."


class Service(NamedTuple):
    """A running server."""

    url: str
    state: JudgeServer

    async def fault(self, kind: str, **options: Any) -> None:
        """Turn the switch, over the socket as a person would."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/fault", json={"kind": kind, **options}) as response,
        ):
            assert response.status == 200, await response.text()


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    server = JudgeServer()
    yield Service(await server.start(), server)
    await server.stop()


class Asker(NamedTuple):
    """The verifiers over one server."""

    rules: dict[str, ModelVerifier]
    ask: Callable[..., Awaitable[Verdict]]

    @property
    def calls(self) -> CallCounts:
        """What the judge's client counted."""
        calls: CallCounts = self.rules["general-quality"].counters["judge"]
        return calls


@pytest_asyncio.fixture
async def asker(
    service: Service,
    make_prompt: Callable[..., Prompt],
    make_completion: Callable[..., Completion],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[..., Asker]]:
    """Makes verifiers with changes to their settings, and to the constants of their client."""
    made: list[ModelVerifier] = []

    def make(**changes: Any) -> Asker:
        for name in [name for name in changes if name.isupper()]:
            monkeypatch.setattr(client, name, changes.pop(name))
        options = {"timeout_s": 5.0, **changes}
        names = {"judge": Judge.model_fields, "reward_model": RewardModel.model_fields}
        judge, model = ({k: v for k, v in options.items() if k in fields} for fields in names.values())
        settings = Verifiers(judge=Judge(url=service.url, **judge), reward_model=RewardModel(url=service.url, **model))
        rules = model_verifiers(settings)
        made.extend(rules.values())

        async def ask(answer: str, name: str = "general-quality_ref", label: Any = REFERENCE) -> Verdict:
            prompt = make_prompt((name,), (label,), messages=REQUEST)
            return await rules[name].verify_row(prompt, make_completion(answer), answer, label)

        return Asker(rules, ask)

    yield make
    for rule in made:
        await rule.close()
