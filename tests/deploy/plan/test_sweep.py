"""What a sweep tries, and which configuration it recommends."""

from __future__ import annotations

import pytest

from olmorl.deploy.plan.figures import Figures
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.plan.sweep import Axes, Choice, Prediction, Sweep, best, choice_of, default_axes, predict
from olmorl.deploy.plan.workload import Workload
from olmorl.errors import ConfigError

from .conftest import Recipe


def predicted(choice: Choice, trained_per_s: float) -> Prediction:
    found = Figures(10.0, 8.0, 0.2, 2 * trained_per_s, trained_per_s, 1.0, 2, 0.5)
    return Prediction(choice, found, busy=0.9, steps=720, devices=16)


def test_time_and_device_hours_follow_from_the_step_time() -> None:
    one = predicted(Choice(1, 1, 2, 8), 100.0)
    assert (one.hours, one.device_hours) == pytest.approx((2.0, 32.0))


def test_the_fastest_wins_unless_a_fresher_one_is_as_fast() -> None:
    slow, fresh = predicted(Choice(1, 1, 0, 8), 90.0), predicted(Choice(1, 1, 2, 8), 98.0)
    small, fastest = predicted(Choice(1, 1, 4, 4), 99.0), predicted(Choice(1, 1, 4, 8), 100.0)
    assert best([slow, fresh, small, fastest]) is fresh
    assert best([slow, small, fastest]) is small
    assert best([slow, fastest]) is fastest


def test_the_usual_sweep_keeps_the_number_of_nodes(recipe: Recipe) -> None:
    axes = default_axes(recipe(learner__nodes=8, actors__nodes=20, schedule__max_lag=8, schedule__prompts_per_step=128))
    assert {n + m for n, m in axes.splits} == {28}
    assert (8, 20) in axes.splits
    assert (axes.lags, axes.batches) == ([0, 1, 2, 4, 8, 16], [64, 128, 256])
    assert default_axes(recipe(schedule__max_lag=0, schedule__prompts_per_step=1)) == Axes([(1, 1)], [0, 1, 2], [1, 2])


def test_the_usual_sweep_leaves_out_what_the_recipe_does_not_allow(recipe: Recipe) -> None:
    assert default_axes(recipe(weights__publish_every=2)).lags == [1, 2, 4]
    assert default_axes(recipe(learner__minibatches=8)).batches == [8, 16]


def test_a_choice_changes_its_keys_alone(recipe: Recipe) -> None:
    settings = recipe(schedule__depth=1)
    changed = Choice(2, 3, 4, 16).apply(settings)
    assert choice_of(changed) == Choice(2, 3, 4, 16)
    assert (changed.schedule.depth, changed.schedule.steps) == (None, 40)
    assert choice_of(settings).apply(settings) == settings
    with pytest.raises(ConfigError, match=r"max_lag 0, 8 prompts a step"):
        Choice(1, 1, 0, 8).apply(recipe(weights__publish_every=2))


def test_batches_are_compared_over_equally_many_groups(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    class Counting(SimulatedService):
        def run(self, steps: int | None = None) -> None:
            counted.append(steps or 0)
            super().run(steps)

    monkeypatch.setattr("olmorl.deploy.plan.sweep.SimulatedService", Counting)
    settings = recipe()
    for batch in (4, 8):
        predict(settings, Workload(settings.simulation), Choice(1, 1, 2, batch), 32)
    assert counted == [4 + 8, 4 + 4]


@pytest.mark.parametrize(
    "keys",
    [
        {"distillation__teachers": {"one": {"url": "http://h"}}},
        {"objective__kl_beta": 0.1, "objective__kl_reference": {"url": "http://h"}},
    ],
    ids=["teacher", "reference"],
)
def test_a_recipe_whose_tokens_are_scored_can_be_planned(recipe: Recipe, keys: dict[str, object]) -> None:
    service = SimulatedService(recipe(**keys), num_actors=1)
    service.run(3)
    assert [line["batch_groups"] for line in service.lines] == [8, 8, 8]


def test_more_actors_are_faster_until_the_learner_is_the_slower_part(recipe: Recipe) -> None:
    settings = recipe(schedule__max_lag=4, schedule__prompts_per_step=16)
    load = Workload(settings.simulation.model_copy(update={"tail": 0.3, "train_tokens_per_s": 600.0}))
    one, two, four = (predict(settings, load, Choice(1, n, 4, 16), 16 * 12).figures for n in (1, 2, 4))
    assert two.trained_per_s > 1.5 * one.trained_per_s
    assert four.trained_per_s == pytest.approx(600.0, rel=0.03)
    assert one.wait > 0.4 > 0.05 > four.wait
    assert four.lag > one.lag


def test_the_recommended_one_is_as_fast_as_the_fastest_of_all(recipe: Recipe) -> None:
    """Three times as fast within 3% would be slower by 9%."""
    speeds = {
        Choice(2, 2, 4, 16): 1000.0,
        Choice(1, 3, 4, 16): 975.0,
        Choice(1, 3, 2, 16): 950.0,
        Choice(1, 3, 2, 8): 925.0,
    }
    settings = recipe(learner__nodes=2, actors__nodes=2, schedule__max_lag=4, schedule__prompts_per_step=16)
    sweep = Sweep(settings, Workload(settings.simulation), 100, 1, lambda one: None)
    sweep._predict = lambda choice: predicted(choice, speeds[choice])  # type: ignore[assignment]
    chosen = sweep.run(choice_of(settings), Axes([(1, 3)], [2], [8]))
    assert set(sweep.tried) == set(speeds)
    assert chosen.choice == Choice(1, 3, 4, 16)


def test_a_sweep_tries_each_configuration_once_and_finds_the_better_split(recipe: Recipe) -> None:
    settings = recipe(learner__nodes=3, actors__nodes=1, schedule__max_lag=1)
    settings = settings.model_copy(update={"simulation": settings.simulation.model_copy(update={"tail": 0.3})})
    tried: list[Choice] = []
    sweep = Sweep(settings, Workload(settings.simulation), 8 * 6, 1, lambda one: tried.append(one.choice))
    chosen = sweep.run(choice_of(settings), Axes([(1, 3), (2, 2), (3, 1)], [1, 2], [8]))
    assert tried[:3] == [Choice(3, 1, 1, 8), Choice(1, 3, 1, 8), Choice(2, 2, 1, 8)]
    assert len(tried) == len(set(tried)) == len(sweep.tried) == 4
    assert chosen.choice.actor_nodes > 1
    assert chosen.figures.trained_per_s > 1.3 * sweep.tried[Choice(3, 1, 1, 8)].figures.trained_per_s
