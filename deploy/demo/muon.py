"""The optimizer of the warm start: Muon in fp32.

torch's Muon orthogonalizes in bfloat16, which takes over ten minutes on a slow processor without bfloat16 instructions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

MOMENTUM: Final = 0.95
_POLYNOMIAL: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalized Nesterov momentum of each matrix (https://kellerjordan.github.io/posts/muon/).

    Args:
        matrices: parameters with two dimensions. Those of one shape are computed together.
        lr: learning rate. A matrix with more rows than columns takes sqrt(rows / columns) times as much.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                alike[matrix.shape].append(matrix)
            for (rows, columns), matrices in alike.items():
                step_NRC = orthogonalized(torch.stack([self._momentum(matrix) for matrix in matrices]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, step_RC in zip(matrices, step_NRC, strict=True):
                    matrix.add_(step_RC, alpha=-rate)

    def _momentum(self, matrix: Tensor) -> Tensor:
        """The gradient, looked at one step ahead along its running mean."""
        assert matrix.grad is not None
        state = self.state[matrix]
        mean = state.setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(mean, MOMENTUM)


def orthogonalized(matrices_NRC: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values near 1, by the Newton-Schulz iteration of Muon."""
    a, b, c = _POLYNOMIAL
    tall = matrices_NRC.size(1) > matrices_NRC.size(2)
    x = matrices_NRC.mT if tall else matrices_NRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
