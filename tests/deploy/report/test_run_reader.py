"""A run directory in any state gives a report, or one clear sentence."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from olmorl.deploy.report import rollouts
from olmorl.deploy.report.run_reader import RunReader
from olmorl.errors import DataError, ResourceError
from tests.deploy.report.conftest import Make
from tests.deploy.report.made_runs import tokenizer_json
from tests.deploy.report.reading import Parts

MOST = 1 << 30


def read(run: Path) -> Parts:
    return Parts(*RunReader(run, MOST).read())


def test_curves_counts_and_settings(make_run: Make) -> None:
    about = read(make_run(steps=3, trained=3, filtered=1, group_size=4, tokens=12)).about
    assert about["lines"]["step"] == [1, 2, 3]
    assert about["lines"]["eval_held_accuracy"] == [0.1, None, pytest.approx(0.3)]
    assert about["evaluations"]["eval_held_accuracy"] == [[0, 0.1, 0, 1, "0-1"], [2, pytest.approx(0.3), 2, 3, "2-3"]]
    assert {"loss": ""} in [labels for _, _, labels in dict(about["sections"])["Learning"]]
    assert about["settings"]["schedule.max_lag"] == 2 and about["settings"]["learner.learning_rate"] is None
    assert about["tokens"] == {"trained": 9 * 48, "zero_gradient": 3 * 48, "stale": 0, "failed": 0}
    assert about["causes"] == [["failed", "unscorable", 2]]
    outcomes = [one["outcomes"] for one in about["sources"]]
    assert sum(one["trained"] for one in outcomes) == 9 and sum(one["failed"] for one in outcomes) == 2
    assert sum(one["scored"][0] for one in about["sources"]) == 12, "a failed group has no score"
    assert about["notes"] == []
    assert about["meanings"]["loss"] == "Loss of the step." and "a_field_of_tomorrow" not in about["meanings"]


@pytest.mark.parametrize(("name", "says"), [("nowhere", "no such folder"), ("empty", "no run directory")])
def test_what_is_no_run_is_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=says):
        RunReader(tmp_path / name, MOST)


def test_a_run_without_a_step_says_where_its_logs_are(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[run]\n")
    with pytest.raises(DataError, match="no step is done yet; the logs are in"):
        RunReader(tmp_path, MOST).read()


def test_a_run_that_was_killed_is_read_as_far_as_it_goes(make_run: Make) -> None:
    run = make_run(steps=3)
    for name in ("metrics.jsonl", "ledger/000001.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"event": "drawn", "st')
    last = sorted((run / "rollouts").iterdir())[-1]
    last.rename(last.with_name("step_000003.1.partial.jsonl.zst"))
    about = read(run).about
    assert about["lines"]["step"] == [1, 2, 3] and about["notes"] == []
    assert about["state"].startswith("finished")


def test_parts_that_are_damaged_or_missing_are_named(make_run: Make) -> None:
    run = make_run(steps=2)
    (run / "config.toml").write_text("[schedule\n")
    (run / "ledger" / "000001.jsonl").write_text("{}\n{}\n")
    first = sorted((run / "rollouts").iterdir())[0]
    first.write_bytes(b"not zstandard")
    parts = read(run)
    assert any("config.toml" in note for note in parts.about["notes"])
    assert any("ledger" in note and "damaged" in note for note in parts.about["notes"])
    assert len(parts.index["columns"]["g_draw"]) == 4, "the second step is whole"


def test_a_damaged_metrics_line_is_named(make_run: Make) -> None:
    run = make_run()
    metrics = run / "metrics.jsonl"
    metrics.write_text("damaged\n" + metrics.read_text())
    with pytest.raises(ResourceError, match=r"metrics\.jsonl:1: damaged"):
        RunReader(run, MOST).read()


def test_a_run_is_running_while_its_launcher_writes_its_lock(make_run: Make) -> None:
    run = make_run(steps=2)
    (run / "config.toml").write_text("[schedule]\nsteps = 9\n")
    (run / ".lock").write_text("the launcher")
    assert read(run).about["state"] == "running"
    before = RunReader(run, MOST).signature
    (run / ".lock").write_text("")  # released
    assert "--resume" in read(run).about["state"]
    assert RunReader(run, MOST).signature != before, "a page that is kept current shows it"
    (run / ".lock").write_text("the launcher")
    os.utime(run / ".lock", (time.time() - 60, time.time() - 60))
    assert "--resume" in read(run).about["state"]


def test_without_a_tokenizer_the_texts_are_there_and_a_note(make_run: Make, tmp_path: Path) -> None:
    run = make_run(tokenizer=False)
    parts = read(run)
    assert any("--tokenizer" in note for note in parts.about["notes"])
    texts, tokens = parts.chunk(0)
    assert not texts[0]["completions"][0]["text"].endswith("<|end|>") and not tokens["columns"]["lengths"].any()
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    texts, tokens = Parts(*RunReader(run, MOST, tmp_path).read()).chunk(0)
    assert texts[0]["completions"][0]["text"].endswith("<|end|>") and tokens["columns"]["lengths"].any()
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        RunReader(run, MOST, tmp_path / "nowhere").read()


def test_a_file_that_has_not_changed_is_read_once(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = make_run(steps=3), []
    real = rollouts.read_file
    monkeypatch.setattr(rollouts, "read_file", lambda path, *rest: asked.append(path.name) or real(path, *rest))
    report = RunReader(run, MOST)
    before, signature = report.read(), report.signature
    assert len(asked) == 3 and report.signature == signature
    first = sorted((run / "rollouts").iterdir())[0]
    first.write_bytes(first.read_bytes() * 2)
    assert report.signature != signature
    after = report.read()
    assert len(asked) == 4
    assert len(set(before[0]["chunks"][1]) & set(after[0]["chunks"][1])) == 2, "other parts keep their names"
