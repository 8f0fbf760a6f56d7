"""Prepares text for a judge: removes special tokens, and detects answers without content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = (
    "s|bos|eos|pad|unk|mask|cls|sep|(?:start|end|im|fim)_[a-z_]{1,32}|think|thinking|tool_call|"
    "tool_response|tools|sop|eop|human|assistant|system|user|bot|extra_id_[0-9]+|reserved_[0-9]+|unused[0-9]+"
)
_SQUARE = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]+|ARGS|CALL_ID|THINK|IMG[A-Z_]*|[gs]MASK|MASK|CLS|SEP|PAD|UNK"
_SPECIAL = re.compile(
    rf"<(?=[|｜]|[a-z_]{{1,32}}\|>)|<(?=/?(?:{_NAMES})>)|<(?=</?SYS>>)|\[(?=/?(?:{_SQUARE})\])", re.IGNORECASE
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]")
"""Control characters, lone surrogates, and the invisible tag characters of Unicode."""

_WRAPPING = re.compile(
    r"</?(?:answer|final|final_answer|output|reasoning|response|result|solution|think|thinking)>"
    r"|\\(?:boxed|fbox|text|mathrm|mathbf|begin|end)\b",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"[\W_]+")
_OPENER = (
    "thought process|thoughts?|thinking|reasoning|analysis|explanation|approach|introduction|overview|solution|answer|"
    "final answer|(?:the )?(?:final )?answer is(?: as follows| below)?|"
    "response|result|output|conclusion|note|step 1|step by step|"
    "(?:now )?(?:let us|let s|lets|let me|i will|i ll|we will|we ll|we can|we need to|i need to) "
    "(?:now )?(?:think|solve|reason|work|analyze|analyse|consider|break|start|begin|tackle)"
    "(?: (?:this|the|it|that|about|through|at|on|out|down|into|with|by|to|a|problem|question|task|step|steps|"
    "carefully|together|first))*|"
    r"(?:this is (?:the|my|a) (?:step by step )?|(?:here is|here s|below is) (?:the|my|a) (?:\w+ ){0,4})"
    "(?:solution|answer|reasoning|response)"
    "(?: to (?:the|this|your) (?:problem|question|request))?|"
    "(?:i can|i d be (?:happy|glad) to|i ll be (?:happy|glad) to) help(?: you)?(?: with (?:this|that))?|"
    "to (?:solve|answer) (?:this|the) (?:problem|question)(?: we need to)?|"
    "解|解答|解析|答案|思考过程|让我们一步一步地解决这个问题|解説|かいせつ|考え方|respuesta|solución|lösung|antwort|solution|réponse|"
    "решение|ответ|풀이|답"
)
_FILLER = "ok|okay|sure|certainly|of course|alright|well|hmm|so|now|first"
_OPENING = re.compile(rf"(?:(?:(?:{_FILLER}) )*(?:{_OPENER})(?: |$))+")
MAX_OPENING = 160
"""The most characters of a text that can be only an opening."""


def plain(text: str) -> str:
    """The text without control characters, and with a space inside each special token of a known model."""
    return _SPECIAL.sub(r"\g<0> ", _UNSEEN.sub("", text))


def turns(messages: list[dict[str, Any]] | str) -> list[dict[str, str]]:
    """The conversation of a row: the role and plain text of each turn."""
    if isinstance(messages, str):
        return [{"role": "user", "content": plain(messages)}]
    return [{"role": str(turn.get("role", "user")), "content": plain(_text(turn.get("content")))} for turn in messages]


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    """The turns of an episode as one text, with their calls of tools."""
    shown = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        written = (f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls)
        shown.append("\n".join(filter(None, (f"{message['role']}: {_text(message.get('content'))}", *written))))
    return "\n\n".join(shown)


def _text(content: Any) -> str:
    """The text of a turn, which is its content or the text of its parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def contentless(text: str, truth: str = "") -> bool:
    """Whether the text has no content: no letter or digit, or only the opening of an answer.

    Judges often approve such texts, called "master keys" (arXiv 2507.08794).

    Args:
        truth: the reference answer. A text equal to it has content.
    """
    words = _words(text)
    if truth.strip() and (text.strip() == truth.strip() or (words and words == _words(truth))):
        return False
    return not words or (len(words) <= MAX_OPENING and _OPENING.fullmatch(words) is not None)


def _words(text: str) -> str:
    """The letters and digits in lower case, with one space between words."""
    return _NOTHING.sub(" ", _WRAPPING.sub(" ", text)).strip().lower()
