"""The command: files, exit codes, sentences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from olmorl.deploy.report import cli
from tests.deploy.report.conftest import Make

ROOT = Path(__file__).resolve().parents[3]


def test_a_report_is_one_file(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.html"
    runs = [str(make_run("a")), str(make_run("b"))]
    assert cli.main([*runs, runs[0], "-o", str(output)]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 2 run(s), ")
    assert output.read_text().startswith("<!doctype html>") and output.read_text().endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out.html"], "no partial file stays"


def test_the_run_is_left_as_it_was(make_run: Make, tmp_path: Path) -> None:
    run = make_run()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert cli.main([str(run), "-o", str(tmp_path / "out.html")]) == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{}/nowhere"], "nowhere: no such folder"),
        (["{}"], "no run directory"),
        (["{}/begun"], "begun: no step is done yet; the logs are in"),
        (["{}/run", "-o", "{}"], "-o {}: a folder"),
        (["{}/run", "-o", "{}/missing/out.html"], "set -o to a writable folder"),
        (["{}/run", "--mib", "0"], "--mib"),
        (["{}/run", "--port", "99999", "--serve"], "is not a port from 0 to 65535"),
        (["{}/run", "--sreve"], "--sreve: unknown argument (did you mean '--serve'?)"),
        ([], "RUN"),
    ],
)
def test_a_mistake_is_one_sentence(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    make_run("run")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").touch()
    assert cli.main([each.format(tmp_path) for each in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("olmorl-report: ") and says.format(tmp_path) in error and error.count("\n") == 1


def test_serving_ends_with_ctrl_c(make_run: Make) -> None:
    command = [sys.executable, "-m", "olmorl.deploy.report.cli", str(make_run()), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == "serving 1 run(s) until Ctrl-C; open\n"
        url = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(url) as answer:
            assert b"OlmoRL report" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
