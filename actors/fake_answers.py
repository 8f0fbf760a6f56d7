"""The answers of a fake engine: how long each one is, and whether it is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, log
from random import Random
from typing import NamedTuple, Protocol
from zlib import crc32

from olmorl.messages import TokenIds, Version
from olmorl.ports import Sampling
from olmorl.simulation import Simulation


class FakeAnswer(NamedTuple):
    """One completion before it is generated."""

    num_tokens: int
    """Without the limit of the request."""
    is_right: Callable[[Version], bool]
    """Whether it is right if this version makes its first token."""


class FakeAnswers(Protocol):
    """Gives a fake engine its answers."""

    def sample(self, request_id: str, prompt: TokenIds, sampling: Sampling) -> FakeAnswer:
        """The answer to one request. The same request gets the same answer."""
        ...


class RandomAnswers:
    """Log-normal lengths, and a solve rate that rises with the version. Seed and prompt decide everything."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def sample(self, request_id: str, prompt: TokenIds, sampling: Sampling) -> FakeAnswer:
        random = Random(sampling.seed)
        sigma = self._simulation.tail
        length = random.lognormvariate(log(self._simulation.mean_tokens) - sigma**2 / 2, sigma)
        luck = random.random()
        return FakeAnswer(round(length), lambda version: luck < solve_rate(self._simulation, prompt, version.number))


def solve_rate(simulation: Simulation, prompt: TokenIds, version: int) -> float:
    """Probability of a right answer. Some prompts are easier than others, so that some groups are all alike."""
    start = min(max(simulation.solve_rate, 1e-6), 1 - 1e-6)
    ease = _ease(crc32(prompt.tobytes()), simulation.prompt_spread)
    log_odds = log(start / (1 - start)) + ease + simulation.learned_per_version * version
    return 1 / (1 + exp(-log_odds))


@lru_cache(maxsize=1024)
def _ease(seed: int, spread: float) -> float:
    """The same for all answers of a group."""
    return Random(seed).gauss(0.0, spread)
