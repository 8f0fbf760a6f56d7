"""Reads the replies of judges and reward models strictly. It never guesses a score."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from olmorl.verifiers.judge.service.failures import Unavailable, UnreadableReply

LOWEST, HIGHEST = 1, 10
LARGEST = 1e6
"""The largest absolute score of a reward model. A larger score is an error."""
SCHEMA = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "score": {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))},
    },
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}
_CUT = {"length": "the reply was cut off", "content_filter": "the reply was withheld"}
_SHOWN = 120


def chat_content(body: bytes) -> str:
    """The text of the model's message, from the body of a chat completion.

    Raises:
        Unavailable: the body is not a chat completion.
        UnreadableReply: the model refused, or its reply was cut off.
    """
    tree = _tree(body)
    choices = tree.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise Unavailable(f"the reply is not a chat completion: {_shown(body)}")
    content, refusal, reason = message.get("content"), message.get("refusal"), choice.get("finish_reason")
    if refusal or not isinstance(content, str):
        raise UnreadableReply(f"the judge refused: {refusal or 'its message is empty'}")
    if isinstance(reason, str) and reason in _CUT:
        raise UnreadableReply(f"{_CUT[reason]}: {content[-_SHOWN:]!r}")
    return content


def score(content: str, delimiter: str) -> float:
    """The score in a reply of the judge, mapped from 1..10 to [0, 1]. Raises UnreadableReply."""
    if delimiter in content:
        raise UnreadableReply("the judge repeated the delimiter of the answer")
    try:
        tree = json.loads(content, object_pairs_hook=_without_repetition, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UnreadableReply(f"not a JSON object: {content[:_SHOWN]!r}") from None
    value = tree.get("score") if isinstance(tree, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LOWEST <= value <= HIGHEST:
        raise UnreadableReply(f"no score from {LOWEST} to {HIGHEST}: {content[:_SHOWN]!r}")
    return (value - LOWEST) / (HIGHEST - LOWEST)


def class_score(body: bytes) -> float:
    """The single output of a sequence classifier, from the body of vLLM's `/classify`.

    Raises:
        Unavailable: the body has another form.
        UnreadableReply: the output is not a finite number, or there are several.
    """
    data = _tree(body).get("data")
    item = data[0] if isinstance(data, list) and len(data) == 1 else None
    outputs = item.get("probs") if isinstance(item, dict) else None
    if not isinstance(outputs, list):
        raise Unavailable(f"the reply is not a classification: {_shown(body)}")
    if len(outputs) != 1:
        raise UnreadableReply(f"a reward model must have one output, this model has {len(outputs)}")
    value = outputs[0]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise UnreadableReply(f"not a score: {str(value)[:_SHOWN]}")
    return float(value)


def _tree(body: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise Unavailable(f"the reply is not a JSON object: {_shown(body)}")
    return tree


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key occurs twice")
    return tree


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _shown(body: bytes) -> str:
    return repr(body[:_SHOWN].decode(errors="replace"))
