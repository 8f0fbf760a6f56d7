"""Sends the log of a process to `logs/<process>.log` in the run directory."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from olmorl.errors import unwritable

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logged(run_dir: Path, process: str) -> Iterator[None]:
    """Send messages that are logged inside to `logs/<process>.log`. Printed output is not redirected.

    Raises:
        ResourceError: the file cannot be made.
    """
    folder = run_dir / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(folder / f"{process}.log")
    except OSError as error:
        raise unwritable(folder, error) from None
    logger = logging.getLogger("olmorl")
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
    """On a full disk it keeps its lines until there is room, silently: the run reports the full disk."""

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
