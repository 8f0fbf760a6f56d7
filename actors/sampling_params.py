"""The sampling parameters of each completion."""

from __future__ import annotations

import msgspec

from olmorl import config, seeds
from olmorl.messages import TRAIN_LANE, Prompt
from olmorl.ports import Sampling


class SamplingRule:
    """The sampling parameters of a run's completions.

    Args:
        run_seed: with it the same draw and attempt is sampled the same way on every actor. None: the engine's own
            random numbers, for runs in which new weights may arrive between any two tokens: no seed could repeat
            those, and seeds cost an engine 1 to 3% of its speed.
    """

    def __init__(self, sampling: config.SamplingSettings, evaluation: config.Evaluation, run_seed: int | None) -> None:
        self._run_seed = run_seed
        self._training = Sampling(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            stop=tuple(sampling.stop),
        )
        self._evaluation = Sampling(
            temperature=evaluation.temperature,
            max_tokens=evaluation.max_tokens or sampling.max_tokens,
            stop=tuple(sampling.stop),
        )

    def __call__(self, prompt: Prompt, index: int) -> Sampling:
        """The parameters of the completion `index` of `prompt`; a seed is its own."""
        rule = self._training if prompt.lane == TRAIN_LANE else self._evaluation
        if self._run_seed is None:
            return rule
        seed = seeds.derive(self._run_seed, prompt.lane, prompt.draw_id, prompt.attempt, index)
        return msgspec.structs.replace(rule, seed=seed)
