"""Every error that OlmoRL raises on purpose.

OlmoRLError
├── UserError            the user can fix it; the message says how (exit code 2, not 1)
│   ├── ConfigError          a recipe key, value or command line
│   ├── DataError            a data file, line or column
│   ├── ModelError           a model folder or tokenizer
│   ├── RewardFunctionError  a user function that cannot be imported or has the wrong signature
│   ├── StartError           an engine or a learner rank that cannot be built; another start would fail too
│   └── ResourceError        a cluster, port, Redis or disk that is not available
│       └── DiskFull             the disk is full; the same write succeeds once there is room
├── RunEnded             the run cannot go on; the message names the cause
│   ├── NothingToLearn       too many groups in a row without a gradient
│   ├── Diverged             a gradient that is not finite
│   ├── HostLost             the host whose address the other processes use is gone; start the run on another host
│   ├── ProcessLost          a process died, hangs, or failed for an unknown reason; another start may help
│   └── DeadlinePassed       a wait took too long; the message names the wait and its owner
├── QueueError
│   ├── QueueFull            a bound was reached
│   ├── QueueUnavailable     the back end did not answer before the deadline
│   └── Superseded           a newer incarnation owns the run
├── EngineDied           an engine's processes are gone, or have half a version; the actor must be replaced
│   └── WeightsUnproven      the engine does not compute what the learner trained
├── PromptRefused        an engine can never answer this prompt; its draw fails, and the engine continues
├── WeightError          weights that are missing, corrupt, or do not fit the model
│   └── WeightsDamaged       the stored bytes differ from the published ones
├── EnvironmentFailed    an environment gave no answer that the policy could have caused; its episode is played again
└── Unscorable           a completion or group that no verifier could score; never a reward of 0
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from olmorl.printable import printable


class OlmoRLError(Exception):
    """Base of all errors that OlmoRL raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(OlmoRLError, ValueError):
    """An error that the user can fix; the message says how."""

    exit_code = 2


class ConfigError(UserError):
    """A recipe or command line that cannot be used."""


class DataError(UserError):
    """A data file or row that cannot be used. The message names file, line and reason."""


class ModelError(UserError):
    """A model folder or tokenizer that cannot be used."""


class RewardFunctionError(UserError):
    """A user reward function that cannot be imported or breaks its contract."""


class StartError(UserError):
    """An engine or a learner rank that cannot be built from the recipe. Another start would fail too."""


class ResourceError(UserError):
    """A resource that is not available: nodes, GPUs, Redis, ports, disk."""


class DiskFull(ResourceError):
    """A disk or a quota is full. Nothing was written."""


class RunEnded(OlmoRLError, RuntimeError):
    """The run cannot go on; the message names the cause."""


class NothingToLearn(RunEnded):
    """Too many groups in a row had equal rewards: all problems are solved, or none is."""


class Diverged(RunEnded):
    """The gradient of a step is not finite. The step was neither published nor saved."""


class HostLost(RunEnded):
    """The host whose address all processes use is gone. The whole run must start again on another host."""


class ProcessLost(RunEnded):
    """A process died, stopped answering, or failed for an unknown reason. Another start may help."""


class DeadlinePassed(RunEnded):
    """A wait took too long. The message names the wait and its owner."""


class QueueError(OlmoRLError, RuntimeError):
    """Base of the errors of the queues."""


class QueueFull(QueueError):
    """A bounded queue is full. The limit on groups in flight should have prevented this."""


class QueueUnavailable(QueueError):
    """The back end of the queue did not answer before the deadline."""


class Superseded(QueueError):
    """A newer incarnation of the learner has taken over the run. This one must stop."""


class WeightError(OlmoRLError, RuntimeError):
    """Weights that are missing, corrupt, or do not fit the model."""


class WeightsDamaged(WeightError):
    """The fetched bytes differ from the published ones. Another try may succeed, unless the source is damaged."""


class EngineDied(OlmoRLError, RuntimeError):
    """An engine's processes are gone, or have half a version. Its requests are lost. Its actor must be replaced."""


class WeightsUnproven(EngineDied):
    """The engine does not compute what the learner computes with the same version. Its actor must be replaced."""


class PromptRefused(OlmoRLError):
    """The engine can never answer this prompt: it is empty or too long, or its sampling is out of bounds."""


class EnvironmentFailed(OlmoRLError, RuntimeError):
    """An environment failed in a way that the policy cannot have caused. Its episode is played again, never scored."""


class Unscorable(OlmoRLError, RuntimeError):
    """A verifier could not give a verdict (an outage, an unusable label). This is never a reward of 0.

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


def is_passing(error: OlmoRLError) -> bool:
    """Whether another start may succeed. Any other error would happen again, or people have to mend its cause."""
    return isinstance(error, (ProcessLost, EngineDied, WeightError))


@contextmanager
def of_key(kind: type[UserError], key: str, *others: str) -> Iterator[None]:
    """Put `key` in front of an error of this kind, unless its message already names `key` or one of `others`."""
    try:
        yield
    except kind as error:
        if any(name in str(error) for name in (key, *others)):
            raise
        raise type(error)(f"{key}: {error}") from None


def unwritable(path: Path, error: OSError, key: str = "run.directory") -> ResourceError:
    """The error for a `path` that cannot be written; the recipe's `key` sets it."""
    return ResourceError(f"{path}: {error.strerror}: set {key} to a writable folder")


def first_cause(error: BaseException) -> BaseException:
    """The first error in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
