"""A weight loader that fails in one worker when a test says so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmorl.actors.vllm_engine.mapped_weights import MappedWeights
from olmorl.actors.vllm_engine.weight_loader import StagedWeightLoader, _model_weights, _ModelWeights

VARIABLE = "OLMORL_TEST_ORDERS"
"""Environment variable with a file. Its text says which worker does what, such as `1 refuses`."""


class RefusingLoader(StagedWeightLoader):
    def check_staged_weights(
        self: Any, path: str, signatures: Sequence[str], manifest: bytes, adapter_scale: float = 0.0
    ) -> str | None:
        if ordered(self.rank, "refuses"):
            return f"worker {self.rank} does not like it"
        answer: str | None = super().check_staged_weights(path, signatures, manifest, adapter_scale)
        return answer

    def load_staged_weights(self: Any, version: str) -> str:
        if ordered(self.rank, "loads nothing"):
            return ""
        if ordered(self.rank, "ignores"):
            return version
        if ordered(self.rank, "breaks"):
            raise RuntimeError("the memory is broken")
        if ordered(self.rank, "breaks late"):
            self.model_weights = BreakingWeights(_model_weights(self))
        return str(super().load_staged_weights(version))


class BreakingWeights:
    """Loads all parameters, and then fails."""

    def __init__(self, weights: _ModelWeights) -> None:
        self._weights = weights

    def load(self, staged: MappedWeights) -> None:
        self._weights.load(staged)
        raise RuntimeError("the memory is broken")


def ordered(rank: int, what: str) -> bool:
    return Path(os.environ[VARIABLE]).read_text(encoding="ascii") == f"{rank} {what}"
