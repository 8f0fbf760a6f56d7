"""Turns stored entries of a queue into deliveries: pure functions that both adapters share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from olmorl.codec import decode
from olmorl.errors import QueueFull
from olmorl.messages import ActorStatus, Failure, Lease, Prompt, Result, Version

CONTROL_ORDERS = ("run", "pause", "drain")
_log = logging.getLogger(__name__)
_CAUSES = {
    "attempts": "its last attempt ended without a commit",
    "total_deadline": "an attempt was lost after the total deadline",
    "poison": "its prompt could not be decoded",
}


class Delivery(NamedTuple):
    """A prompt on its way to an actor, undecoded."""

    payload: bytes
    draw_id: int
    attempt: int
    """Counted outside the payload: an attempt does not encode the prompt again."""
    lease_id: str


class StoredResult(NamedTuple):
    """A result in the queue: an encoded `result`, or the `cause` why the queue gave the draw up."""

    draw_id: int
    attempt: int
    result: bytes | None
    cause: str = ""


def to_prompt(payload: bytes, draw_id: int, lane: str, attempt: int) -> Prompt:
    """Decode a prompt and label it with the attempt that starts. Raises ValueError when it is another draw's."""
    prompt: Prompt = decode(payload, Prompt)
    _check_whose(prompt, draw_id, lane)
    return prompt if prompt.attempt == attempt else msgspec.structs.replace(prompt, attempt=attempt)


def to_lease(delivery: Delivery, owner: str, deadline: float, lane: str) -> Lease:
    """Raises ValueError when the prompt cannot be decoded, or is another draw's."""
    prompt = to_prompt(delivery.payload, delivery.draw_id, lane, delivery.attempt)
    return Lease(prompt=prompt, lease_id=delivery.lease_id, owner=owner, deadline=deadline)


def to_result(stored: StoredResult, lane: str) -> Result:
    """Decode what an actor committed. Raises ValueError when it cannot be decoded, or answers another draw."""
    result: Result = decode(stored.result or b"", Result)
    _check_whose(result.prompt, stored.draw_id, lane)
    return result


def _check_whose(prompt: Prompt, draw_id: int, lane: str) -> None:
    if (prompt.draw_id, prompt.lane) != (draw_id, lane):
        raise ValueError(f"of draw {prompt.draw_id} of lane {prompt.lane}, in the place of draw {draw_id} of {lane}")


def to_failure(stored: StoredResult, prompt: bytes, lane: str, cause: str, detail: str = "") -> Failure:
    """The failure of a draw whose result the queue itself has to make."""
    try:
        whole = to_prompt(prompt, stored.draw_id, lane, stored.attempt)
    except ValueError:
        whole = _unreadable(stored, lane)
    return Failure(prompt=whole, cause=cause, detail=detail or _CAUSES[cause])


def _unreadable(stored: StoredResult, lane: str) -> Prompt:
    return Prompt(
        draw_id=stored.draw_id,
        lane=lane,
        attempt=stored.attempt,
        row="(a prompt that could not be decoded)",
        messages="",
        token_ids=np.array([], dtype=np.int32),
        datasets=(),
        ground_truths=(),
        group_size=0,
        min_version=Version(0, 0),
    )


def to_statuses(heartbeats: Mapping[str, bytes], stored: Mapping[str, int]) -> tuple[dict[str, ActorStatus], list[str]]:
    """Decode the last heartbeats of the actors; also returns the names whose heartbeat cannot be decoded.

    `stored` are the tokens that the queue has stored for each: it may have stored some since the heartbeat.
    """
    statuses, unread = {}, []
    for name, heartbeat in heartbeats.items():
        try:
            statuses[name] = _status(heartbeat, stored.get(name, 0))
        except ValueError as error:
            _log.warning("the heartbeat of %s is removed: %s", name, error)
            unread.append(name)
    return statuses, unread


@lru_cache(maxsize=4096)
def _status(heartbeat: bytes, stored: int) -> ActorStatus:
    """Heartbeats are read more often than they come."""
    status: ActorStatus = decode(heartbeat, ActorStatus)
    # A queue that lost its last writes knows less than the actor.
    return replace(status, tokens_stored=max(status.tokens_stored, stored))


def check_room(live: int, more: int, bound: int) -> None:
    """Raises QueueFull when `more` draws in addition to the `live` ones pass the bound."""
    if live + more > bound:
        raise QueueFull(f"{live} draws are live, {more} more would pass the bound of {bound}")


def check_order(order: str) -> None:
    """Raises ValueError for an unknown command."""
    if order not in CONTROL_ORDERS:
        raise ValueError(f"{order!r} is no command: use one of {', '.join(CONTROL_ORDERS)}")


def check_same_draw(lease: Lease, result: Result) -> None:
    """Check that a result answers the prompt of its lease. A failure is a bug of the caller."""
    assert result.prompt.draw_id == lease.prompt.draw_id, (result.prompt.draw_id, lease.prompt.draw_id)
    assert result.prompt.lane == lease.prompt.lane, (result.prompt.lane, lease.prompt.lane)
