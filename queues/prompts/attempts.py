"""Says how often a draw is tried. Both kinds of queue read it here."""

MAX_ATTEMPTS = 5
"""Attempts at one draw. After the last one the draw fails."""
TOTAL_DEADLINE_S = 48 * 3600.0
"""Time from the first lost attempt of a draw. If an attempt is lost after this time, the draw fails. The time starts
again for draws that a queue lost with its last writes. An attempt with the longest answers takes hours."""
