"""Pushing a checkpoint to a small server that speaks the part of the hub's protocol that a push needs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hf_xet
import pytest
import torch
from transformers import AutoModelForCausalLM

from olmorl import config
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.checkpoint_shards import KINDS, ParameterPiece, Share
from olmorl.learner.trainer.export import export
from olmorl.run_dir import RunFiles
from tests.end_to_end.recipes import make_policy

TOKEN = "hf_secretsecretsecret"
ROOT = Path(__file__).resolve().parents[3]


class Hub:
    """A hub with one owner. It stores large files by their hash, and a repository as its commits."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict[str, bytes]] = []
        self.uploads = 0
        self.arriving = threading.Event()
        """A large file has begun to arrive."""
        self.hold: threading.Event | None = None
        """Keeps uploads waiting until it is set."""
        self.fails = 0
        """The status of the next answers, if not 0."""
        self.xet = ""
        """Where hf_xet stores large files. `local://FOLDER` is its own stand-in for a server."""
        self.address = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the JSON of the answer to a request."""
        path = path.partition("?")[0]
        if self.fails:
            return self.fails, {"error": "refused"}
        match method, path.strip("/").split("/"):
            case "POST", ["api", "repos", "create"]:
                request = json.loads(body)
                name = f"{request.get('organization') or 'me'}/{request['name']}"
                if name in self.repositories:
                    return 409, {"error": "exists", "url": f"{self.address}/{name}"}
                self.repositories[name] = request
                return 200, {"url": f"{self.address}/{name}", "name": name}
            case "POST", ["api", "validate-yaml"]:
                return 200, {"warnings": [], "errors": []}
            case "POST", ["api", "models", _, _, "preupload", "main"]:
                files = json.loads(body)["files"]
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
                return 200, {"files": modes}
            case "GET", ["api", "models", _, _, "xet-write-token", "main"]:
                return 200, {"casUrl": self.xet, "exp": 2_000_000_000, "accessToken": "xet"}
            case "POST", [_, _, "info", "lfs", "objects", "batch"]:
                wanted = json.loads(body)["objects"]
                return 200, {"transfer": "basic", "objects": [self._instructions(each) for each in wanted]}
            case "PUT", ["upload", name]:
                assert hashlib.sha256(body).hexdigest() == name
                self.objects[name] = body
                self.uploads += 1
                return 200, {}
            case "POST", ["api", "models", owner, name, "commit", "main"]:
                self.commits.append(self._commit(body))
                return 200, {"commitUrl": f"{self.address}/{owner}/{name}/commit/abc", "commitOid": "a" * 40}
        return 404, {"error": f"no {method} {path}"}

    def _instructions(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["oid"] in self.objects:
            return wanted
        return wanted | {"actions": {"upload": {"href": f"{self.address}/upload/{wanted['oid']}"}}}

    def _commit(self, body: bytes) -> dict[str, bytes]:
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = value["oid"].encode() if self.xet else self.objects[value["oid"]]
        return files


@pytest.fixture
def hub() -> Iterator[Hub]:
    here = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            if self.path.startswith("/upload/") or "/xet-write-token/" in self.path:
                here.arriving.set()
                if here.hold is not None:
                    here.hold.wait(60)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = 401, {"error": "who are you?"}
            if self.path.startswith("/upload/") or self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, content = here.answer(self.command, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = _do

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield here
        if here.hold is not None:
            here.hold.set()
        server.shutdown()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a complete checkpoint of step 4."""
    policy = make_policy(tmp_path_factory.mktemp("policy"))
    settings = config.build({"run": {"directory": tmp_path_factory.mktemp("runs")}, "model": {"path": str(policy)}})
    settings.run_dir.mkdir()
    RunFiles(settings.run_dir).config.write_text(config.to_toml(settings))
    loaded = models.load(config.Model(path=str(policy), dtype="float32"), "auto", torch.device("cpu"))
    pieces = [
        ParameterPiece(name, 0, {kind: weight.detach().flatten() for kind in KINDS})
        for name, weight in loaded.named_parameters()
    ]
    share = Share(0, 1, pinned=False)
    share.copy(pieces, {}, steps=4)
    checkpoints = settings.run_dir / "checkpoints"
    share.write(checkpoint_dir.shares_of(checkpoints, 4, 1))
    part = Part(step=4, incarnation=1, ledger_incarnation=1, ledger_bytes=0)
    checkpoint_dir.complete(checkpoints, part, LedgerState())
    return settings.run_dir


def push(run_dir: Path, hub: Hub, home: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command, with a token and this hub."""
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET", "HF_TOKEN")
    }
    command = [sys.executable, "-m", "olmorl.deploy.control.cli", str(run_dir), "push", *words]
    environ = {name: value for name, value in {**inherited, **own, **environment}.items() if value}
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ)


def test_a_push_that_is_killed_leaves_no_commit_and_a_repeat_ends_well(run_dir: Path, hub: Hub, tmp_path: Path) -> None:
    hub.hold = threading.Event()
    killed = push(run_dir, hub, tmp_path, "me/policy")
    assert hub.arriving.wait(120)
    killed.kill()
    printed = killed.communicate()[0]
    hub.hold.set()
    assert list(hub.repositories) == ["me/policy"] and hub.repositories["me/policy"]["visibility"] == "private"
    assert hub.commits == [], "the repository is empty, and no half of the policy is in it"
    for count in (1, 2):
        again = push(run_dir, hub, tmp_path, "me/policy", "--json")
        printed += again.communicate(timeout=120)[0]
        assert again.returncode == 0, printed
        assert len(hub.commits) == count
    assert hub.uploads <= 2, "a large file that the hub has is not sent again"
    assert json.loads(printed.splitlines()[-1])["address"] == f"{hub.address}/me/policy/commit/abc"
    assert TOKEN not in printed
    there = tmp_path / "there"
    for path, content in hub.commits[-1].items():
        (there / path).parent.mkdir(parents=True, exist_ok=True)
        (there / path).write_bytes(content)
    model = AutoModelForCausalLM.from_pretrained(there)
    assert sum(weight.numel() for weight in model.parameters()) > 0 and (there / "tokenizer.json").is_file()


def test_a_push_by_xet_that_is_killed_leaves_no_commit_and_a_repeat_stores_the_policy(
    run_dir: Path, hub: Hub, tmp_path: Path
) -> None:
    store = tmp_path / "xet"
    store.mkdir()
    hub.xet, hub.hold = f"local://{store}", threading.Event()
    killed = push(run_dir, hub, tmp_path, "me/policy", HF_HUB_DISABLE_XET="0")
    assert hub.arriving.wait(120)
    killed.kill()
    killed.wait()
    hub.hold.set()
    assert hub.commits == []
    sizes = []
    for _ in range(2):
        again = push(run_dir, hub, tmp_path, "me/policy", HF_HUB_DISABLE_XET="0")
        printed = again.communicate(timeout=120)[0]
        assert again.returncode == 0, printed
        sizes.append(sum(path.stat().st_size for path in store.glob("xet/xorbs/xorbs/default.*[0-9a-f]")))
    assert 0 < sizes[0] == sizes[1] and hub.uploads == 0, "what the store has is not sent again"
    export(run_dir, 4, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    assert hub.commits[0]["model.safetensors"].decode() == hashlib.sha256(weights.read_bytes()).hexdigest()
    (known,) = hf_xet.hash_files([str(weights)])
    with hf_xet.XetSession().new_file_download_group(endpoint=hub.xet) as stored:
        stored.start_download_file(hf_xet.XetFileInfo(known.hash, known.file_size), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == weights.read_bytes()


def test_an_export_of_the_run_is_pushed_as_it_is(run_dir: Path, hub: Hub, tmp_path: Path) -> None:
    folder = RunFiles(run_dir).export_of(4)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    try:
        done = push(run_dir, hub, tmp_path, "me/other", "--step", "4", "--public")
        printed = done.communicate(timeout=120)[0]
    finally:
        shutil.rmtree(folder.parent)
    assert done.returncode == 0, printed
    assert hub.commits == [{"config.json": b"{}"}] and hub.repositories["me/other"]["visibility"] == "public"


def test_the_json_of_an_export_is_all_that_is_printed(run_dir: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "olmorl.deploy.control.cli", run_dir, "export", tmp_path / "model", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["step"] == 4, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "status", "code", "says"),
    [
        (["me/policy"], {"HF_TOKEN": ""}, 0, 2, "set HF_TOKEN, or run hf auth login"),
        (["me/policy"], {"HF_TOKEN": "hf_another"}, 0, 2, "HTTP 401"),
        (["me/policy"], {}, 403, 2, "may write there"),
        (["me/po licy"], {}, 0, 2, "no name of a repository"),
        (["me/policy", "--step", "9"], {}, 0, 2, "no complete checkpoint of step 9; there are: 4"),
        (["me/policy", "--step", "best"], {}, 0, 2, "set checkpoint.best"),
        (["me/policy"], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 0, 2, "the same command goes on"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(
    run_dir: Path,
    hub: Hub,
    tmp_path: Path,
    words: list[str],
    environment: dict[str, str],
    status: int,
    code: int,
    says: str,
) -> None:
    hub.fails = status
    done = push(run_dir, hub, tmp_path, *words, **environment)
    printed = done.communicate(timeout=120)[0]
    assert (done.returncode, len(hub.commits)) == (code, 0), printed
    assert says in printed and "Traceback" not in printed and TOKEN not in printed
