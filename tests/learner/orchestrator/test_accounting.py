"""Ledger, journal, checkpoint folders and metric lines on disk, whole and torn."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from olmorl.errors import DiskFull, ResourceError, Superseded, UserError
from olmorl.learner.storage import checkpoint_dir, durable_files, ledger, metrics_log
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.group_stats import Moments, Score
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger import Ledger, Position
from olmorl.learner.storage.ledger_state import (
    Decided,
    Drawn,
    Journaled,
    LedgerState,
    Outcome,
    Requeued,
    Retired,
    Start,
    Started,
    Trained,
    TrainedTokens,
)
from olmorl.learner.storage.metrics_log import MetricsLog, missing_steps
from olmorl.messages import Group
from olmorl.run_dir import RunFiles

MakeGroup = Callable[..., Group]


def started(incarnation: int = 1, step: int = 0, replay_to: int = 0, previous: Position | None = None) -> Started:
    before = previous or Position(0, 0)
    return Started(
        incarnation=incarnation,
        step=step,
        replay_to=replay_to,
        previous=before.incarnation,
        previous_bytes=before.num_bytes,
        stream={"position": 0},
    )


def drawn(*draw_ids: int) -> list[Drawn]:
    return [Drawn(draw=i, row=f"a.jsonl:{i + 1}", position=i, version=0) for i in draw_ids]


def open_ledger(folder: Path, step: int = 0, replay_to: int = 0, until: Position | None = None) -> Ledger:
    incarnation = ledger.acquire(folder)
    end = until or ledger.end_of(folder, incarnation)
    accounts = ledger.fold(ledger.events_until(folder, end))
    return Ledger(folder, started(incarnation, step, replay_to, end), accounts)


def failed(draw: int) -> Decided:
    return Decided(draw=draw, attempt=1, outcome=Outcome.FAILED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_each_start_takes_an_incarnation_of_its_own(folder: Path) -> None:
    assert [ledger.acquire(folder) for _ in range(3)] == [1, 2, 3]


def test_a_step_moves_its_draws_from_open_to_journaled_to_trained(folder: Path) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0, 1, 2), Requeued(draw=1, attempt=2, version=4))
    books.append(Decided(draw=0, attempt=1, outcome=Outcome.ZERO_GRADIENT, score=Score(groups=1, tokens=7)))
    books.append(Journaled(step=1, draws=[(2, 1), (1, 2)], score=Score(groups=2, tokens=20)))
    assert (set(books.state.open), books.state.journaled) == (set(), 2)
    books.append(Trained(step=1, tokens=18))
    accounts = books.state
    assert accounts.journaled == 0
    assert accounts.outcomes == {Outcome.TRAINED: 2, Outcome.ZERO_GRADIENT: 1}
    draw = accounts.batches[1].members[1]
    assert (draw.attempt, draw.version, draw.step) == (2, 4, 1)
    assert accounts.batches[1].tally.tokens == 27
    assert accounts.open_score == Score()


def test_sums_of_batches_follow_each_start(folder: Path) -> None:
    """Two of four steps are undone; one of them is trained again, and the draws of the other are open."""
    books = open_ledger(folder)

    def check_sums(journaled: int, trained: int) -> None:
        batches = books.state.batches.values()
        done = [batch for batch in batches if batch.trained]
        assert (books.state.journaled, len(done)) == (journaled, trained)
        assert books.state.trained == TrainedTokens(
            scored=sum(batch.score.tokens for batch in done),
            fed=sum(batch.tokens for batch in done),
            prompt=sum(batch.score.prompt_tokens for batch in done),
        )

    books.append(*drawn(*range(8)))
    for step in range(1, 5):
        draws = [(2 * step - 2, 1), (2 * step - 1, 1)]
        books.append(Journaled(step=step, draws=draws, score=Score(groups=2, tokens=10 * step, prompt_tokens=step)))
        check_sums(2, step - 1)
        books.append(Trained(step=step, tokens=9 * step))
        check_sums(0, step)
    books.append(Started(incarnation=2, step=2, replay_to=3, stream={}))
    check_sums(2, 2)
    assert set(books.state.open) == {6, 7}
    books.append(Trained(step=3, tokens=27))
    check_sums(0, 3)


def test_reading_back_gives_the_same_accounts(folder: Path) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0, 1), Retired(row="a.jsonl:1"))
    score = Score(groups=1, completions=2, rewards=Moments.of(0.0, 1.0), verifiers={"math": Moments.of(0.0, 1.0)})
    books.append(Decided(draw=0, attempt=1, outcome=Outcome.STALE, cause="over_age", score=score))
    assert ledger.fold(ledger.events_until(folder, books.position)) == books.state


def test_a_torn_last_line_does_not_count(folder: Path) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0, 1))
    path = ledger.path_of(folder, 1)
    path.write_bytes(path.read_bytes() + b'{"event":"drawn","dra')
    assert len(list(ledger.read_ledger(folder.parent))) == 2
    assert open_ledger(folder).state.num_drawn == 2


def test_a_line_that_found_the_disk_full_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0))
    position = books.position
    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "sync", full_disk)
        with pytest.raises(DiskFull, match=r"No space left on device: the disk of .* is full .* free\); make room"):
            books.append(*drawn(1))
    assert (books.position, set(books.state.open)) == (position, {0})
    assert ledger.path_of(folder, 1).stat().st_size == position.num_bytes
    books.append(*drawn(2))
    assert [record["prompt_id"] for record in ledger.read_ledger(folder.parent)] == [0, 2]


def test_nothing_is_written_after_a_torn_line(folder: Path) -> None:
    books = open_ledger(folder)
    with ledger.path_of(folder, 1).open("ab") as file:
        file.write(b'{"event":"drawn","dra')
    with pytest.raises(ResourceError, match="an earlier line is torn"):
        books.append(*drawn(0))
    assert not books.state.num_drawn


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    durable_files.write_whole(path, [b"old"])
    monkeypatch.setattr(durable_files, "sync", full_disk)
    with pytest.raises(ResourceError, match="No space left"):
        durable_files.write_whole(path, [b"new"])
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"old"


def test_a_write_that_fails_is_named_also_where_nothing_can_be_tidied_up(tmp_path: Path) -> None:
    (tmp_path / "file.partial").mkdir()
    with pytest.raises(ResourceError, match="Is a directory"):
        durable_files.write_whole(tmp_path / "file", [b"data"])


def test_a_superseded_start_is_refused_and_what_it_writes_all_the_same_does_not_count(folder: Path) -> None:
    older = open_ledger(folder)
    older.append(*drawn(0))
    newer = open_ledger(folder)
    late = Decided(draw=0, attempt=1, outcome=Outcome.FAILED, cause="late")
    with pytest.raises(Superseded, match=r"000001.jsonl is superseded by 000002.jsonl"):
        older.append(late)
    with ledger.path_of(folder, 1).open("ab") as file:  # on a host that does not see the newer one yet
        file.write(msgspec.json.encode(late) + b"\n")
    newer.append(*drawn(1))
    assert [record["outcome"] for record in ledger.read_ledger(folder.parent)] == ["in_flight", "in_flight"]


def test_a_start_that_crashed_before_its_first_line_is_passed_over(folder: Path) -> None:
    open_ledger(folder).append(*drawn(0))
    ledger.acquire(folder)
    third = open_ledger(folder)
    assert set(third.state.open) == {0}
    assert [start.incarnation for start in third.state.starts] == [1, 3]


def two_steps(folder: Path) -> Ledger:
    books = open_ledger(folder)
    books.append(*drawn(0, 1, 2))
    for step in (1, 2):
        books.append(Journaled(step=step, draws=[(step - 1, 1)], score=Score(tokens=5)), Trained(step=step, tokens=5))
    return books


def test_a_restart_takes_steps_back_into_the_journal(folder: Path) -> None:
    two_steps(folder)
    accounts = open_ledger(folder, step=1, replay_to=2).state
    assert accounts.outcomes == {Outcome.TRAINED: 1}
    assert (accounts.journaled, set(accounts.open)) == (1, {2})
    assert accounts.starts == [Start(1, 0, 0), Start(2, 1, 2)]


def test_steps_whose_journal_is_gone_are_open_again(folder: Path) -> None:
    two_steps(folder)
    accounts = open_ledger(folder, step=1, replay_to=1).state
    assert (accounts.journaled, set(accounts.open)) == (0, {1, 2})
    assert accounts.open[1].outcome is None


def test_a_start_may_continue_an_earlier_point(folder: Path) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0))
    point = books.position
    books.append(*drawn(1))
    open_ledger(folder).append(*drawn(2))
    assert set(open_ledger(folder, until=point).state.open) == {0}
    assert [record["prompt_id"] for record in ledger.read_ledger(folder.parent)] == [0]


def test_a_damaged_line_is_named(folder: Path) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0, 1))
    path = ledger.path_of(folder, 1)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"x" + second[1:] + third)
    with pytest.raises(ResourceError, match=r"000001\.jsonl:2: damaged"):
        list(ledger.read_ledger(folder.parent))


def test_the_journal_returns_the_groups_in_their_order(tmp_path: Path, make_group: MakeGroup) -> None:
    journal = Journal(tmp_path)
    groups = [make_group(draw_id) for draw_id in (4, 1, 9)]
    journal.write(3, 1, groups)
    assert [group.prompt.draw_id for group in journal.read(3)] == [4, 1, 9]
    assert journal.read(3)[0].completions[0].logprobs.tolist() == groups[0].completions[0].logprobs.tolist()


def test_a_damaged_journal_file_is_named(tmp_path: Path, make_group: MakeGroup) -> None:
    journal = Journal(tmp_path)
    journal.write(1, 1, [make_group(0), make_group(1)])
    data = journal.path_of(1).read_bytes()
    for damaged in (data[:-5], data[:40], b"\x00" * 8 + data):
        journal.path_of(1).write_bytes(damaged)
        with pytest.raises(ResourceError, match=r"000001\.batch: damaged"):
            journal.read(1)


def test_replay_stops_at_the_first_gap(tmp_path: Path, make_group: MakeGroup) -> None:
    journal = Journal(tmp_path)
    for step in (2, 3, 5):
        journal.write(step, 1, [make_group(step)])
    assert journal.replayable(after=1) == [2, 3]
    assert journal.replayable(after=0) == []
    journal.forget(up_to=3)
    assert journal.steps() == [5]


def save(checkpoints: Path, *steps: int) -> None:
    for step in steps:
        checkpoint_dir.complete(
            checkpoints, Part(step=step, incarnation=1, ledger_incarnation=1, ledger_bytes=10 * step), LedgerState()
        )


def test_only_complete_checkpoints_are_resumed_from(tmp_path: Path) -> None:
    assert checkpoint_dir.pick(tmp_path, None) is None
    save(tmp_path, 4, 8)
    (tmp_path / "step_12").mkdir()
    assert checkpoint_dir.pick(tmp_path, None) == 8
    assert checkpoint_dir.pick(tmp_path, 4) == 4
    assert checkpoint_dir.read_part(tmp_path, 4).position == Position(1, 40)
    with pytest.raises(UserError, match="no complete checkpoint of step 12; there are: 4, 8"):
        checkpoint_dir.pick(tmp_path, 12)
    checkpoint_dir.remove_incomplete(tmp_path)
    assert not (tmp_path / "step_12").exists()


def test_the_newest_checkpoints_are_kept_and_incomplete_ones_never_count(tmp_path: Path) -> None:
    (tmp_path / "step_99").mkdir()
    save(tmp_path, 2, 4, 6, 8, 10)
    checkpoint_dir.retain(tmp_path, 3)
    assert checkpoint_dir.steps(tmp_path) == [6, 8, 10]
    checkpoint_dir.retain(tmp_path, 1)
    checkpoint_dir.retain(tmp_path, 1)
    assert checkpoint_dir.steps(tmp_path) == [10]
    assert (tmp_path / "step_99").exists()


def test_a_checkpoint_that_cannot_be_removed_now_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 2, 4, 6)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", Mock(side_effect=OSError(errno.ENOTEMPTY, "Directory not empty")))
        checkpoint_dir.retain(tmp_path, 1)
    assert "step_2 cannot be removed" in caplog.text
    assert checkpoint_dir.steps(tmp_path) == [6], "it does not count as complete"
    checkpoint_dir.remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_6"]


def test_shares_of_a_rank_that_belongs_to_another_start_do_not_count(tmp_path: Path) -> None:
    late = checkpoint_dir.shares_of(tmp_path, 4, incarnation=1)
    late.mkdir(parents=True)
    part = Part(step=4, incarnation=2, ledger_incarnation=2, ledger_bytes=10)
    checkpoint_dir.complete(tmp_path, part, LedgerState())
    assert checkpoint_dir.shares(tmp_path, 4) == tmp_path / "step_4" / "learner.2" != late


@pytest.mark.parametrize("damaged", [b'{"st\0\0\0', b'{"st\xff\xfe": 2}', b"[2]", b'{"reward": 1}'])
def test_a_damaged_metric_line_is_named(tmp_path: Path, damaged: bytes) -> None:
    lines = MetricsLog(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 3}\n')
    for read in (lines.read, lambda: lines.cut_after(2, tmp_path / "abandoned.jsonl")):
        with pytest.raises(ResourceError, match=r"metrics\.jsonl:2: damaged .*remove that line"):
            read()


def test_lines_are_cut_amended_and_read_past_a_torn_end(tmp_path: Path) -> None:
    lines = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 5):
        lines.append({"step": step, "loss": float("nan"), "reward_mean": 0.1 * step})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "lo')
    lines.cut_after(2, tmp_path / "abandoned.jsonl")
    assert [line["step"] for line in lines.read()] == [1, 2]
    assert [line["step"] for line in MetricsLog(tmp_path / "abandoned.jsonl").read()] == [3, 4]
    lines.amend({"eval_x_accuracy": 0.5})
    assert lines.read() == [
        {"step": 1, "loss": None, "reward_mean": 0.1},
        {"step": 2, "loss": None, "reward_mean": 0.2, "eval_x_accuracy": 0.5},
    ]


def test_an_earlier_round_moves_to_the_line_before_with_its_total(tmp_path: Path) -> None:
    lines = MetricsLog(tmp_path / "metrics.jsonl")
    lines.append({"step": 1, "tokens_evaluation_total": 10})
    lines.append({"step": 2, "tokens_evaluation_total": 15, "eval_x_version": 0})
    lines.amend({"tokens_evaluation_total": 40, "eval_x_version": 2})
    assert lines.read() == [
        {"step": 1, "tokens_evaluation_total": 15, "eval_x_version": 0},
        {"step": 2, "tokens_evaluation_total": 40, "eval_x_version": 2},
    ]


@pytest.mark.parametrize(
    "events",
    [
        [failed(1), failed(1)],
        [failed(0)],
        [failed(7)],
        [Journaled(step=1, draws=[(0, 1), (1, 1)], score=Score())],
    ],
    ids=["twice at once", "has ended", "never drawn", "a batch with one that has ended"],
)
def test_what_contradicts_the_books_is_never_written(folder: Path, events: list[Decided | Journaled]) -> None:
    books = open_ledger(folder)
    books.append(*drawn(0, 1))
    books.append(failed(0))
    before = books.position
    with pytest.raises(ResourceError, match=r"draws \[\d\] would end and are not open"):
        books.append(*events)
    books.append(failed(1))
    assert before.num_bytes < books.position.num_bytes
    resumed = ledger.fold(ledger.events_until(folder, books.position))
    assert resumed.outcomes[Outcome.FAILED] == 2


def test_every_event_has_its_time(folder: Path) -> None:
    incarnation = ledger.acquire(folder)
    times = iter([10.0, 11.25, 12.5])
    books = Ledger(folder, started(incarnation, 0, 0, None), ledger.fold(iter(())), lambda: next(times))
    books.append(*drawn(0, 1))
    books.append(failed(0))
    events = ledger.events_until(folder, ledger.end_of(folder, incarnation + 1))
    assert [event.at for event in events] == [10.0, 11.25, 11.25, 12.5]


def test_the_state_has_no_draw_that_is_settled(folder: Path) -> None:
    books = open_ledger(folder)
    sizes = []
    for step in range(1, 41):
        books.append(*drawn(2 * step - 2, 2 * step - 1))
        books.append(failed(2 * step - 2))
        books.append(Journaled(step=step, draws=[(2 * step - 1, 1)], score=Score()), Trained(step=step, tokens=5))
        books.state.forget(step)
        sizes.append(len(books.state.open) + len(books.state.batches) + len(books.state.failed))
    assert set(sizes) == {0} and books.state.num_drawn == 80 == books.state.outcomes.total()


def test_each_draw_is_read_as_the_last_start_left_it(folder: Path) -> None:
    """The first start trains five steps. The second goes on after step 2: it replays step 3 and undoes two steps."""
    books = open_ledger(folder)
    for step in range(1, 6):
        books.append(*drawn(2 * step - 2, 2 * step - 1))
        books.append(failed(2 * step - 2))
        books.append(Journaled(step=step, draws=[(2 * step - 1, 1)], score=Score()), Trained(step=step, tokens=5))
    books = open_ledger(folder, step=2, replay_to=3)
    books.append(Trained(step=3, tokens=5), Requeued(draw=7, attempt=2, version=3), *drawn(10))
    books.append(Journaled(step=4, draws=[(10, 1)], score=Score()), Trained(step=4, tokens=5))
    books.append(Journaled(step=5, draws=[(7, 2)], score=Score()))
    records = [(each["prompt_id"], each["attempt"], each["step"]) for each in ledger.read_ledger(folder.parent)]
    later = [(5, 1, 3), (6, 1, None), (7, 2, None), (8, 1, None), (9, 1, None), (10, 1, 4)]
    assert records == [(0, 1, None), (1, 1, 1), (2, 1, None), (3, 1, 2), (4, 1, None), *later]
    outcomes = [each["outcome"] for each in ledger.read_ledger(folder.parent)]
    assert outcomes == ["failed", "trained"] * 3 + ["failed", "in_flight", "failed", "in_flight", "trained"]
    assert books.state.attempts == {1: 10, 2: 1}


def test_reading_each_draw_takes_the_same_memory_at_any_age(folder: Path) -> None:
    books, peaks = open_ledger(folder), []
    for first in (0, 20):
        for step in range(first + 1, first + 21):
            new = range(100 * step - 100, 100 * step)
            books.append(*drawn(*new))
            batch = [(draw, 1) for draw in new]
            books.append(Journaled(step=step, draws=batch, score=Score()), Trained(step=step, tokens=5))
        tracemalloc.start()
        assert sum(1 for _ in ledger.read_ledger(folder.parent)) == 100 * (first + 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_the_state_of_a_run_is_read_from_its_newest_checkpoint(folder: Path) -> None:
    books, files = open_ledger(folder), RunFiles(folder.parent)
    books.append(*drawn(0, 1))
    books.append(failed(0))
    for step in (1, 2):
        if step == 2:
            books.append(*drawn(2), Requeued(draw=2, attempt=2, version=0))
        books.append(Journaled(step=step, draws=[(step, step)], score=Score()), Trained(step=step, tokens=5))
        position = books.position
        part = Part(step=step, incarnation=1, ledger_incarnation=1, ledger_bytes=position.num_bytes)
        checkpoint_dir.folder_of(files.checkpoints, step).mkdir(parents=True)
        checkpoint_dir.complete(files.checkpoints, part, books.state)
    books.append(*drawn(3))
    path = ledger.path_of(folder, 1)
    path.write_bytes(path.read_bytes().replace(b'"draw":0', b'"draw":9'))  # not read: before the checkpoint
    state = checkpoint_dir.newest_state(files)
    assert state == books.state and state.attempts == {1: 3, 2: 1} and set(state.open) == {3}
    with pytest.raises(ResourceError, match=r"000001\.jsonl:2: damaged"):
        list(ledger.read_ledger(folder.parent))


def test_each_step_that_was_ever_taken_has_one_line(tmp_path: Path) -> None:
    """Steps 2 to 5 were abandoned, then 4 and 6. Step 2 has no line now; 4 to 6 are still to come."""
    files = RunFiles(tmp_path)
    for path, of, steps in (
        (files.abandoned(2) / "metrics.jsonl", "old", (2, 3, 4, 5)),
        (files.abandoned(3) / "metrics.jsonl", "newer", (4, 6)),
        (files.metrics, "now", (1, 3)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        for step in steps:
            MetricsLog(path).append({"step": step, "of": of})
    lines = metrics_log.history(files)
    assert [(line["step"], line["of"]) for line in lines] == [
        (1, "now"), (2, "old"), (3, "now"), (4, "newer"), (5, "old"), (6, "newer")
    ]  # fmt: skip
    with files.metrics.open("a") as file:
        file.write("damaged\n")
    lines = metrics_log.history(files)
    assert next(lines)["step"] == 1, "no later line is read before it is asked for"
    with pytest.raises(ResourceError, match=r"metrics\.jsonl:3: damaged"):
        list(lines)


def test_steps_without_a_line_are_named() -> None:
    assert missing_steps([{"step": step} for step in (1, 2, 5, 7, 8)]) == (
        "no line for step 3 to 4, 6: tables and plots lack them"
    )
    assert not missing_steps([{"step": 1}, {"step": 2}])
