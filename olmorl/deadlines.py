"""Holds the built-in deadlines and pauses of the service, in seconds. `supervision.patience` multiplies the deadlines.

Callers read them as `deadlines.NAME` when they need them, so a test can shorten one in this file alone.
"""

HEARTBEAT_S = 8.0
"""Longest silence of a serving actor. Then the actor is ended, and other actors get its prompts."""
ANSWER_S = 30.0
"""Longest silence of a learner rank, the orchestrator, the embedded Redis, or an actor whose engine starts. Then the
process is ended."""
STEP_S = 3600.0
"""Longest learner step. A longer one counts as a hang of the learner."""
CHECKPOINT_S = 1800.0
"""Longest time to write a rank's share, and longest wait for room on a full disk. Then the run ends with the cause."""
DRAIN_S = 1800.0
"""Longest time for a drained actor to finish its groups. Then it returns them."""
NO_ACTOR_S = 120.0
"""Longest time without a serving actor, or twice the start of an engine if that is longer. Then the run ends."""
STOP_S = 30.0
"""Longest time for all processes to end after the last checkpoint."""

BETWEEN_HEARTBEATS_S = 1.0
"""Time between two heartbeats of an actor. With the least patience two fit into the longest silence."""
BETWEEN_LOOKS_S = 0.1
"""Time between two looks of an actor for a newer version."""
RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S = 1.0, 30.0
"""Pause before the second restart in a row. It doubles with each further restart, up to the longest one."""
