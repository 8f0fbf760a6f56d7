"""The settings of the demo: the size of its model, its warm start, its problems."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class ModelSize:
    """Sizes of the model: heads of 32 are the smallest that the CPU engine has kernels for."""

    hidden: int = 128
    intermediate: int = 384
    layers: int = 4
    heads: int = 4
    sliding_window: int = 64
    max_tokens: int = 1024


@dataclass(frozen=True)
class WarmStart:
    """Supervised training on worked solutions, most of them hasty.

    The trained model can add, and rounds most results: one sample in five is right, and one greedy answer in ten.
    """

    steps: int = 480
    batch: int = 12
    careful_share: float = 0.22
    matrix_lr: float = 0.02
    vector_lr: float = 3e-3


@dataclass(frozen=True)
class DemoSettings:
    """Everything that the cached model and data depend on."""

    problems: Literal["sums", "mixture", "calculator"] = "sums"
    terms: Mapping[int, int] = field(default_factory={3: 30, 4: 40, 5: 18, 6: 12}.copy)
    """For `sums` and `calculator`: the weight of each number of terms."""
    seed: int = 0
    num_train: int = 8000
    num_test: int = 200
    policy: ModelSize = field(default_factory=ModelSize)
    warm_start: WarmStart = field(default_factory=WarmStart)

    def folder(self, cache: Path) -> Path:
        """The folder of this model and data in `cache`."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return cache / f"{self.problems}-{blake2b(text.encode(), digest_size=4).hexdigest()}"
