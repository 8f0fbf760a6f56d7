"""Faults of single processes: killed, or stopped without a word."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from functools import partial
from random import Random
from signal import SIGKILL

import psutil

from tests.chaos.rig import Rig
from tests.chaos.strike import Check, Fault, Strike, always, given_up, replaced, send

_SETTLED_S = 3.0


def _at_work_again(rig: Rig, actor: str, pid: int) -> Check:
    return lambda: replaced(rig, actor, pid)() and rig.working().get(actor, pid) != pid


# --- actors and what belongs to them ----------------------------------------------------------------


def on_actor(number: signal.Signals) -> Fault:
    """The process of an actor with leased draws."""

    def strike(rig: Rig, random: Random) -> Strike:
        return _on_actor(rig, number, *random.choice(rig.until(partial(_busy, rig), "an actor with leased draws")))

    return strike


def on_starting_actor(number: signal.Signals) -> Fault:
    """The process of an actor that was killed a moment before, and comes back."""

    def strike(rig: Rig, random: Random) -> Strike:
        name, pid = random.choice(rig.until(partial(_busy, rig), "an actor with leased draws"))
        send(pid, SIGKILL)
        rig.until(replaced(rig, name, pid), f"another start of {name}")
        return _on_actor(rig, number, name, rig.pid(name))

    return strike


def _busy(rig: Rig) -> list[tuple[str, int]]:
    busy = rig.busy()
    return [(name, pid) for name, pid in rig.working().items() if busy.get(name) == pid]


def _on_actor(rig: Rig, number: signal.Signals, name: str, pid: int) -> Strike:
    mended = _at_work_again(rig, name, pid)
    send(pid, number)
    return Strike(name, given_up(rig, name, pid), mended)


def on_all_actors(number: signal.Signals) -> Fault:
    """No actor is left."""

    def strike(rig: Rig, random: Random) -> Strike:
        pids = {name: rig.pid(name) for name in rig.named("actor")}
        again = [_at_work_again(rig, name, pid) for name, pid in pids.items()]
        for pid in pids.values():
            send(pid, number)
        gone = [given_up(rig, name, pid) for name, pid in pids.items()]

        def noticed() -> bool:
            return all(check() for check in gone)

        # One whose engine was starting has longer than the others, which may be back before it is given up.
        return Strike(", ".join(pids), noticed, lambda: noticed() and any(check() for check in again))

    return strike


def kill_actors_for_ever(rig: Rig, random: Random) -> Strike:
    """No actor lives to do anything: the run ends by name."""
    launcher, before = rig.run.process, len(rig.said())
    assert launcher is not None

    def work() -> None:
        while launcher.poll() is None:
            for name, pid in rig.pids().items():
                if name.startswith("actor"):
                    send(pid, SIGKILL)
            time.sleep(0.1)

    threading.Thread(target=work).start()
    return Strike(
        "all", lambda: not rig.alive and "every actor is in quarantine" in rig.said()[before:], always, ends_run=True
    )


def _family(process: psutil.Process) -> set[int]:
    """The pids of its parents. Empty if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        return {parent.pid for parent in process.parents()}
    return set()


def on_part_of_actor(number: signal.Signals, *words: str) -> Fault:
    """A process of an engine with leased draws. Its actor cannot work without it."""

    def strike(rig: Rig, random: Random) -> Strike:
        def of_busy() -> list[tuple[psutil.Process, str, int]]:
            parts = [(part, _family(part)) for part in rig.programs(*words)]
            return [(part, name, pid) for name, pid in rig.busy().items() for part, family in parts if pid in family]

        part, name, pid = random.choice(rig.until(of_busy, f"a process named {words} of an actor with leased draws"))
        mended = _at_work_again(rig, name, pid)
        send(part.pid, number)
        return Strike(f"{words[0]} of {name}", given_up(rig, name, pid), mended)

    return strike


def on_environment(number: signal.Signals) -> Fault:
    """The process of an environment whose tool runs. The episode is played again by another one."""

    def strike(rig: Rig, random: Random) -> Strike:
        def waiting() -> list[psutil.Process]:
            with suppress(psutil.NoSuchProcess):
                return [parent for tool in rig.programs("olmorl-test-tool") if (parent := tool.parent()) is not None]
            return []

        victim = random.choice(rig.until(waiting, "an environment with a tool", every_s=0.001))
        send(victim.pid, number)
        return Strike(f"environment {victim.pid}", None, lambda: not victim.is_running())

    return strike


def on_helper(number: signal.Signals, word: str, stays: bool, settled_s: float = _SETTLED_S) -> Fault:
    """A process that its owner replaces silently: at once if one always `stays`, else at its next use."""

    def strike(rig: Rig, random: Random) -> Strike:
        def settled() -> list[psutil.Process]:
            # One that is only just there cannot yet die with its owner.
            return [process for process in rig.programs(word) if time.time() - process.create_time() > settled_s]

        victim = random.choice(rig.until(settled, f"a process named {word}"))
        before = {process.pid for process in rig.programs(word)}
        send(victim.pid, number)

        def gone() -> bool:
            try:
                return victim.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return True

        def another() -> bool:
            return gone() and any(process.pid not in before for process in rig.programs(word))

        # One that is idle is missed when it is needed next.
        return Strike(f"{word} {victim.pid}", *((gone, another) if stays else (None, always)))

    return strike


# --- the learner --------------------------------------------------------------------------------------


def on_learner(name: str, number: signal.Signals) -> Fault:
    """A rank, or the orchestrator: all ranks start again."""

    def strike(rig: Rig, random: Random) -> Strike:
        who = random.choice(rig.named("learner")) if name == "rank" else name
        rig.steps.look()
        pid, incarnation = rig.pid(who), rig.steps.seen[-1].line["incarnation"]
        send(pid, number)

        def next_incarnation() -> bool:
            rig.steps.look()
            return rig.steps.seen[-1].line["incarnation"] > incarnation

        return Strike(who, given_up(rig, who, pid), next_incarnation)

    return strike
