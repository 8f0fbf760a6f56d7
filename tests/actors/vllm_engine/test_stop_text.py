"""The text that verifiers read is the text of the trained tokens, also when a text of `sampling.stop` ended them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from olmorl.actors.vllm_engine.engine import tokens_of_text

TEXTS = ["<answer>", "2", "</", "answer>", "<|end|>", "<|stop|>"]
EOS = 4


@pytest.mark.parametrize(
    ("tokens", "reason", "stop_reason", "text"),
    [
        ([0, 1, 2, 3], "stop", "</answer>", "<answer>2</answer>"),
        ([0, 1, 2], "stop", "</", "<answer>2</"),
        ([0, 1, 2, 3, EOS], "stop", None, "<answer>2</answer>"),
        ([0, 1, 2, 3, 5], "stop", 5, "<answer>2</answer>"),
        ([0, 1, EOS], "stop", "<|end|>", "<answer>2"),
        ([0, 1, 5], "stop", "<|stop|>", "<answer>2<|stop|>"),
        ([0, 1, 2, 3], "length", None, "<answer>2</answer>"),
        ([EOS], "stop", None, ""),
    ],
)
def test_only_a_token_that_ended_the_sequence_is_not_read(
    tokens: list[int], reason: str, stop_reason: str | int | None, text: str
) -> None:
    output = SimpleNamespace(token_ids=tokens, finish_reason=reason, stop_reason=stop_reason)
    assert "".join(TEXTS[token] for token in tokens_of_text(output, EOS)) == text
