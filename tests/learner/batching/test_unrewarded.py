"""Completions to which no verifier applies: the others of the group are trained on with their own baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from olmorl import config
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching import samples
from olmorl.learner.batching.packing import pack
from olmorl.learner.orchestrator.evaluation import Round
from olmorl.learner.storage.group_stats import score
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Group, Version

MakeGroup = Callable[..., Group]
MAX_TOKENS = 8


def switches(**more: Any) -> Any:
    return resolve(config.Objective(**more), MAX_TOKENS)


def made(group: Group, **more: Any) -> tuple[Any, ...]:
    return samples.samples(
        group, 0, max_lag=2, max_tokens=MAX_TOKENS, starts=[Start(1, 0, 0)], switches=switches(**more)
    )


def rewarded(make_group: MakeGroup, *rewards: float | None, **more: Any) -> Group:
    group = make_group(0, rewards=[reward or 0.0 for reward in rewards], **more)
    pairs = zip(group.completions, rewards, strict=True)
    return replace(group, completions=tuple(replace(one, reward=reward) for one, reward in pairs))


@pytest.mark.parametrize(
    ("rewards", "kind", "expected"),
    [
        # The mean of 1, 0 and 0.5 is 0.5.
        ([1.0, None, 0.0, 0.5], "mean", [0.5, 0.0, -0.5, 0.0]),
        ([None, 3.0, 1.0, None], "mean", [0.0, 1.0, -1.0, 0.0]),
        # 3 and 1: a standard deviation of 1.
        ([None, 3.0, 1.0, None], "mean_std", [0.0, 1.0, -1.0, 0.0]),
        # 2, 0, 0, 2 would have a mean of 1; the zeros of those without a reward are none.
        ([2.0, None, None, 4.0], "mean", [-1.0, 0.0, 0.0, 1.0]),
        ([5.0, None, None, None], "mean", [0.0] * 4),
        ([5.0, None, 5.0, None], "mean_std", [0.0] * 4),
    ],
)
def test_the_baseline_is_of_those_that_have_a_reward(
    make_group: MakeGroup, rewards: list[float | None], kind: str, expected: list[float]
) -> None:
    found = made(rewarded(make_group, *rewards), advantage=kind)
    assert [sample.advantage for sample in found] == pytest.approx(expected, rel=1e-5)
    assert [bool(sample.loss_mask.all()) for sample in found] == [reward is not None for reward in rewards]
    assert [bool(sample.loss_mask.any()) for sample in found] == [reward is not None for reward in rewards]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1.0, None, 0.0], True), ([1.0, None, 1.0], False), ([1.0, None, None], False), ([None, 0.0, None], False)],
)
def test_fewer_than_two_rewards_are_no_gradient(
    make_group: MakeGroup, rewards: list[float | None], expected: bool
) -> None:
    group = rewarded(make_group, *rewards)
    assert samples.has_gradient(group, switches(), MAX_TOKENS) is expected
    assert samples.teaches(made(group), switches()) is expected
    assert samples.defect(group) is None


def test_the_length_penalty_is_no_reward(make_group: MakeGroup) -> None:
    group = rewarded(make_group, 1.0, 1.0, None, lengths=[2, 2, 8])
    assert not samples.has_gradient(group, switches(overlong_buffer=4), MAX_TOKENS)


def test_a_completion_without_a_reward_is_in_no_divisor(make_group: MakeGroup) -> None:
    group = rewarded(make_group, 1.0, None, 0.0, lengths=[2, 5, 3])
    (shard,) = pack([made(group)], step=1, num_ranks=1, num_minibatches=1, row_tokens=100)
    assert (shard.loss_tokens, shard.num_sequences) == ((5.0,), (2,))
    assert sum(len(row) for rows in shard.minibatches for row in rows) == 3, "the group stays whole"


def test_scores_and_evaluations_are_of_the_rewards_that_there_are(make_group: MakeGroup) -> None:
    group = rewarded(make_group, 1.0, None, 0.0, None)
    fields = score(group).fields()
    assert (fields["reward_mean"], fields["solve_rate_mean"]) == (0.5, 0.5)
    current = Round(Version(1, 0), asked=3, ends_at=0.0)
    current.add(group)
    current.add(rewarded(make_group, 1.0, 1.0, 0.0, 0.0))
    current.add(rewarded(make_group, None, None, None, None))
    fields = current.fields("held")
    assert (fields["eval_held_accuracy"], fields["eval_held_failed"]) == (0.5, 1)
    # Of two of which one is solved, both are drawn; of four with two solved, a pair misses in one of six.
    assert fields["eval_held_pass_at_2"] == pytest.approx((1 + 5 / 6) / 2)
    assert fields["eval_held_pass_at_4"] == 1.0
