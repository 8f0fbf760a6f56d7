"""A model of the hub is resolved and fetched once, and every process of the run gets its folder."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from olmorl import config
from olmorl.deploy.preflight import model_fetch
from olmorl.deploy.supervision import recipe_history
from olmorl.errors import ConfigError, ModelError, ResourceError
from olmorl.run_dir import RunFiles
from tests.deploy.hub_settings import use_hub

NAME = "owner/model"
FIRST, SECOND = "1" * 40, "2" * 40
FILES = ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "original/model.safetensors")


class Hub:
    """A hub with one model, whose newest commit may change. Every file holds its commit."""

    def __init__(self) -> None:
        self.newest = FIRST
        self.commits = {FIRST, SECOND}
        self.asked: list[str] = []

    def resolved(self) -> int:
        return sum("/revision/" in path for path in self.asked)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if path.startswith(f"/api/models/{NAME}/revision/"):
            return 200, json.dumps({"id": NAME, "sha": self.newest, "siblings": []}).encode(), {}
        if path.startswith(f"/api/models/{NAME}/tree/"):
            commit = path.split("/tree/")[1].partition("?")[0]
            if commit not in self.commits:
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
            tree = [{"type": "file", "path": file, "size": len(commit), "oid": commit} for file in FILES]
            return 200, json.dumps(tree).encode(), {}
        commit, _, file = path.removeprefix(f"/{NAME}/resolve/").partition("/")
        etag = f'"{commit[0]}{FILES.index(file)}"'
        return 200, commit.encode(), {"X-Repo-Commit": commit, "ETag": etag}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    there = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there.asked.append(self.path)
            status, body, headers = there.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        use_hub(monkeypatch, tmp_path / "home", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield there
        server.shutdown()


def settings(tmp_path: Path, address: str | None = None, **model: str) -> config.Config:
    return config.build(
        {
            "run": {"directory": str(tmp_path / "runs"), "name": "t"},
            "model": {"path": NAME, **model},
            "cluster": {"address": address},
        }
    )


def keep(settings: config.Config) -> None:
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    RunFiles(settings.run_dir).config.write_text(config.to_toml(recipe_history.spelled_out(settings)))


def on_another_disk(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let the cache look as if it were on a disk of this host."""
    stat = Path.stat

    def other(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        if not path.is_relative_to(cache):
            return found
        return type("Stat", (), {"st_dev": found.st_dev + 1, "st_mode": found.st_mode})

    monkeypatch.setattr(Path, "stat", other)


def test_the_run_gets_the_folder_of_one_commit_and_no_other_formats(hub: Hub, tmp_path: Path) -> None:
    found = Path(model_fetch.fetched(settings(tmp_path), resume=False).model.path)
    assert found == tmp_path / "home" / "hub" / "models--owner--model" / "snapshots" / FIRST
    assert {file.name for file in found.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (found / "model.safetensors").read_text() == FIRST
    assert hub.resolved() == 1


def test_a_tokenizer_of_the_hub_is_fetched_without_weights(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    there = settings(tmp_path, path=str(tmp_path / "model"), tokenizer=NAME)
    found = model_fetch.fetched(there, resume=False).model
    assert found.path == str(tmp_path / "model")
    assert found.tokenizer is not None
    assert {file.name for file in Path(found.tokenizer).iterdir()} == {"config.json", "tokenizer.json"}


def test_a_resume_keeps_the_commit_when_the_hub_has_a_newer_one(hub: Hub, tmp_path: Path) -> None:
    keep(first := model_fetch.fetched(settings(tmp_path), resume=False))
    hub.newest = SECOND
    asked = len(hub.asked)
    assert recipe_history.check_change(settings(tmp_path), change=False) == []
    again = model_fetch.fetched(settings(tmp_path), resume=True)
    assert again.model.path == first.model.path and len(hub.asked) == asked, "the folder is there: no hub is asked"
    assert recipe_history.check_change(again, change=False) == []
    shutil.rmtree(tmp_path / "home")
    again = model_fetch.fetched(settings(tmp_path), resume=True)
    assert again.model.path == first.model.path and hub.resolved() == 1, "fetched again, at the same commit"
    assert (Path(again.model.path) / "config.json").read_text() == FIRST
    new_run = model_fetch.fetched(settings(tmp_path), resume=False)
    assert Path(new_run.model.path).name == SECOND
    with pytest.raises(ConfigError, match=rf"model\.path: .*{FIRST}.* -> .*{SECOND}"):
        recipe_history.check_change(new_run, change=False)


def test_a_commit_that_the_hub_has_lost_is_named(hub: Hub, tmp_path: Path) -> None:
    keep(settings(tmp_path, path=f"/gone/models--owner--model/snapshots/{FIRST}"))
    hub.commits.remove(FIRST)
    with pytest.raises(ModelError, match=rf"no longer has owner/model at commit {FIRST}.*--model\.path FOLDER"):
        model_fetch.fetched(settings(tmp_path), resume=True)


def test_another_model_or_a_run_that_kept_a_name_does_not_pin(hub: Hub, tmp_path: Path) -> None:
    keep(settings(tmp_path))
    assert Path(model_fetch.fetched(settings(tmp_path), resume=True).model.path).name == FIRST
    keep(settings(tmp_path, path="/cache/models--owner--other/snapshots/abc"))
    hub.newest = SECOND
    assert Path(model_fetch.fetched(settings(tmp_path), resume=True).model.path).name == SECOND
    with pytest.raises(ConfigError, match=r"model\.path"):
        recipe_history.check_change(settings(tmp_path), change=False)


def test_on_a_cluster_hosts_get_the_folder_that_they_share(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = settings(tmp_path, "auto")
    cache = tmp_path / "home"
    found = model_fetch.fetched(there, resume=False).model.path
    assert Path(found).is_relative_to(cache), "the cache is on the storage of the runs"
    on_another_disk(monkeypatch, cache)
    copied = Path(model_fetch.fetched(there, resume=False).model.path)
    assert copied == tmp_path / "runs" / "cache" / "hub" / "models--owner--model" / "snapshots" / FIRST
    assert (copied / "model.safetensors").read_text() == FIRST
    assert not any(file.is_symlink() for file in copied.iterdir())
    assert [file.name for file in copied.parent.iterdir()] == [FIRST], "no part of a copy is left"
    assert recipe_history.snapshot_of(str(copied)) == (NAME, FIRST)


def test_a_copy_that_does_not_fit_leaves_nothing(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = settings(tmp_path, "auto")
    on_another_disk(monkeypatch, tmp_path / "home")

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        model_fetch.fetched(there, resume=False)
    assert list((tmp_path / "runs" / "cache" / "hub" / "models--owner--model" / "snapshots").iterdir()) == []


def test_a_launcher_without_a_network_leaves_the_hub_to_the_hosts_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_hub(monkeypatch, tmp_path / "home", offline=True)
    assert huggingface_hub.constants.is_offline_mode()
    assert model_fetch.fetched(settings(tmp_path, "auto"), resume=False).model.path == NAME
    assert "each host asks the hub" in capsys.readouterr().out
    with pytest.raises(ModelError, match=r"model\.path: owner/model cannot be fetched from the hub"):
        model_fetch.fetched(settings(tmp_path), resume=False)
