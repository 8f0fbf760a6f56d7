"""How processes reach Redis and Ray, and people the run: credentials never stand on a command line or in a log."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from olmorl.errors import ConfigError
from olmorl.queues.address import secrets_of

TOKEN = "OLMORL_TOKEN"


@dataclass(frozen=True)
class QueueAccess:
    """An address, and the environment with its credentials; its text form shows the address alone."""

    url: str
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_recipe(cls, url: str) -> QueueAccess:
        """The address of the recipe with the credentials of this environment; files are read here, not on every host.

        Raises:
            ConfigError: such a file cannot be read, or is empty.
        """
        return cls(url, secrets_of(os.environ))


PATIENCE = {"RAY_grpc_keepalive_timeout_ms": "60000"}
"""How long one process waits for a sign of life on its connection to another. Ray's own 20 s are less than TCP needs to
go on after a cut of some seconds, and a connection that ends takes along the call that lasts for a process's life."""


def guard_ray(own: bool) -> None:
    """Turn Ray's token authentication on. Ray reads its environment when it is imported: call this before.

    Args:
        own: the run starts a Ray of its own, and gets a token of its own; otherwise the cluster's is used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    # The service says itself who died, and what follows.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    if own:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(24)
        # Ray would keep 3 KiB about each of the last 100,000 calls, for a dashboard that such a run does not have.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")


def make_token(run_dir: Path) -> str:
    """The token of a run that starts: that of this environment, else a new one in a file that only its owner reads."""
    forget_token(run_dir)
    if given := os.environ.get(TOKEN):
        return given
    token = secrets.token_urlsafe(32)
    created = os.open(_token_file(run_dir), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(created, "w") as file:
        file.write(f"{token}\n")
    return token


def forget_token(run_dir: Path) -> None:
    """Nobody answers to it any more."""
    _token_file(run_dir).unlink(missing_ok=True)


def read_token(run_dir: Path) -> str:
    """The token of a run, for whoever wants to ask something of it.

    Raises:
        ConfigError: it is neither in the environment nor in a file that may be read.
    """
    path = _token_file(run_dir)
    try:
        return os.environ.get(TOKEN) or path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a token"
        raise ConfigError(
            f"{path}: {reason}: asking something of a run needs its token: from that file, or in {TOKEN}"
        ) from None


def _token_file(run_dir: Path) -> Path:
    return run_dir / "token"
