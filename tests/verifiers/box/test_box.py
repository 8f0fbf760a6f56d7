"""The built-in tools as an environment: a row's choice of tools, `submit`, and the time that calls share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from olmorl.config import Episodes, Verifiers, box_tools
from olmorl.deploy.evaluation.answer_file import EPISODE, completion_of, episode_of
from olmorl.errors import ConfigError
from olmorl.verifiers.box.submit_tool import Submit
from olmorl.verifiers.box.tool import AnswerTime, bounded
from olmorl.verifiers.code.inside.output import LONGEST
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from olmorl.verifiers.scorer import VerifierScorer
from tests.verifiers.environments.test_forked_environments import calls, episode, prompt

VERIFIERS = Verifiers(workers=1, code_tier="landlock", memory_mib=512)


@asynccontextmanager
async def opened(environment: str, timeout_s: float = 60.0) -> AsyncIterator[ForkedEnvironments]:
    made = ForkedEnvironments(Episodes(environment=environment, timeout_s=timeout_s), VERIFIERS)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def test_a_recipe_names_its_tools_and_what_they_need() -> None:
    assert box_tools("box:python,search=docs.jsonl,submit") == {"python": "", "search": "docs.jsonl", "submit": ""}
    assert box_tools("shop.py:box") == box_tools("gymnasium:python") == box_tools(None) == {}


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ("box:python,pyton", "'pyton' is no tool of .*: box has only python, bash, search, submit"),
        ("box:submit,submit", "'submit' is no tool of .*: box names it twice"),
        ("box:python,", "'' is no tool"),
    ],
)
def test_a_tool_that_there_is_not_is_named(environment: str, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Episodes(environment=environment)


def test_the_policy_is_shown_the_tools_of_the_recipe() -> None:
    python, submit = schemas(Episodes(environment="box:python,submit"))
    assert python["function"]["name"] == "python" and "code" in python["function"]["parameters"]["properties"]
    assert submit["function"]["name"] == "submit" and submit["function"]["parameters"]["required"] == ["answer"]


async def test_a_row_has_the_tools_that_it_names() -> None:
    async with opened("box:python,submit") as made:
        for names, result in (
            (["submit"], "no tool 'python'; there are submit"),
            (None, "1"),
            ([], "no tool 'python'"),
        ):
            world = made.open()
            assert await world.reset(prompt(tools=names), 0) is None
            (message,) = (await world.step(calls(("python", {"code": "print(1)"})))).messages
            assert message["content"].strip().removeprefix("Error: ").startswith(result)
            await world.close()


async def test_submit_ends_the_episode_and_later_calls_of_the_answer_do_nothing() -> None:
    async with opened("box:python,submit") as made:
        world = made.open()
        await world.reset(prompt(), 0)
        step = await world.step(calls(("submit", {}), ("submit", {"answer": "7"}), ("submit", {"answer": "8"})))
        assert (step.done, step.submitted, step.messages) == (True, "7", [])
        await world.close()
        again = made.open()
        await again.reset(prompt(tools=["python"]), 0)
        step = await again.step(calls(("python", {"code": "2"})))
        assert (step.done, step.submitted) == (False, None), "nothing is left of what the last episode submitted"
        assert (await again.step({"role": "assistant", "content": "7"})).done, "an answer without a call ends it too"
        await again.close()
        assert made.counts()["tool_calls.submit"] == 2


@pytest.mark.parametrize(("answer", "text"), [("7", "7"), (7, "7"), ([1, "a"], '[1, "a"]'), (True, "true")])
def test_an_answer_of_another_type_is_submitted_as_json(answer: Any, text: str) -> None:
    tool = Submit("", None)
    tool.submit(answer)
    assert tool.answer == text


FUNCTIONS = """
def live(environments, **kwargs):
    return [float(environments[0].submitted == "7" and environments[0].submit.answer == "7")]


def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == "7")
"""


async def test_what_was_submitted_is_scored_whatever_the_template_has_opened(tmp_path: Path) -> None:
    (tmp_path / "scored.py").write_text(FUNCTIONS)
    functions = [f"{tmp_path}/scored.py:live", f"{tmp_path}/scored.py:compute_score"]
    verifiers = VERIFIERS.model_copy(update={"functions": functions})
    made, scorer = ForkedEnvironments(Episodes(environment="box:submit"), verifiers), VerifierScorer(verifiers)
    await made.start()
    await scorer.start()
    row = replace(prompt(), thinking_opened=True)
    try:
        for answer, reward in (("7", 1.0), ("8", 0.0)):
            world = made.open()
            await world.reset(row, 0)
            reply = calls(("submit", {"answer": answer}))
            step = await world.step(reply)
            played = episode({**reply, "submitted": step.submitted})
            assert (await world.reward(played))["live"].reward == reward
            await world.close()
            (verdict,) = (await scorer.verify(row, played)).values()
            assert verdict.reward == reward, "the prompt opens thinking, and the answer has no text of its own"
            stored = {"completion": "", EPISODE: episode_of(played)}
            assert completion_of(stored).submitted == answer, "olmorl-eval scores from its file"
            (judged,) = await scorer.judged(row, [played])
            assert judged.verdicts["compute_score"].reward == reward
    finally:
        await made.stop()
        await scorer.stop()


async def test_a_sandbox_that_does_not_work_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    made = ForkedEnvironments(Episodes(environment="box:python"), Verifiers(code_tier="bubblewrap"))
    with pytest.raises(ConfigError, match=r"verifiers\.code_tier = bubblewrap: .*install the package bubblewrap"):
        await made.start()


async def test_the_calls_of_one_answer_end_together_before_the_deadline() -> None:
    async with opened("box:python", timeout_s=4.0) as made:
        world = made.open()
        await world.reset(prompt(), 0)
        asleep = ("python", {"code": "import time; time.sleep(60)"})
        step = await world.step(calls(asleep, asleep))
        first, second = (one["content"] for one in step.messages)
        assert first == "Error: it ran longer than 3 s. All variables are lost."
        assert second == "Error: ValueError: the calls of this answer took too long together"
        (message,) = (await world.step(calls(("python", {"code": "1 + 1"})))).messages
        assert message["content"] == "2\n", "the next answer has time again"
        await world.close()


def test_a_call_takes_no_more_than_the_time_that_is_left() -> None:
    time = AnswerTime(100.0)
    assert time.limit_s(13.0) == 13.0
    assert 79.0 < time.limit_s(1000.0) <= 80.0


def test_a_long_result_keeps_its_beginning_and_end() -> None:
    assert bounded("x" * LONGEST) == "x" * LONGEST
    text = bounded("".join(map(chr, range(200, 200 + LONGEST + 123))))
    assert "\n[123 characters left out]\n" in text and len(text) < LONGEST + 50
    assert (text[0], text[-1]) == (chr(200), chr(200 + LONGEST + 122))
