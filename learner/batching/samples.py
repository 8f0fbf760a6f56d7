"""Turns a group into training samples: shaped rewards, advantages, masks. Pure functions.

Shape letters: G completions of a group, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt

from olmorl.learner.algorithm.advantage import advantages, overlong_penalty
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.scheduling import token_lags
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Completion, Group, Sample


def defect(group: Group) -> str | None:
    """Why a group cannot be used for training, or None. A bad rollout is data with a cause."""
    if len(group.completions) != group.prompt.group_size:
        return f"{len(group.completions)} completions in a group of {group.prompt.group_size}"
    if not len(group.prompt.token_ids):
        return "a prompt without tokens"
    for completion in group.completions:
        if reason := _completion_defect(completion):
            return f"completion {completion.index}: {reason}"
    return None if group.rewards else "no completion has a reward"


def has_gradient(group: Group, switches: Switches, max_tokens: int) -> bool:
    """Whether any completion that feeds the loss has an advantage. The age of its tokens does not count."""
    advantages_G = _advantages(group, switches, max_tokens)
    return any(a != 0 and not _masked(c, switches) for a, c in zip(advantages_G, group.completions, strict=True))


def _advantages(group: Group, switches: Switches, max_tokens: int) -> npt.NDArray[np.float64]:
    """G advantages. Only completions with a reward enter the baseline. A completion without one, or alone, gets 0."""
    advantages_G = np.zeros(len(group.completions))
    rewarded = [index for index, completion in enumerate(group.completions) if completion.reward is not None]
    if len(rewarded) > 1:
        rewards = [_shaped_reward(group.completions[index], switches, max_tokens) for index in rewarded]
        advantages_G[rewarded] = advantages(rewards, switches.advantage, switches.reward_scale)
    return advantages_G


def _shaped_reward(completion: Completion, switches: Switches, max_tokens: int) -> float:
    """The reward plus the overlong penalty."""
    assert completion.reward is not None
    return completion.reward + overlong_penalty(len(completion.token_ids), max_tokens, switches.overlong_buffer)


def samples(
    group: Group, trained: int, *, max_lag: int, max_tokens: int, starts: Sequence[Start], switches: Switches
) -> tuple[Sample, ...]:
    """G samples for the step that trains version `trained`.

    Tokens older than `max_lag`, and tokens without a finite log-probability, are masked. A completion without a reward
    is masked whole: a KL term would move the policy, and no divisor counts it.

    Raises:
        RunEnded: a token that is newer than the version it would train.
    """
    advantages_G = _advantages(group, switches, max_tokens)
    made = []
    for completion, advantage in zip(group.completions, advantages_G, strict=True):
        lags_T = token_lags(completion, trained, max_lag, starts)
        made.append(
            Sample(
                draw_id=group.prompt.draw_id,
                prompt_ids=group.prompt.token_ids,
                completion_ids=completion.token_ids,
                behaviour_logprobs=completion.logprobs,
                loss_mask=(lags_T <= max_lag) & np.isfinite(completion.logprobs) & (not _masked(completion, switches)),
                lags=lags_T,
                advantage=float(advantage),
            )
        )
    return tuple(made)


def teaches(group: Sequence[Sample]) -> bool:
    """Whether a token that feeds the loss has an advantage."""
    return any(sample.advantage != 0 and sample.loss_mask.any() for sample in group)


def _masked(completion: Completion, switches: Switches) -> bool:
    return completion.reward is None or (switches.mask_truncated and completion.finish_reason == "length")


def _completion_defect(completion: Completion) -> str | None:
    num_tokens = len(completion.token_ids)
    if completion.reward is not None and not isfinite(completion.reward):
        return f"reward {completion.reward}"
    if not num_tokens or len(completion.logprobs) != num_tokens:
        return f"{num_tokens} tokens, {len(completion.logprobs)} log-probabilities"
    if not np.isfinite(completion.logprobs).any():
        return "no log-probability that is finite"
    starts, ends = [s.start for s in completion.spans], [s.end for s in completion.spans]
    if [*starts, num_tokens] != [0, *ends]:
        return f"version spans {starts} to {ends} over {num_tokens} tokens"
    return None
