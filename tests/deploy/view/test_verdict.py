"""The verdict on runs of the service in simulated time whose limit is known, and on figures worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.plan.simulated_service import SimulatedService
from olmorl.deploy.view import verdict as judging
from olmorl.deploy.view.verdict import Bottleneck, RunVerdict, Shape, VerdictWindow, WindowMeans, verdict

LEARNER_NODES, ENGINES, STEPS, AHEAD = 6, 6, 34, 8
NODE = 50.0
"""Tokens per second that a learner node trains."""
Lines = Sequence[Mapping[str, Any]]


def staged(folder: Path, num_rows: int = 20_000, **overrides: Any) -> tuple[config.Config, Lines]:
    """A run of six engines with eight slots each; full engines are as fast as twelve learner nodes."""
    tree: dict[str, Any] = {
        "run": {"directory": folder, "name": "run", "mode": "simulated"},
        "sampling": {"group_size": 4, "max_tokens": 400},
        "schedule": {"steps": STEPS, "prompts_per_step": 16, "max_lag": AHEAD},
        "learner": {"nodes": LEARNER_NODES},
        "actors": {"nodes": ENGINES, "engines_per_node": 1, "max_running": 8},
        "checkpoint": {"every": 1000},
        "simulation": {
            "tokens_per_s": 20.0,
            "batch_slowdown": 0.02,
            "mean_tokens": 40.0,
            "tail": 0.5,
            "prompt_spread": 0.8,
            "learned_per_version": 0.0,
            "train_tokens_per_s": 12 * NODE,
        },
    }
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        tree.setdefault(section, {})[name] = value
    settings = config.build(tree)
    service = SimulatedService(settings, ENGINES, num_rows=num_rows)
    service.run()
    return settings, service.lines


STAGES: dict[Bottleneck, dict[str, Any]] = {
    Bottleneck.LEARNER: {"simulation__train_tokens_per_s": 4 * NODE},
    Bottleneck.ACTORS: {"simulation__train_tokens_per_s": 40 * NODE},
    Bottleneck.VERIFIERS: {"simulation__verify_s": 20.0},
    Bottleneck.QUEUE: {"schedule__prompts_per_step": 4, "schedule__max_lag": 1},
    Bottleneck.WEIGHTS: {"simulation__publish_s": 25.0, "schedule__max_lag": 2},
    Bottleneck.DATA: {"data__epochs": 1, "num_rows": 300},
    Bottleneck.STRAGGLERS: {"simulation__tail": 1.6, "schedule__max_lag": 1, "schedule__prompts_per_step": 24},
    Bottleneck.FILTERED: {"simulation__solve_rate": 0.97, "simulation__train_tokens_per_s": 40 * NODE},
    Bottleneck.FAULTS: {
        "schedule__over_age": "drop",
        "schedule__max_lag": 3,
        "schedule__prompts_per_step": 8,
        "simulation__tail": 1.6,
        "simulation__mean_tokens": 80.0,
        "simulation__train_tokens_per_s": 14 * NODE,
    },
    Bottleneck.BALANCED: {},
}


@pytest.mark.parametrize("limit", list(Bottleneck))
def test_a_run_whose_limit_is_known(tmp_path: Path, limit: Bottleneck) -> None:
    settings, lines = staged(tmp_path, **STAGES[limit])
    found = verdict(lines, Shape.of(settings))
    assert found is not None
    assert found.limit is limit, found.text
    assert found.sure > 0.5, found.text
    assert "%" in found.evidence


@pytest.fixture(scope="module")
def best_ratio(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Engines for each learner node at which a node trains most tokens per second, of a sweep in steps of a tenth."""
    speeds = {}
    for number in range(8):
        nodes = 8 * 1.1**number
        folder = tmp_path_factory.mktemp("sweep")
        _, lines = staged(folder, simulation__train_tokens_per_s=nodes * NODE)
        first, last = lines[AHEAD + 2], lines[-AHEAD - 1]
        trained = last["tokens_trained_total"] - first["tokens_trained_total"]
        speeds[ENGINES / nodes] = trained / (last["wall_s"] - first["wall_s"]) / (ENGINES + nodes)
    best = max(speeds, key=lambda ratio: speeds[ratio])
    assert best not in (min(speeds), max(speeds)), "the sweep covers the best"
    return best


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [4, 9, 12, 18, 40])
def test_the_ratio_is_the_best_of_a_sweep(tmp_path: Path, best_ratio: float, nodes: int) -> None:
    """From runs far from balance too: a third of the best number of learner nodes, and three times as many."""
    settings, lines = staged(tmp_path, learner__nodes=nodes, simulation__train_tokens_per_s=nodes * NODE)
    found = verdict(lines, Shape.of(settings))
    assert found is not None and found.actors_per_learner == pytest.approx(best_ratio, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [Bottleneck.LEARNER, Bottleneck.ACTORS, Bottleneck.BALANCED])
def test_the_ratio_of_a_staged_run_is_the_best_of_the_sweep(
    tmp_path: Path, best_ratio: float, limit: Bottleneck
) -> None:
    """The stages whose advice is a ratio. Their learner nodes are faster or slower than those of the sweep."""
    settings, lines = staged(tmp_path, **STAGES[limit])
    found = verdict(lines, Shape.of(settings))
    node = settings.simulation.train_tokens_per_s / LEARNER_NODES
    assert found is not None and found.actors_per_learner is not None
    assert found.actors_per_learner == pytest.approx(best_ratio * node / NODE, rel=0.2)
    assert f"balanced at {found.actors_per_learner:.2g} actor nodes" in found.advice


def test_the_lag_that_the_verdict_asks_for_fills_the_engines(tmp_path: Path) -> None:
    settings, lines = staged(tmp_path / "tiny", **STAGES[Bottleneck.QUEUE])
    found = verdict(lines, Shape.of(settings))
    assert found is not None
    lag = int(found.advice.partition("schedule.max_lag to ")[2].partition(" ")[0])

    def speed(**more: Any) -> float:
        """Over three seeds: the order of events moves one of them by a tenth."""
        lines = [staged(tmp_path / f"{seed}{more}", **(STAGES[Bottleneck.QUEUE] | more | {"run__seed": seed}))[1]
                 for seed in range(3)]  # fmt: skip
        return sum(float(each[-8]["tokens_trained_total"] / each[-8]["wall_s"]) for each in lines)

    assert speed(schedule__max_lag=lag) > 1.8 * speed()


def test_easy_data_are_named_before_more_actor_nodes_with_the_gain_of_harder_ones(tmp_path: Path) -> None:
    settings, lines = staged(tmp_path / "easy", **STAGES[Bottleneck.FILTERED])
    found = verdict(lines, Shape.of(settings))
    assert found is not None and "give harder rows" in found.advice and "96% of the answers are right" in found.evidence
    gains = {lever.limit: lever.gain for lever in found.levers}
    assert list(gains) == [Bottleneck.FILTERED, Bottleneck.ACTORS]
    _, harder = staged(tmp_path / "hard", **(STAGES[Bottleneck.FILTERED] | {"simulation__solve_rate": 0.5}))
    speeds = [
        (last["tokens_trained_total"] - first["tokens_trained_total"]) / (last["wall_s"] - first["wall_s"])
        for first, last in ((run[AHEAD + 2], run[-AHEAD - 1]) for run in (lines, harder))
    ]
    assert gains[Bottleneck.FILTERED] == pytest.approx(speeds[1] / speeds[0], rel=0.2)
    assert f"possible speed-ups: filtered {gains[Bottleneck.FILTERED]:.2g} times, actors " in found.text
    assert found.fields()["levers"][0] == {"limit": "filtered", "gain": gains[Bottleneck.FILTERED]}


# --- by hand ------------------------------------------------------------------------------------------------------

SHAPE = Shape(learner_nodes=1, actor_nodes=3, group=4, batch=16, ahead=2, steps=100)
AT_WORK = WindowMeans(
    step_s=10.0,
    learner_wait=0.0,
    publish_wait=0.0,
    publish_s=0.5,
    stall=0.0,
    slots=96.0,
    slots_used=1.0,
    awaiting_weights=0.0,
    awaiting_verdicts=0.0,
    awaiting_group=0.0,
    ready=0.0,
    completions_per_s=6.4,
    trained_per_s=300.0,
    learner_per_s=300.0,
    actors_per_s=300.0,
)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, Bottleneck.BALANCED),
        # Engines with two thirds of their slots free could feed three learners.
        ({"slots_used": 0.33, "actors_per_s": 900.0}, Bottleneck.LEARNER),
        # Free slots alone are not worth a word if other nodes would bring less than a tenth.
        ({"slots_used": 0.7, "actors_per_s": 330.0}, Bottleneck.BALANCED),
        ({"publish_wait": 0.3, "slots_used": 0.5}, Bottleneck.WEIGHTS),
        ({"learner_wait": 0.5, "learner_per_s": 600.0}, Bottleneck.ACTORS),
        (
            {"learner_wait": 0.5, "learner_per_s": 600.0, "slots_used": 0.4, "awaiting_verdicts": 60.0},
            Bottleneck.VERIFIERS,
        ),
        (
            {"learner_wait": 0.5, "learner_per_s": 600.0, "slots_used": 0.4, "awaiting_group": 60.0},
            Bottleneck.STRAGGLERS,
        ),
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "slots_used": 0.4, "publish_s": 9.0}, Bottleneck.WEIGHTS),
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "slots_used": 0.4, "slots": 400.0}, Bottleneck.QUEUE),
        # Free slots that nothing explains need more sequences; a publication of 0.01 s explains none.
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "slots_used": 0.4, "publish_s": 0.01}, Bottleneck.QUEUE),
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "filtered": 0.5}, Bottleneck.FILTERED),
        # An eighth of all groups of four has no gradient by chance.
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "filtered": 0.125}, Bottleneck.ACTORS),
        ({"learner_wait": 0.5, "learner_per_s": 600.0, "lost": 0.2, "stale": 0.1}, Bottleneck.FAULTS),
        # Harder data bring nothing while the learner is always busy.
        ({"filtered": 0.5, "lost": 0.3}, Bottleneck.BALANCED),
    ],
)
def test_the_place_with_most_sequences_limits(changes: Mapping[str, Any], limit: Bottleneck) -> None:
    assert judging.judge(AT_WORK._replace(**changes), SHAPE) is limit


def test_the_ratio_by_hand() -> None:
    """One learner node trains 600 tokens a second, and each of three actor nodes generates 100 of them: six of them."""
    assert judging.balance(AT_WORK._replace(learner_per_s=600.0), SHAPE) == pytest.approx(6.0)


def line(step: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "step": step,
        "wall_s": 10.0 * step,
        "learner_wait_s": 5.0,
        "engine_slots": 96.0,
        "engine_slots_fraction": 1.0,
        "engine_capacity_tokens_per_s": 600.0,
        "actor_tokens_per_s": 600.0,
        "completion_tokens_mean": 100.0,
        "tokens_trained_total": 3000 * step,
        "tokens_generated_total": 6000 * step,
    }
    return usual | changes


def test_a_verdict_needs_some_steps_and_heartbeats() -> None:
    assert verdict([], SHAPE) is None
    assert verdict([line(n) for n in range(1, 4)], SHAPE) is None
    assert verdict([line(n, engine_slots=None) for n in range(1, 12)], SHAPE) is None
    few, many = (verdict([line(n) for n in range(1, last)], SHAPE) for last in (9, 40))
    assert few and many
    assert few.limit is many.limit is Bottleneck.ACTORS and 0.5 < few.sure < many.sure < 1
    # Half of the tokens are not trained: the learner takes 600, three full nodes give 300.
    assert many.actors_per_learner == pytest.approx(6.0)
    assert many.text == (
        "the actors limit this run (94% sure): the learner waits 50% of the time, engine slots are 100% full; "
        "balanced at 6 actor nodes for each learner node (now 3)"
    )


def test_the_ratio_counts_the_engines_that_run() -> None:
    """Six engines of three nodes: with twelve, the same speed is that of six nodes, so each is half as fast."""
    lines = [line(n, engines=12) for n in range(1, 40)]
    found = verdict(lines, SHAPE._replace(engines=6))
    assert found is not None and found.actors_per_learner == pytest.approx(12.0)
    assert "(now 6)" in found.text


def shape_of(**keys: Any) -> Shape:
    settings = config.Config()
    for key, value in keys.items():
        settings = config.with_key(settings, key.replace("__", "."), value)
    return Shape.of(settings)


def test_where_a_depth_is_set_the_depth_is_to_be_raised() -> None:
    shape = shape_of(schedule__max_lag=2, schedule__depth=1, schedule__prompts_per_step=4, sampling__group_size=4)
    advised = judging._advice(Bottleneck.QUEUE, AT_WORK._replace(slots=32.0), shape)
    assert advised.startswith("raise schedule.depth to 3 (now 1), schedule.max_lag to 3 (now 2) or ")
    advised = judging._advice(Bottleneck.QUEUE, AT_WORK._replace(slots=16.0), shape)
    assert advised.startswith("raise schedule.depth to 2 (now 1) or ")
    plain = shape_of(schedule__max_lag=1, schedule__prompts_per_step=4, sampling__group_size=4)
    assert judging._advice(Bottleneck.QUEUE, AT_WORK._replace(slots=16.0), plain).startswith(
        "raise schedule.max_lag to 2 (now 1)"
    )


def test_levers_are_ranked_by_their_gain() -> None:
    means = AT_WORK._replace(learner_wait=0.5, learner_per_s=600.0, filtered=0.3, failed=0.3)
    found = {lever.limit: lever.gain for lever in judging.levers(means, SHAPE)}
    assert list(found) == [Bottleneck.FAULTS, Bottleneck.FILTERED, Bottleneck.ACTORS]
    assert found == pytest.approx(
        # The nodes: two thirds of a second node of learning are idle, 4 nodes x 600 x 100 / 700 for 300.
        {Bottleneck.FAULTS: 1 / 0.7, Bottleneck.FILTERED: 0.875 / 0.7, Bottleneck.ACTORS: 8 / 7}
    )


def test_what_costs_nothing_is_no_evidence() -> None:
    waiting = AT_WORK._replace(learner_wait=0.5, step_s=0.6, publish_s=0.001, awaiting_weights=40.0)
    evidence = judging._evidence(Bottleneck.WEIGHTS, waiting, SHAPE)
    assert evidence.endswith("100% full, 40 sequences wait for a version")
    slow = judging._evidence(Bottleneck.WEIGHTS, waiting._replace(publish_s=0.3, stall=0.05), SHAPE)
    assert slow.endswith(
        "wait for a version, publishing takes 0.3 of 0.6 s a step, updates stall engines 5% of the time"
    )


def test_a_ratio_that_the_run_has_is_no_advice() -> None:
    assert judging._split(3.0, SHAPE) == "" != judging._split(4.0, SHAPE)
    # Full engines give what they give now, whatever the fit of their speed says.
    assert judging.balance(AT_WORK._replace(learner_wait=0.5, learner_per_s=600.0, actors_per_s=600.0), SHAPE) == 6.0


@pytest.mark.parametrize(
    ("share", "said"),
    [("stale", "raise schedule.max_lag"), ("failed", "failed groups in rollouts/"), ("lost", "names dead actors")],
)
def test_lost_work_is_named_with_its_cause(share: str, said: str) -> None:
    means = AT_WORK._replace(**{"learner_wait": 0.5, share: 0.4})
    assert (
        judging._evidence(Bottleneck.FAULTS, means, SHAPE).partition("of the generated tokens ")[2].startswith("40% ")
    )
    assert said in judging._advice(Bottleneck.FAULTS, means, SHAPE)


def test_a_verdict_of_old_lines_is_silent() -> None:
    window = VerdictWindow(SHAPE)
    assert window.current(0.0) is None
    window.add([line(n) for n in range(1, 20)])
    assert window.current(100.0) == window.latest is not None
    assert window.current(159.0) is not None
    assert window.current(161.0) is None, "three steps of 10 s, and a minute, have passed"
    window.add([line(20)])
    assert window.current(300.0) is not None
    slow = VerdictWindow(SHAPE)
    slow.add([line(n, wall_s=500.0 * n) for n in range(1, 20)])
    assert slow.current(0.0) is not None and slow.current(1400.0) is not None and slow.current(1600.0) is None


def test_a_split_keeps_engines_and_shared_rows_whole() -> None:
    shape = SHAPE._replace(learner_nodes=2, actor_nodes=8)
    assert judging._split(1.0, shape).endswith(": --learner-nodes 5 --actor-nodes 5")
    assert judging._split(1.0, shape._replace(actor_unit=2)).endswith(": --learner-nodes 5 --actor-nodes 4")
    assert judging._split(1.0, shape._replace(learner_unit=2)).endswith(": --learner-nodes 4 --actor-nodes 6")
    assert "--learner-nodes" not in judging._split(9.0, shape._replace(learner_unit=4)), "no split of these nodes fits"


def test_the_first_and_the_last_batches_say_nothing() -> None:
    """Engines start empty, and nothing is generated beside the last batches."""
    lines = [line(n, learner_wait_s=0.0 if 3 < n < 98 else 9.0) for n in range(1, 101)]
    found = verdict(lines, SHAPE)
    assert found is not None and found.limit is Bottleneck.BALANCED


def test_the_end_of_the_data_is_a_fact() -> None:
    lines = [line(n, data_ended=int(n == 20)) for n in range(1, 21)]
    found = verdict(lines, SHAPE)
    assert found is not None
    assert (found.limit, found.sure) == (Bottleneck.DATA, 1.0)
    assert found.advice == "give more rows, or raise data.epochs"


def test_a_window_takes_lines_once_and_those_of_a_replay_again() -> None:
    window = VerdictWindow(SHAPE)
    window.add([line(n) for n in range(1, 20)])
    before = window.latest
    window.add([line(n) for n in range(10, 20)])
    assert window.latest == before
    window.add([line(n, learner_wait_s=0.0) for n in range(4, 30)])
    assert isinstance(window.latest, RunVerdict) and window.latest.limit is Bottleneck.BALANCED
