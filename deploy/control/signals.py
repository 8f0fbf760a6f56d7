"""SIGINT, SIGTERM and SIGHUP in the launcher, from its first line to its last.

while                           a signal
its modules are imported        ends the process at once (`install`)
the launcher checks or waits    is raised as `Interrupted` (`begin`, `raising`)
something is being started      waits until that can be ended (`held`, `raising_while`)
the run goes on                 asks for a stop; a second one ends the run at once (`Signals`)
the run cleans up               does nothing: the clean-up has deadlines (`unheard`)
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from olmorl.deploy.view import terminal

if TYPE_CHECKING:
    import asyncio

NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP (the terminal was closed)",
}
_ONE_SIGNAL_S = 1.0
"""A second signal within this time is the same one: a scheduler tells every process, and a script forwards it."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the launcher before the run went on; its text is the name of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(NAMES[signal.Signals(number)])
        self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
    """The exit code with which a shell reports a process that the signal ended: such as 143 for SIGTERM."""
    return 128 + number


class _Interrupts:
    """The signal that came, and the present reaction to signals. One object, because handlers belong to the process."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.act: Callable[[int], None] = _leave
        self._installed = False

    def install(self) -> None:
        self._installed = True
        for number in _heard():
            signal.signal(number, self._on_signal)

    def change(self, act: Callable[[int], None]) -> None:
        if self._installed:
            self.act = act

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            terminal.leave()
        else:
            terminal.write_without_waiting()
        first = self.number is None
        self.number = self.number or number
        if first or self.act is not _wait:
            self.act(number)

    @contextmanager
    def doing(self, act: Callable[[int], None]) -> Iterator[None]:
        act_before, self.act = self.act, act
        handlers = {number: signal.getsignal(number) for number in _heard()}
        for number in handlers:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            self.act = act_before
            for number, handler in handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)
            if self._on_signal not in handlers.values():
                self.number = None  # the signal was not meant for a later run in this process


def _leave(number: int) -> None:
    _write(f"{NAMES[signal.Signals(number)]}: stopped before the run had begun")
    os._exit(exit_code(number))


def _raise(number: int) -> None:
    raise Interrupted(number)


def _wait(number: int) -> None:
    _write(f"{NAMES[signal.Signals(number)]}: stopping; started processes end first")


def _ignore(_: int) -> None:
    pass


def _write(text: str) -> None:
    """Write without `print`, because the signal may have interrupted a `print`."""
    with suppress(OSError):  # a terminal that is gone
        os.write(2, f"olmorl-launch: {text}\n".encode())


def _heard() -> list[signal.Signals]:
    """The signals that this process handles: SIGHUP only if `nohup` has not turned it off."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in NAMES if number is not signal.SIGHUP or not is_ignored]


_interrupts = _Interrupts()


def install() -> None:
    """Handle signals from now on. Until `begin`, a signal ends this process."""
    _interrupts.install()
    sys.unraisablehook = _drop_lost_interrupt


def _drop_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Python cannot raise in a destructor, and reports it. `check` raises the signal afterwards."""
    if not isinstance(lost.exc_value, Interrupted):
        sys.__unraisablehook__(lost)


def begin() -> None:
    """From now on raise `Interrupted` for a signal, if `install` was called, so that open resources are closed."""
    _interrupts.change(_raise)


@contextmanager
def raising() -> Iterator[None]:
    """Raise `Interrupted` for a signal that comes inside, or that was held before."""
    with _interrupts.doing(_raise):
        check()
        yield
        check()  # an exception that is raised in a destructor is lost


@contextmanager
def held() -> Iterator[None]:
    """Only note a signal that comes inside. Afterwards the launcher ends, and ignores signals."""
    try:
        with _interrupts.doing(_wait):
            yield
    finally:
        _interrupts.change(_ignore)


@contextmanager
def raising_while(can_be_ended: Callable[[], bool]) -> Iterator[None]:
    """Within `held`: raise `Interrupted` for a signal that was held before, or comes while what starts can be ended."""

    def act(number: int) -> None:
        if can_be_ended():
            _raise(number)
        _interrupts.change(_wait)
        _wait(number)

    before = _interrupts.act
    _interrupts.change(act)
    try:
        check()
        yield
    finally:
        _interrupts.change(before)


@contextmanager
def unheard() -> Iterator[None]:
    """Ignore a signal that comes inside, without SIG_IGN, which child processes would inherit."""
    with _interrupts.doing(_ignore):
        yield


def check() -> None:
    """Raise `Interrupted` for a signal that was held."""
    if _interrupts.number is not None:
        raise Interrupted(_interrupts.number)


class Signals:
    """The stop that people ask of a running service."""

    def __init__(self) -> None:
        import asyncio  # imported here, because `install` must not wait for it

        self.stop_asked = asyncio.Event()
        self.number: int | None = None
        """The first signal, if there was one."""
        self._count, self._last_at = 0, -math.inf

    @property
    def asked_by(self) -> str:
        """The origin of the stop, for messages."""
        return "a stop was asked for" if self.number is None else NAMES[signal.Signals(self.number)]

    @property
    def exit_code(self) -> int:
        """The exit code of a run that stopped without a checkpoint."""
        return 1 if self.number is None else exit_code(self.number)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle signals in the task of the run: a second one cancels the task. A signal that was held counts."""
        import asyncio

        loop, run = asyncio.get_running_loop(), asyncio.current_task()
        assert run is not None

        def act(number: int) -> None:
            loop.call_soon_threadsafe(self._note, number, run)

        with _interrupts.doing(act):
            if _interrupts.number is not None:
                self._note(_interrupts.number, run)
            yield

    def _note(self, number: int, run: asyncio.Task[Any]) -> None:
        since, self._last_at = self._last_at, time.monotonic()
        if self._last_at - since < _ONE_SIGNAL_S:
            return
        self._count += 1
        self.number = self.number or number
        self.stop_asked.set()
        if self._count == 2:
            run.cancel()
