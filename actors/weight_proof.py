"""The proof that what samples is what is trained: an engine scores fixed tokens after each update."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from olmorl.errors import WeightsUnproven
from olmorl.messages import Floats, Probe, Version

TOLERANCE = {"bfloat16": 0.1, "float16": 0.1, "float32": 1e-3}
"""Mean difference (nats) that kernels and rounding may make between learner and engine, by `model.dtype`."""
SCALE = 10.0
"""Of a log-probability (nats) beyond which rounding, and so the tolerance, grows with it."""


class WeightProof:
    """The engine's log-probabilities of the probe are the learner's for the same version, within the tolerance.

    Args:
        tolerance: mean difference in nats, for log-probabilities of up to `SCALE` nats.
    """

    def __init__(self, owner: str, tolerance: float) -> None:
        self._owner = owner
        self._tolerance = tolerance
        self._before: tuple[npt.NDArray[np.float64], Floats] | None = None
        self.number = 0
        self.difference_total = 0.0
        self.difference_max = 0.0
        self.seconds_total = 0.0

    def check(self, version: Version, probe: Probe, scored: Floats, seconds: float) -> None:
        """Compare one version, and count it. `scored` may be shorter than the probe: a prefix has the same values.

        Raises:
            WeightsUnproven: a part of the weights is wrong, or the engine kept the weights of the version before.
        """
        wanted = np.array(probe.logprobs[: len(scored)])
        difference = float(np.abs(wanted - scored).mean())
        self.number += 1
        self.seconds_total += seconds
        self.difference_total += difference
        self.difference_max = max(self.difference_max, difference)
        allowed = self._tolerance * max(1.0, float(np.abs(wanted).mean()) / SCALE)
        if not difference <= allowed:
            raise self._unproven(
                version, f"differ from the learner's by {difference:.3g} nats in the mean ({allowed:.3g} is allowed)"
            )
        # The learner moved, so weights changed; and no changed weight leaves all values of an engine the same to a bit.
        if self._before is not None:
            wanted_before, scored_before = self._before
            if not np.array_equal(wanted, wanted_before) and np.array_equal(scored, scored_before):
                moved = float(np.abs(wanted - wanted_before).mean())
                raise self._unproven(
                    version, f"are those of the version before, to the bit, and the learner's moved by {moved:.3g} nats"
                )
        self._before = wanted, scored

    def _unproven(self, version: Version, why: str) -> WeightsUnproven:
        return WeightsUnproven(
            f"weights {version} in the engine of {self._owner} are not what was published: its log-probabilities of "
            f"fixed tokens {why}; a new engine replaces it. If new engines fail too, compare kernels and dtypes with "
            "--preflight, or set weights.proof_tolerance"
        )
