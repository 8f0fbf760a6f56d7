"""Holds the built-in deadlines, pauses and numbers of attempts. Callers read them when they need them."""

from typing import NamedTuple


class Deadlines(NamedTuple):
    """Seconds. `supervision.patience` multiplies them."""

    heartbeat_s: float = 8.0
    """Longest silence of a serving actor. Then the actor is ended, and other actors get its prompts."""
    answer_s: float = 30.0
    """Longest silence of a learner rank, the orchestrator, the embedded Redis, or an actor whose engine starts. Then
    the process is ended."""
    step_s: float = 3600.0
    """Longest learner step. A longer one counts as a hang of the learner."""
    checkpoint_s: float = 1800.0
    """Longest time to write a rank's share, and longest wait for room on a full disk. Then the run ends with the
    cause."""
    drain_s: float = 1800.0
    """Longest time for a drained actor to finish its groups. Then it returns them."""
    no_actor_s: float = 120.0
    """Longest time without a serving actor, or twice the start of an engine if that is longer. Then the run ends."""
    stop_s: float = 30.0
    """Longest time for all processes to end after the last checkpoint."""


BUILT_IN = Deadlines()
BETWEEN_HEARTBEATS_S = 1.0
"""Time between two heartbeats of an actor. With the least patience two fit into the longest silence."""
BETWEEN_LOOKS_S = 0.1
"""Time between two looks of an actor for a newer version."""
RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S = 1.0, 30.0
"""Pause before the second restart in a row. It doubles with each further restart, up to the longest one."""
MOST_RESTARTS = 5
"""Restarts of one process in a row without work in between. After the last one an actor is quarantined. If it was the
learner, the run ends."""
MAX_ATTEMPTS = 5
"""Attempts at one draw. After the last one the draw fails."""
TOTAL_DEADLINE_S = 48 * 3600.0
"""Time from the first lost attempt of a draw. If an attempt is lost after this time, the draw fails. The time starts
again for draws that a queue lost with its last writes. An attempt with the longest answers takes hours."""
