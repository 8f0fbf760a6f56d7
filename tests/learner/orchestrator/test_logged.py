"""Values logged by user functions become metric fields: means over groups, bounded in number, with unique names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from olmorl import metrics
from olmorl.learner.orchestrator.evaluation import Round
from olmorl.learner.storage.group_stats import MOST_LOGGED, Score, score
from olmorl.messages import Group, Verdict, Version

MakeGroup = Callable[..., Group]


def logging(make_group: MakeGroup, **logged: float) -> Group:
    group = make_group(0)
    first, *rest = group.completions
    spoken = replace(first, verdicts={**first.verdicts, "f": Verdict(reward=None, logged=logged)})
    return replace(group, completions=(spoken, *rest))


def test_logged_values_are_means_over_groups_under_a_prefix_of_their_own(make_group: MakeGroup) -> None:
    groups = [logging(make_group, share=0.5, loss=7.0), logging(make_group, share=1.0), make_group(1)]
    total = sum((score(group) for group in groups), Score())
    fields = total.fields()
    assert fields["logged_share_mean"] == 0.75
    assert fields["logged_loss_mean"] == 7.0
    assert not set(metrics.ALWAYS) & {name for name in fields if name.startswith("logged_")}
    assert not any(name.startswith("logged_") for name in metrics.ALWAYS)
    again = msgspec.json.decode(msgspec.json.encode(total), type=Score)
    assert again.fields() == fields


def test_functions_that_log_the_same_name_share_it(make_group: MakeGroup) -> None:
    group = logging(make_group, share=0.5)
    first, second = group.completions
    first = replace(first, verdicts={**first.verdicts, "g": Verdict(reward=None, logged={"share": 1.0})})
    fields = (score(replace(group, completions=(first, second))) + score(logging(make_group, share=0.0))).fields()
    assert fields["logged_share_mean"] == pytest.approx((0.75 + 0.0) / 2)


def test_logged_names_are_bounded_in_any_order(make_group: MakeGroup) -> None:
    parts = [score(logging(make_group, **{f"n{i:04}": float(i) for i in range(start, 400, 3)})) for start in range(3)]
    forth, back = sum(parts, Score()).fields(), sum(reversed(parts), Score()).fields()
    assert forth == back
    kept = [name for name in forth if name.startswith("logged_")]
    assert kept == [f"logged_n{i:04}_mean" for i in range(MOST_LOGGED)]


def test_an_evaluation_has_them_and_they_replace_nothing(make_group: MakeGroup) -> None:
    group = logging(make_group, x=3.0)
    first, second = group.completions
    first = replace(first, verdicts={**first.verdicts, "logged_x": Verdict(reward=0.25)})
    current = Round(Version(1, 0), asked=2, ends_at=0.0)
    current.add(replace(group, completions=(first, second)))
    assert current.fields("held")["eval_held_logged_x_mean"] == 0.25
    current.add(logging(make_group, y=2.0))
    assert current.fields("held")["eval_held_logged_y_mean"] == 2.0
