"""Hub names are looked up once, with a short deadline. The error for a missing name has the fix."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.request import Request

import pytest

from olmorl import config
from olmorl.deploy.preflight import hub
from olmorl.errors import DataError, ModelError
from tests.deploy.hub_settings import use_hub

Hub = tuple[dict[str, int], list[tuple[str, str | None]]]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub: the status for each path (else 404), and what it was asked, with the token."""
    statuses: dict[str, int] = {}
    asked: list[tuple[str, str | None]] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            status = statuses.get(self.path, 404)
            if status == 0:  # hangs
                over.wait(20)
                status = 500
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use_hub(monkeypatch, tmp_path / "home", f"http://127.0.0.1:{server.server_address[1]}")
        yield statuses, asked
        over.set()
        server.shutdown()


def settings(**sections: object) -> config.Config:
    return config.build({"model": {"path": "owner/model"}, **sections})


def test_what_the_hub_has_passes(there: Hub) -> None:
    statuses, asked = there
    statuses |= dict.fromkeys(("/api/models/owner/model", "/api/models/o/t", "/api/datasets/o/d"), 200)
    hub.check(settings(model={"path": "owner/model", "tokenizer": "o/t"}, data={"train": ["o/d@sub:0.5"]}))
    assert [path for path, _ in asked] == list(statuses)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_it_does_not_give_is_refused_with_the_key(there: Hub, status: int) -> None:
    there[0]["/api/models/owner/model"] = status
    with pytest.raises(ModelError, match=rf"model\.path: owner/model: no such folder here.*HTTP {status}.*HF_TOKEN"):
        hub.check(settings())
    assert len(there[1]) == 1, "asked once"


def test_a_hub_in_trouble_is_left_to_the_run(there: Hub) -> None:
    there[0]["/api/models/owner/model"] = 503
    hub.check(settings())


def test_a_hub_that_hangs_is_waited_for_a_moment(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    there[0]["/api/models/owner/model"] = 0
    monkeypatch.setattr(hub, "_DEADLINE_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"cannot be reached.*give model\.path a folder that is here"):
        hub.check(settings())
    assert time.monotonic() - began < 5


def test_without_a_network_the_fix_is_said_and_on_a_cluster_other_hosts_may_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:1")
    with pytest.raises(ModelError, match=r"cannot be reached.*HF_ENDPOINT to a mirror.*HF_HUB_OFFLINE=1"):
        hub.check(settings())
    with pytest.raises(DataError, match=r"data\.train: nobody/rows: .*cannot be reached"):
        hub.check(settings(model={"path": str(tmp_path)}, data={"train": ["nobody/rows"]}))
    hub.check(settings(), others_may=True)


def test_what_is_in_the_cache_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, tmp_path, offline=True)
    for name in ("models--owner--model", "datasets--o--d"):
        (tmp_path / "hub" / name / "snapshots").mkdir(parents=True)
    (tmp_path / "datasets" / "o___e").mkdir(parents=True)
    hub.check(settings(data={"train": ["o/d", "o/e"]}))
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        hub.check(settings(data={"train": ["o/f"]}))


def test_a_folder_next_to_others_is_not_looked_up_on_the_hub(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"model\.path: models/nope: no such file or folder, though models/ is there"):
        hub.check(settings(model={"path": "models/nope"}))
    assert not there[1]


def test_the_token_goes_along(there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, asked = there
    statuses["/api/models/owner/model"] = 200
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("stored\n")
    hub.check(settings())
    monkeypatch.setenv("HF_TOKEN", "given")
    hub.check(settings())
    assert [token for _, token in asked] == ["Bearer stored", "Bearer given"]


def test_the_library_reads_what_slurm_files_set(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("secret\n")
    environment = {**os.environ, "HF_TOKEN_PATH": str(tmp_path / "elsewhere"), "HF_HUB_OFFLINE": "1"}
    program = (
        "from olmorl.deploy.preflight.hub import constants, get_token; print(get_token(), constants.is_offline_mode())"
    )
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["secret", "True"]


@pytest.mark.parametrize(("to", "kept"), [("https://hub.example/other", True), ("https://mirror.example/x", False)])
def test_a_redirect_takes_the_token_to_no_other_host(to: str, kept: bool) -> None:
    asked = Request("https://hub.example/api/models/a/b", headers={"Authorization": "Bearer secret"})
    following = hub._KeepsToken().redirect_request(asked, BytesIO(), 302, "Found", Message(), to)
    assert following is not None and following.has_header("Authorization") is kept
