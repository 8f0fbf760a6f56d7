"""Turns groups into samples: defects, gradients, masks; and their share in the metrics and the rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl import config
from olmorl.clock import LoopClock, run_simulated
from olmorl.errors import ResourceError
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching import samples
from olmorl.learner.batching.batch import BatchBuilder
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.orchestrator.evaluation import Round, pass_at
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.group_stats import Score, score
from olmorl.learner.storage.ledger_state import Outcome, Start
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Completion, Episode, Failure, Group, Turn, Verdict, Version

MakeGroup = Callable[..., Group]
MAX_TOKENS = 8
STARTS = [Start(1, 0, 0)]


def switches(**more: Any) -> Any:
    return resolve(config.Objective(**more), MAX_TOKENS)


def made(group: Group, trained: int, max_lag: int = 2, **more: Any) -> tuple[Any, ...]:
    return samples.samples(
        group, trained, max_lag=max_lag, max_tokens=MAX_TOKENS, starts=STARTS, switches=switches(**more)
    )


def test_advantages_are_rewards_minus_their_mean(make_group: MakeGroup) -> None:
    group = make_group(3, rewards=[1.0, 0.0, 0.0, 1.0])
    assert [sample.advantage for sample in made(group, 0)] == [0.5, -0.5, -0.5, 0.5]
    assert [sample.advantage for sample in made(group, 0, reward_scale=10)] == [5, -5, -5, 5]


def batch_advantages(groups: list[Group], **more: Any) -> list[list[float]]:
    made_groups = [made(group, 0, **more) for group in groups]
    return [[one.advantage for one in group] for group in samples.with_batch_part(made_groups, switches(**more))]


def test_rewards_without_a_group_baseline_are_normalized_over_the_tokens_of_the_batch(make_group: MakeGroup) -> None:
    # Both groups have equal rewards: a baseline of their own would leave nothing.
    groups = [make_group(0, rewards=[1.0, 1.0], lengths=[1, 2]), make_group(1, rewards=[0.0, 0.0], lengths=[2, 1])]
    assert all(samples.has_gradient(group, switches(preset="reinforce_pp"), MAX_TOKENS) for group in groups)
    assert not any(samples.has_gradient(group, switches(preset="olmorl"), MAX_TOKENS) for group in groups)
    assert samples.teaches(made(groups[1], 0, preset="reinforce_pp"), switches(preset="reinforce_pp"))
    # Six tokens, half of each: mean 1/2, variance 6/4 / 5.
    expected = [0.5 / 0.3**0.5] * 2
    assert batch_advantages(groups, preset="reinforce_pp")[0] == pytest.approx(expected)
    assert batch_advantages(groups, preset="reinforce_pp")[1] == pytest.approx([-each for each in expected])
    assert batch_advantages(groups, preset="reinforce_pp_baseline") == [[0, 0], [0, 0]]


def test_gdpo_normalizes_each_reward_in_its_group_before_the_weighted_sum(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 0.0])
    short = [Verdict(reward=0.2, weight=0.5), Verdict(reward=0.6, weight=0.5)]
    both = tuple(
        replace(one, verdicts=one.verdicts | {"short": verdict, "down": Verdict(reward=None)}, reward=2.0)
        for one, verdict in zip(group.completions, short, strict=True)
    )
    group = replace(group, completions=both)
    # The combined rewards are equal, the single ones are not: sqrt(1/2) from the first, half of it less from the other.
    assert not samples.has_gradient(group, switches(preset="trl"), MAX_TOKENS)
    assert samples.has_gradient(group, switches(preset="gdpo"), MAX_TOKENS)
    first = 0.5 / (0.5**0.5 + 1e-4) - 0.5 * 0.2 / (0.08**0.5 + 1e-4)
    assert [one.advantage for one in made(group, 0, preset="gdpo")] == pytest.approx([first, -first])
    # Then mean 0 and standard deviation 1 over the completions of the batch.
    expected = first / (first * 2**0.5 + 1e-4)
    assert batch_advantages([group], preset="gdpo") == [pytest.approx([expected, -expected])]


def test_tokens_that_are_too_old_are_masked(make_group: MakeGroup) -> None:
    group = make_group(0, versions=[Version(1, 0), Version(1, 1)], tokens=4)
    sample = made(group, 3, max_lag=2)[0]
    assert sample.lags.tolist() == [3, 3, 2, 2]
    assert sample.loss_mask.tolist() == [False, False, True, True]
    assert samples.teaches(made(group, 3, max_lag=2), switches())
    assert not samples.teaches(made(group, 9, max_lag=2), switches())


def test_a_token_without_a_finite_log_probability_is_masked_and_counted(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 0.0])
    first, second = group.completions
    values = np.array([-0.5, np.nan, -np.inf, -0.5], np.float32)
    group = replace(group, completions=(replace(first, logprobs=values), second))
    assert samples.defect(group) is None
    assert [sample.loss_mask.tolist() for sample in made(group, 0)] == [[True, False, False, True], [True] * 4]
    tree = {"model": {"path": "none"}, "schedule": {"prompts_per_step": 1}, "sampling": {"group_size": 2}}
    facts = BatchBuilder(config.build(tree), num_ranks=1).build(1, [group], STARTS).facts
    assert (facts.tokens, facts.trained_tokens, facts.not_finite) == (8, 6, 2)


def test_equal_rewards_teach_nothing_unless_the_length_penalty_tells_them_apart(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 1.0], lengths=[2, 8])
    assert not samples.has_gradient(group, switches(), MAX_TOKENS)
    assert samples.has_gradient(group, switches(overlong_buffer=4), MAX_TOKENS)


def test_a_group_whose_only_signal_is_cut_off_teaches_nothing_when_those_are_masked(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[0.0, 1.0])
    cut = tuple(replace(completion, finish_reason="length") for completion in group.completions)
    group = replace(group, completions=cut)
    assert samples.has_gradient(group, switches(), MAX_TOKENS)
    assert not samples.has_gradient(group, switches(mask_truncated=True), MAX_TOKENS)


def test_defects_are_named(make_group: MakeGroup) -> None:
    group = make_group(0)
    first, *rest = group.completions
    broken = {
        "reward nan": replace(first, reward=float("nan")),
        "0 tokens": replace(first, token_ids=np.array([], np.int32), logprobs=np.array([], np.float32)),
        "3 log-probabilities": replace(first, logprobs=np.zeros(3, np.float32)),
        "no log-probability": replace(first, logprobs=np.full(4, -np.inf, np.float32)),
        "version spans": replace(first, spans=first.spans[:1] * 2),
    }
    assert samples.defect(group) is None
    for reason, completion in broken.items():
        assert reason in str(samples.defect(replace(group, completions=(completion, *rest))))
    assert samples.defect(replace(group, completions=tuple(rest))) == "1 completions in a group of 2"
    assert samples.defect(replace(group, completions=(replace(first, reward=None), *rest))) is None
    without = tuple(replace(one, reward=None) for one in group.completions)
    assert samples.defect(replace(group, completions=without)) == "no completion has a reward"


def test_scores_add_up(make_group: MakeGroup) -> None:
    one = score(make_group(0, rewards=[1.0, 0.0], lengths=[2, 6]))
    two = score(make_group(1, rewards=[1.0, 1.0], lengths=[4, 4]))
    fields = (one + two).fields()
    assert fields["reward_mean"] == 0.75
    assert fields["reward_std"] == pytest.approx(np.std([1, 0, 1, 1]))
    assert fields["solve_rate_mean"] == 0.75
    assert (fields["completion_tokens_mean"], fields["completion_tokens_max"]) == (4.0, 6)
    assert fields["reward_math_mean"] == 0.75
    assert set(Score().fields().values()) == {None}


@pytest.mark.parametrize(
    ("k", "number", "solved", "expected"), [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (2, 4, 3, 1.0), (4, 4, 0, 0.0)]
)
def test_pass_at_k_by_hand(k: int, number: int, solved: int, expected: float) -> None:
    assert pass_at(k, number, solved) == expected


async def test_rollouts_hold_every_draw_and_survive_a_torn_end(tmp_path: Path, make_group: MakeGroup) -> None:
    group = make_group(0, versions=[Version(1, 0), Version(2, 1)], tokens=4)
    writer = RolloutLog(tmp_path, 2, 1, DiskWriter(LoopClock(), 10.0))
    await writer.put(Failure(prompt=group.prompt, cause="attempts"), Outcome.FAILED, "attempts")
    await writer.end_step(1, [group])
    await writer.put(make_group(1), Outcome.ZERO_GRADIENT)
    await writer.close()
    first, second = rollout_log.files(tmp_path)
    assert (first.name, second.name) == ("step_000001.2.jsonl.zst", "step_000002.2.partial.jsonl.zst")
    assert writer.has(1)
    assert not writer.has(2)
    failed, trained = rollout_log.read(first)
    assert (failed["outcome"], failed["cause"], failed["completions"]) == ("failed", "attempts", [])
    completion = trained["completions"][0]
    assert completion["versions"] == [[0, 0, 2], [1, 2, 4]]
    assert completion["incarnations"] == [1, 2]
    assert completion["verdicts"]["math"]["reward"] == completion["reward"]
    assert completion["token_ids"] == group.completions[0].token_ids.tolist()
    second.write_bytes(second.read_bytes() + first.read_bytes()[:50])
    assert [record["prompt_id"] for record in rollout_log.read(second)] == [1]


async def test_evaluations_have_files_of_their_own(tmp_path: Path, make_group: MakeGroup) -> None:
    observed: list[Ended] = []
    writer = RolloutLog(tmp_path, 2, 1, DiskWriter(LoopClock(), 10.0), observed.append)
    await writer.put(make_group(0), Outcome.ZERO_GRADIENT)
    await writer.put_evaluation(0, "held", [(make_group(1), ""), (make_group(2), "")])
    await writer.restart_evaluation(0, "held")
    await writer.put_evaluation(0, "held", [(make_group(3), "")])
    await writer.put_evaluation(0, "a.partial", [(make_group(4), "")])
    await writer.end_step(1, [make_group(5)])
    await writer.put_evaluation(0, "held", [(Failure(prompt=make_group(6).prompt, cause="poison"), "poison")])
    await writer.end_evaluation(0, "held")
    await writer.close()
    (step,) = rollout_log.files(tmp_path)
    assert [record["prompt_id"] for record in rollout_log.read(step)] == [0, 5]
    unfinished, held = rollout_log.evaluation_files(tmp_path)
    assert unfinished.name == "evaluation_000000.a.partial.2.partial.jsonl.zst"
    assert held.name == "evaluation_000000.held.2.jsonl.zst"
    found = [(record["prompt_id"], record["outcome"], record["cause"]) for record in rollout_log.read(held)]
    assert found == [(3, "evaluation", ""), (6, "evaluation", "poison")]
    assert [ended.result.prompt.draw_id for ended in observed] == [0, 5], "evaluation has no draws"
    rollout_log.retain(tmp_path, "last 1", done=5, incarnation=2)
    assert rollout_log.evaluation_files(tmp_path) == [unfinished], "it is still written"
    rollout_log.retain(tmp_path, "last 1", done=5, incarnation=3)
    assert not rollout_log.evaluation_files(tmp_path) and not rollout_log.files(tmp_path)


async def test_a_step_that_was_recorded_just_before_a_crash_is_not_recorded_again(
    tmp_path: Path, make_group: MakeGroup
) -> None:
    room = DiskWriter(LoopClock(), 10.0)
    writer = RolloutLog(tmp_path, 1, 3, room)
    await writer.put(make_group(0), Outcome.STALE)
    await writer.end_step(3, [make_group(1), make_group(2)])
    await writer.put(make_group(3), Outcome.STALE)
    await writer.close()
    done = tmp_path / "step_000003.1.jsonl.zst"
    done.rename(tmp_path / "step_000003.1.partial.jsonl.zst")  # it died before that
    again = RolloutLog(tmp_path, 2, 3, room)
    assert again.has(3)
    assert not again.has(4), "what was decided while it was assembled is no step"
    await again.put(make_group(4), Outcome.STALE)
    await again.end_step(3, [])
    await again.end_step(4, [make_group(5)])
    await again.close()
    assert sorted(path.name for path in rollout_log.files(tmp_path)) == [
        "step_000003.1.partial.jsonl.zst",
        "step_000003.2.jsonl.zst",
        "step_000004.1.partial.jsonl.zst",
        "step_000004.2.jsonl.zst",
    ]
    found = [record["prompt_id"] for path in rollout_log.files(tmp_path) for record in rollout_log.read(path)]
    assert sorted(found) == [0, 1, 2, 3, 4, 5]


async def test_a_disk_that_refuses_rollouts_ends_the_run_with_its_name(tmp_path: Path, make_group: MakeGroup) -> None:
    (tmp_path / "file").write_text("not a folder")
    writer = RolloutLog(tmp_path / "file", 1, 1, DiskWriter(LoopClock(), 10.0))
    await writer.put(make_group(0), Outcome.STALE)
    async with asyncio.timeout(10):
        with pytest.raises(ResourceError, match=r"file/.*--resume"):
            await writer.flush()
        with pytest.raises(ResourceError):
            await writer.close()


def test_rollouts_wait_for_room_and_then_nothing_is_missing(tmp_path: Path, make_group: MakeGroup) -> None:
    full = tmp_path / "step_000001.1.partial.jsonl.zst"
    full.symlink_to("/dev/full")

    async def scenario() -> None:
        writer = RolloutLog(tmp_path, 1, 1, DiskWriter(LoopClock(), 60.0))
        await writer.put(make_group(0), Outcome.STALE)
        await writer.put(make_group(1), Outcome.STALE)
        await asyncio.sleep(30.0)
        full.unlink()
        await writer.end_step(1, [make_group(2)])
        await writer.close()

    run_simulated(scenario())
    (file,) = rollout_log.files(tmp_path)
    assert file.name == "step_000001.1.jsonl.zst"
    assert [record["prompt_id"] for record in rollout_log.read(file)] == [0, 1, 2]


def test_a_verdict_without_a_reward_is_left_out_of_its_mean(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 0.0])
    first, second = group.completions
    first = replace(first, verdicts={**first.verdicts, "style": Verdict(reward=None)})
    fields = score(replace(group, completions=(first, second))).fields()
    assert "reward_style_mean" not in fields


def test_an_evaluation_reports_each_verifier_and_counts_what_is_solved(make_group: MakeGroup) -> None:
    """A function that rewards every answer does not change the accuracy."""
    generous, own = Verdict(reward=3.0), Verdict(reward=0.25)
    current = Round(Version(1, 0), asked=2, ends_at=0.0)
    for draw_id, rewards in enumerate([(1.0, 0.0), (0.0, 0.0)]):
        group = make_group(draw_id, rewards=rewards)
        paid = tuple(
            replace(one, reward=(one.reward or 0.0) + 3.25, verdicts={**one.verdicts, "kind": generous, "reward": own})
            for one in group.completions
        )
        current.add(replace(group, completions=paid))
    fields = current.fields("held")
    assert fields["eval_held_accuracy"] == 0.25
    assert fields["eval_held_pass_at_2"] == 0.5
    assert fields["eval_held_reward_mean"] == 3.5
    assert fields["eval_held_math_mean"] == 0.25
    assert fields["eval_held_kind_mean"] == 3.0
    assert fields["eval_held_reward_reward_mean"] == 0.25


def test_the_solve_rate_is_of_what_is_solved(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 0.0, 0.0, 0.0])
    paid = replace(group, completions=tuple(replace(one, reward=7.0) for one in group.completions))
    assert score(paid).fields()["solve_rate_mean"] == 0.25


def as_episode(completion: Completion, *added: list[int], prompt: int = 2, written: bool = False) -> Completion:
    """The completion in turns of equal size. Before each, `added` comes in; the first may be a prompt of its own."""
    size = len(completion.token_ids) // len(added)
    turns, sequence = [], 0 if written else prompt
    for number, tokens in enumerate(added):
        turn = Turn(
            parent=number - 1,
            kept=sequence,
            added=np.array(tokens, np.int32),
            start=number * size,
            end=(number + 1) * size,
            finish_reason="stop",
        )
        turns.append(turn)
        sequence += len(tokens) + size
    return replace(completion, episode=Episode(turns=tuple(turns), exit="done"))


def test_an_episode_is_one_sample_that_trains_sampled_tokens_and_only_those(make_group: MakeGroup) -> None:
    group = make_group(0, tokens=6, versions=[Version(1, 0), Version(1, 1), Version(1, 2)])
    first, second = group.completions
    values = np.array([-0.1, np.nan, -0.3, -0.4, -0.5, -0.6], np.float32)
    episode = as_episode(replace(first, logprobs=values), [], [90, 91, 92], [93])
    group = replace(group, completions=(episode, second))
    assert samples.defect(group) is None
    sample, single = made(group, 3)
    assert sample.prompt_ids.tolist() == single.prompt_ids.tolist() == [1, 2]
    assert sample.completion_ids.tolist() == [0, 1, 90, 91, 92, 2, 3, 93, 4, 5]
    assert sample.lags.tolist() == [3, 3, 0, 0, 0, 2, 2, 0, 1, 1]
    # Too old, or without a log-probability, or not sampled.
    assert np.flatnonzero(sample.loss_mask).tolist() == [5, 6, 8, 9]
    assert sample.behaviour_logprobs[sample.loss_mask] == pytest.approx([-0.3, -0.4, -0.5, -0.6])
    assert sample.behaviour_logprobs[[2, 3, 4, 7]].tolist() == [0] * 4
    kinds = [values.dtype for values in (sample.completion_ids, sample.lags, sample.loss_mask)]
    assert kinds == [np.int32, np.int32, np.bool_]
    assert sample.advantage == -single.advantage == 0.5, "an episode counts once in the baseline"


def test_the_normaliser_counts_sampled_tokens_and_episodes(make_group: MakeGroup) -> None:
    group = make_group(0, tokens=4)
    group = replace(group, completions=tuple(as_episode(one, [], [90] * 10) for one in group.completions))
    tree = {"model": {"path": "none"}, "schedule": {"prompts_per_step": 1}, "sampling": {"group_size": 2}}
    batch = BatchBuilder(config.build(tree), num_ranks=1).build(1, [group], STARTS)
    (shard,) = batch.shards
    assert (shard.loss_tokens, shard.num_sequences) == ((8.0,), (2,))
    assert (batch.facts.tokens, batch.facts.trained_tokens) == (8, 8)


def test_episodes_whose_environment_wrote_the_prompt_are_packed_with_their_own(make_group: MakeGroup) -> None:
    group = make_group(0, tokens=4)
    prompts = ([70, 71, 72], [80])
    written = (as_episode(one, p, [90], written=True) for one, p in zip(group.completions, prompts, strict=True))
    group = replace(group, completions=tuple(written))
    assert samples.defect(group) is None
    tree = {"model": {"path": "none"}, "schedule": {"prompts_per_step": 1}, "sampling": {"group_size": 2}}
    (shard,) = BatchBuilder(config.build(tree), num_ranks=1).build(1, [group], STARTS).shards
    ((row,),) = shard.minibatches
    arrays = row_arrays(row, share_prompts=True)
    assert sorted(one.prompt_ids.tolist() for one in row) == [[70, 71, 72], [80]]
    assert arrays.loss_mask_T.sum() == 8
    assert {tuple(arrays.token_ids_T[arrays.sequence_ids_T == n].tolist()) for n in (0, 1)} == {
        (70, 71, 72, 0, 1, 90, 2, 3),
        (80, 0, 1, 90, 2, 3),
    }


def test_the_overlong_penalty_counts_the_whole_path(make_group: MakeGroup) -> None:
    group = make_group(0, rewards=[1.0, 1.0], tokens=2)
    first, second = group.completions
    group = replace(group, completions=(as_episode(first, [], [90] * 6), second))
    assert samples.has_gradient(group, switches(overlong_buffer=4), MAX_TOKENS)


def test_each_branch_is_a_sample_and_each_sampled_token_feeds_the_loss_of_one(make_group: MakeGroup) -> None:
    group = make_group(0, tokens=8)
    first, second = group.completions
    one, two, three, four = as_episode(first, [], [90], [91], [92]).turns
    turns = (
        one,
        two,
        replace(three, parent=0, kept=4),  # the second answer was dropped
        replace(four, parent=-1, kept=0, added=np.array([70, 71, 72], np.int32)),  # the history was rewritten
    )
    group = replace(group, completions=(replace(first, episode=Episode(turns=turns, exit="done")), second))
    assert samples.defect(group) is None
    *branches, single = made(group, 0)
    assert [one.prompt_ids.tolist() for one in branches] == [[1, 2], [1, 2], [70, 71, 72]]
    assert [one.completion_ids.tolist() for one in branches] == [[0, 1, 90, 2, 3], [0, 1, 91, 4, 5], [6, 7]]
    assert [np.flatnonzero(one.loss_mask).tolist() for one in branches] == [[0, 1, 3, 4], [3, 4], [0, 1]]
    assert [one.advantage for one in branches] == [0.5] * 3 and single.advantage == -0.5, "episodes, not branches"
    assert group.completions[0].path_length == 5, "of the longest branch"


def test_turns_that_are_no_tree_are_a_defect(make_group: MakeGroup) -> None:
    group = make_group(0, tokens=4)
    first, *rest = group.completions
    whole = as_episode(first, [], [90])
    one, two = whole.turns
    broken = {
        "turn 1 keeps 3 of 4 tokens": (one, replace(two, kept=3)),
        "turn 1 keeps 4 of 2 tokens": (one, replace(two, parent=-1)),
        "turn 1 holds the tokens 2 to 4 and continues turn 1": (one, replace(two, parent=1)),
        "turn 1 keeps 0 of 4 tokens": (one, replace(two, kept=0)),
        "turn 1 holds the tokens 3 to 4": (one, replace(two, start=3)),
        "turn 1 holds the tokens 2 to 5": (one, replace(two, end=5)),
        "its turns hold 2 of 4 tokens": (one,),
        "turn 0 keeps 1 of 2 tokens": (replace(one, kept=1), two),
    }
    assert samples.defect(replace(group, completions=(whole, *rest))) is None
    for reason, turns in broken.items():
        episode = replace(first, episode=Episode(turns=turns, exit="done"))
        assert reason in str(samples.defect(replace(group, completions=(episode, *rest))))
