"""The control endpoint and the command in front of it: permissions, commands and output."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.control import cli
from olmorl.deploy.control.endpoint import LONGEST_REQUEST, ControlEndpoint, send_command
from olmorl.deploy.credentials import QueueAccess, forget_token, guard_ray, make_token, read_token, token_file
from olmorl.deploy.supervision import commands
from olmorl.deploy.view import tables
from olmorl.deploy.view.dashboard import ActorRow, RunView
from olmorl.deploy.view.run_state import FAILED, STOPPED, note_end
from olmorl.errors import ConfigError, ResourceError, RunEnded, UserError
from olmorl.messages import TRAIN_LANE
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis

HERE = socket.gethostname()
ACTOR = {"name": "actor-0", "state": "run", "version": "1.3", "host": "h", "pid": 7, "running": 2, "waiting": 0}
LIVE = {
    "state": "running",
    "step": 3,
    "steps": 9,
    "incarnation": 1,
    "learner_restarts": 0,
    "actor_deaths": 1,
    "queued": 4,
    "leased": 5,
    "results": 6,
    "actors": [{**ACTOR, "kv_used": 0.25, "deaths": 1, "last_cause": "actor-0 died"}],
    "verdict": {"limit": "actors", "sure": 0.9, "text": "the actors limit this run (90% sure): slots are full"},
    "waits": [{"what": "the batch of step 4", "owner": "the orchestrator", "waited_s": 70.0, "deadline_s": 100.0}],
}


SHOWN = msgspec.to_builtins(
    RunView(
        title="demo",
        state="stopping",
        step=3,
        steps=9,
        rewards=[0.25, 0.5],
        verdict="the actors limit this run",
        actors=[ActorRow("actor-0", "run", "1.3", 0, 2, 0, 0.25, 100.0, "it died once")],
        faults=["10:00:00 actor-0 died"],
    )
)
VIEW = json.loads(json.dumps(SHOWN))


class Asked:
    """Commands that note what they were asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.views = 3
        """Views that there are before the run ends."""

    async def status(self) -> Any:
        return LIVE

    async def view(self) -> Any:
        self.calls.append("view")
        if self.calls.count("view") > self.views:
            raise RunEnded("the run has ended")
        return VIEW

    async def actors(self, count: int, who: str) -> Any:
        self.calls.append(count)
        return {"message": f"{count} actors"}

    async def drain(self, actor: str) -> Any:
        raise UserError(f"no actor {actor!r} here")

    async def checkpoint(self) -> Any:
        raise RunEnded("the learner starts again")

    async def dead_letters(self, replay: bool) -> Any:
        letter = {"draw": 4, "row": "a.jsonl:5", "reason": "malformed", "payload": base64.b64encode(b"\xff").decode()}
        return {"letters": [letter], "replayed": [4] if replay else []}


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
async def run_dir(tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """The directory of a run whose launcher answers."""
    monkeypatch.delenv("OLMORL_TOKEN", raising=False)
    commands = {
        "status": asked.status,
        "view": asked.view,
        "actors": asked.actors,
        "drain": asked.drain,
        "checkpoint": asked.checkpoint,
        "dead-letters": asked.dead_letters,
    }
    (tmp_path / "config.toml").touch()
    endpoint = ControlEndpoint(tmp_path, "127.0.0.1", make_token(tmp_path), commands)
    await endpoint.start()
    yield tmp_path
    await endpoint.stop()


@pytest.fixture
def ctl(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the command with a live endpoint. Returns its exit code and its output."""

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(cli.main, [str(run_dir), *arguments])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_a_token_is_for_its_owner_alone_and_new_in_every_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLMORL_TOKEN", raising=False)
    first, second = make_token(tmp_path), make_token(tmp_path)
    assert first != second == read_token(tmp_path, HERE) and len(second) >= 32
    assert stat.S_IMODE(token_file(tmp_path, HERE).stat().st_mode) == 0o600
    monkeypatch.setenv("OLMORL_TOKEN", "of the environment")
    assert make_token(tmp_path) == read_token(tmp_path, HERE) == "of the environment"
    assert not token_file(tmp_path, HERE).exists(), "it need not lie about"
    monkeypatch.delenv("OLMORL_TOKEN")
    forget_token(tmp_path)
    with pytest.raises(ConfigError, match="needs the token"):
        read_token(tmp_path, HERE)
    token_file(tmp_path, HERE).write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a token"):
        read_token(tmp_path, HERE)


def test_a_token_that_can_be_kept_nowhere_is_said_with_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("OLMORL_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written: Not a directory: .*OLMORL_TOKEN.*XDG_STATE_HOME"):
        make_token(tmp_path)


async def test_orders_reach_the_launcher(ctl: Any, asked: Asked) -> None:
    assert await ctl("actors", "--count", "4") == (0, "4 actors\n")
    assert await ctl("actors", "--count", "5", "--json") == (0, '{"message": "5 actors"}\n')
    assert asked.calls == [4, 5]
    code, text = await ctl("dead-letters", "--replay")
    assert code == 0 and "a.jsonl:5" in text and "malformed" in text and "again, as the lag allows: 4" in text


@pytest.mark.parametrize("given", ["tök", "secret\udce9", "a\nb"])
def test_an_unusable_token_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("OLMORL_TOKEN", given)
    for use in (lambda: make_token(tmp_path), lambda: read_token(tmp_path, HERE)):
        with pytest.raises(ConfigError, match="OLMORL_TOKEN: letters") as failed:
            use()
        assert given not in str(failed.value)


def test_a_ray_of_the_run_asks_for_a_token_in_any_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled"})
    guard_ray(own=False)
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_MODE=disabled: any host" in capsys.readouterr().err
    guard_ray(own=True)
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) >= 32
    assert not capsys.readouterr().err


async def test_a_disk_without_room_for_the_address_is_named(tmp_path: Path) -> None:
    (tmp_path / "control.json").symlink_to("/dev/full")
    endpoint = ControlEndpoint(tmp_path, "127.0.0.1", "a token", {})
    try:
        with pytest.raises(ResourceError, match=r"control\.json: No space left on device: olmorl-ctl needs it"):
            await endpoint.start()
    finally:
        await endpoint.stop()


async def test_an_address_that_cannot_be_removed_does_not_hide_how_the_run_ended(tmp_path: Path) -> None:
    (tmp_path / "control.json").mkdir()
    await ControlEndpoint(tmp_path, "127.0.0.1", "a token", {}).stop()
    assert (tmp_path / "control.json").is_dir()


async def test_the_status_shows_actors_deaths_and_long_waits(ctl: Any) -> None:
    code, text = await ctl("status")
    assert code == 0
    assert "running, step 3 of 9, incarnation 1; 4 queued, 5 leased, 6 results; 1 death(s) of actors" in text
    assert "the actors limit this run (90% sure): slots are full\n" in text
    assert "h:7" in text and "25%" in text and "actor-0 died" in text
    assert "waiting for the batch of step 4, which the orchestrator owns: 70 of 100 s" in text
    assert json.loads((await ctl("status", "--json"))[1]) == {
        "live": LIVE,
        "silence": "",
        "verdict": LIVE["verdict"],
    }


async def test_the_status_names_the_sandbox_that_scores_programs(run_dir: Path, ctl: Any) -> None:
    (run_dir / "config.toml").write_text('[verifiers]\ncode_tier = "landlock"\n')
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "incarnation": 0, "reward_math_mean": 1}\n')
    assert "sandbox" not in (await ctl("status"))[1]
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "incarnation": 0, "reward_code_stdio_mean": 1}\n')
    assert "programs run in the sandbox landlock\n" in (await ctl("status"))[1]
    assert json.loads((await ctl("status", "--json"))[1])["sandbox"] == "landlock"


async def test_top_shows_the_live_view_once_where_there_is_no_terminal(ctl: Any) -> None:
    code, text = await ctl("top")
    assert code == 0
    for wanted in ("demo", "stopping", "step 3/9", "0.500 ▁█", "the actors limit this run", "actor-0  run", "25%"):
        assert wanted in text, wanted
    assert "it died once" in text and "10:00:00 actor-0 died" in text
    assert json.loads((await ctl("top", "--json"))[1]) == VIEW


async def test_top_follows_on_a_terminal_until_the_run_ends(
    ctl: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "REFRESH_S", 0.01)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, text = await ctl("top")
    assert asked.calls == ["view"] * (asked.views + 1)
    assert code == 1 and text.endswith("olmorl-ctl: the run has ended\n")


async def test_ctrl_c_leaves_top_without_an_error(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tables.time, "sleep", interrupted)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, text = await ctl("top")
    assert code == 0 and "olmorl-ctl:" not in text


async def test_what_looks_like_markup_is_text(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = "OSError: [/dev/shm/x] is full [enforce fail]"
    monkeypatch.setitem(LIVE["actors"][0], "last_cause", cause)  # type: ignore[index]
    for command in ("status", "actors"):
        code, text = await ctl(command)
        shown = " ".join(part.strip("│ ") for part in text.splitlines())
        assert code == 0 and "[/dev/shm/x]" in shown and "fail]" in shown


async def test_refusals_and_failures_have_their_exit_codes(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await ctl("drain", "actor-7") == (2, "olmorl-ctl: no actor 'actor-7' here\n")
    assert await ctl("checkpoint") == (1, "olmorl-ctl: the learner starts again\n")
    code, text = await ctl("pause")
    assert code == 2 and "'pause' is no command" in text
    monkeypatch.setenv("OLMORL_TOKEN", "guessed")
    for command in (["actors", "--count", "1"], ["status"]):
        code, text = await ctl(*command)
        assert code == 2 and text.startswith("olmorl-ctl: wrong token")


def test_the_launcher_gives_up_before_its_client(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(cli, "send_command", lambda run_dir, command, timeout_s=0.0, **_: asked.append(timeout_s))
    monkeypatch.setattr(cli, "show_dead_letters", lambda *_: None)
    assert cli.main([str(run_dir), "dead-letters"]) == 0
    assert asked[0] > 2 * commands._READ_DEADLINE_S, "for an orchestrator that starts, and for its answer"


async def test_without_a_launcher_only_what_the_folder_says_is_shown(tmp_path: Path, ctl: Any) -> None:
    (tmp_path / "control.json").unlink()
    code, text = await ctl("actors")
    assert code == 2 and "no launcher runs it" in text
    code, text = await ctl("status")
    assert code == 2 and "no step is done yet" in text
    (tmp_path / "control.json").write_text(json.dumps({"address": "127.0.0.1:9", "host": HERE}))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    shown = json.loads((await ctl("status", "--json"))[1])
    assert (shown["step"], shown["live"]) == (1, None) and "does not answer at 127.0.0.1:9" in shown["silence"]
    with pytest.raises(ResourceError, match=r"does not answer at 127\.0\.0\.1:9"):
        await asyncio.to_thread(send_command, tmp_path, "status")


async def test_a_copied_directory_answers_without_a_token(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path_factory.mktemp("copies") / "run"
    shutil.copytree(run_dir, copy)
    (copy / "metrics.jsonl").write_text('{"step": 1}\n')
    assert await asyncio.to_thread(cli.main, [str(copy), "status", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["step"] == 1 and f"copied or moved from {run_dir}, and no launcher runs it here" in shown["silence"]


@pytest.mark.parametrize("command", ["status", "figure"])
@pytest.mark.parametrize("kind", [STOPPED, FAILED])
def test_a_run_that_died_before_its_first_step_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    (tmp_path / "config.toml").write_text("[schedule]\nsteps = 9\n[data]\n")
    note_end(tmp_path, f"{kind}every actor is in quarantine: RuntimeError: no such heads")
    assert cli.main([str(tmp_path), command, *([str(tmp_path / "x.png")] if command == "figure" else [])]) == 2
    said = capsys.readouterr().err
    assert f"no step is done yet; {kind}every actor is in quarantine: RuntimeError: no such heads; the logs" in said
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "incarnation": 1}\n')
    assert cli.main([str(tmp_path), "status"]) == 0
    assert f"{kind}every actor is in quarantine" in " ".join(capsys.readouterr().out.split())


def test_dead_letters_are_read_without_a_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "was" / "run"
    settings = config.build({"run": {"name": "run", "mode": "simulated", "directory": str(run.parent)}})
    run.mkdir(parents=True)
    (run / "config.toml").write_text(config.to_toml(settings))

    async def write(url: str, environment: Mapping[str, str]) -> None:
        queue: Any = await wiring.open_queue(settings, QueueAccess(url, environment))
        fields = ["draw", "4", "reason", "malformed", "payload", b"\xff"]
        await queue._link.command("a letter", "XADD", queue._key(f"{TRAIN_LANE}:dead"), "*", *fields)
        await queue.close()

    with EmbeddedRedis(run / "redis") as server:
        asyncio.run(write(server.url, server.environment))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(run)
    before = sorted(copy.rglob("*"))
    assert cli.main([str(copy), "dead-letters", "--json"]) == 0
    letter = {"draw": 4, "row": "", "reason": "malformed", "payload": base64.b64encode(b"\xff").decode()}
    assert json.loads(capsys.readouterr().out) == {"letters": [letter], "replayed": []}
    assert sorted(copy.rglob("*")) == before
    assert cli.main([str(copy), "dead-letters", "--replay"]) == 2
    assert "no launcher runs it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "done", "export", "said"),
    [
        (3, 3, True, r"finished, all 3 steps are done; its policy is in .*export; more schedule\.steps and --resume"),
        (3, 3, False, r"finished, all 3 steps are done; its policy: olmorl-ctl .* export FOLDER; more"),
        (3, 2, False, "no launcher runs it, or it is still starting; go on with it by olmorl-launch --resume"),
        (5, 3, True, "no launcher runs it, or it is still starting; go on with it by olmorl-launch --resume"),
        (None, 3, True, "go on with it by olmorl-launch --resume"),
    ],
)
def test_the_status_of_a_finished_run_does_not_say_to_resume_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int | None, done: int, export: bool, said: str
) -> None:
    (tmp_path / "config.toml").write_text("" if steps is None else f"[schedule]\nsteps = {steps}\n")
    lines = [{"step": step, "incarnation": 1, "reward_mean": None} for step in range(1, done + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if export:
        (tmp_path / "export").mkdir()
    assert cli.main([str(tmp_path), "status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(said, shown), shown
    assert ("go on with it" in shown) == ("go on with it" in said)
    for command in ("pause", "top"):
        assert cli.main([str(tmp_path), command]) == 2
        assert re.search(said, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(
    ("data", "way_on"),
    [
        (
            "epochs = 2",
            r"data\.epochs over 2 and --resume --change train it on the same rows; to train on other rows, start",
        ),
        (
            "epochs = 2\nno_resample_above = 0.9",
            r"data\.epochs over 2 .* the same rows that data\.no_resample_above = 0\.9 has left; to train on",
        ),
        (
            "no_resample_above = 0.9",
            r"every row was solved often enough \(data\.no_resample_above = 0\.9\): to train on",
        ),
    ],
)
def test_the_status_of_a_run_that_used_up_its_data_says_so_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str, way_on: str
) -> None:
    (tmp_path / "config.toml").write_text(f"[schedule]\nsteps = 9\n[data]\n{data}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "incarnation": 1}\n')
    note_end(tmp_path, "the data ended after 1 steps")
    assert cli.main([str(tmp_path), "status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"finished, the data ended after 1 steps; its policy: olmorl-ctl .* FOLDER; {way_on}", shown), (
        shown
    )
    note_end(tmp_path, None)
    assert cli.main([str(tmp_path), "status"]) == 0
    assert "go on with it by olmorl-launch --resume" in " ".join(capsys.readouterr().out.split())


def test_the_status_of_a_run_that_is_over_says_what_limited_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("[schedule]\nsteps = 99\n")
    line = {"incarnation": 1, "learner_wait_s": 6.0, "engine_slots": 256, "engine_slots_fraction": 1.0}
    lines = [
        {**line, "step": n, "wall_s": 10.0 * n, "tokens_trained_total": n, "tokens_generated_total": n}
        for n in range(1, 20)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines) + '{"step": 20, "wal')
    assert cli.main([str(tmp_path), "status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the actors limit this run (94% sure): the learner waits 60% of the time, engine slots are 100%" in shown
    assert cli.main([str(tmp_path), "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["limit"] == "actors"


def test_a_folder_without_a_run_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        for command in (["ledger"], ["status"], ["top"], ["pause"], ["export", "out"]):
            assert cli.main([str(folder), *command]) == 2
            assert f"{folder}: no run directory" in capsys.readouterr().err


def test_a_run_is_one_from_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "processes.json").touch()
    assert cli.main([str(tmp_path), "pause"]) == 2
    assert "no launcher runs it, or it is still starting" in capsys.readouterr().err


def test_a_picture_of_the_steps_that_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("actor_tokens_per_s", "useful_tokens_per_s", "lag_mean", "lag_max", "learner_step_s", "learner_wait_s")
    line = {"reward_mean": 0.5, **dict.fromkeys(names, 1.0)}
    whole = "".join(json.dumps({"step": step, **line}) + "\n" for step in (1, 2))
    (tmp_path / "metrics.jsonl").write_bytes(whole.encode() + '{"step": 3, "é'.encode()[:-1])
    picture = tmp_path / "reward.png"
    assert cli.main([str(tmp_path), "figure", str(picture), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == str(picture) and "2 steps" in shown["message"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    for place in ("missing/reward.png", "reward.txt"):
        assert cli.main([str(tmp_path), "figure", str(tmp_path / place)]) == 2
        assert place in capsys.readouterr().err


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\n",
        b"{}\n",
        b"[1]\n",
        b"[" * 50_000 + b"\n",
        b'{"token": 1, "command": "status", "arguments": {}}\n',
        b'{"token": "\\ud800", "command": "status", "arguments": {}}\n',
    ],
)
async def test_what_is_no_request_is_refused(run_dir: Path, asked: Asked, request_: bytes) -> None:
    reply = json.loads(await send(run_dir, request_))
    assert reply["exit_code"] == 2 and "answer" not in reply


async def test_arguments_that_a_command_does_not_take_are_refused(run_dir: Path, asked: Asked) -> None:
    token = read_token(run_dir, HERE)
    for arguments in ({}, {"count": 1, "more": 2}, [1]):
        request = {"token": token, "command": "actors", "arguments": arguments}
        assert json.loads(await send(run_dir, json.dumps(request).encode() + b"\n"))["exit_code"] == 2
    assert asked.calls == []


async def test_a_command_is_a_word(run_dir: Path) -> None:
    request = {"token": read_token(run_dir, HERE), "command": ["status"], "arguments": {}}
    assert "is no command" in json.loads(await send(run_dir, json.dumps(request).encode() + b"\n"))["error"]


async def test_a_request_without_end_gets_no_answer(run_dir: Path) -> None:
    assert await send(run_dir, b"x" * (2 * LONGEST_REQUEST)) == b""


async def send(run_dir: Path, data: bytes) -> bytes:
    """The line that comes back; empty when the connection is closed instead."""
    host, _, port = json.loads((run_dir / "control.json").read_text())["address"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.readline(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("left", ["", "{}", '{"address": 7}', '{"address": "127.0.0.1"}'])
def test_an_address_that_a_killed_launcher_left_half_written_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    (tmp_path / "control.json").write_text(left)
    assert cli.main([str(tmp_path), "pause"]) == 2
    assert "has no address" in capsys.readouterr().err


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n", b"[]\n", b"{}\n"])
async def test_a_stranger_at_the_address_is_no_launcher(run_dir: Path, said: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    stranger = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    (run_dir / "control.json").write_text(json.dumps({"address": f"127.0.0.1:{port}", "host": HERE}))
    async with stranger:
        with pytest.raises(ResourceError, match="its launcher is gone, and another program"):
            await asyncio.to_thread(send_command, run_dir, "status")


async def test_it_listens_on_the_one_address_it_was_given(run_dir: Path) -> None:
    _, _, port = json.loads((run_dir / "control.json").read_text())["address"].rpartition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", int(port)), 2):
        pass
