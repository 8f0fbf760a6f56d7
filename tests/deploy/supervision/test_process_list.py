"""The process list is right, also after the disk was full for a while."""

from __future__ import annotations

import json
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
