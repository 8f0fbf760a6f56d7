"""What an evaluation makes of one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from olmorl.learner.orchestrator.evaluation import Round
from olmorl.messages import Failure, Version


def test_answers_that_cannot_be_read_are_failures_and_not_wrong(make_group: Callable[..., Any]) -> None:
    asked = Round(Version(1, 0), asked=4, ends_at=9.0)
    good = make_group(0, rewards=(1.0, 0.0), versions=(Version(1, 3),))
    asked.add(good)
    asked.add(Failure(prompt=good.prompt, cause="unscorable", detail="judge_down"))
    asked.add(replace(good, completions=tuple(replace(each, spans=()) for each in good.completions)))
    fields = asked.fields("held")
    assert (asked.failed, asked.in_flight, asked.newest) == (2, 1, 3)
    assert (fields["eval_held_failed"], fields["eval_held_prompts"], fields["eval_held_version_newest"]) == (2, 4, 3)
