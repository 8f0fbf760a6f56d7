"""The queue on Redis: streams with a consumer group. One Lua script for each move of a draw. Keys: `lane.lua`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from olmorl import deadlines
from olmorl.clock import Clock
from olmorl.codec import encode
from olmorl.config import QueueSettings
from olmorl.errors import Superseded
from olmorl.messages import ActorStatus, Lease, Prompt, Result
from olmorl.ports import EVERYONE, CommitOutcome, Counts, DeadLetter, QueuePlace, Taken
from olmorl.queues.prompts import deliveries
from olmorl.queues.prompts.call_batcher import CallBatcher
from olmorl.queues.prompts.deliveries import Delivery, StoredResult
from olmorl.queues.redis_server.connection import BLOCK_S, RedisConnection, Reply, Script, connect

_LUA = Path(__file__).parent
_RUN_KEYS = ("claim", "lanes", "control", "stored")
_LANE_KEYS = ("prompts", "again", "fresh", "leases", "handed", "done", "results", "commits", "refused", "dead")
# A script blocks all other clients: 16 groups of 8 answers with 32,768 tokens are 34 MB, tens of milliseconds.
_COMMITS_TOGETHER = 16
_NAMES = (
    *("claim", "push", "lease", "extend", "give_back", "commit", "reject_prompt", "reject_result"),
    *("expire_leases", "release_dead_actor", "inventory", "counts", "trim", "withdraw"),
    *("forget_done", "drop_dead_letters", "flush", "queued"),
)


class _Commit(NamedTuple):
    lane: str
    lease_id: str
    draw_id: int
    token: str
    owner: str
    num_tokens: int
    result: bytes


class RedisQueue:
    """A draw is in exactly one place, even when processes die: every move between places is atomic in Redis.

    Args:
        link: the connection; shared by all calls.
        run: name of the run; the one hash tag of all its keys.
        settings: leases, attempts, deadlines.
        bound: live draws of a lane at most.
        clock: deadlines are its wall time, so the clocks of the hosts may differ by a small part of a lease.
    """

    def __init__(self, link: RedisConnection, run: str, settings: QueueSettings, bound: int, clock: Clock) -> None:
        self._link = link
        self._run = run
        self._settings = settings
        self._bound = bound
        self._clock = clock
        self._incarnation = 0
        self._token = secrets.token_hex(8)
        self._cursors: dict[str, bytes] = {}
        self._scripts = {name: Script.load(name, _LUA / "lane.lua", _LUA / f"{name}.lua") for name in _NAMES}
        self._commit = CallBatcher(self._send_commits, _COMMITS_TOGETHER)

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        settings: QueueSettings,
        bound: int,
        clock: Clock,
        environment: Mapping[str, str] | None = None,
    ) -> RedisQueue:
        """Connect to `url`. Raises ConfigError and ResourceError as `connection.connect` does."""
        link = await connect(url, clock, settings.connect_deadline_s, settings.outage_deadline_s, environment)
        return cls(link, run, settings, bound, clock)

    async def close(self) -> None:
        await self._link.close()

    async def epoch(self) -> str:
        """The id of this start of Redis; a replica that takes over has another one."""
        return (await self._link.info(f"identity of the Redis of run {self._run}", "server"))["run_id"]

    # --- the orchestrator's end of the prompts

    async def claim(self, incarnation: int) -> None:
        await self._call("claim", "", incarnation, self._token)
        self._incarnation = incarnation
        # A new dict: a read that has begun continues to write to the old one.
        self._cursors = {}

    async def push(self, prompts: Sequence[Prompt]) -> None:
        lanes: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            lanes.setdefault(prompt.lane, []).append(prompt)
        for lane, members in lanes.items():
            fields = [part for p in members for part in (p.draw_id, p.attempt, encode(p))]
            await self._call("push", lane, self._incarnation, self._bound, lane, *fields)

    async def expire(self) -> int:
        now = self._clock.wall()
        # Twice the outage deadline: no commit is sent again that late, even when the clocks of two hosts differ.
        sent_again_after = now - 2 * self._settings.outage_deadline_s
        return await self._end_leases("expire_leases", now, sent_again_after)

    async def release_dead_actor(self, owner: str) -> int:
        return await self._end_leases("release_dead_actor", self._clock.wall(), owner)

    async def forget_actor(self, owner: str) -> None:
        keys = (self._key("statuses"), self._key("stored"))
        await self._link.pipeline(f"heartbeat of {owner}", [("HDEL", key, owner) for key in keys])

    async def inventory(self, lane: str) -> dict[int, QueuePlace]:
        flat = await self._call("inventory", lane, self._incarnation)
        return {int(draw): QueuePlace(place.decode()) for draw, place in zip(flat[::2], flat[1::2], strict=True)}

    async def queued(self, lane: str) -> list[int]:
        return list(map(int, (await self._call("queued", lane, self._incarnation)).split()))

    async def withdraw(self, draw_ids: Iterable[int], lane: str) -> None:
        await self._call("withdraw", lane, self._incarnation, *draw_ids)

    async def forget_done(self, draw_ids: Iterable[int], lane: str) -> None:
        await self._call("forget_done", lane, self._incarnation, *draw_ids)

    async def flush(self, lane: str) -> None:
        await self._call("flush", lane, self._incarnation)

    # --- the actor's end

    async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
        give_up = self._clock.now() + wait_s
        while True:
            deadline, token = self._clock.wall() + self._settings.lease_s, secrets.token_hex(8)
            parcels, again, fresh = await self._call("lease", lane, owner, limit, deadline, token)
            leases = await self._decoded([_parcel(parts) for parts in parcels], owner, deadline, lane)
            if leases and self._clock.wall() >= deadline:  # the call was repeated through a long outage
                await self.give_back(leases)
                continue
            remaining = give_up - self._clock.now()
            if leases or remaining <= 0:
                return leases
            if not parcels:
                await self._wait_for_prompts(lane, again, fresh, remaining)

    async def extend(self, leases: Sequence[Lease]) -> set[str]:
        now, lost = self._clock.wall(), set[str]()
        for lane, members in _by_lane(leases).items():
            lost |= {
                name.decode() for name in await self._call("extend", lane, now, now + self._settings.lease_s, *members)
            }
        return lost

    async def give_back(self, leases: Sequence[Lease]) -> None:
        for lane, members in _by_lane(leases).items():
            await self._call("give_back", lane, *members)

    async def commit(self, lease: Lease, result: Result) -> CommitOutcome:
        deliveries.check_same_draw(lease, result)
        prompt = lease.prompt
        # One token for each call: a repeat after a lost answer gets the same answer; a second call is a duplicate.
        token = secrets.token_hex(8)
        parts = (prompt.lane, lease.lease_id, prompt.draw_id, token, lease.owner, result.num_tokens)
        return await self._commit(_Commit(*parts, encode(result)))

    async def heartbeat(self, status: ActorStatus) -> str:
        report = ("HSET", self._key("statuses"), status.name, encode(status))
        orders = ("HMGET", self._key("control"), status.name, EVERYONE)
        _, (own, everyone) = await self._link.pipeline(f"heartbeat of {status.name}", [report, orders])
        return (own or everyone or b"run").decode()

    # --- the orchestrator's end of the results

    async def take(self, limit: int, lane: str, wait_s: float) -> list[Taken]:
        # No consumer group here: the one reader keeps its own cursor, so a lost answer is read again.
        cursors, give_up = self._cursors, self._clock.now() + wait_s
        while True:
            entries = await self._read_results(limit, lane, cursors.get(lane, b"0"), give_up - self._clock.now())
            if entries or self._clock.now() >= give_up:
                break
        taken = [await self._taken(entry, _stored(_by_name(fields)), lane) for entry, fields in entries]
        if entries:
            cursors[lane] = entries[-1][0]
        return taken

    async def trim(self, taken: Sequence[Taken]) -> None:
        lanes: dict[str, list[str | int]] = {}
        for item in taken:
            lanes.setdefault(item.result.prompt.lane, []).extend((item.entry, item.draw_id))
        for lane, members in lanes.items():
            await self._call("trim", lane, self._incarnation, *members)

    async def counts(self, lane: str) -> Counts:
        return Counts(*await self._call("counts", lane))

    async def dead_letters(self, lane: str) -> list[DeadLetter]:
        entries = await self._link.command(f"dead letters of {lane}", "XRANGE", self._key(f"{lane}:dead"), "-", "+")
        found = [_by_name(fields) for _, fields in entries]
        return [DeadLetter(int(each[b"draw"]), each[b"reason"].decode(), each[b"payload"]) for each in found]

    async def drop_dead_letters(self, draw_ids: Iterable[int], lane: str) -> None:
        await self._call("drop_dead_letters", lane, self._incarnation, *draw_ids)

    async def statuses(self) -> dict[str, ActorStatus]:
        # A Redis that refuses writes refuses a ping too. Then no actor is silent, because none can write a heartbeat.
        commands = [("PING",), *(("HGETALL", self._key(name)) for name in ("statuses", "stored"))]
        _, found, counts = await self._link.pipeline("heartbeats of the actors", commands)
        heartbeats = {name.decode(): status for name, status in _by_name(found).items()}
        stored = {name.decode(): int(num_tokens) for name, num_tokens in _by_name(counts).items()}
        statuses, unread = deliveries.to_statuses(heartbeats, stored)
        if unread:
            await self._link.command("heartbeats that cannot be read", "HDEL", self._key("statuses"), *unread)
        return statuses

    async def set_control(self, owner: str, order: str) -> None:
        deliveries.check_order(order)
        key = self._key("control")
        # A command to all actors replaces earlier commands to single actors.
        forget = [("DEL", key)] if owner == EVERYONE else []
        await self._link.pipeline(f"command to {owner}", [*forget, ("HSET", key, owner, order)])

    # --- on the wire

    def _key(self, name: str) -> str:
        return f"olmorl:{{{self._run}}}:{name}"

    def _keys(self, lane: str) -> list[str]:
        return [*map(self._key, _RUN_KEYS), *(self._key(f"{lane}:{name}") for name in _LANE_KEYS)]

    async def _call(self, name: str, lane: str, *arguments: str | float | bytes) -> Reply:
        what = f"{name} of lane {lane} of run {self._run}" if lane else f"{name} of run {self._run}"
        return await self._link.script(what, self._scripts[name], self._keys(lane), arguments)

    async def _end_leases(self, name: str, now: float, *arguments: str | float) -> int:
        limits = (now, deadlines.MAX_ATTEMPTS, deadlines.TOTAL_DEADLINE_S)
        lanes = await self._link.command(f"lanes of run {self._run}", "SMEMBERS", self._key("lanes"))
        calls = [
            await self._call(name, lane.decode(), self._incarnation, *limits, *arguments) for lane in sorted(lanes)
        ]
        return sum(calls)

    async def _send_commits(self, commits: Sequence[_Commit]) -> list[CommitOutcome]:
        outcomes: dict[str, CommitOutcome] = {}
        for lane in {commit.lane for commit in commits}:
            members, now = [commit for commit in commits if commit.lane == lane], self._clock.wall()
            fields = [part for c in members for part in c[1:]]
            replies = await self._call("commit", lane, now, *fields)
            outcomes |= {c.token: CommitOutcome(reply.decode()) for c, reply in zip(members, replies, strict=True)}
        return [outcomes[commit.token] for commit in commits]

    async def _decoded(self, parcels: Iterable[Delivery], owner: str, deadline: float, lane: str) -> list[Lease]:
        leases = []
        for parcel in parcels:
            try:
                leases.append(deliveries.to_lease(parcel, owner, deadline, lane))
            except ValueError as error:
                await self._call("reject_prompt", lane, parcel.lease_id, str(error))
        return leases

    async def _wait_for_prompts(self, lane: str, again: bytes, fresh: bytes, wait_s: float) -> None:
        streams = (self._key(f"{lane}:again"), self._key(f"{lane}:fresh"))
        block_ms = max(1, int(1000 * min(wait_s, BLOCK_S)))
        command = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *streams, again, fresh)
        await self._link.command(f"prompts of lane {lane} of run {self._run}", *command)

    async def _read_results(
        self, limit: int, lane: str, cursor: bytes, wait_s: float
    ) -> list[tuple[bytes, list[bytes]]]:
        block = ("BLOCK", max(1, int(1000 * min(wait_s, BLOCK_S)))) if wait_s > 0 else ()
        read = ("XREAD", "COUNT", limit, *block, "STREAMS", self._key(f"{lane}:results"), cursor)
        owner = ("HGET", self._key("claim"), "incarnation")
        streams, incarnation = await self._link.pipeline(f"results of lane {lane} of run {self._run}", [read, owner])
        if int(incarnation or 0) > self._incarnation:
            raise Superseded(f"incarnation {self._incarnation} is superseded by incarnation {int(incarnation)}")
        return streams[0][1] if streams else []

    async def _taken(self, entry: bytes, stored: StoredResult, lane: str) -> Taken:
        if stored.result is None:
            result: Result = await self._failed(stored, lane, stored.cause)
        else:
            try:
                result = deliveries.to_result(stored, lane)
            except ValueError as error:
                await self._call("reject_result", lane, self._incarnation, entry, str(error))
                result = await self._failed(stored, lane, "poison", f"its result: {error}")
        return Taken(entry.decode(), stored.draw_id, result)

    async def _failed(self, stored: StoredResult, lane: str, cause: str, detail: str = "") -> Result:
        what = f"prompt of draw {stored.draw_id} of lane {lane}"
        payload = await self._link.command(what, "HGET", self._key(f"{lane}:prompts"), stored.draw_id)
        return deliveries.to_failure(stored, payload or b"", lane, cause, detail)


def _parcel(parts: tuple[bytes, int, bytes]) -> Delivery:
    lease, attempt, payload = parts
    return Delivery(payload, int(lease.split(b"/", 1)[0]), attempt, lease.decode())


def _by_name(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The fields of an entry of a stream, or of a hash: name, value, name, value, ..."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _stored(fields: dict[bytes, bytes]) -> StoredResult:
    cause = fields.get(b"cause", b"").decode()
    return StoredResult(int(fields[b"draw"]), int(fields[b"attempt"]), fields.get(b"result"), cause)


def _by_lane(leases: Sequence[Lease]) -> dict[str, list[str]]:
    lanes: dict[str, list[str]] = {}
    for lease in leases:
        lanes.setdefault(lease.prompt.lane, []).append(lease.lease_id)
    return lanes
