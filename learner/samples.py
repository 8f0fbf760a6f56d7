"""What a group becomes in a step: shaped rewards, advantages, masks, samples. Pure.

Shape letters: G completions of a group, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from olmorl.learner.accounts import Start
from olmorl.learner.admission import token_lags
from olmorl.learner.advantage import advantages, is_zero_gradient, overlong_penalty
from olmorl.learner.presets import Switches
from olmorl.messages import Completion, Group, Sample


def defect(group: Group) -> str | None:
    """Why a group cannot be trained on whatever its rewards, or None. A bad rollout is data with a cause."""
    if len(group.completions) != group.prompt.group_size:
        return f"{len(group.completions)} completions in a group of {group.prompt.group_size}"
    if not len(group.prompt.token_ids):
        return "a prompt without tokens"
    for completion in group.completions:
        if reason := _completion_defect(completion):
            return f"completion {completion.index}: {reason}"
    return None


def has_gradient(group: Group, switches: Switches, max_tokens: int) -> bool:
    """Whether any completion that feeds the loss has an advantage, tokens of any age included."""
    rewards_G = shaped_rewards(group, switches, max_tokens)
    if is_zero_gradient(rewards_G):
        return False
    advantages_G = advantages(rewards_G, switches.advantage, switches.reward_scale)
    return any(a != 0 and not _masked(c, switches) for a, c in zip(advantages_G, group.completions, strict=True))


def shaped_rewards(group: Group, switches: Switches, max_tokens: int) -> list[float]:
    """G rewards with the overlong penalty on top."""
    return [
        (completion.reward or 0.0) + overlong_penalty(len(completion.token_ids), max_tokens, switches.overlong_buffer)
        for completion in group.completions
    ]


def samples(
    group: Group, trained: int, *, max_lag: int, max_tokens: int, starts: Sequence[Start], switches: Switches
) -> tuple[Sample, ...]:
    """G samples for the step that trains version `trained`; tokens older than `max_lag` are masked.

    Raises:
        RunEnded: a token that is newer than the version it would train.
    """
    rewards_G = shaped_rewards(group, switches, max_tokens)
    advantages_G = advantages(rewards_G, switches.advantage, switches.reward_scale)
    made = []
    for completion, advantage in zip(group.completions, advantages_G, strict=True):
        lags_T = token_lags(completion, trained, max_lag, starts)
        made.append(
            Sample(
                draw_id=group.prompt.draw_id,
                prompt_ids=group.prompt.token_ids,
                completion_ids=completion.token_ids,
                behaviour_logprobs=completion.logprobs,
                loss_mask=(lags_T <= max_lag) & (not _masked(completion, switches)),
                lags=lags_T,
                advantage=float(advantage),
            )
        )
    return tuple(made)


def teaches(group: Sequence[Sample]) -> bool:
    """Whether a token that feeds the loss has an advantage."""
    return any(sample.advantage != 0 and sample.loss_mask.any() for sample in group)


def _masked(completion: Completion, switches: Switches) -> bool:
    return switches.mask_truncated and completion.finish_reason == "length"


def _completion_defect(completion: Completion) -> str | None:
    num_tokens = len(completion.token_ids)
    if completion.reward is None or not np.isfinite(completion.reward):
        return f"reward {completion.reward}"
    if not num_tokens or len(completion.logprobs) != num_tokens:
        return f"{num_tokens} tokens, {len(completion.logprobs)} log-probabilities"
    if not np.isfinite(completion.logprobs).all():
        return "a log-probability that is not finite"
    starts, ends = [s.start for s in completion.spans], [s.end for s in completion.spans]
    if [*starts, num_tokens] != [0, *ends]:
        return f"version spans {starts} to {ends} over {num_tokens} tokens"
    return None
