"""Chunked log-probabilities are exact, forward and backward, and never hold the whole logit matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from olmorl.learner.trainer.logprobs import BLOCK, PLAIN, TILE, HeadPasses, compiled_passes, token_logprobs

T, H, V = 23, 6, 17


def through_head(
    hidden_TH: Tensor, head: nn.Linear, targets_T: Tensor, chunk: int, **how: Any
) -> tuple[Tensor, Tensor | None]:
    return token_logprobs(hidden_TH, head.weight, head.bias, targets_T, chunk, **how)


def problem(dtype: torch.dtype = torch.float64, bias: bool = False) -> tuple[Tensor, nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_TH = torch.randn(T, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    head = nn.Linear(H, V, bias=bias, dtype=dtype)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    targets_T = torch.randint(0, V, (T,), generator=generator)
    return hidden_TH, head, targets_T, torch.randn(T, generator=generator, dtype=torch.float64)


def unchunked(hidden_TH: Tensor, head: nn.Linear, targets_T: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits_TV = head(hidden_TH).to(torch.promote_types(hidden_TH.dtype, torch.float32)) / temperature
    logprobs_TV = torch.log_softmax(logits_TV, -1)
    return logprobs_TV[torch.arange(len(targets_T)), targets_T], -(logprobs_TV.exp() * logprobs_TV).sum(-1)


@pytest.mark.parametrize("chunk", [1, 5, 23, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bias", [False, True])
def test_exact_forward_and_backward(chunk: int, temperature: float, bias: bool) -> None:
    hidden_TH, head, targets_T, grad_T = problem(bias=bias)
    leaves = [hidden_TH, *head.parameters()]
    wanted_T, wanted_entropy_T = unchunked(hidden_TH, head, targets_T, temperature)
    wanted_grads = torch.autograd.grad(wanted_T, leaves, grad_T)
    found_T, entropy_T = through_head(hidden_TH, head, targets_T, chunk, temperature=temperature, with_entropy=True)
    assert entropy_T is not None
    assert not entropy_T.requires_grad
    exactly = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(found_T, wanted_T, **exactly)
    torch.testing.assert_close(entropy_T, wanted_entropy_T.detach(), **exactly)
    for found, wanted in zip(torch.autograd.grad(found_T, leaves, grad_T), wanted_grads, strict=True):
        torch.testing.assert_close(found, wanted, **exactly)


def test_the_explicit_gradient_is_the_numerical_one() -> None:
    hidden_TH, head, targets_T, _ = problem(bias=True)

    def logprobs(hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor) -> Tensor:
        return token_logprobs(hidden_TH, weight_VH, bias_V, targets_T, 4, temperature=0.7)[0]

    assert torch.autograd.gradcheck(logprobs, (hidden_TH, head.weight, head.bias))


def test_bf16_states_give_single_precision_log_probabilities() -> None:
    hidden_TH, head, targets_T, grad_T = problem(torch.bfloat16)
    wanted_T, _ = unchunked(hidden_TH, head, targets_T, 1.0)
    wanted_grads = torch.autograd.grad(wanted_T, [hidden_TH, head.weight], grad_T.float())
    found_T, _ = through_head(hidden_TH, head, targets_T, 5)
    assert found_T.dtype == torch.float32
    torch.testing.assert_close(found_T, wanted_T)
    found_grads = torch.autograd.grad(found_T, [hidden_TH, head.weight], grad_T.float())
    for found, wanted in zip(found_grads, wanted_grads, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - wanted).float().norm() <= 1e-2 * wanted.float().norm()


def test_the_weight_gradient_of_many_bf16_chunks_is_summed_in_single() -> None:
    # Equal contributions, one a chunk: a bf16 sum stops growing at 256 times one of them.
    hidden_TH = torch.ones(1000, 1, dtype=torch.bfloat16)
    weight_VH = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs_T, _ = token_logprobs(hidden_TH, weight_VH, None, torch.zeros(1000, dtype=torch.long), chunk=1)
    logprobs_T.sum().backward()
    assert weight_VH.grad is not None
    assert weight_VH.grad[0].item() == 500


def test_a_head_in_single_precision_over_bf16_states() -> None:
    hidden_TH, head, targets_T, grad_T = problem(torch.float32)
    low_TH = hidden_TH.detach().bfloat16().requires_grad_()
    logprobs_T, _ = token_logprobs(low_TH, head.weight, None, targets_T, 5)
    wanted_T, _ = unchunked(low_TH.detach().float(), head, targets_T, 1.0)
    torch.testing.assert_close(logprobs_T, wanted_T)
    logprobs_T.backward(grad_T.float())
    assert low_TH.grad is not None
    assert low_TH.grad.dtype == torch.bfloat16


def test_a_frozen_head_gets_no_gradient_and_no_grad_mode_keeps_no_graph() -> None:
    hidden_TH, head, targets_T, _ = problem()
    head.requires_grad_(False)
    through_head(hidden_TH, head, targets_T, 5)[0].sum().backward()
    assert hidden_TH.grad is not None
    assert head.weight.grad is None
    with torch.no_grad():
        assert not through_head(hidden_TH, head, targets_T, 5)[0].requires_grad


def test_masked_vocabulary_leaves_everything_finite() -> None:
    hidden_TH, head, _, _ = problem(bias=True)
    head.bias.data[-3:] = -torch.inf
    targets_T = torch.zeros(T, dtype=torch.long)
    logprobs_T, entropy_T = through_head(hidden_TH, head, targets_T, 5, with_entropy=True)
    logprobs_T.sum().backward()
    assert entropy_T is not None
    assert hidden_TH.grad is not None
    assert logprobs_T.isfinite().all()
    assert entropy_T.isfinite().all()
    assert hidden_TH.grad.isfinite().all()


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, Tensor):
                self.num_elements = max(self.num_elements, value.numel())
        return out


@contextmanager
def largest() -> Iterator[Largest]:
    with Largest() as mode:
        yield mode


@pytest.mark.parametrize("chunk", [8, 32])
def test_no_tensor_is_larger_than_a_chunk_of_logits(chunk: int) -> None:
    tokens, vocabulary = 512, 1000
    hidden_TH = torch.randn(tokens, 2, requires_grad=True)
    head = nn.Linear(2, vocabulary, bias=False)
    with largest() as mode:
        logprobs_T, _ = through_head(hidden_TH, head, torch.zeros(tokens, dtype=torch.long), chunk, with_entropy=True)
        logprobs_T.sum().backward()
    assert mode.num_elements == chunk * vocabulary


def peaked() -> tuple[Tensor, Tensor, Tensor]:
    """bf16 states and head with logits of about 30, as a trained model has them."""
    generator = torch.Generator().manual_seed(1)
    hidden_TH = torch.randn(64, 128, generator=generator).mul(2).bfloat16().requires_grad_()
    weight_VH = torch.randn(500, 128, generator=generator).mul(0.6).bfloat16().requires_grad_()
    return hidden_TH, weight_VH, torch.randint(0, 500, (64,), generator=generator)


def test_logits_in_fp32_are_not_rounded() -> None:
    hidden_TH, weight_VH, targets_T = peaked()
    exact_T = (hidden_TH.double() @ weight_VH.double().T).log_softmax(-1).gather(1, targets_T[:, None])[:, 0]
    rounded_T, _ = token_logprobs(hidden_TH, weight_VH, None, targets_T, 10)
    fp32_T, entropy_T = token_logprobs(hidden_TH, weight_VH, None, targets_T, 10, 1.0, True, True)
    assert entropy_T is not None and entropy_T.dtype == fp32_T.dtype == torch.float32
    assert (rounded_T - exact_T).abs().max() > 0.03
    assert (fp32_T - exact_T).abs().max() < 1e-4


def test_the_gradient_of_logits_in_fp32_is_nearer_to_the_exact_one() -> None:
    hidden_TH, weight_VH, targets_T = peaked()
    exact_T = (hidden_TH.double() @ weight_VH.double().T).log_softmax(-1).gather(1, targets_T[:, None])[:, 0]
    exact = torch.autograd.grad(exact_T.sum(), [hidden_TH, weight_VH])

    def error(fp32_logits: bool) -> float:
        logprobs_T, _ = token_logprobs(hidden_TH, weight_VH, None, targets_T, 10, fp32_logits=fp32_logits)
        found = torch.autograd.grad(logprobs_T.sum(), [hidden_TH, weight_VH])
        norms = [(a.double() - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]
        return float(max(norms))

    assert error(True) < 0.004
    assert error(True) < error(False)


def test_a_bias_is_added_in_fp32() -> None:
    hidden_TH, head, targets_T, _ = problem(torch.bfloat16, bias=True)
    wanted_T, _ = unchunked(hidden_TH.float(), head.float(), targets_T, 0.7)
    head.bfloat16()
    found_T, _ = through_head(hidden_TH, head, targets_T, 5, temperature=0.7, fp32_logits=True)
    torch.testing.assert_close(found_T, wanted_T)


PASSES = [pytest.param(lambda: PLAIN, id="plain"), pytest.param(compiled_passes, id="compiled")]
WIDE = {"less than a block": 40, "several blocks": 3 * BLOCK, "blocks and a rest": 2 * BLOCK + 40, "wide": TILE + 5}


def large(vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """States, head, bias that masks some of the vocabulary and a whole block, targets and gradients."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    bias_V = normal(vocabulary)
    bias_V[-3:] = -torch.inf
    bias_V[BLOCK : 2 * BLOCK] = -torch.inf
    targets_T = torch.randint(0, 30, (9,), generator=generator)
    return normal(9, 8).requires_grad_(), normal(vocabulary, 8).requires_grad_(), bias_V, targets_T, normal(9)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [
        *((vocabulary, torch.float64) for vocabulary in WIDE.values()),
        *((vocabulary, torch.float32) for vocabulary in WIDE.values() if vocabulary < TILE),
    ],
)
def test_both_kinds_of_passes_are_exact_entry_by_entry(
    passes: Callable[[], HeadPasses], vocabulary: int, dtype: torch.dtype
) -> None:
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1.3e-6, "atol": 1e-5}
    hidden_TH, weight_VH, bias_V, targets_T, grad_T = large(vocabulary, dtype)
    exact = [each.detach().double().requires_grad_() for each in (hidden_TH, weight_VH)]
    logprobs_TV = ((exact[0] @ exact[1].T + bias_V.double()) / 0.7).log_softmax(-1)
    wanted_T = logprobs_TV.gather(1, targets_T[:, None])[:, 0]
    wanted_entropy_T = torch.special.entr(logprobs_TV.exp()).sum(-1)
    wanted = torch.autograd.grad(wanted_T, exact, grad_T.double())
    found_T, entropy_T = token_logprobs(hidden_TH, weight_VH, bias_V, targets_T, 5, 0.7, True, passes=passes())
    assert entropy_T is not None
    found = torch.autograd.grad(found_T, [hidden_TH, weight_VH], grad_T)
    for got, expected in zip((found_T, entropy_T, *found), (wanted_T, wanted_entropy_T, *wanted), strict=True):
        torch.testing.assert_close(got.double(), expected, **close)


def test_the_compiled_gradient_is_in_the_dtype_of_the_head() -> None:
    """Written once, in bf16, and as near to the exact one as the plain gradient."""
    hidden_TH, weight_VH, targets_T = peaked()
    exact_T = (hidden_TH.double() @ weight_VH.double().T).log_softmax(-1).gather(1, targets_T[:, None])[:, 0]
    exact = torch.autograd.grad(exact_T.sum(), [hidden_TH, weight_VH])

    def errors(passes: HeadPasses) -> list[float]:
        logprobs_T, _ = token_logprobs(hidden_TH, weight_VH, None, targets_T, 10, fp32_logits=True, passes=passes)
        found = torch.autograd.grad(logprobs_T.sum(), [hidden_TH, weight_VH])
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]

    plain, compiled = errors(PLAIN), errors(compiled_passes())
    assert all(after < 1.05 * before for before, after in zip(plain, compiled, strict=True))
    logits_CV, numbers_C = torch.randn(4, 50), torch.ones(4)
    gradient = compiled_passes().gradient(logits_CV, targets_T[:4] % 50, numbers_C, numbers_C, 1.0, torch.bfloat16)
    assert gradient.dtype == torch.bfloat16
