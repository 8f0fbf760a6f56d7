"""Rows shared by the ranks of a group, tiled MLPs and offloaded activations: the gradient is that of one rank.

The rows hold 13 samples of which the borders of the parts cut some; heads are grouped (4 query heads, 2 key heads).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from olmorl.errors import ModelError
from olmorl.learner.trainer.sequence_parallel import SequenceGroup, refuse_heads
from olmorl.learner.trainer.tiled_mlp import tile_mlps
from tests.learner.trainer.test_deepspeed_trainer import (
    EIGHT_ROWS,
    ONE_ROW,
    SHARDED,
    SINGLES,
    Jobs,
    Results,
    distance,
    gradient_job,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CLOSE = 1e-6
ROWS = {"one": ONE_ROW, "eight": EIGHT_ROWS, "single": SINGLES}
MODELS = ("olmo3", "qwen2", "llama")
UPDATES = {"learning_rate": 1e-4, "max_grad_norm": 0.5, "minibatches": 2, "epochs": 2}
FULL = {"gradient_checkpointing": "offload", "mlp_tiles": 3}


def jobs(models: dict[str, str], **shared: Any) -> Jobs:
    """Gradients by name, of ranks that share their rows as `shared` says."""
    found = {
        f"{model}-{name}": gradient_job(models[model], "float32", 2, row_tokens, **shared)
        for model, (name, row_tokens) in product(MODELS, ROWS.items())
    }
    return found | {
        "gspo": gradient_job(models["olmo3"], "float32", 2, ONE_ROW, **shared) | {"objective": {"preset": "gspo"}},
        "per-sequence": gradient_job(models["olmo3"], "float32", 2, ONE_ROW, **shared)
        | {"objective": {"preset": "grpo"}},
        "one prompt": gradient_job(models["olmo3"], "float32", 2, ONE_ROW, **shared) | {"one_prompt": True},
        "one prompt, eight": gradient_job(models["olmo3"], "float32", 2, EIGHT_ROWS, **shared) | {"one_prompt": True},
    }


def more_jobs(models: dict[str, str]) -> Jobs:
    """The gradient of olmo3 in one row, with other settings of the learner."""
    shared = {"sequence_parallel": 2}
    settings: Jobs = {
        "stage 0": {"stage": 0},
        "stage 1": {"stage": 1},
        "stage 3": {"stage": 3},
        "stage 3, sharded": {"stage": 3} | SHARDED,
        "stage 2, all": {"stage": 2} | FULL,
        "stage 3, sharded, all": {"stage": 3} | SHARDED | FULL,
    }
    return {
        name: gradient_job(models["olmo3"], "float32", given.pop("stage"), ONE_ROW, **shared, **given)
        for name, given in settings.items()
    }


def steps_job(model: str, **learner: Any) -> dict[str, Any]:
    """Three steps with a reference model and four updates each."""
    return {
        "kind": "steps",
        "model": {"path": model, "dtype": "float32"},
        "learner": UPDATES | learner,
        "objective": {"preset": "grpo"},
        "row_tokens": EIGHT_ROWS,
    }


def exact_jobs(models: dict[str, str], **shared: Any) -> Jobs:
    found: Jobs = {f"exact {model}": {"kind": "shared_row", "model": models[model]} | shared for model in MODELS}
    return found | {"exact one prompt": found["exact olmo3"] | {"one_prompt": True}}


@pytest.fixture(scope="module")
def alone(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """One rank."""
    settings: Jobs = {
        "tiles": {"mlp_tiles": 3},
        "tiles, recomputed": {"mlp_tiles": 3, "gradient_checkpointing": True},
        "offloaded": {"gradient_checkpointing": "offload"},
    }
    one_row = {
        name: gradient_job(tiny_models["olmo3"], "float32", 2, ONE_ROW, **given) for name, given in settings.items()
    }
    own = {
        name: gradient_job(tiny_models["olmo3"], "float32", 2, row) | {"one_prompt": True, "own_draws": True}
        for name, row in (("own prompts", ONE_ROW), ("own prompts, eight", EIGHT_ROWS))
    }
    return run_ranks(
        1,
        jobs(tiny_models)
        | one_row
        | own
        | exact_jobs(tiny_models)
        | {"steps": steps_job(tiny_models["olmo3"], zero_stage=2)},
    )


@pytest.fixture(scope="module")
def pair(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """Two ranks that share every row."""
    exact = exact_jobs(tiny_models, sequence_parallel=2)
    learner = {"sequence_parallel": 2, "zero_stage": 3, **SHARDED, **FULL}
    steps = {"steps": steps_job(tiny_models["olmo3"], **learner)}
    return run_ranks(2, jobs(tiny_models, sequence_parallel=2) | more_jobs(tiny_models) | exact | steps)


@pytest.fixture(scope="module")
def four(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """Four ranks: two groups of two, or one group, in which two ranks get the same key head."""
    named = {"two groups": 2, "one group": 4}
    return run_ranks(
        4,
        {
            name: gradient_job(tiny_models["olmo3"], "float32", 3, EIGHT_ROWS, sequence_parallel=size, **SHARDED)
            for name, size in named.items()
        },
    )


@pytest.mark.parametrize(
    "name",
    [*(f"{model}-{rows}" for model, rows in product(MODELS, ROWS)), "gspo", "per-sequence", "one prompt"],
)
def test_two_ranks_that_share_rows_give_the_gradient_and_the_metrics_of_one(
    alone: Results, pair: Results, name: str
) -> None:
    wanted = alone[name][0]
    for rank in pair[name]:
        assert distance(rank["gradients"], wanted["gradients"]) <= CLOSE
        assert rank["values"] == pytest.approx(wanted["values"], rel=1e-4, abs=1e-6)
        assert rank["rows"] == wanted["rows"]


@pytest.mark.parametrize("rows", ["", ", eight"])
def test_shared_prompts_give_the_gradient_and_the_metrics_of_own_ones(alone: Results, pair: Results, rows: str) -> None:
    wanted = alone[f"own prompts{rows}"][0]
    for rank in (alone[f"one prompt{rows}"][0], *pair[f"one prompt{rows}"]):
        assert distance(rank["gradients"], wanted["gradients"]) <= CLOSE
        values, expected = dict(rank["values"]), dict(wanted["values"])
        assert values.pop("learner_flops") < expected.pop("learner_flops"), "a shared prompt is computed once"
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", more_jobs({"olmo3": ""}))
def test_zero_recomputation_tiles_and_offload_change_nothing(alone: Results, pair: Results, name: str) -> None:
    for rank in pair[name]:
        assert distance(rank["gradients"], alone["olmo3-one"][0]["gradients"]) <= CLOSE


@pytest.mark.parametrize("name", ["tiles", "tiles, recomputed", "offloaded"])
def test_one_rank_with_tiles_or_offload_gives_the_same_gradient(alone: Results, name: str) -> None:
    assert distance(alone[name][0]["gradients"], alone["olmo3-one"][0]["gradients"]) <= CLOSE


def test_several_groups_and_more_ranks_than_key_heads(alone: Results, four: Results) -> None:
    for ranks in four.values():
        for rank in ranks:
            assert distance(rank["gradients"], alone["olmo3-eight"][0]["gradients"]) <= CLOSE
            assert rank["values"] == pytest.approx(alone["olmo3-eight"][0]["values"], rel=1e-4, abs=1e-6)
    assert [rank["rows"] for rank in four["one group"]] == [four["one group"][0]["rows"]] * 4
    first, second, third, fourth = (rank["rows"] for rank in four["two groups"])
    assert first == second and third == fourth and sum(first) + sum(third) == 13


def test_three_steps_of_updates_with_a_reference_are_those_of_one_rank(alone: Results, pair: Results) -> None:
    wanted = alone["steps"][0]
    for rank in pair["steps"]:
        for values, expected in zip(rank["values"], wanted["values"], strict=True):
            assert values == pytest.approx(expected, rel=1e-3, abs=1e-6)
    weights = pair["steps"][0]["weights"]
    assert weights.keys() == wanted["weights"].keys()
    assert max((weights[key] - wanted["weights"][key]).abs().max().item() for key in weights) <= CLOSE


@pytest.mark.parametrize("model", [*MODELS, "one prompt"])
def test_a_shared_row_is_exact_in_float64(alone: Results, pair: Results, model: str) -> None:
    """Log-probabilities, entropies and the sum of the ranks' gradients, of rows of 2 to 33 tokens."""
    wanted = alone[f"exact {model}"][0]
    for rank in pair[f"exact {model}"]:
        for key in ("logprobs", "entropies", "gradients"):
            assert len(rank[key]) == len(wanted[key]) > 0
            for got, expected in zip(rank[key], wanted[key], strict=True):
                assert (got - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max())


def test_parts_cover_a_padded_row_once() -> None:
    for size, length in product((1, 2, 3, 8), (2, 3, 16, 17)):
        groups = [SequenceGroup(rank, size) for rank in range(size)]
        padded = length + groups[0].padding(length)
        assert padded % size == 0 and padded - length < size
        assert [t for group in groups for t in range(padded)[group.part(padded)]] == [*range(padded)]


def test_heads_that_do_not_divide_are_refused_with_a_number_that_does() -> None:
    for heads, kv_heads, size in ((40, 8, 8), (40, 8, 4), (4, 2, 4), (8, 1, 8)):
        refuse_heads(heads, kv_heads, size)
    with pytest.raises(ModelError, match=r"= 16 does not fit a model with 40 attention heads and 8 key heads.* to 8"):
        refuse_heads(40, 8, 16)
    with pytest.raises(ModelError, match=r"= 3 does not fit .* set it to 2"):
        refuse_heads(4, 2, 3)


def test_a_model_without_mlps_is_not_tiled(tiny_models: dict[str, str]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("openai-gpt", **shape))
    for block in model.transformer.h:
        block.feed_forward = block._modules.pop("mlp")
    with pytest.raises(ModelError, match=r"no layers with an `mlp`: set learner.mlp_tiles = 1"):
        tile_mlps(model, 2)


def test_tiles_hold_fewer_inner_values_than_the_whole_row(tiny_models: dict[str, str]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_models["llama"], dtype=torch.float32)
    mlp = model.model.layers[0].mlp
    widths: list[int] = []
    mlp.gate_proj.register_forward_hook(lambda _, given, output: widths.append(output.shape[1]))
    hidden = torch.randn(1, 20, 32, requires_grad=True)
    whole = mlp(hidden)
    tile_mlps(model, 3)
    tiled = mlp(hidden)
    assert widths == [20, 7, 7, 6]
    assert torch.allclose(tiled, whole, atol=1e-6)
    tiled.sum().backward()
    assert widths[4:] == [6, 7, 7], "each tile is computed again in the backward pass"
