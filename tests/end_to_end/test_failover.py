"""A Redis of one's own, behind a sentinel: it dies with its last writes, and its secrets are seen nowhere."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.deploy.credentials import read_token
from olmorl.learner.storage.ledger import read_ledger
from tests.end_to_end.launching import ROOT
from tests.queues.redis_server.sentinels import PASSWORD, SENTINEL_PASSWORD, Watched, watched

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]
SETTINGS = """
[schedule]
steps = 1000
prompts_per_step = 4
max_lag = 2
[checkpoint]
every = 5
[queue]
url = "{url}"
outage_deadline_s = 20
"""


@pytest.fixture
def servers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """With its secrets in the environment, one of them in a file."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "secret").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("OLMORL_REDIS_PASSWORD_FILE", str(folder / "secret"))
    monkeypatch.setenv("OLMORL_REDIS_SENTINEL_PASSWORD", SENTINEL_PASSWORD)
    monkeypatch.delenv("OLMORL_TOKEN", raising=False)
    with watched(folder) as servers:
        yield servers


def ray_tokens(run: Any) -> set[str]:
    """The tokens of the run's own Ray, read from its processes."""
    found = set()
    for process in run.processes():
        with suppress(psutil.Error):
            found.add(process.environ().get("RAY_AUTH_TOKEN", ""))
    return found - {""}


def on_command_lines(run: Any, secrets: Iterable[str]) -> list[str]:
    lines = []
    for process in run.processes():
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    assert lines
    return [line for line in lines if any(secret in line for secret in secrets)]


def in_files(folder: Path, secrets: Iterable[str]) -> list[tuple[Path, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [(path, secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]


def test_a_fail_over_that_lost_the_last_writes_is_reconciled_and_no_secret_is_seen(
    servers: Watched, simulate: Callable[[str], Any], check_history: Callable[[Any, int, int], None]
) -> None:
    run = simulate(SETTINGS.format(url=servers.url))
    run.start()
    run.until_step(4)
    secrets = {PASSWORD, SENTINEL_PASSWORD, read_token(run.run_dir, socket.gethostname()), *ray_tokens(run)}
    assert len(secrets) > 3
    assert on_command_lines(run, secrets) == []

    servers.cut()
    run.until_step(len(run.lines()) + 2)
    began, steps = time.monotonic(), len(run.lines())
    servers.fail_over()
    run.until_step(steps + 1)
    print(f"the first step {time.monotonic() - began:.1f} s after the death of the primary")
    run.until_step(steps + 4)
    run.signal(signal.SIGINT)
    assert run.wait() == 0, run.output()

    check_history(run, len(run.lines()), 2)
    compared = re.search(
        r"(\d+) draws were lost .* (\d+) had come back .* (\d+) results had come back",
        (run.run_dir / "logs" / "orchestrator.log").read_text(),
    )
    assert compared, "the fail-over went unnoticed"
    lost, withdrawn, dropped = map(int, compared.groups())
    assert lost > 0 and withdrawn + dropped > 0, "the replica knew everything: nothing was put to the test"
    assert max(record["attempt"] for record in read_ledger(run.run_dir)) > 1
    assert {line["incarnation"] for line in run.lines()} == {1}, "nothing had to be started again"
    assert in_files(run.folder, secrets) == []


def test_neither_a_recipe_that_is_shown_nor_a_refusal_shows_a_secret(
    servers: Watched, simulate: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, token = simulate(SETTINGS.format(url=servers.url)), "token-of-the-run"
    monkeypatch.setenv("OLMORL_TOKEN", token)
    launch = [sys.executable, "-m", "olmorl.deploy.launch", str(run.recipe)]
    shown = subprocess.run([*launch, "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and servers.url in shown.stdout
    wrong = "password-of-something-else"
    monkeypatch.delenv("OLMORL_REDIS_PASSWORD_FILE")
    monkeypatch.setenv("OLMORL_REDIS_PASSWORD", wrong)
    refused = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "refuses" in refused.stderr
    said = shown.stdout + shown.stderr + refused.stdout + refused.stderr
    assert [secret for secret in (PASSWORD, SENTINEL_PASSWORD, token, wrong) if secret in said] == []
