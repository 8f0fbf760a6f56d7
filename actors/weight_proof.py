"""Proves that an engine samples from the trained policy: it scores fixed tokens after each update."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from olmorl.clock import Clock, within
from olmorl.errors import WeightError, WeightsUnproven
from olmorl.messages import Floats, Probe, Version, WeightsReady
from olmorl.ports import Engine

TOLERANCE = {"bfloat16": 0.1, "float16": 0.1, "float32": 1e-3}
"""Mean difference (nats) that kernels and rounding may make between learner and engine, by `model.dtype`."""
SCALE = 10.0
"""Mean size of log-probabilities (nats) above which rounding, and so the tolerance, grows with it."""


class WeightProof:
    """The engine's log-probabilities of the probe equal the learner's for the same version, within the tolerance.

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
            WeightsUnproven: a part of the weights is wrong, or the engine kept the previous version.
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
        # The learner's values moved, so weights changed. Then some value of the engine must change, if only by a bit.
        if self._before is not None:
            wanted_before, scored_before = self._before
            if not np.array_equal(wanted, wanted_before) and np.array_equal(scored, scored_before):
                moved = float(np.abs(wanted - wanted_before).mean())
                raise self._unproven(
                    version, f"equal the previous version's to the bit, and the learner's moved by {moved:.3g} nats"
                )
        self._before = wanted, scored

    def _unproven(self, version: Version, why: str) -> WeightsUnproven:
        return WeightsUnproven(
            f"weights {version} in the engine of {self._owner} are not what was published: its log-probabilities of "
            f"fixed tokens {why}; a new engine replaces it. If new engines fail too, compare kernels and dtypes with "
            "--preflight, or set weights.proof_tolerance"
        )


class WeightProver:
    """No result leaves the actor before the weights in use are proven."""

    def __init__(self, engine: Engine, clock: Clock, owner: str, tolerance: float, deadline_s: float) -> None:
        """`tolerance` as in `WeightProof`; `deadline_s` is the longest wait for one proof."""
        self.proof = WeightProof(owner, tolerance)
        self._engine = engine
        self._clock = clock
        self._owner = owner
        self._deadline_s = deadline_s
        self._unproven: WeightsReady | None = None
        self._taken = asyncio.Event()
        self._proven = asyncio.Event()
        self._proven.set()

    @contextmanager
    def taking(self, manifest: WeightsReady) -> Iterator[None]:
        """The engine takes a version inside this block. Results wait for its proof from the start of the block.

        After a `WeightError` the engine still has the previous version, and results wait for the proof of that one.
        """
        before = self._unproven
        self._require(manifest if manifest.probe is not None else None)
        try:
            yield
        except WeightError:
            self._require(before)
            raise
        finally:
            self._taken.set()

    async def run(self) -> None:
        """Prove each version that the engine takes, for ever. Skip a version that is replaced meanwhile.

        Raises:
            WeightsUnproven: the engine and the learner compute different values with the version.
        """
        while True:
            await self._taken.wait()
            self._taken.clear()
            manifest = self._unproven
            if manifest is None or manifest.probe is None or self._engine.version != manifest.version:
                continue  # an update is under way, and ends with the same signal
            since = self._clock.now()
            scored = await self._engine.score(manifest.probe.token_ids)
            if self._unproven is not manifest:
                continue  # some tokens may be of the next version, which is proven next
            self.proof.check(manifest.version, manifest.probe, scored, self._clock.now() - since)
            self._require(None)

    async def proven(self) -> None:
        """Wait until the version in use is proven.

        Raises:
            DeadlinePassed: the engine has not scored the fixed tokens.
        """
        if self._unproven is None:
            return
        wanted = (
            f"the engine of {self._owner} to score fixed tokens with weights {self._unproven.version} "
            "(actors.stall_deadline_s)"
        )
        async with within(self._deadline_s, wanted):
            await self._proven.wait()

    def _require(self, manifest: WeightsReady | None) -> None:
        self._unproven = manifest
        if manifest is None:
            self._proven.set()
        else:
            self._proven.clear()
