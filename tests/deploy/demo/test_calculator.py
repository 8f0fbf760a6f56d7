"""The calculator, the worked solutions with it, and what the warm start learns of them."""

from __future__ import annotations

from itertools import islice

import pytest

from olmorl.deploy.demo.calculator import CalculatedSum, Calculator, calculated_sums
from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import _example, build_tokenizer


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("calc(27+85)", "112"),
        ("calc(27+)", "error"),
        ("calc(112+4+9)", "116+9"),
        ("calc(112)", "error"),
        (" calc(1+2)", "error"),
        ("\\boxed{112}", None),
        ("", None),
    ],
)
def test_a_call_is_answered_and_anything_else_ends_the_episode(text: str, reply: str | None) -> None:
    assert Calculator().step({"role": "assistant", "content": text}) == reply


def test_careful_work_plays_by_the_calculator_to_the_right_result_and_hasty_work_stops_early() -> None:
    assert CalculatedSum((27, 85, 4)).play(careful=True) == [
        "calc(27+85+4)",
        "112+4",
        "calc(112+4)",
        "116",
        "\\boxed{116}",
    ]
    for problem in islice(calculated_sums(0, {3: 1, 5: 1}), 50):
        for careful in (True, False):
            said, calculator = problem.play(careful), Calculator()
            replies = [calculator.step({"content": answer}) for answer in said[::2]]
            assert replies == [*said[1::2], None]
            assert (said[-1] == f"\\boxed{{{problem.ground_truth}}}") == careful


def test_the_warm_start_learns_the_answers_and_not_the_replies() -> None:
    tokenizer = build_tokenizer(ModelSize().max_tokens)
    ids, labels = _example(tokenizer, CalculatedSum((27, 85, 4)), careful=True)
    assert tokenizer.decode(ids) == (
        "<|user|>What is 27+85+4?<|assistant|>calc(27+85+4)<|end|><|user|>112+4<|assistant|>"
        "calc(112+4)<|end|><|user|>116<|assistant|>\\boxed{116}<|end|>"
    )
    learned = [token for token in labels if token >= 0]
    assert tokenizer.decode(learned) == "calc(27+85+4)<|end|>calc(112+4)<|end|>\\boxed{116}<|end|>"
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
