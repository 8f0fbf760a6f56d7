"""Operations against torch's own counter on the demo model, and bytes against a count token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow
from olmorl.model_cost import BACKWARD, DevicePeak, LayerAttention, ModelCost, model_cost, pairs

PROMPT, COMPLETION = 40, 170
"""Longer than the demo's sliding window."""
SIZE = ModelSize()


@pytest.fixture(scope="module")
def demo() -> Any:
    return build_model(SIZE, build_tokenizer(SIZE.max_tokens), seed=0)


@pytest.fixture(scope="module")
def cost(demo: Any) -> ModelCost:
    shapes = {name: tuple(weight.shape) for name, weight in demo.named_parameters()}
    found = model_cost(demo.config, shapes, value_bytes=4)
    assert found is not None
    return found


def windows() -> Iterator[int | None]:
    """Of each layer of the demo: three with a window, one without."""
    for layer in range(SIZE.layers):
        yield None if layer % 4 == 3 else SIZE.sliding_window


def seen(position: int, window: int | None) -> int:
    """Tokens that the token at a position sees, itself included."""
    return sum(1 for other in range(position + 1) if window is None or position - other < window)


@pytest.mark.parametrize("window", [None, 1, 7, 64])
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 20), (5, 9), (60, 70), (100, 130)])
def test_pairs_are_those_that_a_loop_finds(begin: int, end: int, window: int | None) -> None:
    assert pairs(begin, end, window) == sum(seen(position, window) for position in range(begin, end))


def test_the_learners_count_is_that_of_torch(demo: Any, cost: ModelCost) -> None:
    """Eager attention computes all pairs of tokens: of its share the needed pairs count."""
    demo.set_attn_implementation("eager")
    policy = PackedPolicy(demo, temperature=1.0, chunk=64)
    length = PROMPT + COMPLETION
    row = PolicyRow(torch.arange(length) % demo.config.vocab_size, (length,), torch.arange(PROMPT, length))
    with FlopCounterMode(display=False) as counter:
        logprobs_T, _ = policy(row)
        logprobs_T.sum().backward()
    found = {str(operation): flops for operation, flops in counter.get_flop_counts()["Global"].items()}
    attention = sum(flops for operation, flops in found.items() if "bmm" in operation)
    needed = sum(seen(position, window) for window in windows() for position in range(length))
    assert attention and len(found) > 1
    expected = sum(found.values()) - attention + attention * needed / (SIZE.layers * length**2)
    assert (1 + BACKWARD) * cost.forward_flops(0, length, COMPLETION) == pytest.approx(expected, rel=0.03)


def test_an_answer_costs_what_its_tokens_cost_one_by_one(cost: ModelCost) -> None:
    """The prompt in one pass, of which 16 tokens are in the prefix cache; then a pass for each token but the last."""
    cached, width = 16, 2 * SIZE.hidden
    flops = cost.forward_flops(cached, PROMPT, 1)
    values = (PROMPT - cached) * SIZE.layers + sum(min(PROMPT, window or PROMPT) for window in windows())
    for position in range(PROMPT, PROMPT + COMPLETION - 1):
        flops += cost.forward_flops(position, position + 1, 1)
        values += SIZE.layers + sum(seen(position, window) for window in windows())
    work = cost.answer(PROMPT, COMPLETION, cached)
    assert work.flops == pytest.approx(flops)
    assert work.num_bytes == pytest.approx(4 * width * values)
    assert cost.answer(PROMPT, 0) == (0.0, 0.0)


def test_a_step_reads_every_weight_once(demo: Any, cost: ModelCost) -> None:
    """All but the embedding, of which a step reads a few rows, and the norms."""
    weights = [weight for name, weight in demo.named_parameters() if weight.ndim == 2 and "embed" not in name]
    assert cost.step_bytes(1) == cost.step_bytes(64) == sum(weight.numel() * 4 for weight in weights)
    whole = sum(weight.numel() * 4 for weight in demo.parameters()) - demo.get_input_embeddings().weight.numel() * 4
    assert cost.step_bytes(1) == pytest.approx(whole, rel=0.01)


def test_tokens_pass_some_experts_and_a_step_reads_those_that_any_token_passes() -> None:
    config = SimpleNamespace(
        num_attention_heads=4, num_hidden_layers=1, hidden_size=8, num_experts=8, num_experts_per_tok=2
    )
    shapes = {
        "model.embed_tokens.weight": (100, 8),
        "model.layers.0.mlp.gate.weight": (8, 8),
        **{f"model.layers.0.mlp.experts.{n}.up_proj.weight": (16, 8) for n in range(8)},
    }
    cost = model_cost(config, shapes, 2)
    assert cost is not None
    # A router and a quarter of the experts; the head is the embedding.
    assert cost.forward_flops(0, 1, 1) == 2 * (64 + 8 * 128 / 4 + 800) + 4 * 8
    assert cost.step_bytes(1) == 2 * (64 + 800 + 8 * 128 / 4)
    assert cost.step_bytes(1000) == pytest.approx(2 * (64 + 800 + 8 * 128))


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, (LayerAttention(2, None),)),
        ({"sliding_window": 8}, (LayerAttention(2, 8),)),
        ({"sliding_window": 8, "use_sliding_window": False}, (LayerAttention(2, None),)),
        (
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            (LayerAttention(1, None), LayerAttention(1, 8)),
        ),
    ],
)
def test_the_window_of_each_layer_is_read_from_the_configuration(changes: Any, kinds: Any) -> None:
    config = SimpleNamespace(num_attention_heads=2, num_hidden_layers=2, hidden_size=8, **changes)
    found = model_cost(config, {}, 2)
    assert found is not None and found.attention == kinds


def test_a_configuration_without_attention_has_no_cost(cost: ModelCost) -> None:
    assert model_cost(SimpleNamespace(hidden_size=8), {}, 2) is None
    assert replace(cost, value_bytes=2).step_bytes(1) == cost.step_bytes(1) / 2


def test_the_peak_of_several_devices() -> None:
    assert DevicePeak(2.0, None).times(4) == DevicePeak(8.0, None)
