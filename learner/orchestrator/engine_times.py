"""Computes how busy the engines were since the last metrics line, from the times in their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import asdict

from olmorl.learner.storage.metrics_log import Fields
from olmorl.messages import ActorStatus

KEPT = 0.99
"""With each new heartbeat the earlier ones keep this share of their weight in the fit of the speed."""
USUAL_SLOWDOWN = 0.2
"""Assumed share of a token's time that grows with the number of sequences."""
LEAST_SPREAD = 0.1
"""Relative spread of the number of running sequences at which the heartbeats count as much as the assumption."""
_SUMS = (
    *("up_s", "busy_s", "running_s", "slots_s", "awaiting_weights_s", "awaiting_verdicts_s", "awaiting_group_s"),
    *("flops", "moved_bytes", "scored_s"),
)


@dataclass
class SpeedFit:
    """The time of a token of one sequence is a linear function of the number of running sequences.

    Fitted to heartbeats by least squares, with weights that fade. `USUAL_SLOWDOWN` is a prior on the slope, as strong
    as observations with the spread `LEAST_SPREAD`: engines with a constant number of sequences do not show the slope.
    """

    _weight: float = 0.0
    _n: float = 0.0
    _y: float = 0.0
    _nn: float = 0.0
    _ny: float = 0.0

    def note(self, tokens: int, busy_s: float, running_s: float) -> None:
        """Add the tokens and times of one engine in one interval."""
        if tokens <= 0 or busy_s <= 0 or running_s <= 0:
            return
        number, token_s = running_s / busy_s, running_s / tokens
        values = (busy_s, busy_s * number, busy_s * token_s, busy_s * number**2, busy_s * number * token_s)
        old = (self._weight, self._n, self._y, self._nn, self._ny)
        self._weight, self._n, self._y, self._nn, self._ny = (KEPT * a + b for a, b in zip(old, values, strict=True))

    def tokens_per_s(self, sequences: float) -> float | None:
        """Tokens per second of an engine that runs this many sequences; None before the first observation."""
        if not self._weight or sequences <= 0:
            return None
        mean_n, mean_y = self._n / self._weight, self._y / self._weight
        variance = max(self._nn / self._weight - mean_n**2, 0.0)
        covariance = self._ny / self._weight - mean_n * mean_y
        usual, trust = USUAL_SLOWDOWN * mean_y / mean_n, (LEAST_SPREAD * mean_n) ** 2
        slope = (covariance + trust * usual) / (variance + trust)
        # Time of a token grows with the batch, and at most in proportion.
        slope = min(max(slope, 0.0), mean_y / mean_n)
        return sequences / (mean_y + slope * (sequences - mean_n))


@dataclass
class EngineTimes:
    """Each second of a heartbeat counts in one line."""

    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    _speed: SpeedFit = field(default_factory=SpeedFit)
    _engines: int = 0
    _most_flops: float = 0.0
    _most_bytes: float = 0.0
    """The most that the devices could have done since the last line."""

    def heard(self, status: ActorStatus, before: ActorStatus) -> None:
        """Add an actor's times since its heartbeat `before`, which has none if the actor started since."""
        now, then = asdict(status), asdict(before)
        grown = {name: max(now[name] - then[name], 0.0) for name in _SUMS}
        for name, seconds in grown.items():
            self._sums[name] += seconds
        self._most_flops += grown["up_s"] * status.peak_flops_per_s
        self._most_bytes += grown["up_s"] * status.peak_bytes_per_s
        self._speed.note(status.tokens_generated - before.tokens_generated, grown["busy_s"], grown["running_s"])

    def count(self, engines: int) -> None:
        """Note how many engines are up."""
        self._engines = engines

    def fields(self) -> Fields:
        """The fields of a line; None where no heartbeat came. The next line begins here."""
        sums, self._sums = self._sums, dict.fromkeys(_SUMS, 0.0)
        most_flops, most_bytes, self._most_flops, self._most_bytes = self._most_flops, self._most_bytes, 0.0, 0.0
        up_s, engines = sums["up_s"], self._engines
        if not up_s or not engines:
            names = ("slots", "busy_fraction", "slots_fraction", "capacity_tokens_per_s", "mfu", "mbu")
            waits = ("weights", "verdicts", "group")
            return {
                "engines": engines,
                "weight_proof_fraction": None,
                **{f"engine_{name}": None for name in names},
                **{f"sequences_awaiting_{name}": None for name in waits},
            }
        slots = sums["slots_s"] / up_s
        capacity = self._speed.tokens_per_s(slots)
        return {
            "engines": engines,
            "weight_proof_fraction": sums["scored_s"] / up_s,
            "engine_slots": slots * engines,
            "engine_busy_fraction": min(sums["busy_s"] / up_s, 1.0),
            "engine_slots_fraction": min(sums["running_s"] / sums["slots_s"], 1.0) if sums["slots_s"] else None,
            "engine_mfu": sums["flops"] / most_flops if most_flops else None,
            "engine_mbu": sums["moved_bytes"] / most_bytes if most_bytes else None,
            "engine_capacity_tokens_per_s": None if capacity is None else capacity * engines,
            **{
                f"sequences_awaiting_{name}": sums[f"awaiting_{name}_s"] / up_s * engines
                for name in ("weights", "verdicts", "group")
            },
        }
