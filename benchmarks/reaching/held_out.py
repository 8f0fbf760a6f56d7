"""The accuracy of a version's greedy answers to the held-out problems, and the version that reaches one for good."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl.verifiers.math.math_verifier import WARM, MathVerifier
from olmorl.verifiers.pool.pool import Pool

IN_A_ROW = 3
"""Versions in a row that must reach an accuracy: a single one may reach it by chance."""


class HeldOut:
    """Measures any version of one model on the same problems."""

    def __init__(self, model: Path, problems: Path, max_tokens: int) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._max_tokens = max_tokens
        rows = [json.loads(line) for line in problems.read_text(encoding="utf-8").splitlines()]
        self._labels = [row["ground_truth"] for row in rows]
        self._inputs = self._tokenizer.apply_chat_template(
            [row["messages"] for row in rows],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        )

    @torch.no_grad()
    def accuracy(self, weights: Path) -> float:
        """Share of the problems that these weights solve."""
        self._model.load_state_dict(load_file(weights))
        ids = self._model.generate(
            input_ids=self._inputs["input_ids"],
            attention_mask=self._inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=self._max_tokens,
        )
        answers = self._tokenizer.batch_decode(ids[:, self._inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return asyncio.run(self._solved(answers))

    async def _solved(self, answers: list[str]) -> float:
        pool = Pool(1, timeout_s=10.0, preload=(WARM,))
        await pool.start()
        try:
            verifier = MathVerifier(pool)
            verdicts = [
                await verifier.verify(answer, label) for answer, label in zip(answers, self._labels, strict=True)
            ]
        finally:
            await pool.stop()
        return sum(verdict.reward or 0.0 for verdict in verdicts) / len(verdicts)


def first_reached(accuracy: Callable[[int], float], last: int, wanted: float) -> int | None:
    """The first version from 1 to `last` that reaches `wanted` together with the next ones, `IN_A_ROW` in all.

    Measures few versions: one that misses rules out every row of versions that it is in.
    """
    first = 1
    while first + IN_A_ROW - 1 <= last:
        missed = next((v for v in range(first + IN_A_ROW - 1, first - 1, -1) if accuracy(v) < wanted), None)
        if missed is None:
            return first
        first = missed + 1
    return None
