"""The full-screen view: nothing that matters is cut, on small screens and on large ones."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from olmorl.deploy.view.dashboard import (
    ActorRow,
    Dashboard,
    EvaluationCurve,
    RecentSample,
    RunView,
    duration,
    sparkline,
)
from olmorl.deploy.view.run_history import RunHistory, sample_of
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import ActorStatus, Completion, Failure, Group, Prompt, Span, Version

VERDICT = (
    "the way of the weights limits this run (94% sure): the learner waits 86% of the time, engine slots are 20% full, "
    "71 sequences wait for a version, publishing takes 3.1 of 17.1 s a step, updates stall engines 2% of the time; "
    "raise weights.publish_every or schedule.max_lag, or give the weights a faster way (weights.store)"
)
"""The longest one."""
SIZES = [(80, 24), (160, 50)]


def actor(number: int, fault: str = "") -> ActorRow:
    return ActorRow(f"actor-{number}", "run", f"1.{number + 100}", 1, 64, 8, 0.81, 1234.5, fault)


VIEW = RunView(
    title="a-run-with-a-name",
    step=127,
    steps=1400,
    elapsed_s=3723.0,
    eta_s=36000.0,
    rewards=[0.3 + 0.01 * (n % 40) for n in range(127)],
    evaluated=[60, 126],
    evaluations=[EvaluationCurve("aime", 0.125, 0.5, "0-6", "9"), EvaluationCurve("gsm8k", 0.75, None)],
    line={
        "actor_tokens_per_s": 15123.0,
        "useful_tokens_per_s": 8765.0,
        "lag_mean": 1.25,
        "lag_max": 4,
        "learner_step_s": 31.4,
        "learner_wait_s": 2.5,
        "groups_ready": 7.0,
    },
    queued=11,
    leased=22,
    results=33,
    verdict=VERDICT,
    actors=[actor(0), actor(1, "actor-1.2 died: out of memory"), actor(2), actor(3)],
    faults=[f"10:00:0{n} news {n}" for n in range(6)],
    sample=RecentSample(42, "What is 6 x 7?", "Six times seven is " + "forty-two, " * 30 + "the end", 1.0, "trained"),
)


def drawn(view: RunView, width: int, height: int) -> list[str]:
    """The lines on a screen of this size."""
    console = Console(file=StringIO(), width=width, height=height, highlight=False)
    console.print(Dashboard(view), end="")
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_that_matters_is_cut(width: int, height: int) -> None:
    lines = drawn(VIEW, width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    text = "\n".join(lines)
    for wanted in (
        *("a-run-with-a-name", "step 127/1400", "1h02m elapsed", "ETA 10h00m", "9%"),
        *("reward  0.360", "▲", "aime 0.125 (v0-6) -> 0.500 (v9)", "gsm8k 0.750 -> unanswered"),
        *("generated 15,123   trained 8,765", "step 31.4 s   wait 2.5 s   lag: mean 1.25   largest 4"),
        "11 prompts queued, 22 leased, 33 results, 7 groups ready",
        *("news 5", "answer of prompt 42: reward 1, trained", "> What is 6 x 7?", "Six times seven is"),
    ):
        assert wanted in text, wanted
    assert " ".join(VERDICT.split()) in " ".join(text.replace("verdict", "").split())
    for number in range(4):
        (row,) = [line for line in lines if line.startswith(f"actor-{number} ")]
        assert row.split()[1:8] == ["run", f"1.{number + 100}", "1", "64", "8", "81%", "1,234"]
    assert "died" in next(line for line in lines if line.startswith("actor-1 "))


def test_a_larger_screen_shows_more() -> None:
    small, large = ("\n".join(drawn(VIEW, *size)) for size in SIZES)
    for wanted in ("actor-1.2 died: out of memory", "the end", "news 0"):
        assert wanted in large and wanted not in small


@pytest.mark.parametrize(("width", "height"), [*SIZES, (80, 12), (40, 10), (200, 8)])
def test_many_actors_fit_any_screen_and_those_with_a_fault_are_seen(width: int, height: int) -> None:
    many = [actor(n, "died" if n == 57 else "") for n in range(100)]
    lines = drawn(replace(VIEW, actors=many, verdict="balanced"), width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    if height >= 24:
        assert any(line.startswith("actor-57 ") for line in lines)
        assert any("more actors" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_before_the_first_step_it_says_what_the_parts_do(width: int, height: int) -> None:
    start = RunView(title="demo", steps=50, phases=["learner: loading the model", "engines: starting"])
    text = "\n".join(drawn(start, width, height))
    assert "step 0/50" in text and "ETA --" in text and "learner: loading the model" in text
    assert "reward" not in text and "tokens/s" not in text


def test_marks_are_under_the_steps_of_their_evaluations() -> None:
    lines = drawn(replace(VIEW, rewards=[0.0, 1.0, None, 1.0], evaluated=[1, 3]), 80, 24)
    number = next(n for n, line in enumerate(lines) if line.startswith("reward"))
    bars, marks = lines[number], lines[number + 1]
    assert bars.endswith("▁█ █")
    first = bars.index("▁")
    assert [index - first for index, mark in enumerate(marks) if mark == "▲"] == [1, 3]


def test_a_view_travels_as_json() -> None:
    sent = json.loads(json.dumps(msgspec.to_builtins(VIEW)))
    assert msgspec.convert(sent, RunView) == msgspec.convert(msgspec.to_builtins(VIEW), RunView)
    assert drawn(msgspec.convert(sent, RunView), 80, 24) == drawn(VIEW, 80, 24)


def test_text_from_a_model_is_no_markup_and_stays_in_its_lines() -> None:
    hostile = RecentSample(1, "[red]a\nb", "[/nothing] \x1b[2J \r\n" * 3, None, "zero_gradient")
    text = "\n".join(drawn(replace(VIEW, sample=hostile), 80, 24))
    assert "> [red]a b" in text and "[/nothing]" in text and "reward -, zero gradient" in text
    assert "\x1b" not in text and "\r" not in text


def test_wide_letters_take_two_columns() -> None:
    wide = RecentSample(1, "六かける七は" * 20, "四十二です。" * 40, 1.0, "trained")
    for width, height in SIZES:
        console = Console(file=StringIO(), width=width, height=height, highlight=False)
        console.print(Dashboard(replace(VIEW, sample=wide)), end="")
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert len(lines) <= height and max(map(cell_len, lines)) <= width


def test_sparklines_and_durations() -> None:
    assert sparkline([0, 0.5, 1]) == "▁▅█" and sparkline([1, 1]) == "▁▁" and sparkline([None]) == ""
    assert [duration(seconds) for seconds in (7, 185, 3723)] == ["7s", "3m05s", "1h02m"]


# --- what a view is made of ----------------------------------------------------------------------------------------


def line(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "version": step, "reward_mean": step / 10} | more


def test_a_history_has_rewards_evaluations_and_speeds() -> None:
    history = RunHistory()
    for each in (
        line(1, eval_aime_accuracy=0.25, eval_aime_version_oldest=0, eval_aime_version_newest=2),
        line(2),
        line(3),
        line(2),
        line(3, eval_aime_accuracy=0.5, eval_aime_version_oldest=3, eval_aime_version_newest=3),
    ):
        history.add_line(each)
    history.add_news("actor-0 died")
    for at, tokens in ((5.0, 100), (7.0, 300)):
        status = ActorStatus(name="actor-0.1", at=at, version=Version(1, 2), tokens_generated=tokens, running=4)
        history.hear([status])
    slots = [
        {"name": "actor-0", "process": "actor-0.1", "state": "run", "last_cause": ""},
        {"name": "actor-1", "process": None, "state": "quarantined", "last_cause": "bad memory"},
    ]
    rows = history.rows([status], slots)
    assert rows[0] == ActorRow("actor-0", "run", "1.2", 1, 4, 0, 0.0, 100.0, "")
    assert rows[1] == ActorRow("actor-1", "quarantined", fault="bad memory")
    view = history.view(RunView(title="t", step=3, steps=9), rows, None)
    assert list(view.rewards) == [0.1, 0.2, 0.3] and list(view.evaluated) == [0, 2]
    assert list(view.evaluations) == [EvaluationCurve("aime", 0.25, 0.5, "0-2", "3")]
    assert view.line["step"] == 3
    assert view.faults[0].endswith(" actor-0 died")


def test_a_sample_is_one_answer_of_a_group() -> None:
    prompt = Prompt(
        draw_id=3,
        row="a.jsonl:1",
        messages=[{"role": "user", "content": "What is 6 x 7?"}],
        token_ids=np.zeros(1, np.int32),
        datasets=(),
        ground_truths=(),
        group_size=2,
        min_version=Version(1, 0),
    )
    answers = tuple(
        Completion(
            index=index,
            token_ids=np.zeros(1, np.int32),
            logprobs=np.zeros(1, np.float32),
            spans=(Span(Version(1, 0), 0, 1),),
            finish_reason="stop",
            text=text,
            reward=float(index),
        )
        for index, text in enumerate(("41", "42" * 9999))
    )
    group = Group(prompt=prompt, completions=answers, actor="a", started_at=0.0, finished_at=1.0)
    sample = sample_of(Ended(group, Outcome.TRAINED, 1, ""))
    assert sample is not None
    assert (sample.draw, sample.prompt, sample.reward, sample.outcome) == (3, "What is 6 x 7?", 1.0, "trained")
    assert sample.answer.startswith("4242") and len(sample.answer) == 1000
    assert sample_of(Ended(Failure(prompt=prompt, cause="poison"), Outcome.FAILED, None, "poison")) is None
