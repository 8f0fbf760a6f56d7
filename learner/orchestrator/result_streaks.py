"""Counts results in a row that cannot train, and ends the run after too many."""

from __future__ import annotations

from olmorl.errors import NothingToLearn, RunEnded

MOST_UNSCORABLE = 48
"""Unscorable groups in a row that end the run: no verifier or function works, and the next group would fail too."""
_DOWN = "_down"
"""Suffix of causes that name an external service without an answer. It may come back."""


class ResultStreaks:
    """`check` ends the run after too many failed draws, unscorable groups or groups without a gradient in a row."""

    def __init__(self, limit: int) -> None:
        """`limit` is `schedule.max_useless_groups`."""
        self._limit = limit
        self._without_gradient = 0
        self._unscorable = 0
        self._last_failure = ""
        self.failed = 0
        """Draws that failed since the last scored group."""

    @property
    def failures(self) -> str:
        """The draws that failed since the last scored group, in words; empty without any."""
        return (
            f"{self.failed} prompt(s) in a row gave no scored group, the last: {self._last_failure}"
            if self.failed
            else ""
        )

    def scored(self, *, has_gradient: bool) -> None:
        """Note a group with rewards."""
        self.failed = self._unscorable = 0
        self._without_gradient = 0 if has_gradient else self._without_gradient + 1

    def failure(self, row: str, cause: str, detail: str) -> None:
        """Note a draw of a data row that gave no scored group."""
        self.failed += 1
        if cause == "unscorable":
            is_down = detail.partition(":")[0].endswith(_DOWN)
            self._unscorable = 0 if is_down else self._unscorable + 1
        self._last_failure = f"{row}: {cause}" + (f": {detail}" if detail else "")

    def check(self) -> None:
        """Check all streaks.
        Raises:
            NothingToLearn: too many groups in a row without a gradient.
            RunEnded: too many draws in a row failed.
        """
        if self._without_gradient >= self._limit:
            raise NothingToLearn(
                f"{self._without_gradient} groups in a row had equal rewards in all their completions: every prompt is "
                "solved, or none is, or functions reward fewer than two completions of a group "
                "(schedule.max_useless_groups); see rollouts/ for the verdicts"
            )
        if self._unscorable >= min(self._limit, MOST_UNSCORABLE):
            raise RunEnded(f"{self.failures}: correct the verifier, the function or the data, then --resume")
        if self.failed >= self._limit:
            raise RunEnded(f"{self.failures} (schedule.max_useless_groups)")
