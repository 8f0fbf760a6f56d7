"""Faults of single processes: killed, or stopped without a word."""

from __future__ import annotations

import signal
from random import Random
from signal import SIGKILL

import psutil

from tests.chaos.rig import Rig
from tests.chaos.strike import Check, Fault, Strike, replaced, send


def _at_work_again(rig: Rig, actor: str, pid: int) -> Check:
    return lambda: replaced(rig, actor, pid)() and rig.working().get(actor, pid) != pid


# --- actors and what belongs to them ----------------------------------------------------------------


def on_actor(number: signal.Signals) -> Fault:
    """The process of an actor."""

    def strike(rig: Rig, random: Random) -> Strike:
        name = random.choice(rig.named("actor"))
        pid = rig.pid(name)
        mended = _at_work_again(rig, name, pid)
        send(pid, number)
        return Strike(name, lambda: rig.pids().get(name) != pid, mended)

    return strike


def on_all_actors(rig: Rig, random: Random) -> Strike:
    """Nobody is left to generate."""
    pids = {name: rig.pid(name) for name in rig.named("actor")}
    mended = [_at_work_again(rig, name, pid) for name, pid in pids.items()]
    for pid in pids.values():
        send(pid, SIGKILL)
    return Strike(
        ", ".join(pids), lambda: all(rig.pids().get(n) != p for n, p in pids.items()), lambda: any(m() for m in mended)
    )


def on_part_of_actor(number: signal.Signals, *words: str) -> Fault:
    """A process that belongs to an engine, without which its actor is of no use."""

    def strike(rig: Rig, random: Random) -> Strike:
        part = random.choice(rig.until(lambda: rig.programs(*words), f"a process named {words}"))
        family = {parent.pid for parent in part.parents()}
        name, pid = next((name, pid) for name, pid in rig.pids().items() if pid in family)
        mended = _at_work_again(rig, name, pid)
        send(part.pid, number)
        return Strike(f"{words[0]} of {name}", lambda: rig.pids().get(name) != pid, mended)

    return strike


def on_helper(number: signal.Signals, word: str, stays: bool) -> Fault:
    """A process that somebody else replaces without a word: at once if one always `stays`, else when it is needed."""

    def strike(rig: Rig, random: Random) -> Strike:
        victim = random.choice(rig.until(lambda: rig.programs(word), f"a process named {word}"))
        before = {process.pid for process in rig.programs(word)}
        send(victim.pid, number)

        def gone() -> bool:
            return not psutil.pid_exists(victim.pid) or victim.status() == psutil.STATUS_ZOMBIE

        def another() -> bool:
            return gone() and any(process.pid not in before for process in rig.programs(word))

        return Strike(f"{word} {victim.pid}", gone, another if stays else gone)

    return strike


# --- the learner --------------------------------------------------------------------------------------


def on_learner(name: str, number: signal.Signals) -> Fault:
    """A rank, or the assembler: all ranks start again."""

    def strike(rig: Rig, random: Random) -> Strike:
        who = random.choice(rig.named("learner")) if name == "rank" else name
        rig.steps.look()
        pid, incarnation = rig.pid(who), rig.steps.seen[-1].line["incarnation"]
        send(pid, number)

        def next_incarnation() -> bool:
            rig.steps.look()
            return rig.steps.seen[-1].line["incarnation"] > incarnation

        return Strike(who, lambda: rig.pids().get(who) != pid, next_incarnation)

    return strike
