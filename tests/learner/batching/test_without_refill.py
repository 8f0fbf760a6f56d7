"""Groups without a gradient that leave a batch, and are not replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.learner.batching.batch import BatchBuilder
from olmorl.learner.storage.ledger_state import Start

STARTS = [Start(1, 0, 0)]


def built(groups: list[Any], filters: Any) -> Any:
    return BatchBuilder(config.build({"schedule": {"filter_zero_gradient": filters}}), 1).build(1, groups, STARTS)


def test_by_hand(make_group: Callable[..., Any]) -> None:
    """Three groups of two answers of 4 tokens: two teach nothing, so the loss is a mean over 8 tokens and not 24."""
    groups = [make_group(draw, rewards=rewards) for draw, rewards in enumerate([(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)])]
    batches = [built(groups, filters) for filters in ("without_refill", False)]
    assert [batch.shards[0].loss_tokens for batch in batches] == [(8.0,), (24.0,)]
    assert [batch.facts.groups for batch in batches] == [1, 3]
    (row,) = batches[0].shards[0].minibatches[0]
    assert [(sample.draw_id, sample.advantage) for sample in row] == [(1, 0.5), (1, -0.5)]


@pytest.mark.parametrize("filters", ["without_refill", False])
def test_a_batch_without_any_gradient_is_trained_as_it_is(make_group: Callable[..., Any], filters: Any) -> None:
    batch = built([make_group(draw, rewards=(1.0, 1.0)) for draw in range(2)], filters)
    samples = [sample for row in batch.shards[0].minibatches[0] for sample in row]
    assert batch.facts.groups == 2 and len(samples) == 4
    assert not np.any([sample.advantage for sample in samples])
