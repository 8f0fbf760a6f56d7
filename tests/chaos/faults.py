"""The faults: each strikes a run once, and knows by what one sees that it was noticed and that it is mended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP

import psutil

from tests.chaos.rig import Rig

Check = Callable[[], bool]


@dataclass
class Strike:
    """What one fault did."""

    victim: str
    noticed: Check | None
    """Whether the service knows; None where there is nothing for it to know."""
    mended: Check
    """Whether what was lost is there again."""
    ends_run: bool = False
    """The launcher is gone or will be: the run is resumed."""
    resume: Sequence[str] = ()
    """With these arguments beside `--resume`."""


Fault = Callable[[Rig, Random], Strike]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _always() -> bool:
    return True


def _replaced(rig: Rig, name: str, pid: int) -> Check:
    return lambda: rig.pids().get(name, pid) != pid


def _at_work_again(rig: Rig, actor: str, pid: int) -> Check:
    return lambda: _replaced(rig, actor, pid)() and rig.working().get(actor, pid) != pid


# --- actors and what belongs to them ----------------------------------------------------------------


def on_actor(number: signal.Signals) -> Fault:
    """The process of an actor."""

    def strike(rig: Rig, random: Random) -> Strike:
        name = random.choice(rig.named("actor"))
        pid = rig.pid(name)
        mended = _at_work_again(rig, name, pid)
        _send(pid, number)
        return Strike(name, lambda: rig.pids().get(name) != pid, mended)

    return strike


def on_all_actors(rig: Rig, random: Random) -> Strike:
    """Nobody is left to generate."""
    pids = {name: rig.pid(name) for name in rig.named("actor")}
    mended = [_at_work_again(rig, name, pid) for name, pid in pids.items()]
    for pid in pids.values():
        _send(pid, SIGKILL)
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
        _send(part.pid, number)
        return Strike(f"{words[0]} of {name}", lambda: rig.pids().get(name) != pid, mended)

    return strike


def on_helper(number: signal.Signals, *words: str) -> Fault:
    """A process that somebody else replaces without a word, such as a verifier."""

    def strike(rig: Rig, random: Random) -> Strike:
        victim = random.choice(rig.until(lambda: rig.programs(*words), f"a process named {words}"))
        before = {process.pid for process in rig.programs(*words)}
        _send(victim.pid, number)

        def gone() -> bool:
            return not psutil.pid_exists(victim.pid) or victim.status() == psutil.STATUS_ZOMBIE

        def another() -> bool:
            return gone() and any(process.pid not in before for process in rig.programs(*words))

        return Strike(f"{words[0]} {victim.pid}", gone, another)

    return strike


# --- the learner --------------------------------------------------------------------------------------


def on_learner(name: str, number: signal.Signals) -> Fault:
    """A rank, or the assembler: all ranks start again."""

    def strike(rig: Rig, random: Random) -> Strike:
        who = random.choice(rig.named("learner")) if name == "rank" else name
        rig.steps.look()
        pid, incarnation = rig.pid(who), rig.steps.seen[-1].line["incarnation"]
        _send(pid, number)

        def next_incarnation() -> bool:
            rig.steps.look()
            return rig.steps.seen[-1].line["incarnation"] > incarnation

        return Strike(who, lambda: rig.pids().get(who) != pid, next_incarnation)

    return strike


# --- Redis --------------------------------------------------------------------------------------------


def on_redis(name: str, number: signal.Signals) -> Fault:
    """The server itself, or the process that keeps it."""

    def strike(rig: Rig, random: Random) -> Strike:
        pid = rig.pid(name)
        said = rig.said()
        _send(pid, number)

        def noticed() -> bool:
            return rig.pids().get(name) != pid or "Redis" in rig.said()[len(said) :]

        return Strike(name, noticed, _replaced(rig, name, pid))

    return strike


def cut_connections(rig: Rig, random: Random) -> Strike:
    """Redis closes every connection that it has."""
    with rig.redis() as link:
        closed = link.execute_command("CLIENT", "KILL", "TYPE", "normal")
    return Strike(f"{closed} connections", None, _always)


def silence_redis(rig: Rig, random: Random) -> Strike:
    """Redis answers nobody for a while."""
    seconds = random.uniform(1.0, 4.0)
    with rig.redis() as link:
        link.execute_command("CLIENT", "PAUSE", int(seconds * 1000), "ALL")
    until = time.monotonic() + seconds
    return Strike(f"for {seconds:.1f} s", None, lambda: time.monotonic() > until)


_DAMAGE_PROMPT = """
for _, stream in ipairs({KEYS[2], KEYS[3]}) do
  for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', '-')) do
    local draw = entry[2][2]
    redis.call('HSET', KEYS[1], draw, ARGV[1])
    return draw
  end
end
return false
"""
_DAMAGE_RESULT = """
local entry = redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+', 'COUNT', 2)[2]
if not entry or entry[2][5] ~= 'result' then
  return false
end
redis.call('XDEL', KEYS[1], entry[1])
redis.call('XADD', KEYS[1], '*', 'draw', entry[2][2], 'attempt', entry[2][4], 'result', ARGV[1])
return entry[2][2]
"""


def _damage(rig: Rig, random: Random, script: str, keys: Sequence[str], *arguments: str | bytes) -> str:
    with rig.redis() as link:
        names = [rig.key(name) for name in keys]
        draw = rig.until(
            lambda: link.eval(script, len(names), *names, random.randbytes(40), *arguments),
            "a message to damage",
            every_s=0.001,
        )
    return str(int(draw))


def damage_prompt(rig: Rig, random: Random) -> Strike:
    """A prompt that was not begun, or is begun again, is no message any more; the actor of it dies too."""
    victim = on_actor(SIGKILL)(rig, random)
    draw = _damage(rig, random, _DAMAGE_PROMPT, ("prompts", "again", "fresh"))
    return Strike(f"draw {draw}, {victim.victim}", victim.noticed, victim.mended)


def damage_result(rig: Rig, random: Random) -> Strike:
    """A group that nobody has taken yet is no message any more."""
    pid = rig.pid("assembler")
    _send(pid, SIGSTOP)
    try:
        with rig.redis() as link:
            last = link.xinfo_stream(rig.key("results"))["last-generated-id"]
        # The first one after that may be on its way to the assembler already.
        draw = _damage(rig, random, _DAMAGE_RESULT, ["results"], last)
    finally:
        _send(pid, SIGCONT)

    def put_aside() -> bool:
        with rig.redis() as link:
            return any(entry[b"draw"] == draw.encode() for _, entry in link.xrange(rig.key("dead")))

    return Strike(f"draw {draw}", put_aside, put_aside)


# --- weights ------------------------------------------------------------------------------------------


def damage_weights(rig: Rig, random: Random) -> Strike:
    """Bytes of a published version change before all engines have it."""
    name = random.choice(rig.named("actor"))
    pid = rig.pid(name)
    _send(pid, SIGSTOP)
    try:
        before = set(rig.staged.rglob("*.weights"))
        file = rig.until(lambda: set(rig.staged.rglob("*.weights")) - before, "a new version", every_s=0.001).pop()
        with suppress(FileNotFoundError), file.open("r+b") as stream:
            stream.seek(random.randrange(max(1, file.stat().st_size)))
            stream.write(random.randbytes(8))
    finally:
        _send(pid, SIGCONT)
    return Strike(f"{file.name}, {name}", None, _always)


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
    _send(rig.pid("launcher"), SIGKILL)
    return Strike("launcher", lambda: not rig.alive, _always, ends_run=True, resume=_layout(rig, random))


def stop_launcher(rig: Rig, random: Random) -> Strike:
    """The supervisor sees nothing for a while; nobody is given up for that."""
    pid, seconds, others = rig.pid("launcher"), random.uniform(2.0, 6.0), rig.pids()
    _send(pid, SIGSTOP)
    threading.Timer(seconds, _send, (pid, SIGCONT)).start()
    until = time.monotonic() + seconds + 1.0
    return Strike(f"for {seconds:.1f} s", None, lambda: time.monotonic() > until and rig.pids() == others)


def kill_everything(rig: Rig, random: Random) -> Strike:
    """Every process of the run, as a power cut does."""
    _kill_all(rig)
    return Strike("everything", lambda: not rig.alive, _always, ends_run=True, resume=_layout(rig, random))


def kill_everything_while_it_saves(rig: Rig, random: Random) -> Strike:
    """Everything, in the middle of a checkpoint."""
    folder = rig.run.run_dir / "checkpoints"

    def unfinished() -> bool:
        return any(not (step / "complete").exists() for step in folder.glob("step_*"))

    rig.until(unfinished, "a checkpoint that is being written", every_s=0.001)
    _kill_all(rig)
    return Strike("everything", lambda: not rig.alive, _always, ends_run=True)


def lose_last_writes(rig: Rig, random: Random) -> Strike:
    """Everything, and Redis comes back without the end of its file, as after a power cut."""
    _kill_all(rig)
    rig.run.until_gone()
    file = rig.run.run_dir / "redis" / "appendonly.aof"
    lost = random.randrange(1, 1 << 17)
    os.truncate(file, max(0, file.stat().st_size - lost))
    return Strike(f"{lost:,} bytes", lambda: not rig.alive, _always, ends_run=True)


def on_ray(word: str) -> Fault:
    """One of Ray's own daemons: the run ends with the cause, and is resumed."""

    def strike(rig: Rig, random: Random) -> Strike:
        (daemon, *_) = rig.programs(word)
        _send(daemon.pid, SIGKILL)
        return Strike(word, lambda: not rig.alive, _always, ends_run=True)

    return strike


def _layout(rig: Rig, random: Random) -> Sequence[str]:
    return random.choice(_LAYOUTS) if rig.settings.run.mode == "simulated" else ()


def _kill_all(rig: Rig) -> None:
    for process in rig.run.processes():
        _send(process.pid, SIGKILL)


# --- the disk -------------------------------------------------------------------------------------------


def fill_disk(rig: Rig, random: Random) -> Strike:
    """No room for a while."""
    assert rig.disk is not None
    seconds = random.uniform(1.0, 6.0)
    rig.disk.fill()
    timer = threading.Timer(seconds, rig.disk.empty)
    timer.start()
    return Strike(f"for {seconds:.1f} s", None, lambda: not timer.is_alive())


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


def hang_disk(rig: Rig, random: Random) -> Strike:
    """No write comes back for a while."""
    assert rig.disk is not None
    seconds = random.uniform(1.0, 5.0)
    rig.disk.freeze()
    timer = threading.Timer(seconds, rig.disk.thaw)
    timer.start()
    return Strike(f"for {seconds:.1f} s", None, lambda: not timer.is_alive())


# --- which there are --------------------------------------------------------------------------------------

EVERYWHERE: dict[str, Fault] = {
    "SIGKILL actor": on_actor(SIGKILL),
    "SIGSTOP actor": on_actor(SIGSTOP),
    "SIGKILL all actors": on_all_actors,
    "SIGKILL learner rank": on_learner("rank", SIGKILL),
    "SIGSTOP learner rank": on_learner("rank", SIGSTOP),
    "SIGKILL assembler": on_learner("assembler", SIGKILL),
    "SIGSTOP assembler": on_learner("assembler", SIGSTOP),
    "SIGKILL redis-server": on_redis("redis-server", SIGKILL),
    "SIGSTOP redis-server": on_redis("redis-server", SIGSTOP),
    "SIGKILL host of Redis": on_redis("redis", SIGKILL),
    "Redis cuts connections": cut_connections,
    "Redis silent": silence_redis,
    "corrupt prompt": damage_prompt,
    "corrupt result": damage_result,
    "corrupt weights": damage_weights,
    "SIGKILL launcher": kill_launcher,
    "SIGSTOP launcher": stop_launcher,
    "SIGKILL everything": kill_everything,
    "SIGKILL everything in a checkpoint": kill_everything_while_it_saves,
    "power cut, last writes lost": lose_last_writes,
    "SIGKILL Ray's GCS": on_ray("gcs_server"),
    "SIGKILL Ray's raylet": on_ray("raylet/raylet"),
}
OF_REAL_ENGINES: dict[str, Fault] = {
    "SIGKILL engine core": on_part_of_actor(SIGKILL, "VLLM::EngineCore"),
    "SIGSTOP engine core": on_part_of_actor(SIGSTOP, "VLLM::EngineCore"),
    "SIGKILL engine worker": on_part_of_actor(SIGKILL, "VLLM::Worker"),
    "SIGSTOP engine worker": on_part_of_actor(SIGSTOP, "VLLM::Worker"),
    "SIGKILL verifier": on_helper(SIGKILL, "olmorl.verifiers.worker"),
    "SIGSTOP verifier": on_helper(SIGSTOP, "olmorl.verifiers.worker"),
}
OF_OWN_DISK: dict[str, Fault] = {
    "disk full": fill_disk,
    "disk slow": slow_disk,
    "disk hangs": hang_disk,
}
