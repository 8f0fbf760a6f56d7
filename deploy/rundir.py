"""The run directory as the launcher and the tools see it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def metric_lines(run_dir: Path) -> list[dict[str, Any]]:
    """All complete lines of `metrics.jsonl`; none before the first step. A line cut off by a crash is passed over."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]


@contextmanager
def logged(run_dir: Path, process: str) -> Iterator[None]:
    """Send what is logged inside to `logs/<process>.log`; what is printed goes where it went."""
    folder = run_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("olmorl"), _LogFile(folder / f"{process}.log")
    handler.setFormatter(logging.Formatter(_FORMAT))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """Waits for room on a full disk with what it has to write, and says nothing: the run says what the disk lacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def log_to(run_dir: Path, process: str) -> None:
    """Send this process's logging, and everything it or its children print, to `logs/<process>.log`."""
    folder = run_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / f"{process}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_FORMAT, force=True)
