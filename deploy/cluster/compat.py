"""What a run needs of Ray that has no documented door. `test_compat.py` fails by name where Ray changed.

Each entry says why it is needed. All other files use what Ray documents.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ray._common.utils import get_default_ray_temp_dir
from ray._private import node, ray_constants, worker

from olmorl.deploy.control import signals

NOT_USED = ("start_api_server", "start_monitor", "start_log_monitor")
"""The dashboard, the autoscaler, and the copy of all logs on the terminal: methods of `node.Node`."""


def default_folder() -> Path:
    """Returns where Ray would keep its sockets and logs: `RAY_TMPDIR` and `TMPDIR` count, as Ray documents."""
    return Path(get_default_ray_temp_dir())


def private_start(folder: Path) -> dict[str, Any]:
    """Returns arguments of `ray.init`: no other host reaches this Ray, and no other user its folder.

    Only `ray start` has documented options for these two. It takes 10 to 15 s where `ray.init` takes 5 to 6.
    """
    return {"_node_ip_address": "127.0.0.1", "_temp_dir": str(folder)}


def daemons_start() -> bool:
    """Returns whether `ray.init` still starts its daemons, so that a signal may interrupt it."""
    return worker._global_node is None


@contextmanager
def only_needed_daemons() -> Iterator[None]:
    """Start no daemon that a run on one machine does not use: a third of Ray's start.

    With `include_dashboard=False` Ray still starts the dashboard's process, and waits for it.
    """
    with ExitStack() as stack:
        for start in NOT_USED:
            stack.enter_context(_replaced(node.Node, start, lambda *_, **__: None))
        yield


@contextmanager
def no_stack_of_a_signal() -> Iterator[None]:
    """Turn Ray's native handler off: it prints a stack for a SIGTERM while Ray starts.

    Ray's environment variable for this counts at its import alone, and all workers would inherit it.
    """
    with _replaced(ray_constants, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", True):
        yield


@contextmanager
def own_handlers() -> Iterator[None]:
    """Keep the launcher's handlers: `ray.init` sets a SIGTERM handler that ends the process with another exit code.

    Ray sets none outside of the main thread, but then that thread would be the driver's. To block the signal is not
    enough: another thread may get it.
    """
    set_handler = signal.signal

    def refuse(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number in signals.NAMES else set_handler(number, handler)

    with _replaced(signal, "signal", refuse):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
