"""Teachers over a real socket: routing, outages and damaged replies end in their numbers or in no verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from msgspec import UNSET
from msgspec.structs import replace

from olmorl import config
from olmorl.config import Distillation, HttpService, Verifiers
from olmorl.errors import ConfigError, DataError, ResourceError, Unscorable
from olmorl.learner.data.checks import check_taught
from olmorl.learner.data.loader import Loader
from olmorl.learner.data.stream import Source
from olmorl.messages import REFERENCE, TEACHER, Completion, Prompt, Span, Verdict, Version
from olmorl.ports import Row
from olmorl.verifiers.judge.service import client
from olmorl.verifiers.judge.service.failures import Unavailable, UnreadableReply
from olmorl.verifiers.scorer import VerifierScorer
from olmorl.verifiers.teacher_check import check_token_scorers
from olmorl.verifiers.teachers import LEAST_LOGPROB, read
from tests.verifiers.teacher_server import TeacherServer, Words
from tests.waiting import until

ANSWER = [3, 0, 250]


def prompt_of(row: str = "data/math.jsonl:3", datasets: tuple[str, ...] = (), lane: str = "train") -> Prompt:
    return Prompt(
        draw_id=0,
        lane=lane,
        row=row,
        messages="?",
        token_ids=np.array([9, 8], np.int32),
        datasets=datasets,
        ground_truths=("4",) * len(datasets),
        group_size=2,
        min_version=Version(0, 0),
    )


def answer(index: int = 0, tokens: list[int] = ANSWER, text: str = "4") -> Completion:
    return Completion(
        index=index,
        token_ids=np.array(tokens, np.int32),
        logprobs=np.full(len(tokens), -1.0, np.float32),
        spans=(Span(Version(1, 0), 0, len(tokens)),),
        finish_reason="stop",
        text=text,
    )


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[tuple[TeacherServer, TeacherServer]]:
    pair = TeacherServer(), TeacherServer(shift=10.0)
    yield pair
    for server in pair:
        await server.stop()


@pytest_asyncio.fixture
async def scorer_of() -> AsyncIterator[Callable[..., Any]]:
    """Starts a scorer with teachers."""
    made: list[VerifierScorer] = []

    async def start(
        teachers: dict[str, Any], *, with_rewards: bool = False, reference: HttpService | None = None, **verifiers: Any
    ) -> VerifierScorer:
        distillation = Distillation.model_validate({"teachers": teachers, "with_rewards": with_rewards})
        made.append(VerifierScorer(Verifiers(**verifiers), 0, distillation, reference))
        await made[-1].start()
        return made[-1]

    yield start
    for scorer in made:
        await scorer.stop()


def values(verdict: Verdict) -> list[float] | None:
    return None if verdict.token_logprobs is UNSET else [round(float(v), 4) for v in verdict.token_logprobs]


async def test_two_teachers_and_a_default_share_the_rows_by_their_source(
    servers: tuple[TeacherServer, TeacherServer], scorer_of: Callable[..., Any]
) -> None:
    one, other = servers
    first, second = await one.start(), await other.start()
    scorer = await scorer_of(
        {
            "all": {"url": first},
            "math": {"url": f"{second}/v1", "model": "big", "sources": ["data/math.jsonl", "owner/set"]},
        }
    )
    for row, name, expected in (
        ("/home/me/data/math.jsonl:3", "math", [-1.3, -1.0, LEAST_LOGPROB]),
        ("owner/set:8", "math", [-1.3, -1.0, LEAST_LOGPROB]),
        ("data/other.jsonl:3", "all", [-0.3, 0.0, LEAST_LOGPROB]),
    ):
        verdicts = await scorer.verify(prompt_of(row), answer())
        assert list(verdicts) == [TEACHER]
        assert (verdicts[TEACHER].method, values(verdicts[TEACHER])) == (name, expected)
    assert other.asked[0] == {"prompt": [9, 8, *ANSWER], "max_tokens": 1, "prompt_logprobs": 0, "model": "big"}
    assert "model" not in one.asked[0]
    assert await scorer.verify(prompt_of("x.jsonl:3", lane="held_out"), answer()) == {}
    counts = scorer.counts()
    assert (counts["teacher_math"]["calls"], counts["teacher_all"]["calls"]) == (2, 1)
    assert counts["teacher_math"]["outcomes.done"] == 2 and counts["teacher_math"]["seconds"] > 0


async def test_alone_a_group_needs_no_reward_and_with_rewards_it_does(
    servers: tuple[TeacherServer, TeacherServer], scorer_of: Callable[..., Any]
) -> None:
    url = await servers[0].start()
    alone, mixed = [await scorer_of({"all": {"url": url}}, with_rewards=mixes) for mixes in (False, True)]
    for datasets, scorer, rewards in (
        ((), alone, [None, None]),
        (("math",), alone, [1, 0]),
        (("math",), mixed, [1, 0]),
    ):
        prompt = prompt_of(datasets=datasets)
        group = [answer(0, text=r"\boxed{4}"), answer(1, text=r"\boxed{5}")]
        group = [replace(each, verdicts=await scorer.verify(prompt, each)) for each in group]
        made = await scorer.combine(prompt, group)
        assert [each.reward for each in made] == rewards
        assert all(each.teacher_logprobs is not None for each in made)
    with pytest.raises(Unscorable, match="nothing_applies"):
        await mixed.combine(prompt_of(), [replace(each, verdicts={}) for each in group])


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {}


def damage(function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    DAMAGES[function.__name__] = function
    return function


def entries(reply: dict[str, Any]) -> list[Any]:
    found: list[Any] = reply["choices"][0]["prompt_logprobs"]
    return found


@damage
def one_too_few(reply: dict[str, Any]) -> Any:
    entries(reply).pop()
    return reply


@damage
def one_too_many(reply: dict[str, Any]) -> Any:
    entries(reply).append(entries(reply)[-1])
    return reply


@damage
def of_another_token(reply: dict[str, Any]) -> Any:
    entries(reply)[-1] = {"77": {"logprob": -0.1}}
    return reply


@damage
def none_of_a_token(reply: dict[str, Any]) -> Any:
    entries(reply)[-1] = None
    return reply


@damage
def above_zero(reply: dict[str, Any]) -> Any:
    entries(reply)[-2] = {str(ANSWER[-2]): {"logprob": 0.4}}
    return reply


@damage
def not_a_number(reply: dict[str, Any]) -> Any:
    return json.dumps(reply).replace("-0.3", "NaN").encode()


@damage
def text_for_a_number(reply: dict[str, Any]) -> Any:
    return json.dumps(reply).replace("-0.3", '"-0.3"').encode()


@damage
def null_for_a_number(reply: dict[str, Any]) -> Any:
    return json.dumps(reply).replace("-0.3", "null").encode()


@damage
def half_a_reply(reply: dict[str, Any]) -> Any:
    return json.dumps(reply).encode()[:90]


@damage
def a_page(reply: dict[str, Any]) -> Any:
    return b"<html>busy</html>"


@damage
def without_prompt_logprobs(reply: dict[str, Any]) -> Any:
    reply["choices"][0]["prompt_logprobs"] = None
    return reply


@damage
def two_choices(reply: dict[str, Any]) -> Any:
    reply["choices"] *= 2
    return reply


@damage
def no_choice(reply: dict[str, Any]) -> Any:
    return {**reply, "choices": []}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_reply_has_no_numbers(name: str) -> None:
    reply = TeacherServer().reply({"prompt": [9, 8, *ANSWER]})
    whole = read(json.dumps(reply).encode(), 2, ANSWER)
    assert [round(float(value), 4) for value in whole] == [-0.3, 0.0, LEAST_LOGPROB]
    made = DAMAGES[name](reply)
    with pytest.raises((Unavailable, UnreadableReply)):
        read(made if isinstance(made, bytes) else json.dumps(made).encode(), 2, ANSWER)


def test_a_token_that_the_teacher_excludes_has_the_least_log_probability() -> None:
    reply = TeacherServer().reply({"prompt": [9, 8, *ANSWER]})
    entries(reply)[-1][str(ANSWER[-1])]["logprob"] = -9999.0
    entries(reply)[-2][str(ANSWER[-2])]["logprob"] = 1e-7
    assert read(json.dumps(reply).encode(), 2, ANSWER)[1:].tolist() == [0.0, LEAST_LOGPROB]


@pytest.mark.parametrize(("name", "kind"), [("of_another_token", "teacher_unreadable"), ("a_page", "teacher_down")])
async def test_a_teacher_that_stays_damaged_fails_the_group(
    name: str,
    kind: str,
    servers: tuple[TeacherServer, TeacherServer],
    scorer_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "FIRST_BACKOFF_S", 0.01)
    url = await servers[0].start()
    servers[0].spoil = DAMAGES[name]
    scorer = await scorer_of({"all": {"url": url, "timeout_s": 0.05}})
    verdicts = await scorer.verify(prompt_of(), answer())
    assert (verdicts[TEACHER].error_kind, verdicts[TEACHER].reward, values(verdicts[TEACHER])) == (kind, None, None)
    group = [replace(answer(index), verdicts=verdicts) for index in range(2)]
    with pytest.raises(Unscorable, match=f"^{kind}: teacher: all: "):
        await scorer.combine(prompt_of(), group)
    servers[0].spoil = None
    assert values((await scorer.verify(prompt_of(), answer()))[TEACHER]) == [-0.3, 0.0, LEAST_LOGPROB]


async def test_a_served_reference_scores_all_training_rows_beside_verifiers_and_teachers(
    servers: tuple[TeacherServer, TeacherServer], scorer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_BACKOFF_S", 0.01)
    teacher, reference = servers
    reference_at = HttpService(url=await reference.start(), model="start", timeout_s=0.3)
    taught = {"policy": {"url": await teacher.start(), "sources": ["math.jsonl"]}}
    scorer = await scorer_of(taught, with_rewards=True, reference=reference_at)
    verdicts = await scorer.verify(prompt_of(datasets=("math",)), answer(text=r"\boxed{4}"))
    assert list(verdicts) == ["math", TEACHER, REFERENCE]
    assert (values(verdicts[TEACHER]), values(verdicts[REFERENCE])) == (
        [-0.3, 0.0, LEAST_LOGPROB],
        [-1.3, -1.0, LEAST_LOGPROB],
    )
    assert reference.asked[0]["model"] == "start"
    (scored,) = await scorer.combine(prompt_of(datasets=("math",)), [replace(answer(), verdicts=verdicts)])
    assert scored.reward == 1.0 and scored.reference_logprobs is not None
    assert list(await scorer.verify(prompt_of("x.jsonl:3"), answer())) == [REFERENCE]
    assert list(await scorer.verify(prompt_of(lane="held_out"), answer())) == []
    reference.status = 503
    verdicts = await scorer.verify(prompt_of(datasets=("math",)), answer())
    with pytest.raises(Unscorable, match=r"^reference_down: reference: server: "):
        await scorer.combine(prompt_of(datasets=("math",)), [replace(answer(), verdicts=verdicts)])
    counts = scorer.counts()
    assert (counts["reference_server"]["outcomes.reference_down"], counts["reference_server"]["outcomes.done"]) == (
        1,
        2,
    )
    assert counts["teacher_policy"]["calls"] == 2


async def test_an_outage_is_waited_out(
    servers: tuple[TeacherServer, TeacherServer], scorer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_BACKOFF_S", 0.05)
    url = await servers[0].start()
    servers[0].status = 503
    scorer = await scorer_of({"all": {"url": url, "timeout_s": 3.0}})
    asked = [asyncio.create_task(scorer.verify(prompt_of(), answer(index))) for index in range(8)]
    await asyncio.to_thread(until, lambda: scorer.counts()["teacher_all"]["breaker_open"])
    servers[0].status = 200
    for verdicts in await asyncio.gather(*asked):
        assert values(verdicts[TEACHER]) == [-0.3, 0.0, LEAST_LOGPROB]
    counts = scorer.counts()["teacher_all"]
    assert counts["openings"] >= 1 and counts["breaker_open"] == 0 and counts["outcomes.done"] == 8


@pytest.fixture
def on_thread() -> Any:
    """Runs a server on an event loop of its own, for checks that make theirs."""
    import threading

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    started: list[TeacherServer] = []

    def start(server: TeacherServer) -> str:
        started.append(server)
        return asyncio.run_coroutine_threadsafe(server.start(), loop).result()

    yield start
    for server in started:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def one(url: str, **more: Any) -> Distillation:
    return Distillation.model_validate({"teachers": {"big": {"url": url, **more}}})


def services(url: str, **more: Any) -> dict[str, HttpService]:
    return config.Config(distillation=one(url, **more)).token_scorers


def test_a_teacher_with_the_vocabulary_of_the_policy_may_start(on_thread: Callable[[TeacherServer], str]) -> None:
    server = TeacherServer()
    check_token_scorers(services(f"{on_thread(server)}/v1"), Words(), longest=100)
    assert len(server.asked[0]["prompt"]) == 100


@pytest.mark.parametrize(
    ("server", "longest", "error", "message"),
    [
        (
            TeacherServer(words=lambda token: "x" if token == 33 else str(token)),
            10,
            ConfigError,
            r"^distillation\.teachers\.big: its vocabulary is not the policy's: token 33 is 'x' there and '33' here",
        ),
        (TeacherServer(), 5000, ConfigError, r"it refuses a sample of 5000 tokens .*--max-model-len of 5001 or more"),
    ],
)
def test_another_vocabulary_or_a_short_context_is_refused_before_the_run(
    on_thread: Callable[[TeacherServer], str], server: TeacherServer, longest: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_token_scorers(services(on_thread(server)), Words(), longest)


def test_a_server_that_is_no_teacher_or_not_there_is_named(on_thread: Callable[[TeacherServer], str]) -> None:
    server = TeacherServer()
    server.spoil = DAMAGES["without_prompt_logprobs"]
    with pytest.raises(ResourceError, match=r"teachers\.big: the reply is not a completion with prompt_logprobs"):
        check_token_scorers(services(on_thread(server)), Words(), 10)
    with pytest.raises(ResourceError, match=r"teachers\.big: http://127\.0\.0\.1:9/v1/completions: ClientConnector"):
        check_token_scorers(services("http://127.0.0.1:9"), Words(), 10)
    with pytest.raises(ConfigError, match=r"set the environment variable NO_SUCH_KEY .*teachers\.big\.api_key_env"):
        check_token_scorers(services("http://127.0.0.1:9", api_key_env="NO_SUCH_KEY"), Words(), 10)


def source(*places: str) -> Source:
    rows = [Row(place, place, np.array([1], np.int32), (), (), {}, False) for place in places]
    return Source("all", None, rows)


def test_rows_without_a_teacher_and_teachers_without_rows_are_named() -> None:
    math = one("http://h", sources=["math.jsonl"])
    check_taught([source("data/math.jsonl:1")], math, are_all=True)
    with pytest.raises(ConfigError, match=r"none teaches the rows of data/code\.jsonl: add it to the sources of one"):
        check_taught([source("data/math.jsonl:1", "data/code.jsonl:1")], math, are_all=False)
    mixed = math.model_copy(update={"with_rewards": True})
    check_taught([source("data/math.jsonl:1", "data/code.jsonl:1")], mixed, are_all=True)
    with pytest.raises(ConfigError, match=r"teachers\.big\.sources: no training row is from math\.jsonl"):
        check_taught([source("data/code.jsonl:1")], mixed, are_all=True)
    check_taught([source("data/code.jsonl:1")], mixed, are_all=False)


@pytest.mark.parametrize(
    ("covered", "row"),
    [
        (["data"], "/home/me/data/math.jsonl:1"),
        (["/home/me/data"], "/home/me/data/math.jsonl:1"),
        (["*.parquet"], "x/part-1.parquet:9"),
        (["owner/set"], "owner/set:5"),
    ],
)
def test_sources_may_be_folders_files_patterns_and_hub_sets(covered: list[str], row: str) -> None:
    assert one("http://h", sources=covered).teacher_of(row) == "big"
    assert one("http://h", sources=covered).teacher_of("elsewhere/rows.jsonl:1") is None


def test_training_rows_of_teachers_need_no_verifier(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1 + 1?"}\n{"prompt": "2 + 2?", "ground_truth": "4", "dataset": "math"}\n')

    class Tokenizer:
        chat_template = None

        def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
            return {"input_ids": [[len(text)] for text in texts]}

    from olmorl.config import Data

    loader = Loader(Data(), Tokenizer(), Verifiers(), labels_optional=True)
    rows = loader.load(str(file)).rows
    assert [(row.datasets, row.ground_truths) for row in rows] == [((), ()), (("math",), ("4",))]
    assert [row.datasets for row in loader.for_evaluation().load(str(file)).rows] == [("math",)]
    with pytest.raises(DataError, match="no usable label"):
        Loader(Data(strict=True), Tokenizer(), Verifiers()).load(str(file))


def test_a_teacher_is_an_http_service_with_a_bounded_wait() -> None:
    (teacher,) = one("http://h", timeout_s=6.0).teachers.values()
    assert isinstance(teacher, HttpService) and teacher.outage_deadline_s == 60.0


def test_episodes_have_no_teachers() -> None:
    teachers = {"one": {"url": "http://localhost:1/v1", "model": "m"}}
    with pytest.raises(ConfigError, match=r"take out episodes\.environment, or distillation\.teachers\.one"):
        config.build({"distillation": {"teachers": teachers}, "episodes": {"environment": "a:b"}})
