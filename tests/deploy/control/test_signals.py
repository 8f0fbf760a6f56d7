"""Signals that ask for a stop, those that come while something starts, and those that come while a run cleans up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from olmorl.deploy.control import signals
from olmorl.deploy.control.signals import Interrupted, Signals

ALL = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@ALL
def test_the_clean_up_is_not_cut_short_and_afterwards_signals_do_what_they_did(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        with signals.unheard():
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) is not signal.SIG_IGN, "what is started meanwhile would inherit it"
        assert heard == []
        os.kill(os.getpid(), number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


@ALL
def test_while_the_launcher_waits_a_signal_is_raised(number: signal.Signals) -> None:
    with pytest.raises(Interrupted) as raised, signals.raising():
        os.kill(os.getpid(), number)
    assert raised.value.exit_code == CODES[number]
    assert str(raised.value) == signals.NAMES[number]


@ALL
def test_what_is_being_started_is_finished_first(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with signals.held():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        done.append("it has started")
        with pytest.raises(Interrupted):
            signals.check()
        with pytest.raises(Interrupted), signals.raising():
            done.append("it waits")
    assert done == ["it has started"]
    name = signals.NAMES[number]
    assert capfd.readouterr().err == f"olmorl-launch: {name}: stopping; started processes end first\n"
    signals.check()  # the next run of this process was asked for nothing


@ALL
def test_what_can_be_ended_while_it_starts_is_not_waited_for(
    number: signal.Signals, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals._interrupts, "_installed", True)  # as in a launcher
    monkeypatch.setattr(signals._interrupts, "act", signals._interrupts.act)
    for can_be_ended in (True, False):
        done = []
        with signals.held():
            with suppress(Interrupted), signals.raising_while(lambda: can_be_ended):  # noqa: B023
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
                done.append("it has started")
            with pytest.raises(Interrupted):
                signals.check()
            os.kill(os.getpid(), number)  # what was begun is ended: nothing is raised any more
        assert bool(done) != can_be_ended
        said = capfd.readouterr().err
        assert said.count("\n") == (0 if can_be_ended else 1), said


@ALL
def test_what_has_not_begun_to_start_is_not_started_after_a_signal(number: signal.Signals) -> None:
    done = []
    with signals.held():
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted), signals.raising_while(lambda: True):
            done.append("it starts")
    assert done == []


@ALL
async def test_a_run_hears_the_first_signal_and_one_that_was_held(number: signal.Signals) -> None:
    with signals.held():
        os.kill(os.getpid(), number)
        asked = Signals()
        with asked.heard():
            assert asked.stop_asked.is_set()
            assert (asked.asked_by, asked.exit_code) == (signals.NAMES[number], 128 + number)
    asked = Signals()
    with asked.heard():
        assert not asked.stop_asked.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await asked.stop_asked.wait()


async def test_a_second_signal_cancels_the_run_and_one_that_follows_at_once_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("olmorl.deploy.control.signals.time.monotonic", lambda: now[0])
    asked, cancelled = Signals(), False
    with asked.heard():
        for at in (10.0, 10.5):
            now[0] = at
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        now[0] = 12.0
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled = True
    assert cancelled and asked.exit_code == 130, "the first one says what was asked"
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


@ALL
def test_before_anything_is_started_a_signal_ends_the_process_with_a_word(number: signal.Signals) -> None:
    code = (
        "import os, sys; from olmorl.deploy.control import signals; signals.install(); "
        "os.kill(os.getpid(), int(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(int(number))], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 128 + number
    word = f"olmorl-launch: {signals.NAMES[number]}: stopped before the run had begun\n"
    assert ended.stderr == ("" if number is signal.SIGHUP else word), "a terminal that is closed takes no word"


AFTER_HANGUP = """
import os, signal, sys
from olmorl.deploy.control import signals
from olmorl.deploy.control.signals import Interrupted

signals.install()
signals.begin()
try:
    os.kill(os.getpid(), signal.SIGHUP)
except Interrupted as asked:
    os.write(1, b"to a pipe that nobody reads")
    print(asked.exit_code, file=sys.stderr, flush=True)
else:
    print("goes on", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(("command", "said"), [([], "129\n"), (["nohup"], "goes on\n")])
def test_after_a_hangup_only_files_are_written_and_nohup_turns_it_off(
    tmp_path: Path, command: list[str], said: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with (tmp_path / "errors").open("w") as errors:
        subprocess.run(
            [*command, sys.executable, "-c", AFTER_HANGUP], check=True, stdout=writer, stderr=errors, timeout=60
        )
    os.close(writer)
    assert (tmp_path / "errors").read_text().endswith(said)


STALLED = """
import asyncio, sys
from pathlib import Path
from olmorl.deploy.control import signals

signals.install()

from olmorl.deploy.view.live_view import LiveView, Status

async def run():
    asked = signals.Signals()
    with asked.heard():
        Path(sys.argv[1]).touch()
        with LiveView("a run") as view:
            while not asked.stop_asked.is_set():
                view.show(Status(1, 9))
                await asyncio.sleep(0)
        view.say("stopped")

asyncio.run(run())
"""


def test_a_terminal_that_takes_nothing_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    full = os.open(os.ttyname(theirs), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    process = subprocess.Popen(
        [sys.executable, "-c", STALLED, str(tmp_path / "begun")],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        for descriptor in (ours, theirs, full):
            os.close(descriptor)
