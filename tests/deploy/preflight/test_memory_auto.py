"""What the memory plan decides on GPUs of several sizes: recomputation, and the length of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.config import with_key
from olmorl.deploy.preflight.memory import memory_plan
from olmorl.deploy.preflight.memory_auto import CHECKPOINTING, COMPILE, FILLED, ROWS, decided
from olmorl.deploy.preflight.memory_places import GIB
from olmorl.learner.trainer.memory import rank_memory

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 100_352,
    "tie_word_embeddings": True,
}
"""1.6B weights. Compiled on an H100 without recomputation, rows of 8,448 tokens took 46.8 GiB, and of 16,896 61.1."""
LONGEST = 8448
H100_GIB = 79.1


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> config.Config:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(QWEN))
    return config.Config(
        model=config.Model(path=str(folder), fp32_head=True),
        data=config.Data(max_prompt_tokens=256),
        sampling=config.SamplingSettings(max_tokens=LONGEST - 256),
        cluster=config.Cluster(address="auto", gpus_per_node=1, gpu_memory_gib=H100_GIB, host_memory_gib=500),
        learner=config.Learner(device="cuda"),
    )


def on(recipe: config.Config, gib: float, **learner: Any) -> config.Config:
    for key, value in {"cluster.gpu_memory_gib": gib, **{f"learner.{k}": v for k, v in learner.items()}}.items():
        recipe = with_key(recipe, key, value)
    return recipe


def test_a_large_gpu_keeps_all_activations_and_its_rows_fill_it(recipe: config.Config) -> None:
    found = decided(recipe)
    learner, plan = found.settings.learner, memory_plan(found.settings)
    assert learner.gradient_checkpointing is False
    assert isinstance(learner.row_tokens, int) and 16_896 <= learner.row_tokens < 4 * LONGEST
    gpu = plan.places[0]
    assert plan.overfull is None and gpu.limit is not None and 0.9 < gpu.needed / (FILLED * gpu.limit) <= 1
    assert f"{COMPILE} = true and {CHECKPOINTING} = false and {ROWS} = {learner.row_tokens}" in found.why
    assert decided(found.settings) == (found.settings, "")


def test_the_plan_of_the_measured_model_is_near_its_peak_and_not_below(recipe: config.Config) -> None:
    """Measured with other compiled pieces, four times as many logits at a time, and without CUDA's own memory."""
    logits = 3072 * QWEN["vocab_size"] * (4 + 2)  # type: ignore[operator]
    for rows, measured in ((LONGEST, 46.84), (2 * LONGEST, 61.07)):
        plan = memory_plan(on(recipe, H100_GIB, row_tokens=rows, gradient_checkpointing=False, compile=True))
        parts = {part.what: part.num_bytes for part in plan.places[0].parts}
        tensors = plan.places[0].needed - parts["reserve"] - parts["copied keys of prompts"] + logits
        assert 1 <= tensors / GIB / measured < 1.1


@pytest.mark.parametrize(
    ("compiled", "rows", "measured"), [(False, 13_056, 62.66), (True, 16_896, 55.92), (True, 17_408, 56.82)]
)
def test_activations_of_a_row_are_as_on_an_h100(
    recipe: config.Config, compiled: bool, rows: int, measured: float
) -> None:
    """Measured in a step of one row, in which neither gradients nor the buffers of their sum are there at the peak."""
    learner = config.Learner(device="cuda", gradient_checkpointing=False, compile=compiled)
    plan = rank_memory(recipe.model, learner, 1, rows, on_gpu=True)
    alone = plan.peak - plan.states.gradients - plan.states.buckets
    assert alone / GIB == pytest.approx(measured, rel=0.015)


def test_a_critic_is_planned_with_plain_layers(recipe: config.Config) -> None:
    plain, compiled = (
        rank_memory(
            recipe.model,
            config.Learner(device="cuda", gradient_checkpointing=False, compile=value),
            1,
            LONGEST,
            on_gpu=True,
            critic=recipe.model,
        )
        for value in (False, True)
    )
    assert plain.critic is not None and compiled == plain


def test_layers_that_every_second_one_recomputes_keep_half_of_what_compiling_saves(recipe: config.Config) -> None:
    kept = {
        (compiled, every): rank_memory(
            recipe.model,
            config.Learner(device="cuda", gradient_checkpointing=every, compile=compiled),
            1,
            LONGEST,
            on_gpu=True,
        ).activations
        for compiled in (False, True)
        for every in (False, 2, True)
    }
    none, half, every = (kept[False, each].kept - kept[True, each].kept for each in (False, 2, True))  # type: ignore[union-attr]
    assert half == pytest.approx(none / 2, rel=0.01) and none > 0 == every


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"zero_stage": 3},
        {"mlp_tiles": 2},
        {"sequence_parallel": 2},
        {"attention": "eager"},
        {"lora": 8},
        {"preset": "ppo"},
    ],
)
def test_layers_are_compiled_where_that_was_measured(recipe: config.Config, change: dict[str, Any]) -> None:
    if rank := change.get("lora"):
        recipe = with_key(recipe, "model.lora.rank", rank)
    if preset := change.get("preset"):
        recipe = with_key(recipe, "objective.preset", preset)
    if "sequence_parallel" in change:
        recipe = with_key(recipe, "learner.ranks_per_node", 2)
        recipe = with_key(recipe, "cluster.gpus_per_node", 2)
    recipe = on(recipe, H100_GIB, **{key: value for key, value in change.items() if key not in ("lora", "preset")})
    assert decided(recipe).settings.learner.compile is (not change)


def test_experts_are_not_compiled(recipe: config.Config, tmp_path: Path) -> None:
    experts = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}
    (tmp_path / "config.json").write_text(json.dumps(QWEN | experts))
    assert decided(with_key(recipe, "model.path", str(tmp_path))).settings.learner.compile is False


def test_a_smaller_gpu_recomputes_as_few_layers_as_it_must(recipe: config.Config) -> None:
    steps = [decided(on(recipe, gib, row_tokens=LONGEST)).settings.learner for gib in (60, 54, 49, 40)]
    assert [learner.gradient_checkpointing for learner in steps] == [False, 4, 2, True]


def test_what_the_recipe_says_stays(recipe: config.Config) -> None:
    set_here = on(recipe, H100_GIB, gradient_checkpointing=True, row_tokens=LONGEST, compile=False)
    assert decided(set_here) == (set_here, "")
    offloaded = decided(on(recipe, H100_GIB, gradient_checkpointing="offload", row_tokens=LONGEST)).settings
    assert offloaded.learner.gradient_checkpointing == "offload"


def test_without_a_gpu_or_a_model_nothing_is_decided(recipe: config.Config) -> None:
    on_cpu = config.Config(model=recipe.model, data=recipe.data, sampling=recipe.sampling)
    for open_yet in (on_cpu, with_key(recipe, "model.path", "someone/a-model-that-is-elsewhere")):
        assert decided(open_yet) == (open_yet, "")
        assert open_yet.row_tokens == LONGEST
    learner = recipe.learner
    assert (learner.recomputed_every(on_gpu=True), learner.recomputed_every(on_gpu=False)) == (1, 0)
