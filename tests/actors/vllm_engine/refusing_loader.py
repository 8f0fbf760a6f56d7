"""A weight loader that fails in one worker, on the word of a test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmorl.actors.vllm_engine.weight_loader import StagedWeightLoader

VARIABLE = "OLMORL_TEST_ORDERS"
"""Environment variable with a file. Its text says which worker does what, such as `1 refuses`."""


class RefusingLoader(StagedWeightLoader):
    def check_staged_weights(self: Any, path: str, signatures: Sequence[str], manifest: bytes) -> str | None:
        if ordered(self.rank, "refuses"):
            return f"worker {self.rank} does not like it"
        answer: str | None = super().check_staged_weights(path, signatures, manifest)
        return answer

    def load_staged_weights(self: Any) -> str:
        if ordered(self.rank, "loads nothing"):
            return ""
        if ordered(self.rank, "breaks"):
            raise RuntimeError("the memory is broken")
        return str(super().load_staged_weights())


def ordered(rank: int, what: str) -> bool:
    return Path(os.environ[VARIABLE]).read_text(encoding="ascii") == f"{rank} {what}"
