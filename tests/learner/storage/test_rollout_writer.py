"""The process that writes rollouts: all records or none, errors by name, its death, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from olmorl.clock import LoopClock
from olmorl.errors import DiskFull, ProcessLost, ResourceError
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.learner.storage.rollout_record import Ended
from olmorl.learner.storage.rollout_writer import RolloutWriter
from olmorl.messages import Completion, Group, Prompt, Span, Version
from tests.waiting import lives, with_command


def make_group(draw_id: int, tokens: int = 5) -> Group:
    completion = Completion(
        index=0,
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.12345678, np.float32),
        spans=(Span(Version(1, 0), 0, tokens),),
        finish_reason="stop",
        text="an answer",
        reward=1.0,
    )
    prompt = Prompt(
        draw_id=draw_id,
        row=f"rows:{draw_id}",
        messages="?",
        token_ids=np.zeros(2, np.int32),
        datasets=("math",),
        ground_truths=({"a": [1, 2.5, None]},),
        group_size=1,
        min_version=Version(1, 0),
    )
    return Group(prompt=prompt, completions=(completion,), actor="actor-0", started_at=1.0, finished_at=2.0)


def ended(draw_id: int, **changes: Any) -> Ended:
    return Ended(replace(make_group(draw_id), **changes), Outcome.TRAINED, 1, "")


def ids(path: Path) -> list[int]:
    return [record["prompt_id"] for record in rollout_log.read(path)]


def writing_processes() -> list[psutil.Process]:
    """Returns the children of the tests that write rollouts."""
    return with_command(psutil.Process().children(), "rollout_writer")


@pytest.fixture
def writer() -> Iterator[RolloutWriter]:
    made = RolloutWriter()
    made.start()
    yield made
    made.close()
    assert not writing_processes()


def test_records_arrive_in_order_and_hold_what_was_generated(writer: RolloutWriter, tmp_path: Path) -> None:
    path = tmp_path / "a.partial.jsonl.zst"
    writer.append(path, [ended(0), ended(1)])
    writer.append(path, [ended(2)])
    assert ids(path) == [0, 1, 2]
    record = next(rollout_log.read(path))
    assert (record["outcome"], record["step"], record["ground_truths"]) == ("trained", 1, [{"a": [1, 2.5, None]}])
    [completion] = record["completions"]
    assert completion["token_ids"] == [0, 1, 2, 3, 4]
    assert completion["logprobs"] == [-0.123457] * 5


def test_a_full_disk_and_a_refusal_add_nothing_and_the_process_goes_on(writer: RolloutWriter, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"full: No space left .*make room there"):
        writer.append(full, [ended(0)])
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ResourceError, match=r"file/a: .*--resume"):
        writer.append(tmp_path / "file" / "a", [ended(0)])
    writer.append(tmp_path / "b.partial.jsonl.zst", [ended(1)])
    assert ids(tmp_path / "b.partial.jsonl.zst") == [1]


def test_any_label_that_a_message_carries_is_written(writer: RolloutWriter, tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    labels = ({"a": {1: 2, "b": (1 << 64) - 1}}, "\x00\u2028", float("inf")), (deep,)
    prompts = [replace(make_group(number).prompt, ground_truths=label) for number, label in enumerate(labels)]
    writer.append(tmp_path / "a.partial.jsonl.zst", [ended(0, prompt=prompt) for prompt in prompts])
    first, second = rollout_log.read(tmp_path / "a.partial.jsonl.zst")
    assert first["ground_truths"] == [{"a": {"1": 2, "b": (1 << 64) - 1}}, "\x00\u2028", None]
    assert second["ground_truths"] == [deep]


def test_a_record_that_cannot_be_written_is_named_and_nothing_is_added(writer: RolloutWriter, tmp_path: Path) -> None:
    outcome: Any = "forgotten"
    with pytest.raises(
        ProcessLost, match=r"rollouts \(pid \d+\) cannot write .*a.partial.jsonl.zst: ValueError: .*'forgotten'"
    ):
        writer.append(tmp_path / "a.partial.jsonl.zst", [ended(0), ended(1)._replace(outcome=outcome), ended(2)])
    assert not (tmp_path / "a.partial.jsonl.zst").exists()
    writer.append(tmp_path / "a.partial.jsonl.zst", [ended(0)])
    assert ids(tmp_path / "a.partial.jsonl.zst") == [0]


def test_the_death_of_the_process_is_told(writer: RolloutWriter, tmp_path: Path) -> None:
    writer.append(tmp_path / "a.partial.jsonl.zst", [ended(0)])
    [process] = writing_processes()
    process.kill()
    process.wait(10)
    with pytest.raises(ProcessLost, match=rf"rollouts \(pid {process.pid}\) died; .*a.partial.jsonl.zst lacks records"):
        writer.append(tmp_path / "a.partial.jsonl.zst", [ended(1)])


async def test_a_dead_process_ends_the_log_instead_of_losing_records(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path, 1, 1, DiskWriter(LoopClock(), 10.0))
    await log.put(make_group(0), Outcome.STALE)
    await log.flush()
    [process] = writing_processes()
    process.kill()
    async with asyncio.timeout(20):
        with pytest.raises(ProcessLost):
            await log.end_step(1, [make_group(1)])
            await log.flush()
        with pytest.raises(ProcessLost):
            await log.put(make_group(2), Outcome.STALE)
        with pytest.raises(ProcessLost):
            await log.close()
    assert ids(next(iter(rollout_log.files(tmp_path)))) == [0]


async def test_with_too_many_tokens_pending_the_next_record_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_log, "MOST_PENDING_TOKENS", 100)
    log = RolloutLog(tmp_path, 1, 1, DiskWriter(LoopClock(), 10.0))
    await log.put(make_group(0, tokens=100), Outcome.STALE)
    waiting = asyncio.create_task(log.put(make_group(1), Outcome.STALE))
    await asyncio.sleep(0)
    assert not waiting.done(), "the first is not written yet"
    await asyncio.wait_for(waiting, 20)
    await log.close()
    assert ids(next(iter(rollout_log.files(tmp_path)))) == [0, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
from olmorl.learner.storage.rollout_writer import RolloutWriter
from tests.learner.storage.test_rollout_writer import ended
writer = RolloutWriter()
writer.start()
writer.append(Path(sys.argv[1]), [ended(0)])
print(writer._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_with_the_orchestrator(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a.partial.jsonl.zst")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, give_up = int(done.stdout), time.monotonic() + 10.0
    while lives(pid):
        assert time.monotonic() < give_up, "it outlives the process that it writes for"
        time.sleep(0.02)
    assert ids(tmp_path / "a.partial.jsonl.zst") == [0]
