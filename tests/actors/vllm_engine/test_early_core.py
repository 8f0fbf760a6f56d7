"""A process that was started early does the work of the next spawned one, and never stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
import setproctitle

from olmorl.actors.vllm_engine.compat import EarlyCore
from tests.waiting import lives

pytestmark = pytest.mark.doors
ROOT = Path(__file__).parents[3]
MODULE = "olmorl.keys"
OWNER = f"""
import time
from olmorl.actors.vllm_engine.compat import EarlyCore
print(EarlyCore(["{MODULE}"]).pid, flush=True)
time.sleep(300)
"""


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    return not lives(pid)


@pytest.fixture
def early() -> Iterator[EarlyCore]:
    found = EarlyCore([MODULE])
    yield found
    found.close()
    until(lambda: has_ended(found.pid))
    with suppress(ChildProcessError):  # the test waited for it
        os.waitpid(found.pid, 0)


def echo(number: int) -> None:
    sys.exit(number + (MODULE in sys.modules) + (os.environ["OLMORL_TEST"] == "late"))


def set_title() -> None:
    setproctitle.setproctitle("a title")
    sys.exit(psutil.Process().cmdline()[0] == "a title")


def sender_of(answer: Connection) -> None:
    answer.send(os.getpid())


def test_it_does_the_work_with_the_environment_of_that_moment(
    early: EarlyCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLMORL_TEST", "late")
    process = early.context().Process(target=echo, args=(40,), name="core")
    process.start()
    assert process.pid == early.pid
    process.join(60)
    assert process.exitcode == 42


def test_it_can_have_a_title(early: EarlyCore) -> None:
    process = early.context().Process(target=set_title)
    process.start()
    assert process.pid == early.pid
    process.join(60)
    assert process.exitcode == 1


def test_the_second_process_is_a_new_one(early: EarlyCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMORL_TEST", "late")
    spawned = early.context()
    first, second = (spawned.Process(target=echo, args=(number,)) for number in (1, 2))
    first.start()
    second.start()
    assert first.pid == early.pid != second.pid
    for process in (first, second):
        process.join(60)
    assert first.exitcode == 3


def test_work_of_a_process_that_has_died_goes_to_a_new_one(early: EarlyCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMORL_TEST", "early enough")
    psutil.Process(early.pid).kill()
    until(lambda: has_ended(early.pid))
    process = early.context().Process(target=echo, args=(5,))
    process.start()
    assert process.pid != early.pid
    process.join(60)
    assert process.exitcode in (5, 6)


def test_a_process_that_is_killed_at_work_is_seen(early: EarlyCore) -> None:
    process = early.context().Process(target=time.sleep, args=(300,))
    process.start()
    assert process.is_alive()
    process.kill()
    process.join(60)
    assert process.exitcode == -9


def test_work_that_inherits_a_file_descriptor_goes_to_a_new_one(early: EarlyCore) -> None:
    spawned = early.context()
    receiver, sender = spawned.Pipe(duplex=False)
    process = spawned.Process(target=sender_of, args=(sender,))
    process.start()
    assert process.pid != early.pid
    assert receiver.poll(60) and receiver.recv() == process.pid
    process.join(60)
    until(lambda: has_ended(early.pid))


def test_work_that_needs_another_preloaded_library_goes_to_a_new_one(
    early: EarlyCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLMORL_TEST", "late")
    monkeypatch.setenv("LD_PRELOAD", "")
    process = early.context().Process(target=echo, args=(5,))
    process.start()
    assert process.pid != early.pid
    process.join(60)
    assert process.exitcode in (6, 7)


def test_it_ends_with_its_owner() -> None:
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert not has_ended(pid)
    finally:
        owner.kill()
        owner.wait()
    until(lambda: has_ended(pid))
