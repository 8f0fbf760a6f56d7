"""The run directory as the launcher and the tools see it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from olmorl.config import Config, to_toml
from olmorl.errors import ResourceError
from olmorl.learner import durable
from olmorl.learner.lines import Lines
from olmorl.learner.recovery import RunFiles

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def unusable(path: Path, error: OSError, key: str = "run.directory") -> ResourceError:
    """The error a person sees when nothing can be kept at `path`, which the recipe's `key` says."""
    return ResourceError(f"{path}: {error.strerror}: set {key} to a folder where files can be made")


def metric_lines(run_dir: Path) -> list[dict[str, Any]]:
    """All complete lines of `metrics.jsonl`; none before the first step. A line cut off by a crash is passed over."""
    return Lines(RunFiles(run_dir).lines).read()


class KeptRecipe:
    """`config.toml`: that of an earlier start stays until this one has trained, as it may be refused until then."""

    def __init__(self, settings: Config) -> None:
        self._path = settings.run_dir / "config.toml"
        self._text = to_toml(settings).encode()
        self._has_trained = self._is_kept = False

    def keep(self, has_trained: bool) -> None:
        """Write it when it is time; a full disk has room for it later."""
        self._has_trained = self._has_trained or has_trained
        if self._is_kept or (self._path.exists() and not self._has_trained):
            return
        with suppress(ResourceError):
            durable.write_whole(self._path, [self._text])
            self._is_kept = True


@contextmanager
def logged(run_dir: Path, process: str) -> Iterator[None]:
    """Send what is logged inside to `logs/<process>.log`; what is printed goes where it went.

    Raises:
        ResourceError: there can be no such file.
    """
    folder = run_dir / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(folder / f"{process}.log")
    except OSError as error:
        raise unusable(folder, error) from None
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
