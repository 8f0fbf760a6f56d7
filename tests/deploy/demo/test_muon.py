"""Muon in fp32, against torch's in bfloat16 and against the definition."""

from __future__ import annotations

import pytest
import torch

from olmorl.deploy.demo.muon import Muon, orthogonalized


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    optimizer = Muon(ours, lr=0.02)
    torchs = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.0, adjust_lr_fn="original")
    for _ in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(shape)
            other.grad = mine.grad.clone()
        optimizer.step()
        torchs.step()
    for mine, other in zip(ours, theirs, strict=True):
        # Four steps of 0.02, whose entries torch rounds to three digits.
        assert (mine - other).abs().max() < 2e-3


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_singular_vectors_stay_and_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(2, *shape)
    for matrix, result in zip(matrices, orthogonalized(matrices), strict=True):
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        inner = left.mT @ result @ right.mT
        values = inner.diagonal()
        assert (inner - values.diag()).abs().max() < 1e-4
        assert values.min() > 0.6 and values.max() < 1.3


def test_matrices_of_one_shape_do_not_touch_each_other() -> None:
    torch.manual_seed(2)
    gradients = torch.randn(2, 8, 4)
    alone = [torch.nn.Parameter(torch.zeros(8, 4)) for _ in gradients]
    together = [torch.nn.Parameter(torch.zeros(8, 4)) for _ in gradients]
    for lonely, paired, gradient in zip(alone, together, gradients, strict=True):
        lonely.grad, paired.grad = gradient, gradient
        Muon([lonely], lr=0.1).step()
    Muon(together, lr=0.1).step()
    for lonely, paired in zip(alone, together, strict=True):
        torch.testing.assert_close(lonely, paired)
