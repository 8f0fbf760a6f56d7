"""Each undocumented part of Ray that a run uses is still there. A test that fails here names what Ray changed."""

from __future__ import annotations

import inspect
import os
import signal
from pathlib import Path

import pytest
import ray
from ray._private import node, ray_constants, worker

from olmorl.deploy.cluster import compat
from olmorl.deploy.control import signals
from olmorl.deploy.control.signals import Interrupted

pytestmark = pytest.mark.doors


@pytest.mark.parametrize("name", compat.NOT_USED)
def test_ray_starts_the_daemon_in_a_method_of_its_own(name: str) -> None:
    before = inspect.getattr_static(node.Node, name)
    assert next(iter(inspect.signature(before).parameters)) == "self"
    calls = inspect.getsource(node.Node.start_head_processes) + inspect.getsource(node.Node.start_ray_processes)
    assert f"self.{name}(" in calls
    with compat.only_needed_daemons():
        assert getattr(node.Node, name)("a node", include_dashboard=False) is None
    assert inspect.getattr_static(node.Node, name) is before


def test_ray_has_its_switch_for_the_native_handler() -> None:
    assert ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER is False
    with compat.no_stack_of_a_signal():
        assert ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER is True
    assert ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER is False


def test_ray_notes_its_own_node_once_all_daemons_run() -> None:
    assert "_global_node = ray._private.node.Node(" in inspect.getsource(worker.init)
    assert compat.daemons_start() is (worker._global_node is None)


@pytest.mark.parametrize("name", compat.private_start(Path("folder")))
def test_the_argument_of_init_is_there(name: str) -> None:
    assert f'"{name}"' in inspect.getsource(worker.init)


def test_the_default_folder_follows_the_variables_that_ray_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/short")
    assert compat.default_folder() == Path("/short/ray")


def test_ray_still_sets_a_handler() -> None:
    """Without one, `own_handlers` would be superfluous."""
    assert "overwrite sigterm handler" in str(ray.init.__doc__)
    assert "set_sigterm_handler" in inspect.getsource(worker.init)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_library_does_not_get_its_own_handler_in(number: signal.Signals) -> None:
    with signals.raising():
        with compat.own_handlers():
            signal.signal(number, signal.SIG_DFL)
            other = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        signal.signal(signal.SIGUSR2, other)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), number)
        with pytest.raises(Interrupted):
            signals.check()
        signals._interrupts.number = None
