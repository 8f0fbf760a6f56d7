"""Agents as real processes that ask a fake engine over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from olmorl import config
from olmorl.actors.episodes import agent_guard, agent_process
from olmorl.actors.episodes.agent_runner import Agents
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.chat_request import Refused
from olmorl.actors.episodes.endpoint import Endpoint
from olmorl.actors.fake_engine import FakeEngine
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import LoopClock
from olmorl.errors import ConfigError
from olmorl.messages import ENVIRONMENT, EpisodeStart, Failure, Group, Lease
from olmorl.ports import Sampling
from olmorl.simulation import Simulation
from tests.actors.episodes.test_agent_session import ASKED, Renderer

Make = Callable[..., Any]
FAST = Simulation(tokens_per_s=2000, batch_slowdown=0, mean_tokens=20, tail=0, update_s=0.01)
AGENT = Path(__file__).with_name("agent.py")


def play(does: str, **changes: Any) -> Agents:
    fields = {"tool_role": "tool", "timeout_s": 20.0, "max_turns": 5, "max_sequence": 400, "max_cache_age": 1}
    return Agents(f"{sys.executable} {AGENT} {does}", Renderer, **fields | changes)


async def run(
    service: Make, draw: Make, play: Agents, within_s: float = 100, stall_s: float = 1, **fields: Any
) -> tuple[Any, Any]:
    """The result of one draw, and the actor's last status."""
    s = service(play=play, simulation=FAST, settings=config.Actors(max_running=16, stall_deadline_s=stall_s))
    await s.push(draw(0, **{"episode": EpisodeStart(), "group_size": 2} | fields))
    actor = s.actor()
    async with s.running(actor):
        (result,) = await s.results(1, within_s=within_s)
    assert not list_left(), "no process of an agent is left"
    return result, actor.status()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def list_left() -> list[str]:
    """The agents of this worker of pytest: another one runs agents at the same time."""
    found = psutil.process_iter(["cmdline", "environ"])
    return [" ".join(each.info["cmdline"]) for each in found if is_agent(each) and is_own(each)]


def is_own(process: psutil.Process) -> bool:
    name = "PYTEST_XDIST_WORKER"
    return (process.info["environ"] or {}).get(name) == os.environ.get(name)


def is_agent(process: psutil.Process) -> bool:
    return any("olmorl-agent-" in part or part == str(AGENT) for part in process.info["cmdline"] or ())


@pytest.mark.parametrize(("does", "parents"), [("append", [-1, 0]), ("rewrite", [-1, -1])])
async def test_an_agent_asks_over_http_and_its_turns_are_scored(
    service: Make, draw: Make, does: str, parents: list[int]
) -> None:
    group, status = await run(service, draw, play(does), columns={"level": 3})
    assert isinstance(group, Group)
    for completion in group.completions:
        assert [turn.parent for turn in completion.turns] == parents
        assert (completion.exit, completion.reward is None, len(completion.token_ids)) == ("done", False, 40)
    assert status.tokens_generated == status.tokens_stored == group.num_tokens == 80
    assert status.episodes == {"episodes": 2, "failures": 0, "processes": 0}


async def test_the_reward_may_be_written_by_the_agent(service: Make, draw: Make) -> None:
    group, _ = await run(service, draw, play("reward"))
    assert [one.verdicts[ENVIRONMENT].reward for one in group.completions] == [0.75, 0.75]


@pytest.mark.parametrize(
    ("does", "cause"),
    [
        ("crash", "the agent ended with exit code 1, and never got an answer; no tools found"),
        ("nothing", "the agent ended with exit code 0, and never got an answer; no tools found"),
        ("silent", "the agent took longer than episodes.timeout_s = 1 s to ask, and never got an answer"),
        ("late crash", "the agent ended with exit code 1; Traceback"),
        ("bad reward", "the agent wrote 'good' to $OLMORL_REWARD: write a number"),
    ],
)
async def test_an_agent_that_fails_is_started_again_and_then_fails_its_group(
    service: Make, draw: Make, does: str, cause: str
) -> None:
    failure, status = await run(service, draw, play(does, timeout_s=1.0 if does == "silent" else 20.0), group_size=1)
    assert isinstance(failure, Failure)
    assert failure.cause == "unscorable"
    assert failure.detail.startswith(f"agent: failed 3 times, at last: {cause}")
    assert status.tokens_wasted == status.tokens_generated == (120 if does in ("late crash", "bad reward") else 0)
    assert status.episodes == {"episodes": 3, "failures": 3, "processes": 0}


async def test_an_agent_out_of_time_is_scored_and_nothing_of_it_is_left(service: Make, draw: Make) -> None:
    group, _ = await run(service, draw, play("hang", timeout_s=1.5), group_size=1)
    (completion,) = group.completions
    assert (completion.exit, len(completion.turns), completion.reward is None) == ("out_of_time", 2, False)


async def test_an_agent_out_of_turns_is_told_and_scored_whatever_its_exit_code(service: Make, draw: Make) -> None:
    group, _ = await run(service, draw, play("ask on", max_turns=4), group_size=1)
    (completion,) = group.completions
    assert (completion.exit, len(completion.turns)) == ("max_turns", 4)


async def test_the_agent_of_the_documentation_runs(service: Make, draw: Make, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    page = (Path(__file__).parents[3] / "docs" / "episodes.md").read_text(encoding="utf-8")
    (program,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "OLMORL_ROW" in text)
    (tmp_path / "agent.py").write_text(program, encoding="utf-8")
    of_page = play("")._replace(command=f"{sys.executable} {tmp_path}/agent.py", timeout_s=60)
    group, _ = await run(service, draw, of_page, group_size=1)
    (completion,) = group.completions
    assert [turn.parent for turn in completion.turns] == [-1, 0, 1]
    assert completion.verdicts[ENVIRONMENT].reward == 0.5


async def test_the_processes_of_an_agent_end_with_the_actor(service: Make, draw: Make) -> None:
    s = service(play=play("hang", timeout_s=60.0), simulation=FAST)
    await s.push(draw(0, episode=EpisodeStart(), group_size=1))
    async with s.running(s.actor()):
        await until(lambda: len(list_left()) == 2)
    assert not list_left()


async def test_an_agent_gets_its_key_and_none_of_the_run(draw: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("OLMORL_TOKEN", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    monkeypatch.setenv("NO_PROXY", "here")
    command = "env | grep -E 'RAY_|OLMORL_|KEY|NO_PROXY' | sort | sed s,=/.*/,=, ; cat $OLMORL_ROW"
    prompt = draw(0, columns={"level": 3})
    address = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://10.0.0.9:80/v1"}
    async with agent_process.running(command, prompt, 1, address) as process:
        assert await process.wait() == 0
        assert process.last_words() == (
            "NO_PROXY=here,127.0.0.1,10.0.0.9 OLMORL_REWARD=reward OLMORL_ROW=row.json "
            'OLMORL_VERIFIERS=verifiers_agent.py OPENAI_API_KEY=sk-1 {"level": 3, "prompt": "?", "index": 1}'
        ), "and not the label of the row"
    assert not process.folder.exists()


async def test_a_guard_whose_owner_is_killed_ends_the_command() -> None:
    guard = agent_guard.__file__
    owner = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', {guard!r}, 'sleep 600'], stdin=subprocess.PIPE)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", owner, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    parent = psutil.Process(process.pid)
    await until(lambda: len(parent.children(recursive=True)) >= 2)
    started = parent.children(recursive=True)
    process.kill()
    await process.wait()
    assert not (await asyncio.to_thread(psutil.wait_procs, started, 20))[1]


class Session:
    """Stands for the session of an episode, whose policy gives one answer."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.asked: list[tuple[Any, bool]] = []
        self.refusal = self.fault = ""

    def refuse(self, refused: Any) -> Any:
        self.refusal = str(refused)
        return refused

    def too_long(self, cause: str) -> Any:
        return Refused(cause)

    async def answer(self, request: Any, *, is_retry: bool = False) -> Any:
        self.asked.append((request, is_retry))
        return await self._make()


@asynccontextmanager
async def served(
    make: Callable[[], Any], host: str = "127.0.0.1"
) -> AsyncIterator[tuple[aiohttp.ClientSession, str, Session]]:
    endpoint = Endpoint("tool", 400, host)
    await endpoint.start()
    session: Any = Session(make)
    try:
        with endpoint.serving(session) as key:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
                yield client, endpoint.url, session
    finally:
        await endpoint.stop()


async def made() -> Any:
    from olmorl.actors.episodes.chat_request import Answer

    call = {"id": "c00000000", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    return Answer(0, {"role": "assistant", "content": "so:", "tool_calls": [call]}, "stop", 5, 7, int(time.time()))


async def test_errors_have_the_form_of_openai() -> None:
    async with served(made) as (client, url, session):
        async with client.get(f"{url}/models", headers={"Authorization": "Bearer sk-other"}) as reply:
            assert reply.status == 401
            assert (await reply.json())["error"]["code"] == "invalid_api_key"
        async with client.post(f"{url}/chat/completions", data=b"{") as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["type"] == "invalid_request_error"
        assert session.refusal.startswith("the body of the request is no JSON")
        async with client.get(f"{url}/models") as reply:
            (model,) = (await reply.json())["data"]
            assert (model["id"], model["max_model_len"]) == ("policy", 400)
        async with client.post(f"{url}/responses", json={"input": "?"}) as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["message"] == (
                "POST /v1/responses: the policy answers at POST /v1/chat/completions and /v1/messages"
            )
        assert session.refusal.startswith("POST /v1/responses")


async def test_requests_of_other_hosts_need_the_key_of_an_episode() -> None:
    """A container reaches its host by this address; loopback does not."""
    async with served(made, "0.0.0.0") as (client, url, session):
        assert not url.startswith(("http://127.", "http://0."))
        async with client.post(f"{url}/chat/completions", json={"messages": [ASKED]}) as reply:
            assert reply.status == 200
        async with aiohttp.ClientSession() as other, other.post(f"{url}/responses") as reply:
            assert reply.status == 401
            assert "send Authorization: Bearer $OPENAI_API_KEY" in (await reply.json())["error"]["message"]
        assert (len(session.asked), session.refusal) == (1, "")


async def test_an_address_of_another_host_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"episodes\.host = '198\.51\.100\.7': .*give an address of this host"):
        async with served(made, "198.51.100.7"):
            pass


async def test_a_key_opens_nothing_after_its_episode() -> None:
    endpoint = Endpoint("tool", 400)
    await endpoint.start()
    try:
        session: Any = Session(made)
        with endpoint.serving(session) as key:
            headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as client, client.get(f"{endpoint.url}/models", headers=headers) as reply:
            assert reply.status == 401
    finally:
        await endpoint.stop()


async def test_openais_own_client_reads_answers_streams_and_errors() -> None:
    openai = pytest.importorskip("openai")

    async def refused() -> Any:
        raise Refused("This model's maximum context length is 9 tokens.", code="context_length_exceeded")

    async with served(made) as (client, url, session):
        key = client.headers["Authorization"].removeprefix("Bearer ")
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as ours:
            asked = {"model": "policy", "messages": [ASKED], "tools": [], "temperature": 0.1}
            whole = await ours.chat.completions.create(**asked)
            (call,) = whole.choices[0].message.tool_calls
            assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
            assert (whole.choices[0].finish_reason, whole.usage.total_tokens) == ("tool_calls", 12)
            stream = await ours.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            parts = [part async for part in stream]
            assert parts[0].choices[0].delta.content == "so:"
            assert parts[0].choices[0].delta.tool_calls[0].function.arguments == '{"a": 1}'
            assert (parts[1].choices[0].finish_reason, parts[2].usage.completion_tokens) == ("tool_calls", 7)
            session._make = refused
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
                    await ours.chat.completions.create(**asked, stream=stream)
                assert caught.value.code == "context_length_exceeded"
        assert [is_retry for _, is_retry in session.asked] == [False] * 4


async def test_an_error_of_the_endpoint_is_a_fault_of_the_episode(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> Any:
        raise LookupError("no such token")

    async with served(broken) as (client, url, session):
        reply = await client.post(f"{url}/chat/completions", json={"messages": [ASKED]})
        assert (reply.status, (await reply.json())["error"]["type"]) == (500, "server_error")
    assert session.fault == "LookupError: no such token"
    assert "the endpoint failed at a request of an agent" in caplog.text


async def test_a_request_that_is_larger_than_any_is_too_long_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olmorl.actors.episodes.endpoint.LARGEST_REQUEST", 1 << 20)
    async with served(made) as (client, url, session):
        async with client.post(f"{url}/chat/completions", data=b" " * (2 << 20)) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["message"] == "the request has over 1 MiB"
        assert (session.fault, session.asked) == ("", [])


async def test_a_stream_that_waits_gets_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olmorl.actors.episodes.endpoint.COMMENT_S", 0.05)

    async def late() -> Any:
        await asyncio.sleep(0.2)
        return await made()

    async with served(late) as (client, url, _):
        body = {"messages": [ASKED], "stream": True}
        async with client.post(f"{url}/chat/completions", json=body) as reply:
            text = await reply.text()
        assert text.startswith(": the policy answers\n\n") and text.endswith("data: [DONE]\n\n")


TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


@pytest.mark.doors
async def test_an_agent_that_speaks_anthropics_api_continues_its_conversation(draw: Make) -> None:
    """With thinking and a call, streamed and not; what it sends back is what it was given."""
    endpoint, clock = Endpoint("tool", 400), LoopClock()
    engine = FakeEngine(FAST, max_running=8, max_model_len=400)
    prompt = draw(0, group_size=1, episode=EpisodeStart())
    engine._versions, engine._since = [prompt.min_version], [0]  # started
    work = LeasedGroup(Lease(prompt=prompt, lease_id="1", owner="a0", deadline=0.0))
    await endpoint.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            session = AgentSession(
                engine, play(""), clock, work, "e", Sampling(max_tokens=50), tasks=tasks,
                note_waiting=lambda is_waiting: None,
            )  # fmt: skip
            with endpoint.serving(session) as key:
                async with aiohttp.ClientSession(headers={"x-api-key": key}) as client:
                    history = await converse(client, f"{endpoint.url}/messages")
    finally:
        await endpoint.stop()
    assert [turn.parent for turn in session.turns.turns] == [-1, 0, 1]
    assert not session.fault and [one["role"] for one in history] == ["user", "assistant"] * 3


async def converse(client: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    asked = {"model": "policy", "max_tokens": 50, "system": "Be brief.", "tools": [TOOL], "messages": history}
    for is_stream in (False, True, False):
        async with client.post(url, json={**asked, "stream": is_stream}) as reply:
            assert reply.status == 200
            content = streamed(await reply.text()) if is_stream else (await reply.json())["content"]
        thought, said, call = content
        assert (thought["thinking"], said["text"][:6], call["name"], call["input"]) == (
            "hm", "answer", "add", {"a": 1, "b": 2}
        )  # fmt: skip
        history.append({"role": "assistant", "content": content})
        if len(history) < 6:
            history.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "3"}]}
            )
    for body, what in (({**asked, "messages": 7}, "messages API"), ({**asked, "stop_sequences": [""]}, "stop")):
        async with client.post(url, json=body) as reply:
            assert reply.status == 400 and what in (await reply.json())["error"]["message"]
    return history


def streamed(text: str) -> list[dict[str, Any]]:
    """The content of a stream of the messages API, put together as its clients do."""
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    blocks: list[dict[str, Any]] = [
        event["content_block"] for event in events if event["type"] == "content_block_start"
    ]
    for event in events:
        if event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            kind = delta["type"].removesuffix("_delta")
            block["arguments" if kind == "input_json" else kind] = delta.get("partial_json") or delta.get(kind)
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("arguments"))
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]
    return blocks
