"""The probability with which a version solves the held-out sums, without sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl.deploy.demo.arithmetic import Sum

BATCH = 50
"""Problems in one forward pass."""


class HeldOut:
    """Measures any version of one model on the same problems.

    The right answer is the demo's written solution, token by token. An answer that is right in other words does not
    count: the value is a little below the mean reward of sampled answers.
    """

    def __init__(self, model: Path, problems: Path) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        rows = [json.loads(line) for line in problems.read_text(encoding="utf-8").splitlines()]
        prompts, answers = [], []
        for row in rows:
            numbers = row["messages"][-1]["content"].removeprefix("What is ").removesuffix("?").split("+")
            text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
            solution = Sum(tuple(map(int, numbers))).work_out(careful=True)
            prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
            answers.append([*tokenizer(solution, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
        self._ids_NT = pad_sequence(
            [torch.tensor(pair[0] + pair[1]) for pair in zip(prompts, answers, strict=True)], batch_first=True
        )
        self._answer_NT = pad_sequence(
            [
                torch.tensor([False] * len(prompt) + [True] * len(answer))
                for prompt, answer in zip(prompts, answers, strict=True)
            ],
            batch_first=True,
        )

    @torch.no_grad()
    def accuracy(self, weights: Path) -> float:
        """The mean probability of a right answer under these weights, at temperature 1."""
        self._model.load_state_dict(load_file(weights))
        chances = []
        for ids_BT, answer_BT in zip(self._ids_NT.split(BATCH), self._answer_NT.split(BATCH), strict=True):
            # Padding stands behind all tokens that count, and attention is causal.
            logits_BTV = self._model(input_ids=ids_BT).logits[:, :-1]
            logprobs_BT = -torch.nn.functional.cross_entropy(
                logits_BTV.transpose(1, 2).float(), ids_BT[:, 1:], reduction="none"
            )
            chances.append(torch.where(answer_BT[:, 1:], logprobs_BT, 0.0).sum(1).exp())
        return float(torch.cat(chances).mean())
