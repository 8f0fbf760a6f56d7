"""Groups that teachers scored: advantages of tokens by hand, masks, defects, batches, metrics and rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from olmorl import codec, config
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.presets import with_teachers
from olmorl.learner.batching import samples
from olmorl.learner.batching.batch import BatchBuilder
from olmorl.learner.batching.packing import pack, row_arrays
from olmorl.learner.storage.group_stats import Score, score
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger_state import Outcome, Start
from olmorl.learner.storage.rollout_record import Ended, line
from olmorl.messages import TEACHER, Completion, Group, Sample, Verdict

MakeGroup = Callable[..., Group]
MAX_TOKENS = 8
TEACHERS = {"one": {"url": "http://teacher:8000/v1"}}


def settings(**more: Any) -> config.Config:
    objective = more.pop("objective", {})
    distillation = {"teachers": TEACHERS, **more}
    return config.build(
        {
            "distillation": distillation,
            "objective": objective,
            "sampling": {"max_tokens": MAX_TOKENS},
            "data": {"max_prompt_tokens": 8},
        }
    )


def taught(group: Group, *logprobs: list[float] | None, unrewarded: bool = False) -> Group:
    """The group with the log-probabilities that a teacher gave to each completion."""
    completions = []
    for completion, values in zip(group.completions, logprobs, strict=True):
        verdicts = {} if unrewarded else dict(completion.verdicts)
        if values is not None:
            verdicts[TEACHER] = Verdict(reward=None, method="one", token_logprobs=np.array(values, np.float32))
        reward = None if unrewarded else completion.reward
        completions.append(replace(completion, verdicts=verdicts, reward=reward))
    return replace(group, completions=tuple(completions))


def made(group: Group, recipe: config.Config, trained: int = 0, max_lag: int = 2) -> tuple[Sample, ...]:
    return samples.samples(
        group,
        trained,
        max_lag=max_lag,
        max_tokens=MAX_TOKENS,
        starts=[Start(1, 0, 0)],
        switches=with_teachers(recipe),
    )


def row_of(group: Group, recipe: config.Config) -> Any:
    (shard,) = pack([made(group, recipe)], step=1, num_ranks=1, num_minibatches=1, row_tokens=100)
    ((row,),) = shard.minibatches
    return row_arrays(sorted(row, key=lambda one: len(one.completion_ids)))


def test_a_token_gets_what_its_teacher_finds_it_likelier_than_the_engine_did(make_group: MakeGroup) -> None:
    # The engine gave -0.5 to every token. Prompts have two tokens.
    group = taught(make_group(0, rewards=[1.0, 0.0], lengths=[1, 2]), [-0.25], [-1.5, -0.5])
    alone = row_of(group, settings(coefficient=2.0))
    assert alone.advantages_T.tolist() == [0, 0, 0.5, 0, 0, -2.0, 0.0]
    # With rewards of 1 and 0, the other part is 0.5 and -0.5.
    mixed = row_of(group, settings(coefficient=2.0, with_rewards=True))
    assert mixed.advantages_T.tolist() == [0, 0, 1.0, 0, 0, -2.5, -0.5]
    assert alone.loss_mask_T.tolist() == mixed.loss_mask_T.tolist() == [False, False, True, False, False, True, True]


def test_answers_that_share_a_prompt_keep_their_tokens_advantages(make_group: MakeGroup) -> None:
    group = taught(make_group(0, lengths=[1, 2]), [-0.25], [-1.5, -0.5])
    row = row_arrays(made(group, settings()), share_prompts=True)
    assert row.advantages_T.tolist() == [0, 0, 0.25, -1.0, 0.0]


def test_tokens_without_a_number_of_the_engine_are_masked_and_get_nothing(make_group: MakeGroup) -> None:
    group = taught(make_group(0, tokens=2), [-0.25, -0.25], [-1.5, -0.5])
    first = replace(group.completions[0], logprobs=np.array([-np.inf, -0.5], np.float32))
    group = replace(group, completions=(first, group.completions[1]))
    one, _ = made(group, settings())
    assert one.loss_mask.tolist() == [False, True] and isinstance(one.token_advantages, np.ndarray)
    assert one.token_advantages.tolist() == [0.0, 0.25]
    assert score(group).part_fields()["teacher_kl_mean"] == pytest.approx((-0.25 + 1.0 + 0.0) / 3)


@pytest.mark.parametrize("preset", ["olmorl", "reinforce_pp", "gdpo", "dapo"])
def test_no_group_of_teachers_is_without_a_gradient(make_group: MakeGroup, preset: str) -> None:
    group = taught(make_group(0, rewards=[1.0, 1.0]), [-1.0] * 4, [-1.0] * 4)
    nobody = taught(make_group(0, rewards=[1.0, 1.0]), None, None)
    unrewarded = taught(make_group(0), [-1.0] * 4, [-1.0] * 4, unrewarded=True)
    for recipe in (settings(objective={"preset": preset}), settings(objective={"preset": preset}, with_rewards=True)):
        builder, starts = BatchBuilder(recipe, 1), [Start(1, 0, 0)]
        for each in (group, unrewarded):
            assert samples.defect(each) is None
            assert builder.has_gradient(each) and builder.teaches(each, 1, starts)
            assert not builder.teaches(each, 9, starts), "all its tokens are too old"
        expected = recipe.distillation.with_rewards and preset == "reinforce_pp"
        assert builder.has_gradient(nobody) is expected, "the batch may give it an advantage"


def test_a_batch_without_rewards_is_built_and_has_no_mean(make_group: MakeGroup) -> None:
    groups = [taught(make_group(n), [-1.0] * 4, [-2.0] * 4, unrewarded=True) for n in range(3)]
    batch = BatchBuilder(settings(), 2).build(1, groups, [Start(1, 0, 0)])
    assert batch.facts.reward_mean is None
    assert (batch.facts.groups, batch.facts.trained_tokens) == (3, 24)
    assert batch.shards[0].loss_tokens == (24.0,)


def test_without_a_teacher_of_its_own_a_completion_learns_from_rewards_or_is_masked(make_group: MakeGroup) -> None:
    group = taught(make_group(0, rewards=[1.0, 0.0]), [-1.0] * 4, None)
    first, second = made(group, settings(with_rewards=True))
    assert second.token_advantages is UNSET and (first.advantage, second.advantage) == (0.5, -0.5)
    assert first.loss_mask.all() and second.loss_mask.all()
    first, second = made(group, settings())
    assert (first.advantage, second.advantage) == (0, 0)
    assert first.loss_mask.all() and not second.loss_mask.any()


def test_masks_of_length_hold_for_teachers_too(make_group: MakeGroup) -> None:
    group = taught(make_group(0), [-1.0] * 4, [-1.0] * 4)
    cut = replace(group, completions=tuple(replace(one, finish_reason="length") for one in group.completions))
    recipe = settings(objective={"mask_truncated": True})
    assert not any(one.loss_mask.any() for one in made(cut, recipe))
    assert not samples.has_gradient(cut, with_teachers(recipe), MAX_TOKENS)


@pytest.mark.parametrize(
    ("logprobs", "reason"),
    [
        ([-1.0] * 3, "4 tokens, 3 finite log-probabilities of a teacher"),
        ([-1.0, float("nan"), -1.0, -1.0], "4 tokens, 3 finite log-probabilities of a teacher"),
    ],
)
def test_damaged_log_probabilities_are_a_defect(make_group: MakeGroup, logprobs: list[float], reason: str) -> None:
    assert samples.defect(taught(make_group(0), [-1.0] * 4, logprobs)) == f"completion 1: {reason}"


def test_journal_and_codec_keep_every_bit_and_cost_nothing_without_a_teacher(
    make_group: MakeGroup, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).normal(-2, 1, (2, 4)).clip(-20, 0).astype(np.float32)
    group = taught(make_group(7), *values.tolist())
    Journal(tmp_path).write(1, 1, [group])
    (read,) = Journal(tmp_path).read(1)
    recipe, starts = settings(with_rewards=True), [Start(1, 0, 0)]
    for before, after in zip(group.completions, read.completions, strict=True):
        assert after.teacher_logprobs is not None and before.teacher_logprobs is not None
        assert after.teacher_logprobs.tobytes() == before.teacher_logprobs.tobytes()
    built = [BatchBuilder(recipe, 2).build(1, [each], starts) for each in (group, read)]
    assert codec.encode(built[0].shards) == codec.encode(built[1].shards)
    plain = make_group(7)
    for message in (plain, made(plain, config.Config())):
        assert b"token_" not in codec.encode(message).replace(b"token_ids", b"")
    assert codec.decode(codec.encode(plain), Group).completions[0].teacher_logprobs is None


def test_metrics_by_source_add_up(make_group: MakeGroup) -> None:
    first = taught(make_group(0), [-1.0] * 4, [-0.5] * 4)  # 0.5 nats a token of the first answer
    other = taught(make_group(1, lengths=[1, 3]), [-2.5], [-0.5] * 3)
    other = replace(other, prompt=replace(other.prompt, row="data/b.jsonl:3"))
    fields = (score(first) + score(other)).part_fields()
    assert fields["source_a.jsonl_teacher_kl_mean"] == 0.25
    assert fields["source_a.jsonl_teacher_kl_answers"] == 1.0
    assert fields["source_data/b.jsonl_teacher_kl_mean"] == 0.5
    assert fields["source_data/b.jsonl_teacher_kl_answers"] == 1.0
    assert (fields["teacher_kl_mean"], fields["teacher_kl_answers"]) == (4 / 12, 1.0)
    plain = score(make_group(0))
    assert not any("teacher" in name for name in plain.part_fields())
    assert b"taught" not in codec.encode(plain) and codec.decode(codec.encode(score(first)), Score) == score(first)


def test_a_rollout_has_the_column(make_group: MakeGroup) -> None:
    group = taught(make_group(0), [-1.0, -2.0, -3.0, -4.0], None)
    first, second = json.loads(line(Ended(group, Outcome.TRAINED, 1, "")))["completions"]
    assert first["teacher_logprobs"] == [-1.0, -2.0, -3.0, -4.0]
    assert first["verdicts"]["teacher"]["method"] == "one" and "token_logprobs" not in first["verdicts"]["teacher"]
    assert "teacher_logprobs" not in second and "teacher" not in second["verdicts"]


@pytest.mark.parametrize(
    "objective",
    [{"preset": "ppo"}, {"preset": "reinforce_pp", "kl_beta": 0.1, "kl_in": "reward"}],
    ids=["critic", "whitened KL reward"],
)
def test_objectives_that_take_token_advantages_as_rewards_are_refused(objective: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"distillation\.teachers with a critic, or with a KL reward"):
        with_teachers(settings(objective=objective))
    with_teachers(settings(objective={"kl_beta": 0.1, "kl_in": "reward"}))


def test_a_completion_has_the_log_probabilities_of_its_teacher_alone(make_group: MakeGroup) -> None:
    completion: Completion = make_group(0).completions[0]
    failed = replace(completion, verdicts={TEACHER: Verdict(reward=None, error_kind="teacher_down")})
    assert completion.teacher_logprobs is None and failed.teacher_logprobs is None
