"""The credentials of Redis, Ray and the run. They are never on a command line or in a log."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from olmorl.errors import ConfigError
from olmorl.queues.redis_server.url import secrets_of

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
"""How long a process waits for a sign of life on a connection. TCP needs more than Ray's default, 20 s, to recover from
a cut of some seconds. A lost connection would end the call that lasts as long as a process works."""


def guard_ray(own: bool) -> None:
    """Turn Ray's token authentication on. Ray reads its environment when it is imported: call this before.

    Args:
        own: the run starts its own Ray, and gets its own token; otherwise it uses the token of the cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _authenticate(own)
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    # The service itself reports a death and its consequence.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    if own:
        # Ray would keep 3 KiB about each of the last 100,000 calls, for a dashboard that such a run does not have.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")


def _authenticate(own: bool) -> None:
    if own:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24)}
    elif (mode := os.environ.setdefault("RAY_AUTH_MODE", "token")) != "token":
        print(
            f"RAY_AUTH_MODE={mode}: any host that reaches this Ray cluster can run programs on it; set "
            "RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN on every host before `ray start`",
            file=sys.stderr,
        )


def make_token(run_dir: Path) -> str:
    """The token of a run that starts: from the environment, or a new one in a file that only its owner can read.

    Raises:
        ConfigError: the file cannot be written, or the environment holds no valid token.
    """
    forget_token(run_dir)
    if given := _given_token():
        return given
    token, path = secrets.token_urlsafe(32), token_file(run_dir, socket.gethostname())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        created = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(created, "w") as file:
            file.write(f"{token}\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}: the run's token is kept there; choose one yourself "
            f"({TOKEN}), or another place (XDG_STATE_HOME)"
        ) from None
    return token


def forget_token(run_dir: Path) -> None:
    """Remove the token of a run that has ended."""
    with suppress(OSError):
        token_file(run_dir, socket.gethostname()).unlink()


def read_token(run_dir: Path, host: str) -> str:
    """The token of a run whose launcher is on `host`, for a command to it.

    Raises:
        ConfigError: the environment lacks it, and the file cannot be read.
    """
    if given := _given_token():
        return given
    path = token_file(run_dir, host)
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a token"
        raise ConfigError(
            f"{path}: {reason}: a command to a run needs the token in that file: make it readable, or set {TOKEN}"
        ) from None


def _given_token() -> str | None:
    token = os.environ.get(TOKEN)
    if token and not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{TOKEN}: letters, digits and signs of ASCII alone, such as `openssl rand -hex 24` makes")
    return token


def token_file(run_dir: Path, host: str) -> Path:
    """The file of the token. It is not in the run directory, which people show, copy and keep.

    Several hosts may share a home, and have different run directories with the same path on their own disks.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path(os.environ.get("HOME", "/"), ".local", "state")
    return Path(state, "olmorl", "tokens", f"{run_id(run_dir)}.{Path(host).name}")


def run_id(run_dir: Path) -> str:
    """The name of a run outside of its folder: two runs of one name in two folders stay apart."""
    folder = run_dir.resolve()
    return f"{folder.name}-{blake2b(str(folder).encode(), digest_size=4).hexdigest()}"
