"""Sends the log of a process to the run directory: text for people, and one JSON object a record for programs.

logs/<process>.log    everything that the process and its children print
logs/<process>.jsonl  the records of OlmoRL itself: time, level, logger, message, process, run, and facts such as
                      step and prompt
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from olmorl.errors import unwritable
from olmorl.log_context import facts
from olmorl.printable import printable
from olmorl.run_dir import RunFiles

_OURS = "olmorl"
"""Parent of the loggers of OlmoRL."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logged(run_dir: Path, process: str) -> Iterator[None]:
    """Send messages that are logged inside to both files of `process`. Printed output is not redirected.

    Raises:
        ResourceError: the file cannot be made.
    """
    folder = RunFiles(run_dir).logs
    try:
        _make(folder)
        text = _LogFile(folder / f"{process}.log")
        handlers = [text, _records(run_dir, process)]
    except OSError as error:
        raise unwritable(folder, error) from None
    logger = logging.getLogger(_OURS)
    text.setFormatter(_Printable(_FORMAT))
    before = logger.level
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            with suppress(OSError):
                handler.close()


class _LogFile(logging.FileHandler):
    """On a full disk it keeps its lines until there is room, silently: the run reports the full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonRecords(logging.Formatter):
    """One JSON object for each record. The message and the cause of an error are in it once."""

    def __init__(self, run: str, process: str) -> None:
        super().__init__()
        self._own = {"run": run, "process": process}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._own,
            **facts(),
        }
        if record.exc_info:
            fields["cause"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _records(run_dir: Path, process: str) -> _LogFile:
    """Writes the records of OlmoRL as JSON lines. A run has the name of its directory."""
    handler = _LogFile(RunFiles(run_dir).logs / f"{process}.jsonl")
    handler.setFormatter(JsonRecords(run_dir.name, process))
    return handler


def _make(folder: Path) -> None:
    """Make the folder of the logs. On a host with disks of its own the run directory is made here, for its owner."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)


def log_to(run_dir: Path, process: str) -> None:
    """Send this process's logging to both of its files, and everything that it or its children print to the first."""
    folder = RunFiles(run_dir).logs
    _make(folder)
    log = os.open(folder / f"{process}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_FORMAT, force=True)
    logging.getLogger(_OURS).addHandler(_records(run_dir, process))
