"""Turns a group into training samples: shaped rewards, advantages, masks. Pure functions.

Shape letters: G completions of a group, N of a batch, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from olmorl.learner.algorithm.advantage import (
    OVER_BATCH,
    advantages,
    over_batch,
    overlong_penalty,
    teacher_advantages,
    token_advantages,
)
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.scheduling import token_lags
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Completion, Floats, Group, Sample, Turn

Array = npt.NDArray[Any]


def defect(group: Group) -> str | None:
    """Why a group cannot be used for training, or None. A bad rollout is data with a cause."""
    if len(group.completions) != group.prompt.group_size:
        return f"{len(group.completions)} completions in a group of {group.prompt.group_size}"
    if not len(group.prompt.token_ids):
        return "a prompt without tokens"
    for completion in group.completions:
        if reason := _completion_defect(completion) or _turn_defect(completion, len(group.prompt.token_ids)):
            return f"completion {completion.index}: {reason}"
    is_taught = any(completion.teacher_logprobs is not None for completion in group.completions)
    return None if group.rewards or is_taught else "no completion has a reward"


def has_gradient(group: Group, switches: Switches, max_tokens: int) -> bool:
    """Whether any completion that feeds the loss has an advantage. The age of its tokens does not count.

    Where the baseline is the batch's, a group says nothing about that, and the answer is yes. With a teacher it is yes.
    """
    pairs = zip(_advantages(group, switches, max_tokens), group.completions, strict=True)
    return any(
        (np.any(a) or not switches.has_group_baseline or _is_taught(c, switches)) and not _masked(c, switches)
        for a, c in pairs
    )


def _advantages(group: Group, switches: Switches, max_tokens: int) -> Sequence[Array] | Array:
    """G advantages by rewards; if tokens have rewards, of each completion those of its tokens.

    Only completions with a reward enter the baseline. One without gets 0, and one alone if the group is its baseline.
    """
    advantages_G = np.zeros(len(group.completions))
    if not switches.uses_rewards:
        return advantages_G
    if any(one.token_rewards is not UNSET for one in group.completions) and switches.splits_rewards:
        return _advantages_by_token(group, switches, max_tokens)
    for weight, rewards in _rewards(group, switches, max_tokens):
        if _has_baseline(rewards, switches):
            of_these = advantages(list(rewards.values()), switches.advantage, switches.reward_scale, switches.std_floor)
            advantages_G[list(rewards)] += weight * of_these
    return advantages_G


def _has_baseline(rewards: Mapping[int, Any], switches: Switches) -> bool:
    """Whether these rewards of a group can be compared: with each other, or with a baseline from outside."""
    return len(rewards) > 1 or (len(rewards) == 1 and not switches.has_group_baseline)


def _advantages_by_token(group: Group, switches: Switches, max_tokens: int) -> list[Array]:
    found: list[Array] = [np.zeros(len(one.token_ids)) for one in group.completions]
    ((_, rewards),) = _rewards(group, switches, max_tokens)
    if _has_baseline(rewards, switches):
        placed = [_placed(group.completions[index], reward) for index, reward in rewards.items()]
        of_these = token_advantages(placed, switches.advantage, switches.reward_scale, switches.std_floor)
        for index, advantages_T in zip(rewards, of_these, strict=True):
            found[index] = advantages_T
    return found


def _placed(completion: Completion, reward: float) -> Array:
    """rewards_T, NaN for a token without one. What no other token has of the reward comes with the last."""
    if isinstance(completion.token_rewards, UnsetType):
        rewards_T = np.full(len(completion.token_ids), np.nan)
        rewards_T[-1] = reward
        return rewards_T
    rewards_T = completion.token_rewards.astype(np.float64)
    if penalty := reward - (completion.reward or 0.0):
        rewards_T[-1] = np.nan_to_num(rewards_T[-1]) + penalty
    return rewards_T


def _rewards(group: Group, switches: Switches, max_tokens: int) -> Iterator[tuple[float, dict[int, float]]]:
    """Weights, and the rewards to be normalized together by the index of their completion.

    They are the combined rewards plus the overlong penalty, or for `gdpo` those of each verifier and the penalty apart.
    """
    rewarded = [one for one in enumerate(group.completions) if one[1].reward is not None]
    penalties = {
        index: overlong_penalty(one.path_length, max_tokens, switches.overlong_buffer) for index, one in rewarded
    }
    if switches.advantage != "gdpo":
        yield 1.0, {index: (one.reward or 0.0) + penalties[index] for index, one in rewarded}
        return
    yield 1.0, penalties
    for name in sorted({name for _, one in rewarded for name in one.verdicts}):
        verdicts = {index: one.verdicts[name] for index, one in rewarded if name in one.verdicts}
        rewards = {index: verdict.reward for index, verdict in verdicts.items() if verdict.reward is not None}
        if rewards:
            yield next(iter(verdicts.values())).weight, rewards


def samples(
    group: Group, trained: int, *, max_lag: int, max_tokens: int, starts: Sequence[Start], switches: Switches
) -> tuple[Sample, ...]:
    """G samples for the step that trains version `trained`; more, if histories were rewritten: one for each branch.

    Tokens older than `max_lag`, and tokens without a finite log-probability, are masked. A completion without a reward
    or a teacher is masked whole: a KL term would move the policy, and no divisor counts it. So is one that a served
    reference has not scored, as from before it was in the recipe.

    Raises:
        RunEnded: a token that is newer than the version it would train.
    """
    made: list[Sample] = []
    for completion, found in zip(group.completions, _advantages(group, switches, max_tokens), strict=True):
        advantage, token_parts = _split(found, completion, switches)
        lags_T = token_lags(completion, trained, max_lag, starts)
        sample = Sample(
            draw_id=group.prompt.draw_id,
            prompt_ids=group.prompt.token_ids,
            completion_ids=completion.token_ids,
            behaviour_logprobs=completion.logprobs,
            loss_mask=(lags_T <= max_lag) & np.isfinite(completion.logprobs) & (not _masked(completion, switches)),
            lags=lags_T,
            advantage=advantage,
            token_advantages=token_parts,
            reference_logprobs=UNSET if completion.reference_logprobs is None else completion.reference_logprobs,
        )
        made += _paths(sample, completion.turns) if completion.turns else [sample]
    return tuple(made)


def _paths(sampled: Sample, turns: Sequence[Turn]) -> Iterator[Sample]:
    """A sample for each turn that none continues: its path. A token that several paths share feeds the loss of one."""
    continued = {turn.parent for turn in turns}
    for leaf in sorted(set(range(len(turns))) - continued):
        path, number = [], leaf
        while number >= 0:
            path.append(turns[number])
            number = turns[number].parent
        yield _path(sampled, path[::-1])
        mask = sampled.loss_mask.copy()
        for turn in path:
            mask[turn.start : turn.end] = False
        sampled = replace(sampled, loss_mask=mask)


def _path(sampled: Sample, turns: Sequence[Turn]) -> Sample:
    """The sample of a path: its sampled tokens with the tokens that were added between the turns.

    Added tokens feed no loss. Where the environment wrote the prompt, it takes the place of the row's.
    """
    first, later = turns[0], turns[1:]

    def spread(values_S: Array, added: Callable[[Turn], Array]) -> Array:
        """The values of the sampled tokens in their places, with those of the added ones between them."""
        parts = [values_S[first.start : first.end]]
        for turn in later:
            parts += [added(turn), values_S[turn.start : turn.end]]
        return np.concatenate(parts)

    def with_zeros(values_S: Array) -> Array:
        return spread(values_S, lambda turn: np.zeros(len(turn.added), values_S.dtype))

    return replace(
        sampled,
        prompt_ids=first.added if len(first.added) else sampled.prompt_ids,
        completion_ids=spread(sampled.completion_ids, lambda turn: turn.added),
        behaviour_logprobs=with_zeros(sampled.behaviour_logprobs),
        loss_mask=with_zeros(sampled.loss_mask),
        lags=with_zeros(sampled.lags),
        token_advantages=UNSET if sampled.token_advantages is UNSET else with_zeros(sampled.token_advantages),
    )


def teaches(group: Sequence[Sample], switches: Switches) -> bool:
    """Whether a token that feeds the loss has an advantage, or may get one from the batch."""
    return any(
        (sample.advantage != 0 or not switches.has_group_baseline or sample.token_advantages is not UNSET)
        and sample.loss_mask.any()
        for sample in group
    )


def with_batch_part(groups: Sequence[Sequence[Sample]], switches: Switches) -> Sequence[Sequence[Sample]]:
    """The samples of a batch with the part of their advantages that is over the whole batch.

    A KL reward comes before it, so then whitening is left to the trainer.
    """
    if switches.advantage not in OVER_BATCH or switches.whitens_tokens:
        return groups
    found = list(chain.from_iterable(groups))
    if switches.teacher_coefficient is None and any(one.token_advantages is not UNSET for one in found):
        return _with_batch_part_of_tokens(groups, found, switches)
    advantages_N = over_batch(
        np.array([one.advantage for one in found]),
        np.array([np.count_nonzero(one.loss_mask) for one in found], dtype=np.float64),
        switches.advantage,
        switches.std_floor,
    )
    done = iter(advantages_N.tolist())
    return [[replace(one, advantage=next(done)) for one in group] for group in groups]


def _with_batch_part_of_tokens(
    groups: Sequence[Sequence[Sample]], found: Sequence[Sample], switches: Switches
) -> Sequence[Sequence[Sample]]:
    """The same where tokens have rewards: each token is normalized by its own advantage."""
    values = [
        np.full(len(one.completion_ids), one.advantage)
        + (0.0 if isinstance(one.token_advantages, UnsetType) else one.token_advantages)
        for one in found
    ]
    masks = np.concatenate([one.loss_mask for one in found]).astype(np.float64)
    normalized = over_batch(np.concatenate(values), masks, switches.advantage, switches.std_floor).astype(np.float32)
    parts = iter(np.split(normalized, np.cumsum([len(one) for one in values])[:-1]))
    return [[replace(one, advantage=0.0, token_advantages=next(parts)) for one in group] for group in groups]


def _masked(completion: Completion, switches: Switches) -> bool:
    has_reward = switches.uses_rewards and completion.reward is not None
    if not has_reward and not _is_taught(completion, switches):
        return True
    if switches.reference_is_served and completion.reference_logprobs is None:
        return True
    return switches.mask_truncated and completion.finish_reason == "length"


def _is_taught(completion: Completion, switches: Switches) -> bool:
    return switches.teacher_coefficient is not None and completion.teacher_logprobs is not None


def _split(found: Array, completion: Completion, switches: Switches) -> tuple[float, Floats | UnsetType]:
    """The advantage of a sample: of its first token by rewards, and what each token has beside it."""
    advantage = float(found.flat[0])
    beside = found - advantage
    teacher_T = completion.teacher_logprobs
    if teacher_T is not None and switches.teacher_coefficient is not None:
        beside = beside + teacher_advantages(teacher_T, completion.logprobs, switches.teacher_coefficient)
    elif not beside.any():
        return advantage, UNSET
    return advantage, beside.astype(np.float32)


def _completion_defect(completion: Completion) -> str | None:
    num_tokens = len(completion.token_ids)
    if completion.reward is not None and not isfinite(completion.reward):
        return f"reward {completion.reward}"
    if not num_tokens or len(completion.logprobs) != num_tokens:
        return f"{num_tokens} tokens, {len(completion.logprobs)} log-probabilities"
    if not np.isfinite(completion.logprobs).any():
        return "no log-probability that is finite"
    for who, logprobs_T in (("teacher", completion.teacher_logprobs), ("reference", completion.reference_logprobs)):
        if logprobs_T is not None and (len(logprobs_T) != num_tokens or not np.isfinite(logprobs_T).all()):
            return f"{num_tokens} tokens, {np.isfinite(logprobs_T).sum()} finite log-probabilities of a {who}"
    if not isinstance(completion.token_rewards, UnsetType) and len(completion.token_rewards) != num_tokens:
        return f"{num_tokens} tokens, {len(completion.token_rewards)} rewards of tokens"
    starts, ends = [s.start for s in completion.spans], [s.end for s in completion.spans]
    if [*starts, num_tokens] != [0, *ends]:
        return f"version spans {starts} to {ends} over {num_tokens} tokens"
    return None


def _turn_defect(completion: Completion, prompt_tokens: int) -> str | None:
    """Whether the turns are a tree: each continues the whole sequence of an earlier one, or has a prompt of its own."""
    start = 0
    lengths: list[int] = []
    for number, turn in enumerate(completion.turns):
        if turn.start != start or not -1 <= turn.parent < number or not start < turn.end <= len(completion.token_ids):
            return f"turn {number} holds the tokens {turn.start} to {turn.end} and continues turn {turn.parent}"
        before = prompt_tokens if turn.parent < 0 else lengths[turn.parent]
        has_own_prompt = turn.parent < 0 and turn.kept == 0 and len(turn.added) > 0
        if turn.kept != before and not has_own_prompt:
            return f"turn {number} keeps {turn.kept} of {before} tokens"
        lengths.append(turn.kept + len(turn.added) + turn.end - turn.start)
        start = turn.end
    if completion.turns and start != len(completion.token_ids):
        return f"its turns hold {start} of {len(completion.token_ids)} tokens"
    return None
