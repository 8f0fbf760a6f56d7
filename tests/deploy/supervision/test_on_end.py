"""The end of a run is reported to a command or to a webhook, and the report never changes the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy import launch
from olmorl.deploy.supervision import on_end
from olmorl.deploy.supervision.service import StoppedAtOnce
from olmorl.errors import RunEnded

Make = Callable[[str], config.Config]


@pytest.fixture
def run_of(tmp_path: Path) -> Make:
    """Makes the settings of a run that has done two of three steps and reports its end."""

    def make(target: str) -> config.Config:
        tree = {
            "run": {"directory": tmp_path, "name": "r1"},
            "schedule": {"steps": 3},
            "telemetry": {"on_end": target},
        }
        settings = config.build(tree)
        settings.run_dir.mkdir()
        lines = [json.dumps({"step": step}) + "\n" for step in (1, 2)]
        (settings.run_dir / "metrics.jsonl").write_text("".join(lines))
        return settings

    return make


class Received(HTTPServer):
    """A webhook on the loopback address."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        bodies, paths = self.bodies, self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/json"
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                paths.append(self.path)
                if self.path == "/slow":
                    with suppress(OSError):
                        for _ in range(20):
                            self.wfile.write(b"H")
                            time.sleep(0.1)
                    return
                self.send_response(500 if self.path == "/broken" else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def webhook() -> Iterator[Received]:
    server = Received()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ends_with(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "outcome", "exit_code"),
    [
        (RunEnded("every actor is in quarantine"), "failed", 1),
        (ZeroDivisionError("a bug"), "failed", 1),
        (StoppedAtOnce("stopped at once", 143), "stopped", 143),
        (KeyboardInterrupt("Ctrl-C"), "stopped", 1),
    ],
)
def test_a_webhook_gets_the_error_and_the_error_goes_on(
    run_of: Make, webhook: Received, error: BaseException, outcome: str, exit_code: int
) -> None:
    settings = run_of(f"http://127.0.0.1:{webhook.server_port}/end")
    with pytest.raises(type(error)):
        on_end.reported(settings, ends_with(error))
    (body,) = webhook.bodies
    assert body["text"] == f"r1 {outcome}: {error}"
    told = {key: body[key] for key in ("run", "outcome", "exit_code", "reason", "step", "steps", "directory")}
    assert told == {
        "run": "r1",
        "outcome": outcome,
        "exit_code": exit_code,
        "reason": str(error),
        "step": 2,
        "steps": 3,
        "directory": str(settings.run_dir),
    }


def test_a_command_gets_the_end_on_its_standard_input(run_of: Make, tmp_path: Path) -> None:
    settings = run_of(f"cat > {tmp_path}/end.json")
    assert on_end.reported(settings, lambda: 0) == 0
    assert json.loads((tmp_path / "end.json").read_text())["outcome"] == "stopped"
    (settings.run_dir / "config.toml").write_text("[schedule]\nsteps = 2\n[data]\n")
    assert on_end.reported(settings, lambda: 0) == 0
    end = json.loads((tmp_path / "end.json").read_text())
    assert end["outcome"] == "finished" and "all 2 steps are done" in end["reason"]


def test_a_damaged_line_keeps_no_report_back(run_of: Make, tmp_path: Path) -> None:
    settings = run_of(f"cat > {tmp_path}/end.json")
    (settings.run_dir / "metrics.jsonl").write_text("{damaged\n")
    assert on_end.reported(settings, lambda: 0) == 0
    with pytest.raises(RunEnded):
        on_end.reported(settings, ends_with(RunEnded("metrics.jsonl:1: damaged")))
    end = json.loads((tmp_path / "end.json").read_text())
    assert (end["outcome"], end["reason"], end["step"]) == ("failed", "metrics.jsonl:1: damaged", 0)


def test_an_address_may_have_its_secret_in_the_environment(
    run_of: Make, webhook: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "s3cret")
    on_end.reported(run_of(f"http://127.0.0.1:{webhook.server_port}/$HOOK"), lambda: 0)
    assert webhook.paths == ["/s3cret"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("exit 3", "exit 3 was not told of the end: it ended with 3"),
        ("sleep 60", "sleep 60 was not told of the end: it took longer than 0.5 s"),
        ("http://127.0.0.1:{port}/broken", "127.0.0.1 was not told of the end: HTTP Error 500"),
        ("http://127.0.0.1:{port}/slow", "127.0.0.1 was not told of the end: it took longer than 0.5 s"),
        ("http://127.0.0.1:{port}/ s3cret", "127.0.0.1 was not told of the end: its address has a space"),
        ("http://[s3cret", "the webhook was not told of the end: Invalid IPv6 URL"),
        ("http://127.0.0.1:1/s3cret", "127.0.0.1 was not told of the end: <urlopen error"),
    ],
)
def test_a_report_that_fails_is_named_and_changes_nothing(
    run_of: Make,
    webhook: Received,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    said: str,
) -> None:
    monkeypatch.setattr(on_end, "DEADLINE_S", 0.5)
    assert on_end.reported(run_of(target.format(port=webhook.server_port)), lambda: 0) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"olmorl-launch: telemetry.on_end: {said}") and "s3cret" not in err


def test_a_launch_that_is_refused_is_reported_too(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[run]\ndirectory = "{tmp_path}"\n[telemetry]\non_end = "cat > {tmp_path}/end.json"\n')
    assert launch.main([str(recipe)]) != 0
    assert json.loads((tmp_path / "end.json").read_text())["outcome"] == "failed"


def test_without_a_target_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = config.build({"run": {"directory": tmp_path, "name": "r1"}})
    assert on_end.reported(settings, lambda: 0) == 0
    assert capsys.readouterr() == ("", "")
