"""The heartbeat of an actor, and the watch for an engine that stalls."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from msgspec.structs import replace

from olmorl.actors.leased_groups import LeasedGroup
from olmorl.actors.sequence_times import SequenceTimes
from olmorl.actors.weight_follower import WeightFollower
from olmorl.errors import DeadlinePassed
from olmorl.messages import ActorStatus, Completion, Version
from olmorl.model_cost import DevicePeak
from olmorl.ports import CommitOutcome, Engine, Scorer


@dataclass(slots=True)
class Totals:
    """Counts since the actor started; they never decrease."""

    completions: int = 0
    tokens_lost: int = 0
    """Tokens of finished completions whose result was not stored, and of episodes that were played again."""
    tokens_stored: int = 0
    """Tokens of finished completions whose result was stored."""
    verifier_s: float = 0.0
    late: int = 0
    duplicate: int = 0

    def verified(self, completion: Completion) -> None:
        """Count one completion with its verdicts."""
        self.completions += 1
        self.verifier_s += sum(verdict.seconds for verdict in completion.verdicts.values())

    def committed(self, outcome: CommitOutcome) -> None:
        """Count the queue's answer to one result."""
        self.late += outcome is CommitOutcome.LATE
        self.duplicate += outcome is CommitOutcome.DUPLICATE

    def ended(self, work: LeasedGroup) -> None:
        """Count the tokens of a group that is over."""
        self.tokens_lost += work.num_discarded
        if work.stored:
            self.tokens_stored += work.num_tokens
        else:
            self.tokens_lost += work.num_tokens


def of_process(name: str, at: float, state: str, metrics: str, damaged: Version | None) -> ActorStatus:
    """The heartbeat of an actor whose engine is not up yet."""
    host, pid = socket.gethostname(), os.getpid()
    return ActorStatus(name=name, at=at, state=state, host=host, pid=pid, metrics=metrics, damaged=damaged)


def with_engine(
    status: ActorStatus,
    engine: Engine,
    weights: WeightFollower,
    scorer: Scorer,
    totals: Totals,
    times: SequenceTimes,
    peak: DevicePeak,
    episodes: dict[str, float],
) -> ActorStatus:
    """The heartbeat `status` with the load of the engine and all totals.

    Args:
        peak: of all its devices together.
        episodes: `Player.counts`.
    """
    load, use, proof = engine.load(), engine.use(), weights.prover.proof
    return replace(
        status,
        version=engine.version,
        tokens_generated=engine.tokens_generated,
        tokens_wasted=totals.tokens_lost + engine.tokens_aborted,
        tokens_stored=totals.tokens_stored,
        completions=totals.completions,
        running=load.running,
        waiting=load.waiting,
        kv_used=load.kv_used,
        up_s=times.up_s,
        busy_s=use.busy_s,
        running_s=use.running_s,
        slots_s=times.slots_s,
        awaiting_weights_s=times.awaiting_weights_s,
        awaiting_verdicts_s=times.awaiting_verdicts_s,
        awaiting_group_s=times.awaiting_group_s,
        awaiting_environment_s=times.awaiting_environment_s,
        flops=use.flops,
        moved_bytes=use.num_bytes,
        peak_flops_per_s=peak.flops_per_s or 0.0,
        peak_bytes_per_s=peak.bytes_per_s or 0.0,
        updates=weights.updates,
        update_failures=weights.failures,
        stall_s_total=weights.stall_s_total,
        stall_s_max=weights.stall_s_max,
        proofs=proof.number,
        proof_diff_total=proof.difference_total,
        proof_diff_max=proof.difference_max,
        proof_s_total=proof.seconds_total,
        scored_s=use.scored_s,
        verifier_s_total=totals.verifier_s,
        verifiers=scorer.counts(),
        episodes=episodes,
        commits_late=totals.late,
        commits_duplicate=totals.duplicate,
    )


class StallWatch:
    """An engine that has sequences, or drains, and makes no token for `deadline_s` is an error."""

    def __init__(self, owner: str, deadline_s: float) -> None:
        self._owner = owner
        self._deadline_s = deadline_s
        self._tokens = -1
        self._since = 0.0

    def check(self, now: float, sequences: int, tokens_generated: int, *, draining: bool = False) -> None:
        """Look at the engine at time `now` (s).

        Raises:
            DeadlinePassed: it has had sequences, or has drained, and has made no token for the deadline.
        """
        if not (sequences or draining) or tokens_generated != self._tokens:
            self._tokens, self._since = tokens_generated, now
        elif now - self._since > self._deadline_s:
            raise DeadlinePassed(
                f"waited {self._deadline_s:g} s for a token from the engine of {self._owner}, "
                f"which has {sequences} sequences{' and drains' if draining else ''} (actors.stall_deadline_s)"
            )
