"""From the groups of a step to one shard for each rank, with what the metrics line says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from msgspec.structs import replace

from olmorl.config import Config
from olmorl.learner import samples
from olmorl.learner.accounts import Start
from olmorl.learner.packing import pack
from olmorl.learner.presets import resolve
from olmorl.learner.progress import BatchFacts
from olmorl.messages import Group, Sample, Shard


@dataclass(frozen=True, slots=True)
class Batch:
    """A step, ready to be trained: one shard for each rank."""

    shards: tuple[Shard, ...]
    facts: BatchFacts

    @property
    def publishes(self) -> bool:
        return self.shards[0].publish


class Composer:
    """The same groups for the same step always make the same batch."""

    def __init__(self, config: Config, num_ranks: int) -> None:
        self._config = config
        self._num_ranks = num_ranks
        self._max_tokens = config.sampling.max_tokens
        self._max_lag = config.schedule.max_lag
        self._switches = resolve(config.objective, config.sampling.max_tokens)

    def has_gradient(self, group: Group) -> bool:
        """Whether a group could move the policy, whatever its age."""
        return samples.has_gradient(group, self._switches, self._max_tokens)

    def teaches(self, group: Group, version: int, starts: Sequence[Start]) -> bool:
        """Whether a token is left that moves the policy once those too old for `version` are masked."""
        return samples.teaches(self._samples(group, version, starts))

    def compose(self, step: int, groups: Sequence[Group], starts: Sequence[Start]) -> Batch:
        """Pack the groups of `step`, in their order."""
        made = [self._samples(group, step - 1, starts) for group in groups]
        settings, last = self._config, self._config.schedule.steps
        shards = pack(
            made,
            step=step,
            num_ranks=self._num_ranks,
            num_minibatches=settings.learner.minibatches,
            row_tokens=settings.row_tokens,
            checkpoint=step == last or step % settings.checkpoint.every == 0,
        )
        replay_to = starts[-1].replay_to
        regular = step == last or step % settings.weights.publish_every == 0
        publish = step == replay_to or (step > replay_to and regular)
        return Batch(tuple(replace(shard, publish=publish) for shard in shards), _facts(groups, made))

    def _samples(self, group: Group, version: int, starts: Sequence[Start]) -> tuple[Sample, ...]:
        return samples.samples(
            group,
            version,
            max_lag=self._max_lag,
            max_tokens=self._max_tokens,
            starts=starts,
            switches=self._switches,
        )


def _facts(groups: Sequence[Group], made: Sequence[Sequence[Sample]]) -> BatchFacts:
    lags = np.concatenate([sample.lags[sample.loss_mask] for sample in chain.from_iterable(made)])
    return BatchFacts(
        groups=len(groups),
        tokens=sum(group.num_tokens for group in groups),
        trained_tokens=len(lags),
        reward_mean=float(np.mean(list(chain.from_iterable(group.rewards for group in groups)))),
        lag_mean=float(lags.mean()) if lags.size else 0.0,
        lag_max=int(lags.max(initial=0)),
    )
