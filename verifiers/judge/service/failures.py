"""The failures of a call to a model. A failure never becomes a reward."""

from __future__ import annotations


class Rejected(Exception):
    """The service works and refuses this request."""


class UnreadableReply(Exception):
    """The model replied without a score."""


class Unavailable(Exception):
    """There is no usable reply, because the service is down, busy, or not set up."""

    def __init__(self, detail: str, asked_s: float = 0.0, busy: bool = False) -> None:
        super().__init__(detail)
        self.asked_s = asked_s
        """The pause in seconds that the service asked for."""
        self.busy = busy
        """Whether the service has too many requests. Then this request is not at fault."""
