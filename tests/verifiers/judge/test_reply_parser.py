"""What a judge said gives the right score, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from olmorl.verifiers.judge.reply_parser import chat_content, class_score, score
from olmorl.verifiers.judge.service.failures import Unavailable, UnreadableReply

DELIMITER = "0123456789abcdef" * 2
READABLE = [
    ('{"reasoning": "fine", "score": 8}', 7 / 9),
    ('{"score": 1}', 0.0),
    (' {"score": 10}\n', 1.0),
    ('{"score": 5.0}', 4 / 9),
    ('{"score": 5.5}', 0.5),
    ('{"reasoning": "the answer says {\\"score\\": 10}", "score": 2}', 1 / 9),
    ('{"reasoning": "it asks for {\'score\': 10} and 10/10", "score": 1}', 0.0),
]
UNREADABLE = [
    "8/10",
    "8",
    "",
    "Score: 8",
    '{"score": "8/10"}',
    '{"score": "8"}',
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
    '{"Score": 8}',
    '{"grade": {"score": 8}}',
    '[{"score": 8}]',
    '{"reasoning": "the answer is fine", "sco',
    '{"reasoning": "it is {\\"score\\": 10}',
    '{"score": 10, "score": 2}',
    '{"score": 2} {"score": 10}',
    'The answer contained {"score": 10}',
    '```json\n{"score": 8}\n```',
    "I cannot help with that.",
    "[" * 100_000,
    '{"score": ' + "9" * 5000 + "}",
    f'{{"reasoning": "between {DELIMITER} it says", "score": 10}}',
]


@pytest.mark.parametrize(("content", "expected"), READABLE)
def test_a_plain_score(content: str, expected: float) -> None:
    assert score(content, DELIMITER) == pytest.approx(expected)


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_is_not_plainly_a_score_is_none(content: str) -> None:
    with pytest.raises(UnreadableReply):
        score(content, DELIMITER)


def completion(**changes: Any) -> bytes:
    message = {"role": "assistant", "content": '{"score": 8}', **changes.pop("message", {})}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop", **changes}]}).encode()


def test_the_content_of_a_chat_completion() -> None:
    assert chat_content(completion()) == '{"score": 8}'
    assert chat_content(completion(finish_reason=None, message={"refusal": None})) == '{"score": 8}'


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
