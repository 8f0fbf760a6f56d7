"""A reference in host memory: it gives the numbers of one on the device, and the policy may become it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from olmorl import config
from olmorl.errors import ConfigError


@pytest.fixture(scope="module")
def results(run_ranks: Callable[..., Any], tiny_models: dict[str, str], tmp_path_factory: Any) -> dict[str, Any]:
    def job(kind: str, stage: int, every: int | None = None, away: bool = True, minibatches: int = 1) -> dict[str, Any]:
        learner = {"zero_stage": stage, "learning_rate": 1e-4, "minibatches": minibatches, "offload_reference": away}
        objective = {"preset": "grpo", "kl_refresh_every": every}
        return {"kind": kind, "model": {"path": tiny_models["olmo3"], "dtype": "float32"}} | {
            "learner": learner,
            "objective": objective,
        }

    folder: Path = tmp_path_factory.mktemp("offloaded")
    alone = {
        "beside": job("steps", 2, away=False),
        "away-z0": job("steps", 0),
        "away-z2": job("steps", 2),
        "away-z3": job("steps", 3),
        "every-1": job("steps", 2, 1),
        "every-2": job("steps", 2, 2),
        "resume-z0": job("resume", 0, 2, minibatches=2),
        "resume-z2": job("resume", 2, 2, minibatches=2),
        "keep": job("keep", 2, 2),
    }
    found = run_ranks(1, alone, folder)
    checkpoint = {"checkpoint": str(folder / "keep")}
    more: dict[str, Any] = run_ranks(2, {"take": job("take", 3, 2) | checkpoint, "away-2": job("steps", 2)})
    return found | more


def drifts(values: list[dict[str, float]]) -> list[float]:
    return [each["kl_ref_mean"] for each in values]


@pytest.mark.parametrize("name", ["away-z0", "away-z2", "away-z3", "away-2"])
def test_it_gives_the_numbers_of_a_reference_on_the_device(results: dict[str, Any], name: str) -> None:
    beside, away = results["beside"][0], results[name][0]
    assert drifts(beside["values"])[2] > drifts(beside["values"])[1] > 0
    for values, wanted in zip(away["values"], beside["values"], strict=True):
        assert values == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    if name == "away-z2":
        assert all(torch.equal(away["weights"][key], beside["weights"][key]) for key in beside["weights"])


def test_a_rank_holds_its_share(results: dict[str, Any]) -> None:
    """Beside the policy the reference is whole on every rank, below ZeRO-3; in turns each rank has its part."""
    whole = results["beside"][0]["reference_bytes"]
    assert whole == sum(weight.nbytes for weight in results["beside"][0]["weights"].values())
    assert results["away-z2"][0]["reference_bytes"] == whole
    assert sum(rank["reference_bytes"] for rank in results["away-2"]) == whole
    assert all(0.4 < rank["reference_bytes"] / whole < 0.6 for rank in results["away-2"])


def test_the_policy_becomes_the_reference(results: dict[str, Any]) -> None:
    """A policy that is its own reference has a divergence of 0; one step after it that of the first update."""
    assert drifts(results["every-1"][0]["values"]) == pytest.approx([0, 0, 0], abs=1e-12)
    first, second, third = drifts(results["every-2"][0]["values"])
    assert (first, third) == pytest.approx((0, 0), abs=1e-12)
    assert second == drifts(results["beside"][0]["values"])[1] > 0


@pytest.mark.parametrize("name", ["resume-z0", "resume-z2"])
def test_a_refreshed_reference_is_in_the_checkpoint(results: dict[str, Any], name: str) -> None:
    """Steps 3 and 4 have the policy after step 2 as their reference, before and after a resume."""
    straight, resumed = results[name][0]["values"]
    assert straight == resumed
    assert 0 < drifts(straight)[0] < drifts(straight)[1]


def test_it_is_restored_on_another_layout(results: dict[str, Any]) -> None:
    (kept,) = results["keep"]
    for rank in results["take"]:
        assert drifts(rank["values"]) == pytest.approx(drifts(kept["values"]), abs=1e-9)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"objective": {"kl_beta": 0.1, "kl_refresh_every": 2}}, "set learner.offload_reference = true"),
        ({"model": {"lora": {"rank": 4}}, "learner": {"offload_reference": True}}, "the policy without adapters"),
        (
            {"model": {"lora": {"rank": 4}}, "objective": {"kl_beta": 0.1, "kl_refresh_every": 2}},
            "objective.kl_refresh_every with model.lora",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(recipe: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config.build(recipe)
