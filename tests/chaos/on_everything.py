"""Faults of the launcher, of Ray, of the disk, and of all at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP

from tests.chaos.disk import Disk
from tests.chaos.rig import Rig
from tests.chaos.strike import Fault, Strike, always, send

# --- the launcher, Ray, everything ----------------------------------------------------------------------

_LAYOUTS = (
    (),
    (),
    ("--learner.ranks_per_node", "1"),
    ("--actors.engines_per_node", "3"),
    ("--actors.engines_per_node", "1"),
)


def kill_launcher(rig: Rig, random: Random) -> Strike:
    """The supervisor itself; the run is resumed, sometimes in another layout."""
    send(rig.pid("launcher"), SIGKILL)
    return Strike("launcher", lambda: not rig.alive, always, ends_run=True, resume=_layout(rig, random))


def stop_launcher(rig: Rig, random: Random) -> Strike:
    """The supervisor sees nothing for a while. It must not end a process for that."""
    pid, seconds, said = rig.pid("launcher"), random.uniform(2.0, 6.0), rig.said()
    send(pid, SIGSTOP)
    threading.Timer(seconds, send, (pid, SIGCONT)).start()
    until = time.monotonic() + seconds + 1.0

    def over() -> bool:
        accused = any(words in rig.said()[len(said) :] for words in ("no heartbeat", "no sign of life", "hang"))
        return time.monotonic() > until and not accused

    return Strike(f"for {seconds:.1f} s", None, over)


def kill_everything(rig: Rig, random: Random) -> Strike:
    """Every process of the run, as a power cut does."""
    _kill_all(rig)
    return Strike("everything", lambda: not rig.alive, always, ends_run=True, resume=_layout(rig, random))


def kill_everything_while_it_saves(rig: Rig, random: Random) -> Strike:
    """Everything, in the middle of a checkpoint."""
    folder = rig.run.run_dir / "checkpoints"

    def unfinished() -> bool:
        return any(not (step / "complete").exists() for step in folder.glob("step_*"))

    rig.until(unfinished, "a checkpoint that is being written", every_s=0.001)
    _kill_all(rig)
    return Strike("everything", lambda: not rig.alive, always, ends_run=True)


def lose_last_writes(rig: Rig, random: Random) -> Strike:
    """Everything, and Redis comes back without the end of its file, as after a power cut."""
    _kill_all(rig)
    rig.run.until_gone()
    files = (rig.run.run_dir / "redis").glob("appendonly*/*.incr.aof")
    file = max(files, key=lambda path: path.stat().st_mtime)
    lost = random.randrange(1, 1 << 17)
    os.truncate(file, max(0, file.stat().st_size - lost))
    return Strike(f"{lost:,} bytes", lambda: not rig.alive, always, ends_run=True)


def go_back(rig: Rig, random: Random) -> Strike:
    """Everything, and the resume goes back to a checkpoint that has steps after it."""
    folder = rig.run.run_dir / "checkpoints"

    def left_behind() -> list[int]:
        rig.steps.look()
        complete = sorted(int(marker.parent.name.partition("_")[2]) for marker in folder.glob("step_*/complete"))
        return [step for step in complete if step < rig.steps.seen[-1].line["step"]][-1:]

    (step,) = rig.until(left_behind, "a checkpoint with steps after it")
    _kill_all(rig)
    back = ("--from-step", str(step))
    return Strike(f"to step {step}", lambda: not rig.alive, always, ends_run=True, resume=back, back_to=step)


def on_ray(word: str) -> Fault:
    """One of Ray's own daemons: the run ends with the cause, and is resumed."""

    def strike(rig: Rig, random: Random) -> Strike:
        (daemon, *_) = rig.programs(word)
        send(daemon.pid, SIGKILL)
        return Strike(word, lambda: not rig.alive, always, ends_run=True)

    return strike


def _layout(rig: Rig, random: Random) -> Sequence[str]:
    return random.choice(_LAYOUTS) if rig.settings.run.mode == "simulated" else ()


def _kill_all(rig: Rig) -> None:
    for process in rig.run.processes():
        send(process.pid, SIGKILL)


# --- the disk -------------------------------------------------------------------------------------------


def disk_for_a_while(begin: Callable[[Disk], None], end: Callable[[Disk], None]) -> Fault:
    """The disk is of no use from `begin` to `end`."""

    def strike(rig: Rig, random: Random) -> Strike:
        assert rig.disk is not None
        seconds = random.uniform(1.0, 6.0)
        begin(rig.disk)
        timer = threading.Timer(seconds, end, (rig.disk,))
        timer.start()
        return Strike(f"for {seconds:.1f} s", None, lambda: not timer.is_alive())

    return strike


def slow_disk(rig: Rig, random: Random) -> Strike:
    """Every write takes up to half a second for a while."""
    assert rig.disk is not None
    disk, until = rig.disk, time.monotonic() + random.uniform(2.0, 6.0)
    pauses = [random.uniform(0.1, 0.5) for _ in range(60)]

    def work() -> None:
        for pause in pauses:
            if time.monotonic() > until:
                return
            disk.freeze()
            time.sleep(pause)
            disk.thaw()
            time.sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    return Strike("for some seconds", None, lambda: not thread.is_alive())
