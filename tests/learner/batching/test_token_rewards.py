"""Rewards that come with tokens: advantages by hand and against a float64 reference, batches, masks and rollouts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from olmorl import codec, config
from olmorl.config import Objective
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.advantage import advantages, token_advantages
from olmorl.learner.algorithm.presets import Switches, resolve
from olmorl.learner.batching import samples
from olmorl.learner.batching.packing import pack, row_arrays
from olmorl.learner.storage.group_stats import score
from olmorl.learner.storage.ledger_state import Outcome, Start
from olmorl.learner.storage.rollout_record import Ended, line
from olmorl.messages import Group, Sample, Span, Turn, Version

MakeGroup = Callable[..., Group]
MAX_TOKENS = 8
NAN = math.nan


def switches(**objective: Any) -> Switches:
    return resolve(Objective(**objective), MAX_TOKENS)


def paid(make_group: MakeGroup, *rewards: list[float] | float | None) -> Group:
    """A group whose answers have rewards of tokens, or one reward for the whole of four tokens, or none."""
    lengths = [len(one) if isinstance(one, list) else 4 for one in rewards]
    sums = [float(np.nansum(one)) if isinstance(one, list) else (one or 0.0) for one in rewards]
    group = make_group(0, rewards=sums, lengths=lengths)
    completions = [
        replace(
            completion,
            reward=None if one is None else completion.reward,
            token_rewards=np.array(one, np.float32) if isinstance(one, list) else UNSET,
        )
        for completion, one in zip(group.completions, rewards, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def made(group: Group, chosen: Switches, trained: int = 0) -> tuple[Sample, ...]:
    return samples.samples(group, trained, max_lag=0, max_tokens=MAX_TOKENS, starts=[Start(1, 0, 0)], switches=chosen)


def values(sample: Sample) -> list[float]:
    """The advantage of each token as the learner packs it."""
    ((row,),) = pack([[sample]], step=1, num_ranks=1, num_minibatches=1, row_tokens=100)[0].minibatches
    return row_arrays(row).advantages_T[len(sample.prompt_ids) :].astype(np.float64).tolist()


def test_a_token_gets_the_normalized_rewards_that_come_with_it_and_later(make_group: MakeGroup) -> None:
    # Steps of 1 and 0 in the first answer, of 0.5 in the second. Their mean is 0.5.
    group = paid(make_group, [NAN, 1.0, NAN, 0.0], [NAN, 0.5])
    first, second = made(group, switches(advantage="mean"))
    assert values(first) == [0.0, 0.0, -0.5, -0.5]
    assert values(second) == [0.0, 0.0] and second.token_advantages is UNSET
    assert samples.has_gradient(group, switches(advantage="mean"), MAX_TOKENS)
    # The population deviation is sqrt((0.25 + 0.25 + 0) / 3).
    first, _ = made(group, switches(advantage="mean_std"))
    assert values(first) == pytest.approx([0.0, 0.0, *[-0.5 / (math.sqrt(1 / 6) + 1e-6)] * 2])


def reference(rewards: Sequence[Sequence[float]], kind: str) -> list[list[float]]:
    """Equations of arXiv 2402.03300, section 4.1.3, token by token, with the normalization of each kind."""
    flat = [reward for one in rewards for reward in one if not math.isnan(reward)]
    mean = sum(flat) / len(flat)
    squares = sum((one - mean) ** 2 for one in flat)
    divisor = {"mean": 1.0, "whiten": 1.0, "leave_one_out": (len(flat) - 1) / len(flat)}.get(kind) or (
        math.sqrt(squares / (len(flat) - (kind == "mean_sample_std"))) + 1e-6
    )
    centre = 0.0 if kind == "whiten" else mean
    return [
        [sum((one - centre) / divisor for one in rewards_T[t:] if not math.isnan(one)) for t in range(len(rewards_T))]
        for rewards_T in rewards
    ]


@pytest.mark.parametrize("kind", ["mean", "mean_std", "mean_sample_std", "leave_one_out", "whiten"])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_those_of_the_reference(kind: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    rewards = [random.normal(size=length) for length in (5, 1, 3, 7)]
    rewards[0][random.random(5) < 0.5] = NAN
    rewards[3][random.random(7) < 0.5] = NAN
    expected = reference([one.tolist() for one in rewards], kind)
    for found_T, expected_T in zip(token_advantages(rewards, kind), expected, strict=True):
        assert found_T == pytest.approx(expected_T, abs=1e-12)


@pytest.mark.parametrize("kind", ["mean", "mean_std", "mean_sample_std", "leave_one_out", "whiten", "gae"])
def test_a_single_reward_with_the_last_token_is_that_of_the_answer(kind: Any) -> None:
    rewards = [[NAN, NAN, 1.0], [0.25], [NAN, 0.5]]
    found = token_advantages([np.array(one) for one in rewards], kind)
    whole = advantages([1.0, 0.25, 0.5], kind)
    assert [one.tolist() for one in found] == [[a] * len(r) for a, r in zip(whole.tolist(), rewards, strict=True)]


def test_a_reward_of_the_whole_and_a_penalty_come_with_the_last_token(make_group: MakeGroup) -> None:
    # Of 8 tokens at most the last four cost up to 1: an answer of six pays 0.5 with its last token.
    chosen = switches(advantage="mean", overlong_buffer=4)
    steps, whole, without = made(paid(make_group, [1.0, *[NAN] * 5], 0.5, None), chosen)
    # Rewards 1, -0.5 and 0.5 with the mean 1/3.
    assert values(steps) == pytest.approx([2 / 3 - 5 / 6, *[-5 / 6] * 5])
    assert values(whole) == pytest.approx([1 / 6] * 4)
    assert values(without) == [0.0] * 4 and not without.loss_mask.any()


def test_equal_sums_at_other_tokens_have_a_gradient_and_equal_rewards_have_none(make_group: MakeGroup) -> None:
    chosen = switches(advantage="mean_std")
    moved = paid(make_group, [1.0, 0.0], [0.0, 1.0])
    assert samples.has_gradient(moved, chosen, MAX_TOKENS) and samples.teaches(made(moved, chosen), chosen)
    equal = paid(make_group, [1.0, 1.0], [1.0])
    assert not samples.has_gradient(equal, chosen, MAX_TOKENS) and not samples.teaches(made(equal, chosen), chosen)
    alone = paid(make_group, [1.0, 0.0], None)
    assert not samples.has_gradient(alone, chosen, MAX_TOKENS), "an answer alone has no baseline"


def test_whitening_is_over_the_tokens(make_group: MakeGroup) -> None:
    chosen = switches(preset="reinforce_pp")
    stale = paid(make_group, [1.0, 2.0, NAN], [4.0])
    first = stale.completions[0]
    spans = (Span(Version(1, 0), 0, 2), Span(Version(1, 1), 2, 3))
    stale = replace(stale, completions=(replace(first, spans=spans), *stale.completions[1:]))
    fresh = replace(stale.completions[1], spans=(Span(Version(1, 1), 0, 1),))
    stale = replace(stale, completions=(stale.completions[0], fresh))
    one = made(stale, chosen, trained=1)
    assert [sample.loss_mask.tolist() for sample in one] == [[False, False, True], [True]]
    (group,) = samples.with_batch_part([one], chosen)
    # The loss tokens have 0 and 4: mean 2, sample variance 8.
    assert [values(sample)[-1] for sample in group] == pytest.approx([-2 / math.sqrt(8), 2 / math.sqrt(8)])


def test_rewards_reach_the_critic_as_the_sum_to_come(make_group: MakeGroup) -> None:
    first, second = made(paid(make_group, [1.0, NAN, 2.0], 0.5), switches(preset="ppo"))
    assert values(first) == [3.0, 2.0, 2.0] and values(second) == [0.5] * 4


def test_gdpo_takes_the_sum(make_group: MakeGroup) -> None:
    first, second = made(paid(make_group, [1.0, 0.0], [0.0, 0.0]), switches(preset="gdpo"))
    assert first.token_advantages is UNSET and first.advantage == -second.advantage > 0


def test_tokens_between_turns_have_no_advantage(make_group: MakeGroup) -> None:
    group = paid(make_group, [1.0, 0.0], [0.0, 0.0])
    turns = [
        {"kept": 2, "added": np.zeros(0, np.int32), "start": 0, "end": 1, "finish_reason": "stop"},
        {"parent": 0, "kept": 3, "added": np.array([7, 8], np.int32), "start": 1, "end": 2, "finish_reason": "stop"},
    ]
    one = samples._path(made(group, switches(advantage="mean"))[0], [Turn(**turn) for turn in turns])
    # Four rewards with the mean 0.25.
    assert one.completion_ids.tolist() == [0, 7, 8, 1]
    assert [value for value, on in zip(values(one), one.loss_mask, strict=True) if on] == [0.5, -0.25]


def test_the_files_have_them_and_the_mean_is_of_the_sums(make_group: MakeGroup) -> None:
    group = paid(make_group, [0.25, NAN, 0.5], 1.0)
    assert score(group).rewards.mean == (0.75 + 1.0) / 2
    again = codec.decode(codec.encode(group), Group)
    assert np.array_equal(again.completions[0].token_rewards, [0.25, NAN, 0.5], equal_nan=True)
    assert b"token_rewards" not in codec.encode(make_group(0))
    first, second = json.loads(line(Ended(group, Outcome.TRAINED, 1, "")))["completions"]
    assert first["token_rewards"] == [0.25, None, 0.5] and first["reward"] == 0.75
    assert "token_rewards" not in second and "token_rewards" not in first["verdicts"]["math"]


def test_another_number_of_rewards_than_tokens_is_a_defect(make_group: MakeGroup) -> None:
    group = paid(make_group, [1.0, 0.0], 1.0)
    first = replace(group.completions[0], token_rewards=np.zeros(3, np.float32))
    bad = replace(group, completions=(first, group.completions[1]))
    assert samples.defect(group) is None
    assert samples.defect(bad) == "completion 0: 2 tokens, 3 rewards of tokens"


@pytest.mark.parametrize("preset", ["ppo", "reinforce_pp"])
def test_a_group_of_one_is_trained_where_it_gives_no_baseline(make_group: MakeGroup, preset: Any) -> None:
    (one,) = made(make_group(0, rewards=[0.5]), switches(preset=preset))
    assert one.advantage == 0.5
    (one,) = made(paid(make_group, [0.25, 0.5]), switches(preset=preset))
    assert values(one) == [0.75, 0.5]
    assert config.build({"sampling": {"group_size": 1}, "objective": {"preset": preset}}).sampling.group_size == 1


def test_a_group_of_one_is_refused_where_it_gives_the_baseline(make_group: MakeGroup) -> None:
    assert made(make_group(0, rewards=[0.5]), switches())[0].advantage == 0
    with pytest.raises(ConfigError, match=r"sampling\.group_size = 1: the advantage compares"):
        config.build({"sampling": {"group_size": 1}})
    with pytest.raises(ConfigError, match=r"sampling\.group_size = 1"):
        config.build({"sampling": {"group_size": 1}, "objective": {"preset": "ppo", "advantage": "mean"}})
