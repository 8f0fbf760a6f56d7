"""The index and the chunks of a report hold what `rollouts/` holds."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from olmorl.deploy.report import rollouts
from olmorl.deploy.report.rollouts import MaskRule, read_file, stride_for
from olmorl.deploy.report.run_reader import RunReader
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Version
from tests import rollout_files
from tests.deploy.report.conftest import Make
from tests.deploy.report.made_runs import WORDS
from tests.deploy.report.reading import Parts, unpack


def recorded(run: Path) -> list[dict[str, Any]]:
    return [record for path in rollout_log.files(run / "rollouts") for record in rollout_log.read(path)]


def test_the_index_has_every_group_and_completion(make_run: Make) -> None:
    run = make_run(steps=3)
    records = recorded(run)
    index = Parts(*RunReader(run, 1 << 30).read()).index
    columns, names = index["columns"], index["names"]
    assert columns["g_draw"].tolist() == [record["prompt_id"] for record in records]
    outcomes = [index["outcomes"][i] for i in columns["g_outcome"]]
    assert outcomes == [record["outcome"] for record in records]
    assert {"trained", "zero_gradient", "failed"} == set(outcomes)
    assert columns["g_trained"].tolist() == [record["step"] or 0 for record in records]
    assert [names["actor"][i] for i in columns["g_actor"]] == [record["actor"] for record in records]
    assert [names["cause"][i] for i in columns["g_cause"]] == [record["cause"] for record in records]
    assert {names["source"][i] for i in columns["g_source"]} == {"math.jsonl", "code.jsonl"}
    completions = [completion for record in records for completion in record["completions"]]
    assert columns["c_reward"].tolist() == [completion["reward"] for completion in completions]
    assert columns["c_tokens"].tolist() == [len(completion["token_ids"]) for completion in completions]
    assert columns["c_logprob"] == pytest.approx([np.mean(c["logprobs"]) for c in completions], abs=1e-5)
    assert columns["c_oldest"].tolist() == [min(span[0] for span in c["versions"]) for c in completions]


def test_a_chunk_has_the_texts_and_tokens_of_its_groups(make_run: Make) -> None:
    run = make_run(steps=4)
    records = recorded(run)
    parts = Parts(*RunReader(run, 1 << 30).read())
    columns = parts.index["columns"]
    for number, record in enumerate(records):
        texts, tokens = parts.chunk(columns["g_chunk"][number])
        slot = columns["g_slot"][number]
        assert texts[slot]["row"] == record["row"] and texts[slot]["prompt"] == record["prompt"]
        for got, completion in zip(texts[slot]["completions"], record["completions"], strict=True):
            assert got["text"] == completion["text"] + "<|end|>"
            assert got["verdicts"]["math"]["extracted"] == completion["verdicts"]["math"]["extracted"]
        spans = [[span[2:4] for span in spans] for spans in tokens["spans"][slot]]
        assert spans == [[span[1:] for span in c["versions"]] for c in record["completions"]]
    texts, tokens = parts.chunk(0)
    first = texts[0]["completions"][0]["text"]
    ids = records[0]["completions"][0]["token_ids"]
    assert tokens["columns"]["lengths"][: len(ids)].tolist() == [*(len(WORDS[i]) for i in ids[:-1]), len("<|end|>")]
    assert sum(tokens["columns"]["lengths"][: len(ids)]) == len(first)
    logprobs = -((tokens["columns"]["logprobs"] / tokens["scale"]) ** 2)
    expected = [value for record in records for c in record["completions"] for value in c["logprobs"]][: len(logprobs)]
    assert logprobs == pytest.approx(np.array(expected), abs=0.06)


def test_a_chunk_has_the_turns_of_episodes(make_run: Make) -> None:
    run = make_run(steps=1, parents=(-1, 0, 1))
    record = next(one for one in recorded(run) if one["completions"])
    turns = record["completions"][0]["turns"]
    turn = turns[1]
    assert (turn["kept"], turn["added_token_ids"], turn["start"], turn["end"]) == (8, [5, 5, 5], 4, 8)
    parts = Parts(*RunReader(run, 1 << 30).read())
    texts, _ = parts.chunk(0)
    found = next(one for one in texts if one["row"] == record["row"])["completions"][0]
    assert found["exit"] == "done" and [one["start"] for one in found["turns"]] == [0, 4, 8]
    assert found["turns"][2] == {
        key: record["completions"][0]["turns"][2][key] for key in ("parent", "start", "end", "messages", "reply")
    }
    single, _ = Parts(*RunReader(make_run("single", steps=1), 1 << 30).read()).chunk(0)
    assert "turns" not in single[0]["completions"][0]


def test_only_tokens_of_trained_groups_that_are_young_enough_are_in_the_loss() -> None:
    starts = [Start(1, 0, 0), Start(2, 4, 5)]
    rule = MaskRule(max_lag=2, mask_truncated=True, starts=starts)
    whole = {"reward": 1.0, "finish_reason": "stop"}
    assert not rule.masked(whole, 8, Version(2, 5)), "lag 2"
    assert rule.masked(whole, 9, Version(2, 5)), "lag 3"
    assert not rule.masked(whole, 7, Version(1, 5)), "replayed by the second start"
    assert rule.masked(whole, 7, Version(1, 6)), "of a version that the second start undid"
    assert rule.masked({**whole, "reward": None}, 8, Version(2, 7))
    assert rule.masked({**whole, "finish_reason": "length"}, 8, Version(2, 7))
    assert not MaskRule(2).masked({**whole, "finish_reason": "length"}, 8, Version(2, 7))


def test_a_file_that_was_cut_off_gives_its_whole_frames(make_run: Make) -> None:
    run = make_run(steps=1, trained=4)
    path = rollout_log.files(run / "rollouts")[0]
    whole = read_file(path, MaskRule(), None)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    assert read_file(path, MaskRule(), None).num_groups == whole.num_groups > 0


def test_a_foreign_file_gives_a_note(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.1.jsonl.zst"
    rollout_files.write([b'{"prompt_id": 1, "outcome": "won"}'], path)
    found = read_file(path, MaskRule(), None)
    assert not found.groups and str(path) in found.note and "not read to its end" in found.note
    rollout_files.write([b"{not json}"], path)
    assert "not read to its end" in read_file(path, MaskRule(), None).note


def test_malformed_groups_do_not_shift_the_tokens_of_others(make_run: Make, tmp_path: Path) -> None:
    records = recorded(make_run(steps=1))
    trained = [record for record in records if record["outcome"] == "trained"]
    trained[0]["completions"][0]["logprobs"] = [None, -0.5]
    path = tmp_path / "step_000001.1.jsonl.zst"
    rollout_files.write([msgspec.json.encode(record) for record in trained], path)
    found = read_file(path, MaskRule(), None)
    assert not found.note and len(found.groups) == len(trained)
    tokens = unpack(zlib.decompress(found.chunks[0][1].data))
    num_tokens = sum(len(c["token_ids"]) for record in trained for c in record["completions"])
    assert len(tokens["columns"]["logprobs"]) == len(tokens["columns"]["lengths"]) == num_tokens


def test_of_a_large_run_every_nth_group_is_kept_and_every_failed_one(make_run: Make) -> None:
    run = make_run(steps=6)
    size = sum(path.stat().st_size for path in rollout_log.files(run / "rollouts"))
    stride = stride_for(run / "rollouts", int(0.45 * size / 2.5))
    assert stride == 3
    parts = Parts(*RunReader(run, int(0.45 * size / 2.5)).read())
    kept = parts.index["columns"]["g_draw"].tolist()
    records = recorded(run)
    assert kept == [r["prompt_id"] for r in records if r["prompt_id"] % 3 == 0 or r["outcome"] == "failed"]
    about = parts.about
    assert about["rollouts"]["stride"] == 3 and about["rollouts"]["groups"] == len(records)
    assert sum(sum(one["outcomes"].values()) for one in about["sources"]) == len(records), "counts cover every group"


def test_the_index_of_no_files_is_empty() -> None:
    index = unpack(rollouts.index([]))
    assert all(len(column) == 0 for column in index["columns"].values())
