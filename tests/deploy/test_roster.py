"""Who runs where, also after the disk was full for a while."""

from __future__ import annotations

import json
from pathlib import Path

from olmorl.deploy.process import Identity
from olmorl.deploy.roster import Roster


def test_what_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    roster, file = Roster(tmp_path), tmp_path / "processes.json"
    roster.add("launcher", Identity("here", 1))
    in_the_way = file.with_suffix(".partial")
    in_the_way.mkdir()
    roster.add("actor-0", Identity("there", 2, "there:9"))
    roster.mend()
    assert list(json.loads(file.read_text())) == ["launcher"]
    in_the_way.rmdir()
    roster.mend()
    assert json.loads(file.read_text()) == {
        "actor-0": {"host": "there", "pid": 2},
        "launcher": {"host": "here", "pid": 1},
    }
    assert "there:9" in (tmp_path / "targets.json").read_text()
    file.unlink()
    roster.mend()
    assert not file.exists(), "what is current is not written again"
