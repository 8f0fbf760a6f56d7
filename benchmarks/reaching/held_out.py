"""The share of right answers that a version samples to held-out sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl.verifiers.math.extraction import final_answer

PROBLEMS = 200
"""One answer each: the standard error of a share of 0.8 is 0.028."""


class HeldOut:
    """Samples answers of any version of one model to the same problems, with the same random numbers."""

    def __init__(self, model: Path, problems: Path, max_tokens: int) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._tokenizer = tokenizer
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._max_tokens = max_tokens
        rows = [json.loads(line) for line in problems.read_text(encoding="utf-8").splitlines()[:PROBLEMS]]
        chats = [row["messages"] for row in rows]
        asked = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        self._inputs = tokenizer(asked, add_special_tokens=False, padding=True, return_tensors="pt")
        self._labels = [row["ground_truth"] for row in rows]

    @torch.no_grad()
    def accuracy(self, weights: Path) -> float:
        """The share of right answers under these weights, sampled at temperature 1."""
        self._model.load_state_dict(load_file(weights))
        torch.manual_seed(0)
        made_NT = self._model.generate(**self._inputs, do_sample=True, top_k=0, max_new_tokens=self._max_tokens)
        width = self._inputs["input_ids"].shape[1]
        texts = self._tokenizer.batch_decode(made_NT[:, width:], skip_special_tokens=True)
        found = [final_answer(text) for text in texts]
        right = [one is not None and one.text == label for one, label in zip(found, self._labels, strict=True)]
        return sum(right) / len(right)
