"""Commands that look at a run, on dead, half-written, damaged and foreign folders: an answer or one clear sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from olmorl.deploy.control import cli
from olmorl.deploy.report import cli as report_cli
from tests.deploy.report.made_runs import MadeRun


def dead(folder: Path) -> None:
    """The launcher was killed: its address is still there, and nothing listens."""
    MadeRun(folder, steps=4)
    (folder / "control.json").write_text(json.dumps({"address": "127.0.0.1:9", "host": "elsewhere"}))


def half_written(folder: Path) -> None:
    """Every file ends in the middle of a record."""
    MadeRun(folder, steps=4)
    (folder / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes()[:-7])
    with (folder / "ledger" / "000001.jsonl").open("a") as file:
        file.write('{"event":"drawn","dra')
    last = sorted((folder / "rollouts").iterdir())[-1]
    last.with_name(last.name.replace(".jsonl", ".partial.jsonl")).write_bytes(last.read_bytes()[:-7])
    last.unlink()
    (folder / "process_events.jsonl").write_text('{"at": 1, "proc')
    (folder / "control.json").write_text('{"addr')
    (folder / "processes.json").write_text("{")


def just_started(folder: Path) -> None:
    """Only the first files are there, and they are empty."""
    folder.mkdir()
    for name in ("config.toml", "metrics.jsonl", "processes.json", "control.json"):
        (folder / name).touch()
    (folder / "ledger").mkdir()
    (folder / "rollouts").mkdir()


def damaged(folder: Path) -> None:
    """Bytes in the middle of the files are wrong."""
    MadeRun(folder, steps=4)
    for path in (folder / "metrics.jsonl", *(folder / "ledger").iterdir(), *(folder / "rollouts").iterdir()):
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 9] = b"\xff" * 9
        path.write_bytes(data)


def of_another_program(folder: Path) -> None:
    """Another trainer has files with the same names."""
    folder.mkdir()
    (folder / "config.toml").write_text("[optimizer]\nname = 'adam'\n")
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "loss": "high"}\n[1, 2]\n')
    (folder / "ledger").write_text("accounts of May\n")
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "step_000001.jsonl.zst").write_bytes(b"not zstd")


def foreign(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("shopping\n")


def empty(folder: Path) -> None:
    folder.mkdir()


def missing(folder: Path) -> None:
    pass


def a_file(folder: Path) -> None:
    folder.write_text("a file")


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMORL_TOKEN", "token")


KINDS = (dead, half_written, just_started, damaged, of_another_program, foreign, empty, missing, a_file)
COMMANDS: dict[str, Callable[[Path], int]] = {
    "status": lambda run: cli.main([str(run), "status"]),
    "status --json": lambda run: cli.main([str(run), "status", "--json"]),
    "top": lambda run: cli.main([str(run), "top"]),
    "trace": lambda run: cli.main([str(run), "trace", "2"]),
    "ledger": lambda run: cli.main([str(run), "ledger"]),
    "report": lambda run: report_cli.main([str(run), "-o", str(run.with_name("report.html"))]),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_answers_or_says_in_one_sentence_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Callable[[Path], None], command: str
) -> None:
    run = tmp_path / "run"
    kind(run)
    capsys.readouterr()
    code = COMMANDS[command](run)
    said = capsys.readouterr()
    if code == 0:
        assert said.out.strip() and kind not in (foreign, empty, missing, a_file)
        return
    assert code in (1, 2)
    (line,) = said.err.strip().splitlines()
    assert line.startswith(("olmorl-ctl: ", "olmorl-report: ")) and str(run) in line
    assert "Error:" not in line and "Traceback" not in line


@pytest.mark.parametrize("command", ["status", "status --json", "trace", "ledger", "report"])
@pytest.mark.parametrize("kind", [dead, half_written], ids=lambda kind: kind.__name__)
def test_a_run_that_died_is_still_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Callable[[Path], None], command: str
) -> None:
    kind(tmp_path / "run")
    assert COMMANDS[command](tmp_path / "run") == 0
