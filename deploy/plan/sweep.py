"""Predicts configurations by simulated runs, varies them, and recommends one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import NamedTuple

from olmorl import config
from olmorl.config import Config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.plan import workload
from olmorl.deploy.plan.figures import Figures, figures_of, warm_up
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.plan.workload import Units, Workload
from olmorl.errors import ConfigError

LEAST_STEPS = 3
"""Counted steps of a simulated run."""
WITHIN = 0.03
"""Configurations that train fewer tokens per second by this share at most count as equally fast."""


class Choice(NamedTuple):
    """The values that a sweep varies."""

    learner_nodes: int
    actor_nodes: int
    max_lag: int
    batch: int
    """Prompts of a step."""

    def apply(self, settings: Config) -> Config:
        """The recipe with this choice.

        Raises:
            ConfigError: the choice does not fit the rest of the recipe.
        """
        tree = settings.model_dump(mode="json", exclude_none=True)
        tree["learner"]["nodes"], tree["actors"]["nodes"] = self.learner_nodes, self.actor_nodes
        schedule = tree["schedule"]
        if self.max_lag != settings.schedule.max_lag:
            schedule.pop("depth", None)
        schedule |= {"max_lag": self.max_lag, "prompts_per_step": self.batch}
        return config.build(tree, f"max_lag {self.max_lag}, {self.batch} prompts a step")


def choice_of(settings: Config) -> Choice:
    """The choice that the recipe makes."""
    schedule = settings.schedule
    return Choice(settings.learner.nodes, settings.actors.nodes, schedule.max_lag, schedule.prompts_per_step)


@dataclass(frozen=True)
class Prediction:
    """One configuration with its predicted figures."""

    choice: Choice
    figures: Figures
    busy: float
    """Share of the engines' slots in use, over time."""
    steps: int
    devices: int
    """GPUs, the judge's too, or CPU cores of a run without GPUs."""

    @property
    def hours(self) -> float:
        """Hours until all steps are done."""
        return self.steps * self.figures.step_s / 3600

    @property
    def device_hours(self) -> float:
        return self.hours * self.devices


def predict(settings: Config, load: Workload, choice: Choice, groups: int) -> Prediction:
    """Simulate a run of `choice`. The steps after the warm-up that train so many groups are counted.

    Answers change while the policy learns, so configurations are compared over equally many groups.
    """
    settings = choice.apply(settings)
    steps = max(round(groups / choice.batch), LEAST_STEPS)
    units = Units.fitting(settings, load)
    placed, skipped = plan(settings), warm_up(settings)
    with TemporaryDirectory(prefix="olmorl-plan-") as folder:
        simulated = workload.simulated_settings(settings, load, units, folder)
        service = SimulatedService(
            simulated, placed.engines, workload.answers(load, units), num_rows=workload.num_rows(load)
        )
        service.run(skipped + steps)
    found = figures_of(service.lines, skipped)
    seconds = service.lines[-1]["wall_s"] - service.lines[skipped - 1]["wall_s"]
    slots = placed.engines * settings.actors.max_running
    return Prediction(
        choice=choice,
        figures=found._replace(
            step_s=found.step_s * units.seconds,
            train_s=found.train_s * units.seconds,
            generated_per_s=units.real_speed(found.generated_per_s),
            trained_per_s=units.real_speed(found.trained_per_s),
        ),
        busy=(service.slot_s[-1] - service.slot_s[skipped - 1]) / (seconds * slots),
        steps=settings.schedule.steps,
        devices=placed.devices + settings.served_gpus,
    )


def best(predictions: Iterable[Prediction]) -> Prediction:
    """The configuration with the freshest tokens among the fastest.

    Fast means trained tokens per second. Among those that are equally fast the smallest `max_lag` wins, then the
    smallest batch, then the fewest learner nodes.
    """
    found = list(predictions)
    fastest = max(one.figures.trained_per_s for one in found)
    equal = [one for one in found if one.figures.trained_per_s >= (1 - WITHIN) * fastest]
    return min(equal, key=lambda one: (one.choice.max_lag, one.choice.batch, one.choice.learner_nodes))


@dataclass(frozen=True)
class Axes:
    """The values that a sweep tries."""

    splits: Sequence[tuple[int, int]]
    """Learner and actor nodes."""
    lags: Sequence[int]
    batches: Sequence[int]

    def text(self) -> str:
        """The values that a sweep tries, as text for people."""
        splits = ", ".join(f"{learner}+{actors}" for learner, actors in self.splits)
        return (
            f"a sweep tries the splits {splits}; then max_lag {', '.join(map(str, self.lags))}; then "
            f"{', '.join(map(str, self.batches))} prompts a step"
        )


def default_axes(settings: Config) -> Axes:
    """Splits of the same number of nodes, lags up to twice the recipe's, half and double the batch.

    Values that the rest of the recipe does not allow are left out.
    """
    own = choice_of(settings)
    nodes = own.learner_nodes + own.actor_nodes
    learners = {own.learner_nodes, *(round(own.learner_nodes * share) for share in (0.25, 0.5, 0.75, 1.5, 2.0))}
    lags = {0, 1, 2, 4, 8, 16, own.max_lag}
    return Axes(
        splits=[
            (n, nodes - n)
            for n in sorted(learners)
            if 1 <= n < nodes and _fits(own._replace(learner_nodes=n, actor_nodes=nodes - n), settings)
        ],
        lags=[
            lag for lag in sorted(lags) if lag <= max(2 * own.max_lag, 2) and _fits(own._replace(max_lag=lag), settings)
        ],
        batches=[
            batch
            for batch in sorted({max(1, own.batch // 2), own.batch, 2 * own.batch})
            if _fits(own._replace(batch=batch), settings)
        ],
    )


def _fits(choice: Choice, settings: Config) -> bool:
    """Whether the recipe allows the choice."""
    try:
        choice.apply(settings)
    except ConfigError:
        return False
    return True


class Sweep:
    """Tries each configuration once: first the splits, then the lags with the best split, then the batches."""

    def __init__(
        self, settings: Config, load: Workload, groups: int, processes: int, note: Callable[[Prediction], None]
    ) -> None:
        self._settings = settings
        self._predict = partial(predict, settings, load, groups=groups)
        self._processes = processes
        self._note = note
        self.tried: dict[Choice, Prediction] = {}

    def run(self, own: Choice, axes: Axes) -> Prediction:
        """Returns the recommended one. `own` is tried first."""
        self._try([own])
        now = self._best_of(own, [own._replace(learner_nodes=n, actor_nodes=m) for n, m in axes.splits])
        now = self._best_of(now, [now._replace(max_lag=lag) for lag in axes.lags])
        self._try_allowed([now._replace(batch=batch) for batch in axes.batches])
        return best(self.tried.values())

    def _best_of(self, now: Choice, variants: Sequence[Choice]) -> Choice:
        allowed = self._try_allowed(variants)
        return best(self.tried[choice] for choice in {now, *allowed}).choice

    def _try_allowed(self, variants: Sequence[Choice]) -> list[Choice]:
        allowed = [variant for variant in variants if _fits(variant, self._settings)]
        self._try(allowed)
        return allowed

    def _try(self, choices: Iterable[Choice]) -> None:
        new = [choice for choice in dict.fromkeys(choices) if choice not in self.tried]
        if self._processes == 1 or len(new) < 2:
            found: Iterable[Prediction] = map(self._predict, new)
        else:
            pool = ProcessPoolExecutor(self._processes)
            found = pool.map(self._predict, new)
        for prediction in found:
            self.tried[prediction.choice] = prediction
            self._note(prediction)
