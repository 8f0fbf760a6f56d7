"""Reads the replies of judges and reward models. It never guesses a score.

A judge may think first, put its JSON in a fence, write names in another case, or write a Python dictionary. The last
object with a score counts. When that object cannot be read, there is no score, also when an earlier object has one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from olmorl.verifiers.judge.service.failures import Unavailable, UnreadableReply

LOWEST, HIGHEST = 1, 10
LARGEST = 1e6
"""The largest absolute score of a reward model. A larger score is an error."""
_NAMES = ["reasoning", "score"]
SCHEMA = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "score": {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))},
    },
    "required": _NAMES,
    "additionalProperties": False,
}
MOST_OBJECTS = 1000
"""A reply with more objects has no score, because the time to read it grows with the square of their number."""
_ESCAPE = re.compile(r"\\[^\"']|[\r\n]")
"""What JSON or Python may refuse in a string, as the `\\(` of a formula. No score needs it."""
_OPENING = re.compile(r"\{\s*[\"']")
"""The start of an object. A brace of prose, code or a formula has no quote behind it."""
_BRACE = re.compile(r"[{}]")
_THINKING = re.compile(
    r"[<\[◁]\|?(/|end_of_)?(?:seed:|begin_of_)?(?:think|thinking|thought|reasoning)\|?[>\]▷]", re.IGNORECASE
)
_SCORE = re.compile(r"(\d+(?:\.\d+)?)(?: ?(?:/|out of) ?10)?", re.ASCII)
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
    if isinstance(content, list):  # parts, of which thinking has no text
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    if refusal or not isinstance(content, str):
        raise UnreadableReply(f"the judge refused: {refusal or 'its message is empty'}")
    if isinstance(reason, str) and reason in _CUT:
        raise UnreadableReply(f"{_CUT[reason]}: {content[-_SHOWN:]!r}")
    return content


def score(content: str, delimiter: str) -> float:
    """The score in a reply of the judge, mapped from 1..10 to [0, 1]. Raises UnreadableReply."""
    if delimiter in content:
        raise UnreadableReply("the judge repeated the delimiter of the answer")
    value = _last_score(_ESCAPE.sub(" ", content))
    if value is None or not LOWEST <= value <= HIGHEST:
        raise UnreadableReply(f"no JSON object with a score from {LOWEST} to {HIGHEST}: {content[-_SHOWN:]!r}")
    return (value - LOWEST) / (HIGHEST - LOWEST)


def _last_score(text: str) -> float | None:
    """The score of the last object that speaks of one; None if it cannot be read, or is inside the thinking."""
    last: tuple[list[Any] | None, int, int] = (None, 0, 0)
    objects = position = 0
    while opening := _OPENING.search(text, position):
        if (objects := objects + 1) > MOST_OBJECTS:
            return None
        begin = opening.start()
        scores, position = _object(text, begin)
        if scores or (scores is None and any(name in text[begin:position].lower() for name in _NAMES)):
            last = scores, begin, position
    scores, begin, end = last
    if not scores or len(scores) > 1 or _is_thought(text, begin, end):
        return None
    return _number(scores[0])


def _object(text: str, begin: int) -> tuple[list[Any] | None, int]:
    """The scores in the object that begins there, and its end. None if the object cannot be read."""
    try:
        return _decoder.raw_decode(text, begin)
    except (ValueError, RecursionError):
        end = _closing_brace(text, begin)
    try:
        tree = ast.literal_eval(text[begin:end])
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None, end
    return _scores_of(tree.items()) if isinstance(tree, dict) else None, end


def _scores_of(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [value for name, value in pairs if isinstance(name, str) and name.strip().lower() == "score"]


def _closing_brace(text: str, begin: int) -> int:
    """The end of the braces that open there; the end of the text if they never close."""
    depth = 0
    for brace in _BRACE.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    return len(text)


def _is_thought(text: str, begin: int, end: int) -> bool:
    """Whether the next tag of thinking closes it, or the last one opened it."""
    if (following := _THINKING.search(text, end)) and following[1]:
        return True
    before = [tag[1] for tag in _THINKING.finditer(text, 0, begin)]
    return bool(before) and not before[-1]


def _number(value: Any) -> float | None:
    """A score as a number. It may be text, such as 7 or 7/10."""
    if isinstance(value, str):
        words = _SCORE.fullmatch(" ".join(value.split()))
        return float(words[1]) if words else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_decoder = json.JSONDecoder(object_pairs_hook=_scores_of, parse_constant=_refuse, strict=False)


def _shown(body: bytes) -> str:
    return repr(body[:_SHOWN].decode(errors="replace"))
