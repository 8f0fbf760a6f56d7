"""Finds the content of the last `\\\\boxed{}`, or of several boxes that end the text as one list."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_CONTENT = 2048
"""Characters in a box. Nothing longer is an answer."""
MAX_BOXES = 32
"""Boxes that are tried, from the last."""
MAX_CONNECTOR = 80

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*([^\s${}\\]{1,64})")
_CONNECTOR = re.compile(
    r"(?:[\s,;&$~]|\\[,;:!()\[\]\\ ]|\\q?quad(?![a-zA-Z])|\b(?:and|or)\b"
    r"|\\(?:text|textrm|mathrm|mbox)\s*\{[\s,;]*(?:(?:and|or)[\s,]*)?\}){1,40}"
)
"""The text that is allowed between the boxes of one list."""
_LABELLED = re.compile(
    r"(?:\\text(?:bf|it)?\s*\{[^{}]{0,64}\banswer\b[^{}]{0,64}\}|(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|[:=]))\s*",
    re.IGNORECASE,
)
"""In front of the answer within a box."""


class _Box(NamedTuple):
    start: int
    end: int
    content: str


def boxed(text: str) -> str | None:
    """The content of the last closed box. Boxes with only `and`, `or` and commas between them are one list."""
    boxes: list[_Box] = []
    end = len(text)
    for _ in range(MAX_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        box = _box_at(text, start)
        if box is not None:
            if boxes and not _joined(text[box.end : boxes[-1].start]):
                break
            boxes.append(box)
        elif boxes:
            break
        end = start
    contents = dict.fromkeys(_unlabelled(box.content.strip()) for box in reversed(boxes))
    return ", ".join(filter(None, contents)) if boxes else None


def _joined(between: str) -> bool:
    return len(between) <= MAX_CONNECTOR and bool(_CONNECTOR.fullmatch(between))


def _box_at(text: str, start: int) -> _Box | None:
    opening = _BOX.match(text, start)
    if opening is None:
        bare = _BARE_BOX.match(text, start)
        return _Box(start, bare.end(), bare[1]) if bare else None
    depth = 1
    for token in _BRACE.finditer(text, opening.end(), min(len(text), opening.end() + MAX_CONTENT + 1)):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                return _Box(start, token.end(), text[opening.end() : token.start()])
    return None


def _unlabelled(content: str) -> str:
    """The text without a leading "The answer is", unless nothing else is there."""
    label = _LABELLED.match(content)
    return content[label.end() :] or content if label else content
