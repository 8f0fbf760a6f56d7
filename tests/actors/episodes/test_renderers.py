"""The package `renderers` writes what follows an answer as we do, for the models that it knows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from olmorl.actors.episodes.suffix import TemplateRenderer
from tests.actors.episodes.test_public_templates import installed, opened
from tests.actors.episodes.test_suffix import TOOLS, a_text, an_exchange, answered

PACKAGES = ("renderers==0.1.12", "prime-pydantic-config==0.4.3")
KNOWN = {
    "qwen3": "Qwen3Renderer",
    "qwen3_5_think": "Qwen35Renderer",
    "qwen3_6": "Qwen36Renderer",
    "qwen3_8": "Qwen38Renderer",
    "nemotron_3_nano": "Nemotron3Renderer",
    "nemotron_3_ultra": "Nemotron3UltraRenderer",
    "glm4moe": "GLM45Renderer",
    "llama3_2": "Llama3Renderer",
}
MARKS = [
    "[gMASK]",
    "<sop>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
]
"""Special tokens that renderers ask for, and templates may not have."""


def compared(path: Path, theirs: Any, tokenizer: Any, stops: list[str]) -> tuple[int, int]:
    """The turns of 40 random conversations that they write as we do, and those that they write otherwise."""
    ours = TemplateRenderer(tokenizer, [tokenizer.convert_tokens_to_ids(stop) for stop in stops], tools=TOOLS)
    same = other = 0
    for seed in range(40):
        chance = Random(f"{path.stem} {seed}")
        conversation: list[dict[str, Any]] = [{"role": "user", "content": a_text(chance) or "begin"}]
        sequence = ours.prompt(conversation).tolist()
        for _ in range(3):
            reply, messages = an_exchange(chance, "tool", parallel=path.stem != "llama3_2")
            said = f"{reply['content']} {json.dumps(reply.get('tool_calls', ''))}"
            stop = int(ours.suffix(conversation, reply, messages).whole[0])
            sampled = [*tokenizer(said, add_special_tokens=False)["input_ids"], stop]
            added = ours.added(conversation, reply, messages, answered(sampled)).tolist()
            tools = [tool["function"] for tool in TOOLS]
            bridged = theirs.bridge_to_next_turn(sequence, sampled, messages, tools=tools)
            if bridged is not None:  # they do not continue an answer that leaves its thinking open
                is_same = list(bridged.token_ids) == [*sequence, *sampled, *added]
                same, other = same + is_same, other + (not is_same)
            sequence += [*sampled, *added]
            conversation += [reply, *messages]
    return same, other


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_renderers_write_the_same_suffixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = installed(tmp_path, "trl==1.16.0", *PACKAGES) / "trl" / "chat_templates"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    renderers = pytest.importorskip("renderers")
    for name, kind in KNOWN.items():
        tokenizer, stops = opened(templates / f"{name}.jinja", MARKS)
        make, config = getattr(renderers, kind), getattr(renderers, f"{kind}Config")
        theirs = make(tokenizer, config(thinking_retention="all"))
        same, other = compared(templates / f"{name}.jinja", theirs, tokenizer, stops)
        assert same > 50 and not other, name
