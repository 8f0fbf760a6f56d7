"""The names under which groups are counted."""

from __future__ import annotations

import numpy as np
import pytest

from olmorl.learner.storage.group_stats import source
from olmorl.messages import Failure, Prompt, Version


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("/data/of/everybody/gsm8k/train.jsonl:17", "gsm8k/train.jsonl"),
        ("/train.jsonl:1", "train.jsonl"),
        ("owner/set:5", "owner/set"),
        ("math.jsonl:3", "math.jsonl"),
        ("", "unknown"),
    ],
)
def test_the_name_of_a_source_holds_no_absolute_path(row: str, name: str) -> None:
    prompt = Prompt(
        draw_id=1,
        attempt=1,
        row=row,
        messages="6 x 7?",
        token_ids=np.zeros(2, np.int32),
        datasets=("math",),
        ground_truths=("42",),
        queued_at=0.0,
        group_size=2,
        min_version=Version(1, 2),
    )
    assert source(Failure(prompt=prompt, cause="over_long", actor="actor-0")) == name
