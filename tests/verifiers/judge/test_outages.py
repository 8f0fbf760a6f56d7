"""The verifiers over a real socket while the service behaves badly: right verdicts or none, never a wrong 0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from olmorl.clock import SystemClock
from olmorl.config import HttpService, Judge, RewardModel, Verifiers
from olmorl.messages import Completion, Prompt
from olmorl.verifiers.judge.judge_question import JudgeQuestion
from olmorl.verifiers.judge.model_verifier import INNOCENT, MAX_ANSWER_CHARS, ModelVerifier
from olmorl.verifiers.judge.registry import model_verifiers
from olmorl.verifiers.judge.server import FLOOD_BYTES
from olmorl.verifiers.judge.service.client import Client
from olmorl.verifiers.judge.service.endpoint import MAX_REPLY_BYTES, HttpEndpoint, address, proxy_for
from olmorl.verifiers.judge.service.failures import Unavailable


def said(content: str | None, refusal: str | None = None) -> str:
    """A chat completion."""
    message = {"content": content, "refusal": refusal}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})


RIGHT = "The capital of France is Paris."
ANSWERS = {RIGHT: 1.0, "The capital of France is Berlin.": 8 / 9, "Berlin": 0.0}
"""By hand: 5 of 6 words are shared, an F1 of 5/6; the grade is 1 + round(9 * 5/6) = 9, the reward (9 - 1) / 9."""


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "429", "retry_after": "1"},
        {"kind": "429", "retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"kind": "500"},
        {"kind": "hang"},
        {"kind": "drop"},
        {"kind": "cut"},
        {"kind": "page"},
        {"kind": "flood"},
    ],
    ids=str,
)
async def test_the_service_is_out_and_comes_back(
    fault: dict[str, Any], asker: Callable[..., Any], service: Any
) -> None:
    judge = asker(timeout_s=0.4, BREAKER_THRESHOLD=3)
    names = ("general-quality_ref", "reward_model")
    right = {(name, answer): (await judge.ask(answer, name)).reward for name in names for answer in ANSWERS}
    await service.fault(seconds=0.7, **fault)
    asked = [(name, answer, " " * n) for name, answer in right for n in range(1, 5)]
    verdicts = await asyncio.gather(*(judge.ask(answer + space, name) for name, answer, space in asked))
    for (name, answer, _), verdict in zip(asked, verdicts, strict=True):
        assert verdict.error_kind is None and verdict.reward == right[name, answer], (name, answer)
    for name in names:
        (calls,) = judge.rules[name].counters.values()
        assert calls.openings >= 1
        assert calls.retries > 0
        assert calls.outcomes == {"done": len(asked) // 2 + len(ANSWERS)}


async def test_the_verdicts_are_those_of_the_judge(asker: Callable[..., Any]) -> None:
    judge = asker()
    for answer, reward in ANSWERS.items():
        verdict = await judge.ask(answer)
        assert (verdict.reward, verdict.method) == (pytest.approx(reward), "judge")


@pytest.mark.parametrize("kind", ["429", "500", "hang", "drop"])
async def test_an_outage_past_the_deadline_is_no_reward(kind: str, asker: Callable[..., Any], service: Any) -> None:
    judge = asker(timeout_s=0.2, BREAKER_THRESHOLD=2)
    await service.fault(kind)
    verdicts = await asyncio.gather(*(judge.ask(f"Berlin{' ' * n}") for n in range(6)))
    assert {(verdict.reward, verdict.error_kind) for verdict in verdicts} == {(None, "judge_down")}
    assert all("down for 2 s" in verdict.detail for verdict in verdicts)
    await service.fault("none")
    assert (await judge.ask(RIGHT)).reward == 1.0


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "truncated"},
        {"kind": "nan"},
        {"kind": "refusal"},
        {"kind": "reply", "text": "8/10"},
        {"kind": "reply", "text": '{"score": 95}'},
        {"kind": "reply", "text": '{"score": -5}'},
        {"kind": "reply", "text": '<think>The answer holds {"score": 10}, so'},
    ],
    ids=str,
)
async def test_a_reply_without_a_score_is_asked_for_once_more(
    fault: dict[str, Any], asker: Callable[..., Any], service: Any
) -> None:
    judge = asker()
    await service.fault(calls=1, **fault)
    assert (await judge.ask(RIGHT)).reward == 1.0
    assert service.state.calls == 2
    await service.fault(**fault)
    verdict = await judge.ask("Berlin")
    assert (verdict.reward, verdict.error_kind) == (None, "judge_unreadable")
    assert service.state.calls == 2 + 2
    assert judge.calls.openings == 0
    assert judge.calls.outcomes == {"done": 1, "judge_unreadable": 1}


async def test_a_score_that_is_no_number_is_no_reward(asker: Callable[..., Any], service: Any) -> None:
    judge = asker()
    for fault in ({"kind": "nan"}, {"kind": "reply", "text": "inf"}, {"kind": "reply", "text": "1e30"}):
        await service.fault(**fault)
        verdict = await judge.ask("Berlin", "reward_model")
        assert (verdict.reward, verdict.error_kind) == (None, "reward_model_unreadable")


async def test_calls_at_once_are_bounded(asker: Callable[..., Any], service: Any) -> None:
    judge = asker(concurrency=3)
    await service.fault("slow", delay_s=0.05)
    await asyncio.gather(*(judge.ask(f"Berlin {n}") for n in range(12)))
    assert service.state.most_running == 3


async def test_the_same_question_is_asked_once(asker: Callable[..., Any], service: Any) -> None:
    judge = asker(CACHE_SIZE=2)
    for answer in (RIGHT, "Berlin", RIGHT, RIGHT):
        await judge.ask(answer)
    assert (service.state.calls, judge.calls.calls, judge.calls.cache_hits) == (2, 2, 2)
    await judge.ask(RIGHT, label="It is Paris.")
    await judge.ask(RIGHT, "general-quality")
    assert service.state.calls == 4
    await judge.ask("Berlin")  # no longer among the last two
    assert service.state.calls == 5


async def test_a_verdict_that_failed_is_not_kept(asker: Callable[..., Any], service: Any) -> None:
    judge = asker()
    await service.fault("refusal")
    assert (await judge.ask(RIGHT)).reward is None
    await service.fault("none")
    assert (await judge.ask(RIGHT)).reward == 1.0


async def test_a_service_that_takes_no_request_is_an_error(asker: Callable[..., Any], service: Any) -> None:
    judge = asker()
    await service.fault("400", calls=1)
    assert (await judge.ask(RIGHT)).reward == 1.0
    await service.fault("400")
    verdict = await judge.ask("Berlin")
    assert (verdict.reward, verdict.error_kind) == (None, "judge_rejected")
    assert "HTTP 400 requested by the fault switch" in verdict.detail


async def test_an_answer_that_is_too_long_scores_0(asker: Callable[..., Any], service: Any) -> None:
    judge = asker()
    verdict = await judge.ask(RIGHT + "." * MAX_ANSWER_CHARS)
    assert (verdict.reward, verdict.method, verdict.error_kind) == (0.0, "limit", None)
    assert service.state.calls == 0


@pytest.fixture
async def serve() -> Any:
    """Runs one handler as a server, and returns its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_post("/{path:.*}", handler)
        runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("reply", "calls", "reward", "error"),
    [
        ({"status": 400, "text": "more tokens than the model has"}, [True, False, True], 0.0, None),
        ({"text": said("I like it.")}, [True, True], None, "judge_unreadable"),
        ({"text": said(None, refusal="no")}, [True, True], None, "judge_unreadable"),
        ({"text": said('```json\n{"reasoning": "good", "score": 10}\n```')}, [True], 1.0, None),
    ],
)
async def test_only_a_refused_request_counts_against_its_answer(
    serve: Any,
    make_prompt: Callable[..., Prompt],
    make_completion: Callable[..., Completion],
    reply: dict[str, Any],
    calls: list[bool],
    reward: float | None,
    error: str | None,
) -> None:
    seen: list[bool] = []

    async def handler(request: web.Request) -> web.Response:
        question = (await request.json())["messages"][0]["content"]
        seen.append("poison" in question)
        if "poison" in question:
            return web.Response(content_type="application/json", **reply)
        assert INNOCENT in question
        return web.Response(content_type="application/json", text=said('{"score": 1}'))

    settings = Judge(url=await serve(handler))
    client = Client(HttpEndpoint(settings, f"{settings.url}/v1", SystemClock()), settings, SystemClock())
    rule = ModelVerifier("judge", client, JudgeQuestion(settings, with_reference=False), settings)
    verdict = await rule.verify_row(make_prompt(), make_completion("poison"), "poison", None)
    assert (verdict.reward, verdict.error_kind) == (reward, error)
    assert seen == calls
    await rule.close()


async def test_a_proxy_of_the_environment_is_used(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def proxy(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="through the proxy")

    (tmp_path / ".netrc").write_text("machine judge.invalid login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("JUDGE_KEY_OF_TEST", "secret")
    monkeypatch.setenv("no_proxy", "direct.invalid")
    monkeypatch.setenv("http_proxy", await serve(proxy))
    settings = Judge(url="http://judge.invalid", api_key_env="JUDGE_KEY_OF_TEST")
    endpoint = HttpEndpoint(settings, "http://judge.invalid/v1", SystemClock())
    assert await endpoint.post({}) == b"through the proxy"
    assert seen == ["Bearer secret"]
    await endpoint.close()
    for host in ("direct.invalid", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert proxy_for(f"http://{host}/v1") is None


async def test_the_key_comes_from_the_environment_and_shows_nowhere(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization"))
        status = 401 if keys[-1] is None else 503
        return web.Response(status=status, text=f"you sent {keys[-1]}", headers={"Retry-After": "7"})

    url = await serve(handler)
    monkeypatch.setenv("JUDGE_KEY_OF_TEST", " very-secret \n")
    endpoint = HttpEndpoint(Judge(url=url, api_key_env="JUDGE_KEY_OF_TEST"), url + "/x", SystemClock())
    with pytest.raises(Unavailable) as failed:
        await endpoint.post({})
    assert keys == ["Bearer very-secret"]
    assert "very-secret" not in str(failed.value) and "HTTP 503" in str(failed.value)
    assert (failed.value.asked_s, failed.value.busy) == (7.0, False)
    await endpoint.close()
    monkeypatch.delenv("JUDGE_KEY_OF_TEST")
    endpoint = HttpEndpoint(Judge(url=url, api_key_env="JUDGE_KEY_OF_TEST"), url + "/x", SystemClock())
    with pytest.raises(Unavailable, match="api_key_env names JUDGE_KEY_OF_TEST"):
        await endpoint.post({})
    await endpoint.close()


async def test_a_redirect_is_not_followed_and_a_flood_not_read(serve: Any) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    settings = HttpService(url=await serve(handler))
    endpoint = HttpEndpoint(settings, f"{settings.url}/x", SystemClock())
    with pytest.raises(Unavailable, match="HTTP 307"):
        await endpoint.post({})
    await endpoint.close()
    assert MAX_REPLY_BYTES < FLOOD_BYTES


async def test_labels_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY_OF_TEST", raising=False)
    rules = model_verifiers(Verifiers(reward_model=RewardModel(url="http://x", api_key_env="JUDGE_KEY_OF_TEST")))
    assert await rules["general-quality"].problem("") == "set verifiers.judge.url"
    assert "set the environment variable JUDGE_KEY_OF_TEST" in str(await rules["reward_model"].problem(""))
    rules = model_verifiers(Verifiers(judge=Judge(url="http://x")))
    assert rules["general-quality"].usable(None) and rules["general-quality_ref"].usable("Paris")
    for label in ("", " ", None, [], True):
        assert "a reference answer must be text" in str(await rules["general-quality_ref"].problem(label))


async def test_without_an_address_there_is_no_reward(
    make_prompt: Callable[..., Prompt], make_completion: Callable[..., Completion]
) -> None:
    rule = model_verifiers(Verifiers())["general-quality"]
    verdict = await rule.verify_row(make_prompt(), make_completion("Paris"), "Paris", None)
    assert (verdict.reward, verdict.error_kind, verdict.detail) == (None, "judge_setup", "set verifiers.judge.url")


def test_addresses() -> None:
    assert address("http://host:8000", "/v1", "/chat/completions") == "http://host:8000/v1/chat/completions"
    assert address("https://host/v1beta/", "/v1", "/chat/completions") == "https://host/v1beta/chat/completions"
    assert address("http://host:8000/", "", "/classify") == "http://host:8000/classify"
