"""vLLM's parsers of calls: what they read, and what they would hide."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from olmorl.actors.episodes.template_check import call
from olmorl.actors.vllm_engine.tool_calls import ToolCallParser
from olmorl.deploy.demo.tiny_model import build_tokenizer
from olmorl.errors import ConfigError
from tests.actors.episodes.test_suffix import OLMO_3, tokenizer_of

pytestmark = pytest.mark.doors
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(64)


@pytest.fixture(scope="module")
def hermes(tokenizer: Any) -> ToolCallParser:
    return ToolCallParser("hermes", tokenizer, TOOLS, "</think>")


def test_calls_are_read_with_the_text_before_them(hermes: ToolCallParser) -> None:
    message = hermes(f"<think>Add {ADD}</think>Let me add.\n{ADD}\n{ADD.replace('3', '5')}", [])
    assert message["content"] == "Let me add.\n" and message["reasoning_content"] == f"<think>Add {ADD}"
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 3, "b": 4}},
        {"name": "add", "arguments": {"a": 5, "b": 4}},
    ]
    assert [one["id"] for one in message["tool_calls"]] == ["call00000", "call00001"]
    assert hermes("It is 7.", []) == {"role": "assistant", "content": "It is 7."}


@pytest.mark.parametrize(
    "text",
    [
        f'{ADD}<tool_call>{{"name": "add", "arg</tool_call>',  # one malformed call hides the other
        "<tool_call>nothing",
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 99999999999999999999}}</tool_call>',  # no message carries it
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>',
    ],
)
def test_a_bad_call_is_named_and_floods_no_log(
    hermes: ToolCallParser, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("vllm").propagate = True
    message = hermes(text, [])
    assert message["bad_call"] and "tool_calls" not in message
    assert not caplog.records


def test_an_answer_that_looks_like_python_is_a_call_only_in_its_tag(tokenizer: Any) -> None:
    olmo = ToolCallParser("olmo3", tokenizer, TOOLS, "</think>")
    assert olmo("print(x=1)", []) == {"role": "assistant", "content": "print(x=1)"}
    (found,) = olmo("I add. <function_calls>add(a=3, b=4)</function_calls>", [])["tool_calls"]
    assert found["function"] == {"name": "add", "arguments": {"a": 3, "b": 4}}
    assert olmo("I add. <function_calls>add(a=3, b=4)</function_calls>", [])["content"] == "I add. "


def test_the_calls_that_the_template_of_olmo_3_writes_are_read_again() -> None:
    tokenizer = tokenizer_of(OLMO_3)
    written = [call("add", {"a": 3, "b": "four\n"}), call("add", {"a": [5], "b": {"c": 1.5}}, 1)]
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Add."}]
    answer = {"role": "assistant", "content": "I add.", "tool_calls": written}
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, tools=TOOLS)
    whole = tokenizer.apply_chat_template([*asked, answer], tokenize=False, tools=TOOLS)
    assert whole.startswith(prompt)
    said = whole.removeprefix(prompt).removesuffix(tokenizer.eos_token)
    found = ToolCallParser("olmo3", tokenizer, TOOLS, "</think>")(said, [])
    assert found == answer


def test_a_parser_that_does_not_exist_is_named(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"episodes\.tool_parser = 'hermse'"):
        ToolCallParser("hermse", tokenizer, TOOLS, "</think>")
