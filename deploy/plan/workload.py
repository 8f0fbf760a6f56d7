"""The rates of a plan: given in the recipe, or measured in a finished run.

A simulated step of production size would write gigabytes of tokens and poll for minutes. So tokens and seconds are
counted in larger units (`Units`); no rate changes by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, erf, log, sqrt
from random import Random
from typing import Any, NamedTuple

from olmorl import config
from olmorl.actors.fake_answers import FakeAnswer, FakeAnswers
from olmorl.config import Config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.plan.simulated_service import NUM_ROWS, row_number
from olmorl.messages import TokenIds
from olmorl.ports import Sampling
from olmorl.simulation import Simulation

MEAN_TOKENS = 200.0
"""Mean length of a simulated answer at most, in simulated tokens."""
STEP_S = 25.0
"""Duration of a simulated step at most, in simulated seconds. All polls of the service are much shorter."""
ACTOR_KEYS = ("max_running", "batching", "weight_update")
"""Keys of `actors` that a simulated engine obeys."""
ANSWER_KEYS = frozenset(("mean_tokens", "tail", "solve_rate", "prompt_spread", "learned_per_version"))
"""Keys of `simulation` that describe random answers. Recorded answers have none of them."""
LAST_PART = 3
"""After its end, a recorded run goes on with answers of its last third."""


class RecordedAnswer(NamedTuple):
    """One completion of a finished run."""

    num_tokens: int
    right: bool
    """Whether its reward is above the mean of its group; in a group of equal rewards, whether it has a reward."""


RecordedGroup = Sequence[RecordedAnswer]


class RecordedAnswers:
    """Answers each prompt with a recorded group: first in the order of the draws, then with groups of the last third.

    So lengths and rewards vary within a group and over time as they did in the run.
    """

    def __init__(self, groups: Sequence[RecordedGroup], token_unit: float = 1.0) -> None:
        """`groups` in the order of their draws, one or more; `token_unit` recorded tokens are one simulated token."""
        self._groups = groups
        self._token_unit = token_unit
        self._late = range(len(groups) - ceil(len(groups) / LAST_PART), len(groups))

    def sample(self, request_id: str, prompt: TokenIds, sampling: Sampling) -> FakeAnswer:
        number = row_number(prompt)
        if number >= len(self._groups):
            number = Random(number).choice(self._late)
        group = self._groups[number]
        answer = group[int(request_id.rpartition("/")[2]) % len(group)]
        return FakeAnswer(max(1, round(answer.num_tokens / self._token_unit)), lambda version: answer.right)


@dataclass(frozen=True)
class Workload:
    """Speeds of one engine and of one learner rank, and the answers that are generated."""

    simulation: Simulation
    groups: Sequence[RecordedGroup] = ()
    """The groups of a finished run, in the order of their draws; empty for random answers."""
    origin: str = "the recipe's [simulation] section"

    def expected_tokens(self, max_tokens: int) -> float:
        """Mean length of an answer, with the limit."""
        if self.groups:
            lengths = [min(answer.num_tokens, max_tokens) for group in self.groups for answer in group]
            return sum(lengths) / len(lengths)
        return mean_within(self.simulation.mean_tokens, self.simulation.tail, max_tokens)

    def with_mean(self, tokens: float, max_tokens: int) -> Workload:
        """The same with random answers whose mean length, with the limit, is `tokens`."""
        free = mean_without_limit(tokens, self.simulation.tail, max_tokens)
        return replace(self, simulation=self.simulation.model_copy(update={"mean_tokens": free}), groups=())


@dataclass(frozen=True)
class Units:
    """Real tokens and seconds of one simulated token and second; both 1 or more."""

    tokens: float
    seconds: float

    @classmethod
    def fitting(cls, settings: Config, workload: Workload) -> Units:
        """Units in which answers and steps are as short as the bounds require."""
        mean = workload.expected_tokens(settings.sampling.max_tokens)
        return cls(max(1.0, mean / MEAN_TOKENS), max(1.0, least_step_s(settings, workload) / STEP_S))

    def real_speed(self, simulated: float) -> float:
        """Tokens per second."""
        return simulated * self.tokens / self.seconds


def least_step_s(settings: Config, workload: Workload) -> float:
    """Seconds that a step takes at least, by the slower of learner and full engines. A bound, not a prediction."""
    simulation, placed = workload.simulation, plan(settings)
    tokens = (
        settings.schedule.prompts_per_step
        * settings.sampling.group_size
        * workload.expected_tokens(settings.sampling.max_tokens)
        * simulation.turns
    )
    slots = settings.actors.max_running
    engine = slots * simulation.tokens_per_s / (1 + simulation.batch_slowdown * (slots - 1))
    trained = simulation.train_overhead_s + tokens / (simulation.train_tokens_per_s * placed.ranks)
    return max(trained, tokens / (engine * placed.engines))


def simulated_settings(settings: Config, workload: Workload, units: Units, folder: str) -> Config:
    """The recipe in simulated units, with one rank as fast as all, without evaluation and checkpoints."""
    simulation, ranks = workload.simulation, plan(settings).ranks
    speed = units.seconds / units.tokens
    rates: dict[str, float] = simulation.model_dump() | {
        "tokens_per_s": simulation.tokens_per_s * speed,
        "recompute_tokens_per_s": simulation.recompute_tokens_per_s * speed,
        "train_tokens_per_s": simulation.train_tokens_per_s * ranks * speed,
        "mean_tokens": max(simulation.mean_tokens / units.tokens, 1e-3),
    }
    rates |= {
        key: rates[key] / units.seconds
        for key in ("train_overhead_s", "verify_s", "publish_s", "update_s", "save_s", "tool_s")
    }
    longest = max(1, round(settings.sampling.max_tokens / units.tokens))
    turns = simulation.turns
    # The last reply ends an episode; each other one has a few tokens.
    episodes = {"environment": "fake:fake", "max_turns": turns, "max_tokens": turns * (longest + 3)}
    kept: Mapping[str, Any] = settings.model_dump(
        mode="json", exclude_none=True, include={"sampling", "schedule", "learner", "actors", "weights"}
    )
    steps = 10_000_000  # beyond the simulation: the last batches of a run are drawn differently
    return config.build(
        {
            "run": {"directory": folder, "name": "plan", "mode": "simulated", "seed": settings.run.seed},
            "data": {"shuffle": False, "max_prompt_tokens": 8},
            "sampling": {
                **kept["sampling"],
                "max_tokens": longest,
            },
            "episodes": episodes if turns > 1 or simulation.tool_s else {},
            "schedule": {**kept["schedule"], "steps": steps},
            "learner": {"minibatches": settings.learner.minibatches, "batch_deadline_s": 1e6},
            "actors": {
                **{key: kept["actors"][key] for key in ACTOR_KEYS},
                "stall_deadline_s": 1e6,
                "start_deadline_s": 1e6,
            },
            "weights": {"publish_every": settings.weights.publish_every},
            "checkpoint": {"every": steps},
            "simulation": rates,
        },
        "plan",
    )


def answers(workload: Workload, units: Units) -> FakeAnswers | None:
    """The answers that the simulated engines sample; None: random answers."""
    return RecordedAnswers(workload.groups, units.tokens) if workload.groups else None


def num_rows(workload: Workload) -> int:
    """Different prompts of a simulated run."""
    return max(NUM_ROWS, 4 * len(workload.groups))


# --- log-normal lengths with a limit ------------------------------------------------------------------------------


def mean_within(mean: float, sigma: float, limit: float) -> float:
    """Mean of min(X, limit), where X is log-normal with this mean and sigma of the logarithm."""

    def below(z: float) -> float:
        return 0.5 * (1 + erf(z / sqrt(2)))

    if sigma == 0:
        return min(mean, limit)
    z = (log(limit) - log(mean) + sigma**2 / 2) / sigma
    return mean * below(z - sigma) + limit * (1 - below(z))


def mean_without_limit(mean: float, sigma: float, limit: float) -> float:
    """The inverse of `mean_within`: the mean of X for which min(X, limit) has this mean.

    Raises:
        ValueError: the mean is not below the limit.
    """
    if mean >= limit:
        raise ValueError(f"a mean of {mean:g} tokens with at most {limit:g}")
    low, high = mean, mean
    while mean_within(high, sigma, limit) < mean:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_within(middle, sigma, limit) < mean else (low, middle)
    return high
