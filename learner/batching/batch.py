"""Packs the groups of one step into a batch: one shard for each rank, and facts for the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from olmorl.config import Config
from olmorl.learner.algorithm.presets import with_teachers
from olmorl.learner.batching import samples
from olmorl.learner.batching.packing import pack
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Group, Sample, Shard


class BatchFacts(NamedTuple):
    """The facts about one batch for the metrics."""

    groups: int
    tokens: int
    """Completion tokens."""
    trained_tokens: int
    """Completion tokens that feed the loss; the others are masked."""
    reward_mean: float | None
    """None if no completion has a reward."""
    lag_mean: float
    """Mean over the tokens that feed the loss, in versions."""
    lag_max: int
    not_finite: int = 0
    """Completion tokens whose log-probability is not finite. They are masked."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step, ready to train: one shard for each rank."""

    shards: tuple[Shard, ...]
    facts: BatchFacts

    @property
    def publishes(self) -> bool:
        """Whether the ranks publish the version that this step makes."""
        return self.shards[0].publish


class BatchBuilder:
    """The same groups, step and starts of the learner always give the same batch."""

    def __init__(self, config: Config, num_ranks: int) -> None:
        self._config = config
        self._num_ranks = num_ranks
        self._max_tokens = config.longest_answer
        self._max_lag = config.schedule.max_lag
        self._switches = with_teachers(config)

    def has_gradient(self, group: Group) -> bool:
        """Whether a group can move the policy. Its age does not count."""
        return samples.has_gradient(group, self._switches, self._max_tokens)

    def teaches(self, group: Group, version: int, starts: Sequence[Start]) -> bool:
        """Whether a group still moves the policy after the tokens that are too old for `version` are masked."""
        return samples.teaches(self._samples(group, version, starts), self._switches)

    def build(
        self, step: int, groups: Sequence[Group], starts: Sequence[Start], settings: Config | None = None
    ) -> Batch:
        """Pack the groups of `step`, in their order. `settings` are those of this step; None: the recipe's."""
        if self._config.schedule.filter_zero_gradient == "without_refill":
            groups = [group for group in groups if self.has_gradient(group)] or groups
        made = samples.with_batch_part([self._samples(group, step - 1, starts) for group in groups], self._switches)
        settings, last = settings or self._config, self._config.schedule.steps
        shards = pack(
            made,
            step=step,
            num_ranks=self._num_ranks,
            num_minibatches=settings.learner.minibatches,
            row_tokens=settings.row_tokens,
            checkpoint=step == last or any(step % every == 0 for every in checkpoint_intervals(settings)),
            sequence_parallel=settings.learner.sequence_parallel,
            share_prompts=settings.learner.has_own_attention,
        )
        replay_to = starts[-1].replay_to
        regular = step == last or step % settings.weights.publish_every == 0
        publish = step == replay_to or (step > replay_to and regular)
        rate = settings.learner.learning_rate
        shards = tuple(replace(shard, publish=publish, learning_rate=rate) for shard in shards)
        return Batch(shards, _facts(groups, made))

    def _samples(self, group: Group, version: int, starts: Sequence[Start]) -> tuple[Sample, ...]:
        return samples.samples(
            group,
            version,
            max_lag=self._max_lag,
            max_tokens=self._max_tokens,
            starts=starts,
            switches=self._switches,
        )


def checkpoint_intervals(settings: Config) -> list[int]:
    """A multiple of any of these numbers of steps has a checkpoint."""
    exports, evaluations = settings.checkpoint.export_every, settings.evaluation.every
    intervals = [settings.checkpoint.every, exports, evaluations if settings.checkpoint.best else None]
    return [every for every in intervals if every is not None]


def _facts(groups: Sequence[Group], made: Sequence[Sequence[Sample]]) -> BatchFacts:
    rewards = list(chain.from_iterable(group.rewards for group in groups))
    lags = np.concatenate([sample.lags[sample.loss_mask] for sample in chain.from_iterable(made)])
    return BatchFacts(
        groups=len(groups),
        tokens=sum(group.num_tokens for group in groups),
        trained_tokens=len(lags),
        reward_mean=float(np.mean(rewards)) if rewards else None,
        lag_mean=float(lags.mean()) if lags.size else 0.0,
        lag_max=int(lags.max(initial=0)),
        not_finite=sum(int((~np.isfinite(one.logprobs)).sum()) for group in groups for one in group.completions),
    )
