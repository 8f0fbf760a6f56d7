"""The tables of a run: every row of its files, typed, as far as the run has come."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import olmorl
from olmorl.deploy.run_tables import ANSWERS, DRAWS, TOKENS
from olmorl.errors import DataError
from olmorl.learner.storage import ledger, rollout_log
from tests import rollout_files
from tests.deploy.report.made_runs import MadeRun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return MadeRun(tmp_path / "run", steps=3, trained=3, filtered=1, group_size=4).folder


def test_every_answer_is_a_row(run: Path) -> None:
    answers = olmorl.read_run(run, tokens=True).answers
    records = [record for path in rollout_log.files(run / "rollouts") for record in rollout_log.read(path)]
    expected = [
        (record["prompt_id"], record["outcome"], record["step"], json.dumps(record["prompt"]), each["text"],
         each["reward"], each["solved"], each["token_ids"], len(each["token_ids"]), each["versions"][0][0])
        for record in records
        for each in record["completions"]
    ]  # fmt: skip
    names = ("draw", "outcome", "step", "prompt", "text", "reward", "solved", "token_ids", "tokens", "oldest_version")
    found = [tuple(row[name] for name in names) for row in answers.to_pylist()]
    assert len(found) == 3 * 4 * 4
    assert [(*row[:3], json.dumps(json.loads(row[3])), *row[4:]) for row in found] == expected
    logprobs = [value for record in records for each in record["completions"] for value in each["logprobs"]]
    assert answers["logprobs"].combine_chunks().flatten().to_pylist() == pytest.approx(logprobs)


def test_metrics_and_draws(run: Path) -> None:
    tables = olmorl.read_run(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert tables.metrics.num_rows == len(lines) == 3
    for name in {name for line in lines for name in line}:
        assert tables.metrics[name].to_pylist() == [line.get(name) for line in lines]
    assert [row["draw"] for row in tables.draws.to_pylist()] == [row["prompt_id"] for row in ledger.read_ledger(run)]
    assert set(tables.draws["outcome"].to_pylist()) == {"trained", "zero_gradient", "failed"}


def test_metrics_have_types_and_meanings(run: Path) -> None:
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line |= {
            "grad_norm": None,
            "reward_math_mean": 0.5,
            "my_own": "text",
            "source_math_reward_mean": 0.5,
            "lag_mean": 1 if line["step"] == 1 else 1.5,
        }
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "torn')
    found = {field.name: (str(field.type), field.metadata[b"meaning"].decode()) for field in _metrics_of(run).schema}
    assert found["step"][0] == found["lag_max"][0] == "int64" and found["my_own"] == ("string", "")
    assert {found[name][0] for name in ("grad_norm", "lag_mean", "loss", "reward_mean")} == {"double"}
    assert found["loss"] == ("double", "Loss of the step.")
    assert found["reward_math_mean"][1].startswith("Mean reward that a verifier gave")
    assert found["source_math_reward_mean"][1].startswith("Mean reward since the last step.")


def _metrics_of(run: Path) -> Any:
    return olmorl.read_run(run).metrics


def test_a_run_that_trains_may_remove_and_end_files_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the listing are those of a moment ago."""
    first, second, third = listed = rollout_log.files(run / "rollouts")
    partial = second.with_name(second.name.replace(".jsonl.zst", ".partial.jsonl.zst"))
    monkeypatch.setattr(rollout_log, "files", lambda folder: [first, partial, third])
    first.unlink()
    answers = olmorl.read_run(run).answers.to_pylist()
    assert {row["filed"] for row in answers} == {2, 3} and len(answers) == 2 * 4 * 4
    assert len(listed) == 3


def test_fifty_thousand_answers_are_read_in_less_than_two_seconds(tmp_path: Path) -> None:
    folder = MadeRun(tmp_path / "large", steps=100, trained=60, filtered=3, group_size=8, tokens=40).folder
    olmorl.read_run(folder)
    times = []
    for _ in range(3):
        before = time.process_time()
        answers = olmorl.read_run(folder).answers
        times.append(time.process_time() - before)
    assert answers.num_rows == 50_400 and min(times) < 2, times


def test_the_columns_are_typed_and_documented_also_of_an_empty_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    tables = olmorl.read_run(tmp_path, tokens=True)
    assert tables.answers.num_rows == tables.draws.num_rows == tables.metrics.num_rows == 0
    for table, columns in ((tables.answers, ANSWERS | TOKENS), (tables.draws, DRAWS)):
        found = {field.name: (field.type, field.metadata[b"meaning"].decode()) for field in table.schema}
        assert found == columns


def test_an_evaluation_is_told_apart(run: Path) -> None:
    train = next((run / "rollouts").glob("step_000001.*"))
    rollout_files.copy(train, run / "rollouts" / "evaluation_000001.held.out.1.jsonl.zst")
    answers = olmorl.read_run(run).answers.to_pylist()
    assert {row["filed"] for row in answers if row["evaluation"] == "held.out"} == {1}
    assert sum(row["evaluation"] is None for row in answers) == 3 * 4 * 4


def test_a_teacher_and_the_rewards_of_tokens_have_columns(run: Path) -> None:
    path = next((run / "rollouts").glob("step_000001.*"))
    records = list(rollout_log.read(path))
    first, second = records[0]["completions"][:2]
    first["logprobs"] = [-0.5, None, *[-1.5] * (len(first["token_ids"]) - 2)]
    first["teacher_logprobs"] = [-1.0, -9.0, *[-2.0] * (len(first["token_ids"]) - 2)]
    first["verdicts"]["teacher"] = {"reward": None, "method": "large"}
    second["token_rewards"] = [None, *[0.5] * (len(second["token_ids"]) - 1)]
    rollout_files.write([json.dumps(record).encode() for record in records], path)
    rows = olmorl.read_run(run, tokens=True).answers.to_pylist()
    found = {row["index"]: row for row in rows if row["draw"] == records[0]["prompt_id"]}
    assert (found[0]["teacher"], found[0]["teacher_kl"]) == ("large", 0.5)
    assert found[0]["teacher_logprobs"] == first["teacher_logprobs"] and found[0]["token_rewards"] is None
    assert (found[1]["teacher"], found[1]["teacher_kl"], found[1]["teacher_logprobs"]) == (None, None, None)
    assert found[1]["token_rewards"] == second["token_rewards"]
    assert "token_rewards" not in olmorl.read_run(run).answers.column_names


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no run directory \(it has no config.toml\); give the folder"):
        olmorl.read_run(tmp_path / "nowhere")
    with pytest.raises(AttributeError, match="no attribute 'read_all'"):
        olmorl.read_all  # noqa: B018
