"""In places that all users of a host share, a run uses only folders of its own user, which others cannot open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from olmorl.actors.vllm_engine import reaper
from olmorl.deploy.processes.log_files import logged
from olmorl.deploy.supervision.run_lock import RunLock
from olmorl.errors import ResourceError
from olmorl.messages import Version
from olmorl.private_folder import private_folder
from olmorl.queues.weights.store import store_in_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that, for this process, belongs to another user."""
    folder = tmp_path / "olmorl-run"
    folder.mkdir(mode=0o777)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    monkeypatch.setattr(os, "getuid", lambda: another)
    return folder


def test_a_folder_is_made_for_its_owner_and_an_open_one_is_closed(tmp_path: Path) -> None:
    assert mode(private_folder(tmp_path / "shared" / "new")) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert mode(private_folder(tmp_path / "open")) == 0o700


def test_a_folder_of_another_user_is_refused(taken: Path) -> None:
    with pytest.raises(ResourceError, match=r"belongs to user .* choose another place"):
        private_folder(taken)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_refused(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ResourceError, match="is a link"):
        private_folder(tmp_path / "link")


def test_versions_are_not_published_where_another_user_has_taken_the_name(taken: Path) -> None:
    store = store_in_files("run", None, 1000, shared_memory=taken.parent)
    with pytest.raises(ResourceError, match="olmorl-run: it belongs to user"):
        store.publish(Version(1, 1), [], None, 0, 1)
    assert list(taken.iterdir()) == []


def test_notes_of_another_user_remove_nothing(taken: Path) -> None:
    (taken / f"{reaper.VARIABLE}-0").write_text("")
    reaper.sweep(taken)
    assert len(list(taken.iterdir())) == 1


def test_a_run_directory_is_for_its_owner_unless_that_opens_it(tmp_path: Path) -> None:
    with RunLock(tmp_path / "runs" / "run"):
        assert mode(tmp_path / "runs" / "run") == 0o700
    with logged(tmp_path / "other", "launcher"):
        assert mode(tmp_path / "other") == 0o700
    (tmp_path / "other").chmod(0o755)
    with RunLock(tmp_path / "other"):
        assert mode(tmp_path / "other") == 0o755
