"""Token in, token out: the tokens of every turn are those of the template, over random conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from olmorl.actors.episodes.suffix import TemplateRenderer, TemplateUnfit
from olmorl.actors.episodes.template_check import call, faults
from olmorl.deploy.demo.tiny_model import CHAT_TEMPLATE, END
from olmorl.errors import EnvironmentFailed, PromptRefused
from olmorl.messages import Completion, Span, Version

SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|eot|>", "<|head|>", "<|tail|>", "<|user|>", "<|assistant|>", "<|tool|>", END,
    "<turn>", "</turn>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]

SHOWN = "{% if tools %}{{ '<|im_start|>system\n' }}{{ tools | tojson }}{{ '<|im_end|>\n' }}{% endif %}"
CHATML = SHOWN + (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls %}"
    "{{ '\n<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETFUL = CHATML.replace(
    "m.content }}{% for c",
    "(m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1].lstrip()) }}{% for c",
)
"""Leaves the thinking of earlier answers out, as Qwen 3 does."""
HEADERS = (
    "{% for m in messages %}{{ '<|head|>' + m.role + '<|tail|>\n\n' }}{% if loop.first and tools %}{{ tools | tojson }}"
    "{% endif %}{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('single calls only') }}{% endif %}{{ m.tool_calls[0].function | tojson }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|tail|>\n\n' }}{% endif %}"
)
BRACKETS = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS]' + (m.tool_calls | map(attribute='function') | list | tojson) + '</s>' }}"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
NEXT_ROLE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""An answer ends with the mark of the next role, as in GLM."""
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<turn>' + m.role + '\n' + (m.content | trim) + '</turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)
ENVIRONMENT = CHATML.replace("'tool'", "'environment'")
"""Names the results of tools `environment`; the role `tool` is written as a role of its own."""
OLMO_3 = """
{%- if not messages | selectattr('role', 'equalto', 'system') | list -%}
{{- '<|im_start|>system\\nYou are a helpful function-calling AI assistant. ' -}}
{%- if tools is none -%}
{{- 'You do not currently have access to any functions. <functions></functions><|im_end|>\\n' -}}
{%- else -%}
{{- 'You are provided with function signatures within <functions></functions> XML tags. You may call one or more '
 ~ 'functions to assist with the user query. Output any function calls within <function_calls></function_calls> XML '
 ~ 'tags. Do not make assumptions about what values to plug into functions.<functions>' ~ (tools | tojson)
 ~ '</functions><|im_end|>\\n' -}}
{%- endif -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{- '<|im_start|>system\\n' + message['content'] -}}
{%- if tools is not none -%}
{{- '<functions>' ~ (tools | tojson) ~ '</functions>' -}}
{%- elif message.get('functions', none) is not none -%}
{{- ' <functions>' + message['functions'] + '</functions>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- elif message['role'] == 'user' -%}
{{- '<|im_start|>user\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- elif message['role'] == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.get('content', none) is not none -%}
{{- message['content'] -}}
{%- endif -%}
{%- if message.get('function_calls', none) is not none -%}
{{- '<function_calls>' + message['function_calls'] + '</function_calls>' -}}
{%- elif message.get('tool_calls', none) is not none -%}
{{- '<function_calls>' -}}
{%- for tool_call in message['tool_calls'] -%}
{%- set ns = namespace(given=[]) -%}
{%- for key, value in tool_call['function']['arguments'].items() -%}
{%- set ns.given = ns.given + [key ~ '=' ~ (value | tojson)] -%}
{%- endfor -%}
{{- tool_call['function']['name'] ~ '(' ~ (ns.given | join(', ')) ~ ')' -}}
{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}
{%- endfor -%}
{{- '</function_calls>' -}}
{%- endif -%}
{{- eos_token if loop.last else '<|im_end|>\\n' -}}
{%- elif message['role'] in ('environment', 'tool') -%}
{{- '<|im_start|>environment\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- if loop.last and add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
{%- endfor -%}
"""
"""The chat template of Olmo 3, from memory: a conversation of its Instruct models. Its calls are lines of Python."""
OLMO_3_THINK = (
    OLMO_3.replace("tools is none", "true")
    .replace("tools is not none", "false")
    .replace("in ('environment', 'tool')", "== 'environment'")
    .replace("{{- '<|im_start|>assistant\\n' -}}\n{%- endif", "{{- '<|im_start|>assistant\\n<think>' -}}\n{%- endif")
)
"""The same of its Think models: they think, tools are not shown, and only the role `environment` brings results."""
TEXT_LAST = (
    "{% set ns = namespace(text='') %}{{ tools | tojson if tools else '' }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ '<|tool|>' + m.content }}"
    "{% if (loop.last or messages[loop.index].role != 'tool') and ns.text %}{{ ns.text + '</turn>' }}{% endif %}"
    "{% elif m.tool_calls %}{% set ns.text = m.content %}{{ m.tool_calls | map(attribute='function') | list | tojson }}"
    "{% else %}{{ '<turn>' + m.role + m.content + '</turn>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<turn>assistant' }}{% endif %}"
)
"""A call ends with the mark of its result, and the text before it comes behind the results, as in Gemma 4."""

FAMILIES = {
    "demo": (CHAT_TEMPLATE, [END], None),
    "chatml": (CHATML, ["<|im_end|>"], "tool"),
    "forgetful": (FORGETFUL, ["<|im_end|>"], "tool"),
    "headers": (HEADERS, ["<|eot|>"], "tool"),
    "brackets": (BRACKETS, ["</s>"], "tool"),
    "next role": (NEXT_ROLE, ["<|user|>", "<|tool|>", END], "tool"),
    "alternating": (ALTERNATING, ["</turn>"], None),
    "environment": (ENVIRONMENT, ["<|im_end|>"], "environment"),
    "olmo 3": (OLMO_3, ["<|im_end|>", END], "tool"),
    "olmo 3 think": (OLMO_3_THINK, ["<|im_end|>", END], None),
    "text last": (TEXT_LAST, ["</turn>", "<|tool|>"], "tool"),
}
WORDS = ("the sum is", "7", "{}", "<b>", "\n", "  two  spaces ", "é", "\\boxed{3}", "</think>", "42.", "\t", "call add")


def tokenizer_of(template: str, special: Sequence[str] = SPECIAL, eos: str = SPECIAL[1]) -> Any:
    """Byte-level BPE with merges over spaces and line breaks, so that pieces encoded apart could differ."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    texts = [" ".join(WORDS), template, *["\n\n", "assistant\n", "\nthe", "user\n\n"] * 20]
    letters = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, initial_alphabet=letters, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=special[0], eos_token=eos, extra_special_tokens=list(dict.fromkeys(special)),
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = template
    return tokenizer


def renderer_of(template: str, stops: list[str], role: str | None) -> tuple[Any, TemplateRenderer]:
    tokenizer = tokenizer_of(template)
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    return tokenizer, TemplateRenderer(tokenizer, ids, tools=TOOLS if role else ())


def answered(ids: list[int]) -> Completion:
    return Completion(
        index=0,
        token_ids=np.array(ids, np.int32),
        logprobs=np.zeros(len(ids), np.float32),
        spans=(Span(Version(1, 0), 0, len(ids)),),
        finish_reason="stop",
        text="",
    )


def a_text(chance: Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(0, 5)))


def an_exchange(
    chance: Random, role: str | None, *, parallel: bool = True, users: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer as a message, and what comes in after it: results of calls with errors, or the words of a user."""
    reply: dict[str, Any] = {"role": "assistant", "content": a_text(chance)}
    if chance.random() < 0.4:
        reply["content"] = f"<think>{a_text(chance)}</think>\n\n{reply['content']}"
    if role is None or (users and chance.random() < 0.3):
        return reply, [{"role": "user", "content": a_text(chance) or "go on"}]
    number = chance.randint(1, 3) if parallel else 1
    reply["tool_calls"] = calls = [
        call("add", {"a": chance.randint(0, 9), "t": a_text(chance)}, n) for n in range(number)
    ]
    results = (json.dumps(a_text(chance)) if chance.random() < 0.7 else "Error: no such tool" for _ in calls)
    return reply, [
        {"role": role, "name": "add", "tool_call_id": one["id"], "content": result}
        for one, result in zip(calls, results, strict=True)
    ]


class CountedTokenizer:
    """A tokenizer that counts the tokens that it makes of texts."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.num_tokens = 0

    def __call__(self, texts: list[str], **options: Any) -> Any:
        made = self._tokenizer(texts, **options)
        self.num_tokens += sum(map(len, made["input_ids"]))
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def written(tokenizer: Any, conversation: list[dict[str, Any]], tools: bool) -> list[int]:
    whole = tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True, tools=TOOLS if tools else None
    )
    return list(tokenizer([whole], add_special_tokens=False)["input_ids"][0])


def play_at_random(tokenizer: Any, stops: list[str], role: str | None, name: str, **kinds: bool) -> None:
    """200 random conversations: the tokens of every turn are those of the template, each made once."""
    counted = CountedTokenizer(tokenizer)
    ids_of_stops = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    renderer = TemplateRenderer(counted, ids_of_stops, tools=TOOLS if role else ())

    @cache
    def tokens_of(letter: str) -> list[int]:
        return list(tokenizer(letter, add_special_tokens=False)["input_ids"])

    for seed in range(200):
        chance = Random(f"{name} {seed}")
        conversation: list[dict[str, Any]] = [{"role": "user", "content": a_text(chance) or "begin"}]
        counted.num_tokens = 0
        sequence = renderer.prompt(conversation).tolist()
        for _ in range(chance.randint(1, 5)):
            reply, messages = an_exchange(chance, role, **kinds)
            stop = renderer.suffix(conversation, reply, messages).whole[0]
            # What the policy samples need not be how a tokenizer would write it: here a token a character.
            said = f"{reply['content']} {json.dumps(reply.get('tool_calls', ''))}"
            sampled = [token for letter in said for token in tokens_of(letter)]
            sampled.append(int(stop))
            answer = answered(sampled)
            assert renderer.reply(answer) == {"role": "assistant", "content": said}
            before, counted.num_tokens = len(sequence), 0
            sequence += [*sampled, *renderer.added(conversation, reply, messages, answer).tolist()]
            assert counted.num_tokens == len(sequence) - before - len(sampled) + 1, "nothing else is tokenized"
            conversation = [*conversation, reply, *messages]
            suffix = sequence[before + len(sampled) :]
            ids = written(tokenizer, conversation, bool(role))
            if ids[len(ids) - len(suffix) :] != suffix:  # some write a text behind the results of its calls
                ids = written(
                    tokenizer, [*conversation[: -len(messages) - 1], reply | {"content": ""}, *messages], True
                )
            assert suffix == ids[len(ids) - len(suffix) :], "the template's own tokens"
            assert ids[len(ids) - len(suffix) - 1] == sampled[-1], "right behind the stop token, which is not repeated"
            shown = tokenizer.decode(suffix)
            contents = [message["content"].strip() for message in messages]
            assert all(each in shown or json.dumps(each)[1:-1] in shown for each in contents)
            assert sequence[before : before + len(sampled)] == sampled, "nothing sampled was tokenized again"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_every_turn_are_those_of_the_template(family: str) -> None:
    template, stops, role = FAMILIES[family]
    tokenizer, renderer = renderer_of(template, stops, role)
    assert faults(renderer, None) == []
    play_at_random(tokenizer, stops, role, family, parallel=family != "headers")


def test_130_turns_of_a_conversation_have_a_linear_number_of_tokens_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, renderer = renderer_of(CHATML, ["<|im_end|>"], None)
    encode, read = renderer._encode, list[int]()

    def counting(text: str) -> Any:
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(renderer, "_encode", counting)
    conversation = [{"role": "user", "content": "begin"}]
    answer = answered(tokenizer("7<|im_end|>")["input_ids"])
    for _ in range(130):
        reply, replies = renderer.reply(answer), [{"role": "user", "content": "go on"}]
        renderer.added(conversation, reply, replies, answer)
        conversation += [reply, *replies]
    assert len(read) == 130 and len(set(read)) == 1, "each turn reads the new messages alone"


def test_an_answer_that_ended_without_a_stop_token_gets_one() -> None:
    tokenizer, renderer = renderer_of(CHATML, ["<|im_end|>"], None)
    asked, user = [{"role": "user", "content": "?"}], [{"role": "user", "content": "go on"}]
    reply = {"role": "assistant", "content": "x"}
    cut = answered(tokenizer("x</tool>", add_special_tokens=False)["input_ids"])
    added = renderer.added(asked, reply, user, cut)
    assert tokenizer.decode(added) == "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    closed = answered([*cut.token_ids.tolist(), tokenizer.convert_tokens_to_ids("<|im_end|>")])
    assert tokenizer.decode(renderer.added(asked, reply, user, closed)) == tokenizer.decode(added[1:])


def test_a_text_that_is_too_long_whatever_its_tokens_are_is_refused_unread() -> None:
    tokenizer = tokenizer_of(CHATML)
    counted = CountedTokenizer(tokenizer)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    renderer = TemplateRenderer(counted, [stop], longest=100)
    most = 100 * max(map(len, tokenizer.get_vocab()))
    asked, reply = [{"role": "user", "content": "?"}], {"role": "assistant", "content": "x"}
    for messages in ([{"role": "user", "content": "a" * most}], [{"role": "user", "content": "a" * 10_000_000}]):
        with pytest.raises(PromptRefused, match="characters has over 100 tokens"):
            renderer.added(asked, reply, messages, answered([stop]))
        with pytest.raises(PromptRefused, match="characters has over 100 tokens"):
            renderer.prompt(messages)
    assert counted.num_tokens == 0
    assert len(renderer.prompt([{"role": "user", "content": "a" * 200}])) > 0, "the run refuses it by its tokens"


def test_the_prompt_of_a_conversation_has_the_system_prompt_and_the_values_of_the_run() -> None:
    tokenizer = tokenizer_of("{{ mood }}{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    renderer = TemplateRenderer(tokenizer, [1], values={"mood": "calm "}, system_prompt="Be brief.")
    assert tokenizer.decode(renderer.prompt([{"role": "user", "content": "?"}])) == "calm systemBe brief.user?"


@pytest.mark.parametrize(
    ("template", "stops", "role", "expected"),
    [
        (ALTERNATING, ["</turn>"], "tool", "refuses a message of the role 'tool' after an answer: roles must"),
        (HEADERS, ["<|eot|>"], "tool", "the results of two calls: the chat template refuses"),
        (ENVIRONMENT, ["<|im_end|>"], "tool", ""),
        (OLMO_3, ["<|im_end|>"], "environment", ""),
        (OLMO_3_THINK, ["<|im_end|>"], "environment", "^the chat template does not show the tool 'add'$"),
        (OLMO_3_THINK, ["<|im_end|>"], "tool", "drops the text of the role 'tool'"),
        (CHATML.replace("+ m.content + '\n</tool", "+ '\n</tool"), ["<|im_end|>"], "tool", "drops the text of"),
        (CHATML.replace(SHOWN, ""), ["<|im_end|>"], "tool", "does not show the tool 'add'"),
        (CHATML, ["</s>"], "tool", r"ends an answer with no stop token of the model \(</s>\)"),
        (CHATML.replace("+ m.content }}", "}}"), ["<|im_end|>"], None, "leaves the answer out"),
        (
            CHATML.replace("messages %}", "messages %}{{ '#' * messages | length }}", 1),
            ["<|im_end|>"], None, "writes it otherwise later in a conversation",
        ),
    ],
)  # fmt: skip
def test_what_a_template_cannot_write_is_named(
    template: str, stops: list[str], role: str | None, expected: str
) -> None:
    _, renderer = renderer_of(template, stops, role)
    found = "\n".join(faults(renderer, role))
    assert re.search(expected, found) if expected else not found, found


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            CHATML.replace("{% if m.role", "{% if m.role == 'system' %}{% elif m.role"),
            ["does not show data.system_prompt"],
        ),
        (ALTERNATING, ["refuses the prompt with data.system_prompt: roles must alternate"]),
        ("{% for m in messages[1:] %}{{ m.content + '<|im_end|>' }}{% endfor %}", ["does not show data.system_prompt"]),
    ],
)
def test_a_system_prompt_that_no_template_writes_is_named(template: str, expected: list[str]) -> None:
    tokenizer = tokenizer_of(template)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    found = faults(TemplateRenderer(tokenizer, [stop], system_prompt="Be brief."))
    assert found == [f"the chat template {each}" for each in expected]


def test_a_refused_reply_is_a_failure_of_the_environment_and_not_of_the_policy() -> None:
    _, renderer = renderer_of(ALTERNATING, ["</turn>"], None)
    asked, reply = [{"role": "user", "content": "?"}], {"role": "assistant", "content": "x"}
    with pytest.raises(
        EnvironmentFailed, match="the chat template refuses a message of the role 'tool' after an answer"
    ):
        renderer.added(asked, reply, [{"role": "tool", "content": "7"}], answered([1]))
    with pytest.raises(EnvironmentFailed, match="refuses the prompt of the environment"):
        renderer.prompt([reply])
    with pytest.raises(TemplateUnfit):
        renderer.suffix(asked, reply, [{"role": "tool", "content": "7"}])
