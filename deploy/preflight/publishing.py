"""What publishing costs the learner in each step, worked out from the recipe before anything runs.

The learner waits while each rank copies its shard to host memory, and while all ranks score the fixed tokens of the
proof: that forward pass reads all weights once, and with ZeRO-3 it gathers them. The rest is in the background. The
learner waits for it only when publishing a version takes longer than a step. A run measures all of it:
`learner_publish_fraction`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from olmorl.config import Config
from olmorl.deploy.cluster.placement import plan
from olmorl.messages import PROBE_TOKENS
from olmorl.model_cost import VALUE_BYTES

SHARE = 0.02
"""Publishing should cost no more of a step."""
GPU_COPY_BYTES_PER_S, CPU_COPY_BYTES_PER_S = 20e9, 1e9
"""Speed of one rank: to pinned memory over PCIe 4, assumed; and rounded from fp32 on a CPU, as measured."""
HOST_BYTES_PER_S, GPU_BYTES_PER_S = 50e9, 200e9
"""Weights gathered into a host, an eighth of eight links of 400 Gb/s; into a GPU of the same host. Assumed."""
MEMORY_BYTES_PER_S = 2e12
"""Weights read by a GPU that has all of them, unless `cluster.peak` says otherwise. Assumed."""
WHOLE_BYTES_PER_S, DELTA_BYTES_PER_S = 1e9, 0.25e9
"""Speed of one rank in the background, whole and as changes: half of what one core was measured to do."""
CPU_FLOPS_PER_S = 20e9
"""Speed of one rank. Assumed."""


class PublishingPlan(NamedTuple):
    """Seconds of one published version."""

    copy_s: float
    probe_s: float
    background_s: float
    every: int
    """Steps between published versions."""

    def share(self, step_s: float) -> float:
        """Share of the learner's steps that publishing takes, when training one takes `step_s`."""
        behind = max(0.0, self.background_s - self.every * step_s)
        waited = (self.copy_s + self.probe_s + behind) / self.every
        return waited / (step_s + waited)

    @property
    def shortest_step_s(self) -> float:
        """The shortest step with a share of at most `SHARE`."""
        return max((self.copy_s + self.probe_s) / SHARE * (1 - SHARE), self.background_s) / self.every

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """`(place, part, size)` for people."""
        yield "publishing", "copy to the host", f"{self.copy_s:.2g} s  (assumed speed)"
        yield "", "proof", f"{self.probe_s:.2g} s  (assumed speed)"
        yield "", "in the background", f"{self.background_s:.2g} s  (the learner waits if a step is shorter)"
        yield "", "the learner waits", f"at most {SHARE:.0%} of steps of {self.shortest_step_s:.2g} s or more"


def publishing_plan(settings: Config, parameters: int, published: int) -> PublishingPlan:
    """The plan for a model of so many parameters, and versions of `published` bytes."""
    placed = plan(settings)
    shard = published / placed.ranks
    copy_s = shard / (GPU_COPY_BYTES_PER_S if placed.on_gpu else CPU_COPY_BYTES_PER_S)
    background_s = shard / (DELTA_BYTES_PER_S if settings.has_deltas else WHOLE_BYTES_PER_S)
    probe_s = 0.0 if settings.weights.proof_tolerance == "off" else _probe_s(settings, parameters)
    return PublishingPlan(copy_s, probe_s, background_s, settings.weights.publish_every)


def _probe_s(settings: Config, parameters: int) -> float:
    """Seconds of the forward pass: of its operations on a CPU, else of reading or gathering the weights.

    A few tokens cost a GPU less than reading the weights. It reads gathered weights while it gathers others.
    """
    weights = parameters * VALUE_BYTES[settings.model.dtype]
    placed, peak = plan(settings), settings.cluster.peak[1] if settings.cluster.peak else None
    if not placed.on_gpu:
        return 2 * parameters * PROBE_TOKENS / CPU_FLOPS_PER_S
    read = weights / (MEMORY_BYTES_PER_S if peak is None else peak * 1e9)
    if settings.learner.zero_stage < 3:
        return read
    from_hosts = weights * (1 - 1 / placed.learner_nodes) / HOST_BYTES_PER_S
    from_gpus = weights * (1 - 1 / placed.ranks_per_node) / GPU_BYTES_PER_S
    return max(read, from_hosts + from_gpus)
