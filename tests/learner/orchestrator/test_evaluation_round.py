"""What an evaluation makes of one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from olmorl.learner.orchestrator.evaluation import Round
from olmorl.messages import Failure, Version
from olmorl.metrics import answered_by


def test_answers_that_cannot_be_read_are_failures_and_not_wrong(make_group: Callable[..., Any]) -> None:
    asked = Round(Version(1, 0), asked=4, ends_at=9.0)
    good = make_group(0, rewards=(1.0, 0.0), versions=(Version(1, 3),))
    assert asked.add(good) == ""
    assert asked.add(Failure(prompt=good.prompt, cause="unscorable", detail="judge_down")) == "unscorable"
    assert asked.add(replace(good, completions=tuple(replace(each, spans=()) for each in good.completions)))
    fields = asked.fields("held")
    assert (asked.failed, asked.in_flight) == (2, 1)
    assert (fields["eval_held_failed"], fields["eval_held_prompts"], fields["eval_held_version_newest"]) == (2, 4, 3)


def test_the_fields_name_all_versions_that_answered(make_group: Callable[..., Any]) -> None:
    asked = Round(Version(1, 0), asked=3, ends_at=9.0)
    assert (asked.fields("held")["eval_held_version_oldest"], asked.fields("held")["eval_held_version_newest"]) == (
        None,
        None,
    ), "nothing answered"
    for versions in ((2, 3), (1, 2), (2, 6)):
        asked.add(make_group(0, versions=[Version(1, number) for number in versions], tokens=4))
    fields = asked.fields("held")
    assert (fields["eval_held_version"], answered_by(fields, "eval_held_accuracy")) == (0, "1-6")
