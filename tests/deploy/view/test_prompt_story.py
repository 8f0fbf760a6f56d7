"""The story of one prompt, from the ledger and the rollouts of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from olmorl.deploy.control import cli
from olmorl.deploy.view.prompt_story import Moment, prompt_story
from olmorl.errors import DataError
from olmorl.learner.storage import ledger, rollout_log, sealed_lines
from olmorl.learner.storage.group_stats import Score
from olmorl.learner.storage.ledger import Ledger
from olmorl.learner.storage.ledger_state import Decided, Drawn, Journaled, Line, Outcome, Requeued, Started, Trained
from tests.deploy.report.made_runs import BEGAN, MadeRun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return MadeRun(tmp_path / "run", steps=5, trained=2, filtered=1, group_size=2).folder


def of_outcome(run: Path, outcome: str) -> int:
    return next(each["prompt_id"] for each in ledger.read_ledger(run) if each["outcome"] == outcome)


def words(moments: Sequence[Moment]) -> list[str]:
    return [moment.what for moment in moments]


def test_a_prompt_that_was_trained(run: Path) -> None:
    prompt = max(each["prompt_id"] for each in ledger.read_ledger(run) if each["outcome"] == "trained")
    drawn, leased, written, verified, committed, batched, trained = prompt_story(run, prompt)
    assert drawn.what == "drawn" and drawn.text.startswith("row ") and "needs version 4" in drawn.text
    assert leased.what == "leased" and leased.text == f"by actor-{prompt % 3}, attempt 1"
    assert leased.at == pytest.approx(BEGAN + 40, abs=0.1)
    assert written.text == "2 completions, 24 tokens by version 1.1 (8), 1.4 (16)"
    assert verified.text == "math gave 1 0 (0.000 s); 1 solved"
    assert committed.text == "the whole group, 3.0 s after it began"
    assert batched.text == "for step 5, with 1 other groups" and batched.at == BEGAN + 46
    assert trained == Moment(BEGAN + 50, "trained", "at step 5, which made version 5")


def test_the_turns_of_an_episode_are_told(tmp_path: Path) -> None:
    run = MadeRun(
        tmp_path / "run", steps=1, trained=1, filtered=0, group_size=2, failures=False, parents=(-1, 0, 0, -1)
    ).folder
    story = prompt_story(run, of_outcome(run, "trained"))
    turns = [moment for moment in story if moment.what == "episode"]
    assert [(moment.at, moment.text) for moment in turns] == [
        (at, f"{index}, {text}")
        for index in range(2)
        for at, text in (
            (BEGAN, 'turn 1: 0 tokens in, 3 out: answer 0 add({"number": 0})'),
            (BEGAN + 1, 'turn 2: 3 tokens in, 3 out: answer 1 add({"number": 1})'),
            (BEGAN + 2, 'turn 3, a branch of turn 1: 3 tokens in, 3 out: answer 2 add({"number": 2})'),
            (BEGAN + 3, 'turn 4, a new branch: 3 tokens in, 3 out: answer 3 add({"number": 3}); exit done'),
        )
    ]


def test_no_rollouts_are_read_for_a_prompt_in_flight(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    newest = max(ledger.incarnations(run / "ledger"))
    draw = 1 + max(each["prompt_id"] for each in ledger.read_ledger(run))
    path = run / "ledger" / f"{newest:06d}.jsonl"
    event = {"event": "drawn", "draw": draw, "row": "a:1", "position": 0, "version": 1}
    before = sealed_lines.checksum_of(path.read_bytes().splitlines()[-1])
    line, _ = sealed_lines.seal(json.dumps(event).encode(), before)
    with path.open("ab") as file:
        file.write(line + b"\n")
    monkeypatch.setattr(rollout_log, "read", fail)
    assert words(prompt_story(run, draw)) == ["drawn", "in flight"]


def test_a_file_whose_step_has_ended_since_it_was_listed_is_read(run: Path) -> None:
    path = rollout_log.files(run / "rollouts")[0]
    listed = path.with_name(path.name.replace(".jsonl", ".partial.jsonl"))
    assert list(rollout_log.read(listed)) == list(rollout_log.read(path)) != []
    with pytest.raises(FileNotFoundError):
        list(rollout_log.read(path.with_name("step_999999.1.jsonl.zst")))


def test_a_prompt_that_was_filtered(run: Path) -> None:
    story = prompt_story(run, of_outcome(run, "zero_gradient"))
    assert words(story) == ["drawn", "leased", "written", "verified", "committed", "filtered"]
    assert story[-1].text == "all its rewards are equal"


def test_a_prompt_that_failed(run: Path) -> None:
    story = prompt_story(run, of_outcome(run, "failed"))
    assert [(moment.what, moment.text) for moment in story[2:]] == [
        ("error", "no judge answered"),
        ("failed", "unscorable"),
    ]


def write(run_dir: Path, *starts: Sequence[Line]) -> None:
    """A ledger of several starts. Each sequence begins with the event of its start."""
    folder = run_dir / "ledger"
    for events in starts:
        incarnation = ledger.acquire(folder)
        end = ledger.end_of(folder, incarnation)
        state = ledger.fold(ledger.events_until(folder, end))
        first = events[0]
        assert isinstance(first, Started)
        previous = (end.incarnation, end.num_bytes) if end else (0, 0)
        step, replay_to = first.step, first.replay_to
        started = Started(
            incarnation=incarnation,
            step=step,
            replay_to=replay_to,
            previous=previous[0],
            previous_bytes=previous[1],
            stream={},
        )
        opened = Ledger(folder, started, state, lambda at=float(incarnation): at)
        for event in events[1:]:
            opened.append(event)
        opened.close()


def started(step: int = 0, replay_to: int = 0) -> Started:
    return Started(incarnation=0, step=step, replay_to=replay_to, stream={})


def drawn(draw: int) -> Drawn:
    return Drawn(draw=draw, row=f"a.jsonl:{draw}", position=draw, version=0)


def in_batch(step: int, *draws: int) -> Journaled:
    return Journaled(step=step, draws=[(draw, 1) for draw in draws], score=Score())


def trained(step: int) -> Trained:
    return Trained(step=step, tokens=1)


def test_a_step_that_is_trained_again_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path, [started(), drawn(0), in_batch(1, 0), trained(1)], [started(0, 1), trained(1)])
    story = prompt_story(tmp_path, 0)
    assert words(story) == ["drawn", "batched", "trained", "undone", "trained"]
    assert story[3] == Moment(2.0, "undone", "incarnation 2 went on after step 0, and trains step 1 again")


def test_a_batch_that_a_restart_gave_up(tmp_path: Path) -> None:
    write(tmp_path, [started(), drawn(0), in_batch(1, 0), trained(1)], [started(0, 0)])
    story = prompt_story(tmp_path, 0)
    assert words(story) == ["drawn", "batched", "trained", "undone", "in flight"]
    write(tmp_path, [started(0, 0), in_batch(1, 0), trained(1)])
    assert words(prompt_story(tmp_path, 0))[-2:] == ["batched", "trained"]


def test_a_prompt_that_a_failure_lost_and_one_in_flight(tmp_path: Path) -> None:
    requeued = Requeued(draw=0, attempt=2, version=3)
    stale = Decided(draw=0, attempt=2, outcome=Outcome.STALE)
    write(tmp_path, [started(), drawn(0), drawn(1), requeued, stale, drawn(2), in_batch(1, 2)])
    lost = prompt_story(tmp_path, 0)
    assert words(lost) == ["drawn", "requeued", "stale"] and "attempt 2 needs version 3" in lost[1].text
    assert prompt_story(tmp_path, 1)[-1].text == "queued, leased, or its result waits for a step"
    assert prompt_story(tmp_path, 2)[-1] == Moment(None, "in flight", "waits for step 1")


def test_a_prompt_that_was_never_drawn_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prompt 999; it has the prompts 0 to 17"):
        prompt_story(run, 999)
    with pytest.raises(DataError, match="no prompt 0; it has drawn no prompt yet"):
        prompt_story(tmp_path, 0)


def test_the_command_shows_the_story(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = str(of_outcome(run, "trained"))
    assert cli.main([str(run), "trace", prompt]) == 0
    shown = capsys.readouterr().out
    assert f"prompt {prompt}" in shown and "2023-11-1" in shown and "which made version 1" in shown
    assert cli.main([str(run), "trace", prompt, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt_id"] == int(prompt) and found["moments"][-1]["what"] == "trained"
    assert cli.main([str(run), "trace", "999"]) == 2
    assert capsys.readouterr().err.startswith("olmorl-ctl: ")
    assert cli.main([str(tmp_path), "trace", "0"]) == 2
    assert "no run directory" in capsys.readouterr().err
