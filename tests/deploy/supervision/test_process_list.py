"""The process list is right, also after the disk was full for a while."""

from __future__ import annotations

import json
import time
from pathlib import Path

from olmorl.deploy.cluster.remote_process import Identity
from olmorl.deploy.supervision.process_list import ProcessList


def test_what_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    processes, file = ProcessList(tmp_path), tmp_path / "processes.json"
    processes.add("launcher", Identity("here", 1))
    in_the_way = file.with_suffix(".partial")
    in_the_way.mkdir()
    processes.add("actor-0", Identity("there", 2, "there:9"))
    processes.mend()
    assert list(json.loads(file.read_text())) == ["launcher"]
    in_the_way.rmdir()
    processes.mend()
    assert json.loads(file.read_text()) == {
        "actor-0": {"host": "there", "pid": 2},
        "launcher": {"host": "here", "pid": 1},
    }
    assert "there:9" in (tmp_path / "targets.json").read_text()
    file.unlink()
    processes.mend()
    assert not file.exists(), "what is current is not written again"


def test_every_start_state_and_end_is_kept(tmp_path: Path) -> None:
    before = time.time()
    processes = ProcessList(tmp_path)
    processes.add("launcher", Identity("here", 1))
    processes.add("actor-0", Identity("there", 2))
    processes.note("actor-0", "working")
    processes.remove("actor-0")
    processes.note("actor-0", "waiting", "actor-0 died")
    processes.remove("actor-1")
    processes.close()
    ProcessList(tmp_path).add("launcher", Identity("here", 3))
    events = [json.loads(line) for line in (tmp_path / "process_events.jsonl").read_text().splitlines()]
    assert [(event["process"], event["state"], event.get("cause", "")) for event in events] == [
        ("launcher", "started", ""),
        ("actor-0", "started", ""),
        ("actor-0", "working", ""),
        ("actor-0", "ended", ""),
        ("actor-0", "waiting", "actor-0 died"),
        ("launcher", "ended", ""),
        ("launcher", "started", ""),
    ]
    times = [event["at"] for event in events]
    assert times == sorted(times) and before - 1 < times[0] <= times[-1] <= time.time() + 1
