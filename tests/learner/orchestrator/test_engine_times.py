"""The busy shares of a line, and the speed of full engines."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from olmorl.learner.orchestrator.step_metrics import EngineTimes, SpeedFit, TimeMean
from olmorl.messages import ActorStatus


def status(name: str, seconds: float, **sums: float) -> ActorStatus:
    return ActorStatus(name=name, at=seconds, up_s=seconds, **sums)  # type: ignore[arg-type]


def heard(times: EngineTimes, *statuses: ActorStatus) -> dict[str, Any]:
    for each in statuses:
        times.heard(each, ActorStatus(name=each.name, at=0.0))
    times.count(len(statuses))
    return dict(times.fields())


def test_shares_are_over_the_time_of_all_engines() -> None:
    busy = status("a", 10.0, busy_s=10.0, running_s=80.0, slots_s=80.0, tokens_generated=800, awaiting_weights_s=5.0)
    busy = replace(busy, scored_s=0.1)
    busy = replace(busy, flops=3e9, moved_bytes=1e9, peak_flops_per_s=1e9, peak_bytes_per_s=5e8)
    idle = status("b", 10.0, busy_s=5.0, running_s=20.0, slots_s=80.0, tokens_generated=200, awaiting_group_s=30.0)
    line = heard(EngineTimes(), busy, idle)
    assert line == {
        "engines": 2,
        "weight_proof_fraction": pytest.approx(0.1 / 20),
        "engine_slots": pytest.approx(16.0),
        "engine_busy_fraction": pytest.approx(0.75),
        "engine_slots_fraction": pytest.approx(100 / 160),
        # Both give a token in 0.1 s, with eight sequences and with four: more sequences cost nothing.
        "engine_capacity_tokens_per_s": pytest.approx(160.0, rel=0.05),
        # The peak of the other one is not known.
        "engine_mfu": pytest.approx(0.3),
        "engine_mbu": pytest.approx(0.2),
        "sequences_awaiting_weights": pytest.approx(0.5),
        "sequences_awaiting_verdicts": 0.0,
        "sequences_awaiting_group": pytest.approx(3.0),
        "sequences_awaiting_environment": 0.0,
    }


def test_a_line_without_a_heartbeat_has_no_shares() -> None:
    times = EngineTimes()
    heard(times, status("a", 1.0, busy_s=1.0, running_s=1.0, slots_s=8.0))
    line = times.fields()
    assert line["engines"] == 1
    assert line["weight_proof_fraction"] is None
    assert line["engine_busy_fraction"] is None and line["sequences_awaiting_group"] is None


@pytest.mark.parametrize(("seen", "within"), [((4, 8, 16), 0.01), ((8, 8, 8), 0.35)])
def test_the_speed_of_full_engines_is_found_from_part_of_the_load(seen: tuple[int, ...], within: float) -> None:
    """A step of n sequences takes (1 + 0.02 (n - 1)) / 50 s. With one load only a usual slowdown is assumed."""

    def step_s(number: int) -> float:
        return (1 + 0.02 * (number - 1)) / 50

    fit = SpeedFit()
    for number in seen * 5:
        fit.note(1000 * number, 1000 * step_s(number), 1000 * step_s(number) * number)
    assert fit.tokens_per_s(32) == pytest.approx(32 / step_s(32), rel=within)


def test_the_mean_over_time_starts_again_with_each_line() -> None:
    mean = TimeMean(10.0)
    mean.note(4, 12.0)
    mean.note(0, 13.0)
    assert mean.take(14.0) == pytest.approx(1.0)
    mean.note(6, 15.0)
    assert mean.take(16.0) == pytest.approx(3.0)
