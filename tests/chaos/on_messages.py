"""Faults of Redis, of its data, and of weights."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from redis import Redis

from tests.chaos.on_processes import on_actor
from tests.chaos.rig import Rig
from tests.chaos.strike import Fault, Strike, always, given_up, replaced, send

REFUSAL = "weights not applied"
_STOPPED_S, _BETWEEN_STOPS_S = 3.0, 2.0
_LOSS = "restarted: [1-9][0-9]* draws were lost"

# --- Redis --------------------------------------------------------------------------------------------


def on_redis(name: str, number: signal.Signals) -> Fault:
    """The server itself, or the process that keeps it."""

    def strike(rig: Rig, random: Random) -> Strike:
        pid = rig.pid(name)
        said, losses = rig.said(), rig.logged("orchestrator", _LOSS)
        send(pid, number)

        def noticed() -> bool:
            return rig.pids().get(name) != pid or "Redis" in rig.said()[len(said) :]

        def nothing_lost() -> bool:
            """Redis has lost draws that it had acknowledged."""
            return rig.logged("orchestrator", _LOSS) == losses

        return Strike(name, noticed, replaced(rig, name, pid), kept=nothing_lost)

    return strike


def cut_connections(rig: Rig, random: Random) -> Strike:
    """Redis closes every connection that it has."""
    with rig.redis() as link:
        closed = link.execute_command("CLIENT", "KILL", "TYPE", "normal")
    return Strike(f"{closed} connections", None, always)


def silence_redis(rig: Rig, random: Random) -> Strike:
    """Redis answers no client for a while."""
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
local function ms_of(entry)
  return tonumber(string.match(entry[1], '%d+'))
end

local first
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+')) do
  first = first or entry
  if ms_of(entry) > ms_of(first) + 100 and entry[2][5] == 'result' then
    redis.call('XDEL', KEYS[1], entry[1])
    redis.call('XADD', KEYS[1], '*', 'draw', entry[2][2], 'attempt', entry[2][4], 'result', ARGV[1])
    return entry[2][2]
  end
end
return false
"""


def _damaged(link: Redis, rig: Rig, random: Random, script: str, keys: Sequence[str], *arguments: bytes) -> Any:
    """Damage a message; returns its draw, or false if there was no message."""
    names = [rig.key(name) for name in keys]
    return link.eval(script, len(names), *names, random.randbytes(40), *arguments)


def damage_prompt(rig: Rig, random: Random) -> Strike:
    """A queued prompt becomes unreadable, and its actor dies too."""
    victim = on_actor(SIGKILL)(rig, random)
    keys = ("prompts", "again", "fresh")
    with rig.redis() as link:
        draw = rig.until(lambda: _damaged(link, rig, random, _DAMAGE_PROMPT, keys), "a prompt to damage", every_s=0.001)
    # Another actor may have begun it before, and end it well.
    return Strike(f"draw {int(draw)}, {victim.victim}", victim.noticed, victim.mended)


def damage_result(rig: Rig, random: Random) -> Strike:
    """A group that was not taken yet becomes unreadable."""
    with rig.redis() as link:
        draw = int(
            rig.until(lambda: _damaged_unread(rig, random, link), "a result to damage", every_s=_BETWEEN_STOPS_S)
        )

    def put_aside() -> bool:
        with rig.redis() as link:
            return any(int(entry[b"draw"]) == draw for _, entry in link.xrange(rig.key("dead")))

    return Strike(f"draw {draw}", put_aside, put_aside)


def _damaged_unread(rig: Rig, random: Random, link: Redis) -> Any:
    """Stops the orchestrator meanwhile, too briefly to count as dead: a new one would read all results."""
    pid, until = rig.pid("orchestrator"), time.monotonic() + _STOPPED_S
    send(pid, SIGSTOP)
    try:
        # The first ones after the last, committed together, may be on their way to the orchestrator already.
        last = link.xinfo_stream(rig.key("results"))["last-generated-id"]
        while not (draw := _damaged(link, rig, random, _DAMAGE_RESULT, ["results"], last)):
            if time.monotonic() > until:
                return None
            time.sleep(0.001)
        return draw
    finally:
        send(pid, SIGCONT)


# --- weights ------------------------------------------------------------------------------------------


def damage_weights(rig: Rig, random: Random) -> Strike:
    """Bytes of a published version change before an actor fetches it. The learner publishes no other one meanwhile."""
    name = random.choice(rig.named("actor"))
    refusals = rig.logged(name, REFUSAL)

    def refused() -> bool:
        return rig.logged(name, REFUSAL) > refusals

    stopped = [rig.pid(who) for who in (name, *rig.named("learner"))]
    actor, *ranks = stopped
    send(actor, SIGSTOP)
    try:
        before = set(rig.staged.rglob("*.weights"))
        file = rig.until(lambda: set(rig.staged.rglob("*.weights")) - before, "a new version", every_s=0.001).pop()
        for rank in ranks:
            send(rank, SIGSTOP)
        flip_bit(file, random)
        send(actor, SIGCONT)
        rig.until(lambda: refused() or given_up(rig, name, actor)(), f"{name} refuses {file.name}")
    finally:
        for pid in stopped:
            send(pid, SIGCONT)
    # If it was stopped for too long, another actor starts with the newest version.
    return Strike(f"{file.name}, {name}", refused if refused() else None, always)


def flip_bit(file: Path, random: Random) -> None:
    """Change one bit of a file."""
    with file.open("r+b") as stream:
        stream.seek(random.randrange(file.stat().st_size))
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ (1 << random.randrange(8))]))
