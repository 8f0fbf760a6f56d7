"""The families as the learner sees them, one of them on a real engine, and the table in the docs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.core_model_loading import revert_weight_conversion

from olmorl import config
from olmorl.actors.vllm_engine.weight_check import checkpoint_shapes
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow, refuse_leaks, refuse_sharing
from tests.models.families import FAMILIES, WINDOW, build
from tests.models.table import TOLERANCE, problems, render

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
LENGTHS = (WINDOW + 9, 1, 7, WINDOW)
GOOD = {
    "groups": 3,
    "before": 0.0,
    "after": 1e-6,
    "moved_least": 0.5,
    "least_group": "norm",
    "packed": 0.0,
    "export": True,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_samples_are_those_alone_and_names_are_those_of_the_folder(name: str, tmp_path: Path) -> None:
    build(FAMILIES[name], tmp_path)
    settings = config.Model(path=str(tmp_path), dtype="float32")
    policy = PackedPolicy(models.load(settings, "sdpa", CPU), 1.0, 64)
    refuse_leaks(policy, policy.model, CPU)
    tokens_T = torch.randint(0, 250, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for part, length in zip(tokens_T.split(list(LENGTHS)), LENGTHS, strict=True):
            start = next(i for i in range(len(tokens_T)) if torch.equal(tokens_T[i : i + length], part))
            predicted_P = torch.arange(1, length)
            if length == 1:
                continue
            alone_P = policy(PolicyRow(part, (length,), predicted_P))[0][predicted_P]
            packed_P = policy(PolicyRow(tokens_T, LENGTHS, predicted_P + start))[0][predicted_P + start]
            assert torch.allclose(packed_P, alone_P, atol=1e-5)
    tied = policy.model.config.tie_word_embeddings
    weights = {key: value for key, value in policy.model.state_dict().items() if not (tied and key == "lm_head.weight")}
    published = revert_weight_conversion(policy.model, weights)
    assert {key: tuple(tensor.shape) for key, tensor in published.items()} == checkpoint_shapes(tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_that_share_a_prompt_have_the_values_and_gradients_of_own_prompts(name: str, tmp_path: Path) -> None:
    build(FAMILIES[name], tmp_path)
    settings = config.Model(path=str(tmp_path), dtype="float32")
    policy = PackedPolicy(models.load(settings, "sdpa", CPU), 1.0, 64)
    refuse_sharing(policy, policy.model, CPU)
    prompt_T, *answers = torch.randint(0, 250, (2 * WINDOW + 14,)).split([WINDOW + 3, 5, WINDOW, 6])
    first, *others = (len(answer) for answer in answers)
    prompt, total = len(prompt_T), len(prompt_T) + first + sum(others)
    shared = PolicyRow(
        torch.cat([prompt_T, *answers]), (prompt + first, *others), torch.arange(prompt, total), (0, prompt, prompt)
    )
    found = [policy(shared)[0][prompt:], torch.cat([_alone(policy, prompt_T, answer) for answer in answers])]
    assert torch.allclose(*found, atol=1e-6)
    direction = torch.linspace(-1, 1, total - prompt) / total
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    shared_gradients, own_gradients = (
        torch.autograd.grad((values * direction).sum(), weights, allow_unused=True, retain_graph=True)
        for values in found
    )
    for left, right in zip(shared_gradients, own_gradients, strict=True):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert (left - right).abs().max() <= 1e-6 * max(1.0, right.abs().max().item())


def _alone(policy: PackedPolicy, prompt_T: torch.Tensor, answer_T: torch.Tensor) -> torch.Tensor:
    tokens_T = torch.cat([prompt_T, answer_T])
    row = PolicyRow(tokens_T, (len(tokens_T),), torch.arange(len(prompt_T), len(tokens_T)))
    return policy(row)[0][len(prompt_T) :]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_experts_reach_the_engine_in_flight() -> None:
    """The others are compared by `make models`; this one has weights that transformers and vLLM each fuse their way."""
    command = [sys.executable, "-m", "tests.models.compare", "OLMoE"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert problems(json.loads(done.stdout.splitlines()[-1])) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, []),
        ({"after": 2 * TOLERANCE}, ["after differs by 0.004"]),
        ({"moved_least": 0.001}, ["a change of norm moves nothing"]),
        ({"export": False}, ["the export differs"]),
        ({"failed": "no such architecture"}, ["no such architecture"]),
    ],
)
def test_a_result_is_judged(change: dict[str, Any], says: list[str]) -> None:
    assert problems({**GOOD, **change}) == says
    shown = render({"Olmo 3": {**GOOD, **change}}).splitlines()[-1]
    assert says[0] in shown if says else shown.endswith("| 3 | 0 | 1e-06 | 0 | yes |")


def test_the_page_has_the_table_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "models.json").read_text(encoding="utf-8"))["families"]
    assert results.keys() == FAMILIES.keys()
    assert render(results) in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
