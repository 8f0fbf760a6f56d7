"""Every error OlmoRL raises on purpose.

OlmoRLError
├── UserError            the message speaks to the person at the keyboard and contains the fix (exit code 2, not 1)
│   ├── ConfigError          a recipe key, value or command line
│   ├── DataError            a data file, line or column
│   ├── ModelError           a model folder or tokenizer
│   ├── RewardFunctionError  a user function that does not import or has the wrong shape
│   └── ResourceError        a cluster, port, Redis or disk that is not there
│       └── DiskFull             there may be room later, and then the same write succeeds
├── RunEnded             the run cannot go on, with its named cause
│   ├── NothingToLearn       too many groups in a row without a gradient
│   ├── Diverged             a gradient that is not finite
│   ├── HostLost             the host that others know by its address is gone; the run may start again elsewhere
│   ├── ProcessLost          a process died, hangs, or failed in a way that has no name here; another may be started
│   └── DeadlinePassed       a wait gave up: what it waited for and who owned it
├── QueueError
│   ├── QueueFull            a bound was reached
│   ├── QueueUnavailable     the back end did not answer until the deadline
│   └── Superseded           a newer incarnation owns the run
├── EngineDied           an engine's processes are gone, or hold half a version; its actor must be replaced
├── WeightError          weights that are missing, corrupt, or do not fit the model
│   └── WeightsDamaged       what lies there is not what was published
└── Unscorable           a completion or group that no verifier could score; never a reward of 0
"""

from __future__ import annotations


class OlmoRLError(Exception):
    """Base of all errors that OlmoRL raises on purpose."""

    exit_code = 1


class UserError(OlmoRLError, ValueError):
    """Something the user can mend; the message says how."""

    exit_code = 2


class ConfigError(UserError):
    """A recipe or command line that cannot be used."""


class DataError(UserError):
    """A data file or row that cannot be used: names file, line and reason."""


class ModelError(UserError):
    """A model folder or tokenizer that cannot be used."""


class RewardFunctionError(UserError):
    """A user reward function that does not import or does not keep its contract."""


class ResourceError(UserError):
    """A resource that is not there: nodes, GPUs, Redis, ports, disk."""


class DiskFull(ResourceError):
    """A disk, or a share of it, that is full. Nothing of what was to be written is there."""


class RunEnded(OlmoRLError, RuntimeError):
    """The run cannot go on; the message names the cause."""


class NothingToLearn(RunEnded):
    """Too many groups in a row had equal rewards: everything is solved, or nothing is."""


class Diverged(RunEnded):
    """The gradient of a step is not finite. Nothing of that step was published or saved."""


class HostLost(RunEnded):
    """The host that all others know by its address is gone: all of the run has to start again, elsewhere."""


class ProcessLost(RunEnded):
    """A process died, gave no sign of life, or failed in a way that has no name here: another start may help."""


class DeadlinePassed(RunEnded):
    """A wait gave up. The message names what was waited for and who owns it."""


class QueueError(OlmoRLError, RuntimeError):
    """Base of the errors of the queues."""


class QueueFull(QueueError):
    """A bounded queue is at its bound; the in-flight budget should have prevented this."""


class QueueUnavailable(QueueError):
    """The back end of the queue did not answer until the deadline."""


class Superseded(QueueError):
    """A newer incarnation of the learner has taken the run over; this one must stop."""


class WeightError(OlmoRLError, RuntimeError):
    """Weights that are missing, corrupt, or do not fit the model."""


class WeightsDamaged(WeightError):
    """What lies there is not what was published. Another try may fetch it whole, unless its source is damaged."""


class EngineDied(OlmoRLError, RuntimeError):
    """An engine's processes are gone, or hold half a version. Its requests are lost; its actor must be replaced."""


class Unscorable(OlmoRLError, RuntimeError):
    """No verdict could be reached (an outage, an unusable label). Never a reward of 0.

    Args:
        error_kind: a short stable word for metrics and rollouts, e.g. ``"function_raised"``.
        detail: one line for a person.
    """

    def __init__(self, error_kind: str, detail: str) -> None:
        super().__init__(f"{error_kind}: {detail}")
        self.error_kind = error_kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[Unscorable], tuple[str, str]]:
        return type(self), (self.error_kind, self.detail)


def first_cause(error: BaseException) -> BaseException:
    """The first plain error in nested groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
