"""What the memory plan decides on GPUs of several sizes: recomputation, and the length of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.config import with_key
from olmorl.deploy.preflight.memory import memory_plan
from olmorl.deploy.preflight.memory_auto import CHECKPOINTING, FILLED, ROWS, decided
from olmorl.deploy.preflight.memory_places import GIB

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


@pytest.fixture
def recipe(tmp_path: Path) -> config.Config:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return config.Config(
        model=config.Model(path=str(tmp_path), fp32_head=True),
        data=config.Data(max_prompt_tokens=256),
        sampling=config.SamplingSettings(max_tokens=LONGEST - 256),
        cluster=config.Cluster(address="auto", gpus_per_node=1, gpu_memory_gib=H100_GIB, host_memory_gib=500),
        learner=config.Learner(device="cuda", compile=True),
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
    assert f"{CHECKPOINTING} = false and {ROWS} = {learner.row_tokens}" in found.why
    assert decided(found.settings) == (found.settings, "")


def test_the_plan_of_the_measured_model_is_near_its_peak_and_not_below(recipe: config.Config) -> None:
    """Measured with four times as many logits at a time, and without CUDA's own memory and copies of prompts."""
    logits = 3072 * QWEN["vocab_size"] * (4 + 2)  # type: ignore[operator]
    for rows, measured in ((LONGEST, 46.84), (2 * LONGEST, 61.07)):
        plan = memory_plan(on(recipe, H100_GIB, row_tokens=rows, gradient_checkpointing=False))
        parts = {part.what: part.num_bytes for part in plan.places[0].parts}
        tensors = plan.places[0].needed - parts["reserve"] - parts["copied keys of prompts"] + logits
        assert 1 <= tensors / GIB / measured < 1.2


def test_a_smaller_gpu_recomputes_as_few_layers_as_it_must(recipe: config.Config) -> None:
    steps = [decided(on(recipe, gib, row_tokens=LONGEST)).settings.learner for gib in (60, 54, 49, 40)]
    assert [learner.gradient_checkpointing for learner in steps] == [False, 4, 2, True]


def test_what_the_recipe_says_stays(recipe: config.Config) -> None:
    set_here = on(recipe, H100_GIB, gradient_checkpointing=True, row_tokens=LONGEST)
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
