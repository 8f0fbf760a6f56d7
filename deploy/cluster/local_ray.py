"""Starts and ends the run's own Ray on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import ray

from olmorl.deploy.cluster import compat
from olmorl.deploy.control import signals
from olmorl.errors import ResourceError
from olmorl.parent_death import STOP_SIGNALS
from olmorl.private_folder import private_folder

_DISCONNECT_S = 5.0
_LOOK_S = 0.02
_PATIENCE_S = 10.0
"""Time for killed processes to end."""


class OwnRay:
    """The run's own Ray. `end` removes all its processes and files; Ray's own shutdown does not."""

    def __init__(self, num_cpus: int, run: str) -> None:
        """Start it. A signal interrupts the start of its daemons, but not the connection of this process to them.

        Raises:
            ResourceError: Ray does not start.
            Interrupted: a signal came while its daemons started.
        """
        self._before = before = set(_children())
        try:
            with (
                compat.own_handlers(),
                signals.raising_while(compat.daemons_start),
                compat.no_stack_of_a_signal(),
                compat.only_needed_daemons(),
                _deaf_children(),
            ):
                context = ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    namespace=run,
                    object_store_memory=512 << 20,
                    **compat.private_start(_temporary()),
                )
        except (OSError, RuntimeError, ValueError) as error:
            started = [child for child in _children() if child not in before]
            ray.shutdown()
            _kill(started)
            raise ResourceError(
                f"Ray cannot be started here: {error}; where the path of a socket is too long, set RAY_TMPDIR to a "
                "short folder"
            ) from None
        except signals.Interrupted:
            _kill([child for child in _children() if child not in before])
            for session in _sessions_of_this_process():
                _remove(session)
            raise
        self._session = Path(context.address_info["session_dir"])

    def end(self, keep_logs: bool) -> None:
        """End it. With `keep_logs` its folder stays, and shows why it died."""
        started = [child for child in _children() if child not in self._before]
        started += _naming(self._session, started)
        killing = threading.Thread(target=_kill_once_disconnected, args=[started], daemon=True)
        killing.start()
        ray.shutdown()
        killing.join()
        if keep_logs:
            return
        _remove(self._session)


def _sessions_of_this_process() -> list[Path]:
    """The session folders of the Ray that this process started."""
    return list(_temporary().glob(f"session_*_{os.getpid()}"))


def _temporary() -> Path:
    """Where Ray keeps its sockets and logs: Ray opens its own folder for every user, so it is in a private one."""
    return private_folder(Path(f"{compat.default_folder()}-{os.geteuid()}")) / "r"


def _remove(session: Path) -> None:
    shutil.rmtree(session, ignore_errors=True)
    latest = session.parent / "session_latest"
    with suppress(OSError):
        if os.readlink(latest) == str(session):  # noqa: PTH115
            latest.unlink()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Programs that start inside, and all that they start, never get a signal that asks the launcher to stop.

    A daemon of Ray has a handler of its own, so it cannot ignore a signal. A blocked signal stays blocked.
    """
    _Forks.deaf = True
    try:
        yield
    finally:
        _Forks.deaf = False


class _Forks:
    """What a new child does first. Python can register a function for this, but not unregister it."""

    deaf = False

    @classmethod
    def begin(cls) -> None:
        if cls.deaf:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


os.register_at_fork(after_in_child=_Forks.begin)


def _children() -> list[psutil.Process]:
    return list(psutil.Process().children(recursive=True))


def _naming(session: Path, known: list[psutil.Process]) -> list[psutil.Process]:
    """Processes of the session whose parent has died."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process not in known and any(str(session) in word for word in process.cmdline()):
                found.append(process)
    return found


def _kill_once_disconnected(processes: list[psutil.Process]) -> None:
    """Kill the daemons while Ray's shutdown waits for them: it sends SIGTERM, which they do not get.

    A daemon that hangs can block this process before it is disconnected.
    """
    give_up = time.monotonic() + _DISCONNECT_S
    while ray.is_initialized() and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
    _kill(processes)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, _PATIENCE_S)
