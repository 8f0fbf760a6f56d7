"""What a judge said gives the right score, or none."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.verifiers.judge.reply_parser import chat_content, class_score, score
from olmorl.verifiers.judge.service.endpoint import MAX_REPLY_BYTES
from olmorl.verifiers.judge.service.failures import Unavailable, UnreadableReply

DELIMITER = "0123456789abcdef" * 2
READABLE = [
    ('{"reasoning": "fine", "score": 8}', 8),
    ('{"score": 1}', 1),
    (' {"score": 10}\n', 10),
    ('{"score": 5.0}', 5),
    ('{"score": 5.5}', 5.5),
    ('{"reasoning": "the answer says {\\"score\\": 10}", "score": 2}', 2),
    ('{"reasoning": "it asks for {\'score\': 10} and 10/10", "score": 1}', 1),
    ('```json\n{"reasoning": "fine", "score": 8}\n```', 8),
    ('```\n{"reasoning": "it prints:\\n```\\n1\\n```", "score": 8}\n```\nI would keep it.', 8),
    ('Here is my grade:\n{"reasoning": "fine", "score": 8}', 8),
    ('{"score": 8}\n\nThe set {1, 2} and the set {"a"} are both right.', 8),
    ('<think>perhaps {"score": 3}</think>\n{"score": 8}', 8),
    ('perhaps {"score": 3}</think>{"score": 8}', 8),
    ('[THINK]perhaps {"score": 3}[/THINK]{"score": 8}', 8),
    ('◁think▷perhaps {"score": 3}◁/think▷{"score": 8}', 8),
    ('<|begin_of_thought|>perhaps {"score": 3}<|end_of_thought|>{"score": 8}', 8),
    ('{"reasoning": "the answer never closes <think>", "score": 8}', 8),
    ('{"reasoning": "the answer begins with </think>", "score": 8}', 8),
    ('{"REASONING": "fine", "SCORE": 8}', 8),
    ('{"Score": 8}', 8),
    ('{"reasoning": "fine", "score": "8"}', 8),
    ('{"score": "8/10"}', 8),
    ('{"score": " 8 out of 10 "}', 8),
    ('{"reasoning": "two\nlines\tand a tab", "score": 8}', 8),
    (r'{"reasoning": "the formula \(\frac{1}{2}\) of C:\users\\", "score": 8}', 8),
    ("{'reasoning': \"it's fine\", 'score': 8,}", 8),
    ("{'reasoning': 'it\\'s\nfine', 'flaw': None, 'score': 8}", 8),
    ('{"reasoning": {"facts": {"right": 3}}, "score": 8}', 8),
    ('{"details": {"score": 3}, "score": 8}', 8),
    ('[{"score": 8}]', 8),
    ('An example: {"reasoning": "...", "score": 3}. Mine: {"reasoning": "fine", "score": 8}', 8),
    ('{"score": 2} {"score": 8}', 8),
    ('A set {"a", "b"} and a brace {x. {"score": 8}', 8),
]
UNREADABLE = [
    "8/10",
    "8",
    "",
    "[[8]]",
    "Score: 8",
    '{"score": "8/9"}',
    '{"score": "eight"}',
    '{"score": "8\u0663"}',
    '{"score": 95}',
    '{"score": -5}',
    '{"score": 0}',
    '{"score": 11}',
    '{"score": 10.01}',
    '{"score": NaN}',
    '{"score": Infinity}',
    '{"score": 1e999}',
    '{"score": true}',
    '{"score": null}',
    '{"score": [8]}',
    '{"grade": {"score": 8}}',
    '{"reasoning": "the answer is fine", "sco',
    '{"reasoning": "it is {\\"score\\": 10}',
    '{"reasoning": "it is {\'score\': 10}", "sco',
    '{"reasoning": "it is good", "details": {"score": 10}, "sco',
    '{"score": 10, "score": 2}',
    '{"score": 10, "Score": 2}',
    '{"score": 10} {"reasoning": "the "last" one", "score": 2}',
    '{"score": 10} {"reasoning": "and then',
    '{"score": 10} {"score": "none"}',
    '<think>perhaps {"score": 10}',
    '<think>perhaps {"score": 10}</think> I cannot say.',
    'perhaps {"score": 10}</think> I cannot say.',
    '◁think▷perhaps {"score": 10}◁/think▷ I cannot say.',
    '<seed:think>perhaps {"score": 10}</seed:think> I cannot say.',
    '<|begin_of_thought|>perhaps {"score": 10}<|end_of_thought|> I cannot say.',
    "I cannot help with that.",
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"score": ' + "9" * 5000 + "}",
    f'{{"reasoning": "between {DELIMITER} it says", "score": 10}}',
]


@pytest.mark.parametrize(("content", "expected"), READABLE)
def test_the_last_object_has_the_score(content: str, expected: float) -> None:
    assert score(content, DELIMITER) == pytest.approx((expected - 1) / 9)


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_is_not_plainly_a_score_is_none(content: str) -> None:
    with pytest.raises(UnreadableReply):
        score(content, DELIMITER)


@pytest.mark.parametrize("part", ['{"a"}', '{"', '{"score": 1}', '{"a":'])
def test_a_long_reply_is_read_in_a_moment(part: str) -> None:
    began = time.thread_time()
    with contextlib.suppress(UnreadableReply):
        score(part * (MAX_REPLY_BYTES // len(part)), DELIMITER)
    assert time.thread_time() - began < 5


def completion(**changes: Any) -> bytes:
    message = {"role": "assistant", "content": '{"score": 8}', **changes.pop("message", {})}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop", **changes}]}).encode()


def test_the_content_of_a_chat_completion() -> None:
    assert chat_content(completion()) == '{"score": 8}'
    assert chat_content(completion(finish_reason=None, message={"refusal": None})) == '{"score": 8}'
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": '{"score": 8}'}]
    assert chat_content(completion(message={"content": parts})) == '{"score": 8}'


@pytest.mark.parametrize(
    "body",
    [
        completion(finish_reason="length"),
        completion(finish_reason="content_filter"),
        completion(message={"refusal": "I cannot help with that."}),
        completion(message={"content": None}),
        completion(message={"content": 8}),
    ],
)
def test_a_model_that_does_not_say_its_score(body: bytes) -> None:
    with pytest.raises(UnreadableReply):
        chat_content(body)


BROKEN = [
    b"",
    b"<html>",
    b'{"choices": [',
    b"[]",
    b"{}",
    b'{"choices": []}',
    b'{"choices": [1]}',
    b"\xff\xfe",
    b"[" * 99999,
]


@pytest.mark.parametrize("read", [chat_content, class_score])
@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_a_body_that_no_model_sends(read: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(Unavailable):
        read(body)


def test_the_score_of_a_classifier() -> None:
    assert class_score(b'{"data": [{"index": 0, "label": null, "probs": [-1.5], "num_classes": 1}]}') == -1.5
    for outputs in ("[]", "[0.1, 0.9]", "[NaN]", "[Infinity]", "[null]", "[true]", '["2"]', "[1e7]"):
        with pytest.raises(UnreadableReply):
            class_score(f'{{"data": [{{"probs": {outputs}}}]}}'.encode())
