"""The two log files of a process."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.processes.log_files import logged
from olmorl.log_context import facts, note_facts

log = logging.getLogger("olmorl.somewhere")


def records(run_dir: Path, process: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "logs" / f"{process}.jsonl").read_text().splitlines()]


def test_a_record_has_its_run_its_process_and_the_facts_of_its_task(tmp_path: Path) -> None:
    async def serve(prompt: int) -> None:
        note_facts(prompt=prompt)
        await asyncio.sleep(0)
        await asyncio.to_thread(log.warning, "slow: %s", "a\nb")

    async def both() -> None:
        note_facts(actor="actor-0.1")
        await asyncio.gather(serve(1), serve(2))

    with logged(tmp_path / "demo", "actor-0"):
        asyncio.run(both())
    found = records(tmp_path / "demo", "actor-0")
    assert sorted(record["prompt"] for record in found) == [1, 2]
    for record in found:
        assert record.pop("time").endswith("+00:00")
        assert record.pop("prompt")
        assert record == {
            "level": "WARNING",
            "logger": "olmorl.somewhere",
            "message": "slow: a\nb",
            "run": "demo",
            "process": "actor-0",
            "actor": "actor-0.1",
        }
    assert not facts(), "the facts of a task end with it"


def test_an_error_is_there_once_with_its_cause(tmp_path: Path) -> None:
    with logged(tmp_path, "launcher"):
        try:
            raise OSError("no route")
        except OSError:
            log.exception("the host is lost")
    (record,) = records(tmp_path, "launcher")
    assert record["message"] == "the host is lost" and record["cause"].endswith("OSError: no route")
    assert (tmp_path / "logs" / "launcher.log").read_text().count("OSError: no route\n") == 1


def test_records_after_the_end_are_in_no_file(tmp_path: Path) -> None:
    with logged(tmp_path, "launcher"):
        log.info("inside")
    log.warning("outside")
    assert [record["message"] for record in records(tmp_path, "launcher")] == ["inside"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_writes_its_own_records_and_everything_that_is_printed(tmp_path: Path, times: int) -> None:
    program = (
        "import logging, os, sys; from pathlib import Path; from olmorl.deploy.processes.log_files import log_to;"
        "log_to(Path(sys.argv[1]), 'rank-0'); logging.getLogger('olmorl.x').info('ours');"
        "logging.getLogger('other').info('theirs'); print('printed', flush=True); os.system('echo child')"
    )
    for _ in range(times):
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert [record["message"] for record in records(tmp_path, "rank-0")] == ["ours"] * times
    text = (tmp_path / "logs" / "rank-0.log").read_text()
    for word in ("ours", "theirs", "printed", "child"):
        assert text.count(word) == times
