"""Builds prompts and completions for tests of verifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from olmorl.messages import Completion, Prompt, Span, Version

START = Version(0, 0)


def make_prompt(datasets: tuple[str, ...] = (), truths: tuple[Any, ...] = (), **changes: Any) -> Prompt:
    """A prompt with one label for each verifier named."""
    fields: dict[str, Any] = {
        "draw_id": 7,
        "row": "rows.jsonl:7",
        "messages": "How much?",
        "token_ids": np.zeros(1, np.int32),
        "group_size": 2,
        "min_version": START,
    }
    return Prompt(datasets=datasets, ground_truths=truths, **(fields | changes))


def make_completion(text: str, index: int = 0, **changes: Any) -> Completion:
    """A finished completion of one token."""
    fields: dict[str, Any] = {
        "token_ids": np.zeros(1, np.int32),
        "logprobs": np.zeros(1, np.float32),
        "spans": (Span(START, 0, 1),),
        "finish_reason": "stop",
    }
    return Completion(index=index, text=text, **(fields | changes))
