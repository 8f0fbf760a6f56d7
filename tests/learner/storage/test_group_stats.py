"""The names under which groups are counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl.learner.storage.group_stats import names_taken_twice, score, source
from olmorl.messages import Episode, Group, Turn


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
    assert source(row) == name


def test_files_that_the_metrics_cannot_tell_apart_are_named() -> None:
    rows = ["/a/x/data/train.jsonl:1", "/b/y/data/train.jsonl:1", "/b/y/data/train.jsonl:2", "/b/y/other/train.jsonl:1"]
    assert names_taken_twice(rows) == [
        "data.train: /a/x/data/train.jsonl and /b/y/data/train.jsonl are data/train.jsonl in the metrics, as one "
        "source: rename a folder or a file"
    ]
    assert names_taken_twice(["a/data/train.jsonl:1", "b/data/train.jsonl:1", "owner/set:1"]) == []


def turn(parent: int, asked_at: float, ended_at: float) -> Turn:
    added, at = np.zeros(1, np.int32), {"asked_at": asked_at, "ended_at": ended_at}
    return Turn(parent=parent, kept=2, added=added, start=0, end=1, finish_reason="stop", **at)


def test_episodes_are_counted_by_exit_and_their_time_between_turns_is_summed(make_group: Callable[..., Group]) -> None:
    first, second = make_group(0).completions
    # The third turn is a branch: it continues the first one.
    turns = (turn(-1, 0.0, 1.0), turn(0, 3.0, 4.0), turn(0, 5.0, 6.0))
    done = replace(first, episode=Episode(turns=turns, exit="done"))
    cut = replace(second, episode=Episode(turns=turns[:1], exit="too_long"))
    whole = score(replace(make_group(0), completions=(done, cut))) + score(
        replace(make_group(1), completions=(done, replace(done, index=1)))
    )
    fields = whole.part_fields()
    assert (fields["exits_done"], fields["exits_too_long"]) == (3, 1)
    assert fields["episode_turns_mean"] == (3 * 3 + 1) / 4
    assert fields["episode_between_turns_s_mean"] == 3 * ((3 - 1) + (5 - 1)) / 4
    assert fields["episode_s_mean"] == (3 * 6 + 1) / 4
    assert whole.batch_fields().keys() == {
        "batch_completion_tokens_mean",
        *(f"batch_{name}" for name in fields if name.startswith("episode_")),
    }
    single = score(make_group(2))
    assert not any(name.startswith(("exits_", "episode_")) for name in single.part_fields())
    assert single.batch_fields() == {"batch_completion_tokens_mean": single.tokens / single.completions}
