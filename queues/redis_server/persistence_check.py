"""Checks that a Redis of your own keeps acknowledged writes."""

from __future__ import annotations

from collections.abc import Mapping

from olmorl.clock import SystemClock
from olmorl.config import QueueSettings
from olmorl.errors import ResourceError
from olmorl.queues.redis_server.connection import RedisConnection, connect

WANTED = {"appendonly": "yes", "maxmemory-policy": "noeviction"}


async def examine(url: str, environment: Mapping[str, str], settings: QueueSettings) -> str:
    """Check the server's persistence; returns its settings as text.

    Raises:
        ResourceError: it does not answer, forgets at a restart, or may evict what it holds.
    """
    link = await connect(url, SystemClock(), settings.connect_deadline_s, settings.outage_deadline_s, environment)
    try:
        found = {name: await _setting(link, name) for name in (*WANTED, "appendfsync")}
    finally:
        await link.close()
    for name, wanted in WANTED.items():
        if found[name] not in (wanted, None):
            raise ResourceError(
                f"queue.url: its {name} is {found[name]}, so it loses prompts and results: CONFIG SET {name} {wanted}, "
                "and the same in its redis.conf"
            )
    hidden = [name for name, value in found.items() if value is None]
    if hidden:
        return f"answers; it does not tell {', '.join(hidden)}: check them against docs/operate.md"
    return f"append-only file, fsync {found['appendfsync']}, no eviction"


async def _setting(link: RedisConnection, name: str) -> str | None:
    """A setting, or None when the service hides it."""
    from redis.exceptions import ResponseError

    try:
        reply = await link.command("reading Redis' settings", "CONFIG", "GET", name)
    except ResponseError:
        return None
    return reply[1].decode() if reply else None
