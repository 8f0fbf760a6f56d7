"""Snapshots, checkpoints and exports are the master weights, on every ZeRO stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl import config
from olmorl.learner.trainer import export
from olmorl.learner.trainer.checkpoint_shards import Shares

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]

pytestmark = pytest.mark.slow


def job(kind: str, model: str, dtype: str, stage: int, **learner: Any) -> dict[str, Any]:
    settings = {"model": {"path": model, "dtype": dtype}, "learner": {"zero_stage": stage, **learner}}
    return {"kind": kind, "temperature": 0.7, **settings}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def results(run_ranks: Callable[..., Results], tiny_models: dict[str, str], exports: Path) -> Results:
    resume = {"minibatches": 2}
    alone: Jobs = {
        f"resume-z{stage}-1": job("resume", tiny_models["olmo3"], "float32", stage, **resume) for stage in range(4)
    }
    alone["resume-bf16-1"] = job("resume", tiny_models["olmo3"], "bfloat16", 2, **resume)
    alone |= {
        f"weights-{model}-z{stage}-1": job("weights", tiny_models[model], "bfloat16", stage)
        for model, stage in (("olmo3", 0), ("qwen2", 2))
    }
    alone |= {f"stopped-z{stage}-1": job("stopped", tiny_models["olmo3"], "float32", stage) for stage in (0, 2)}
    alone |= {f"diverged-z{stage}-1": job("diverged", tiny_models["olmo3"], "float32", stage) for stage in (0, 1)}
    alone["keep-z1-1"] = job("keep", tiny_models["olmo3"], "float32", 1)
    alone["keep-bf16-z1-1"] = job("keep", tiny_models["olmo3"], "bfloat16", 1)
    done = run_ranks(1, alone, exports / "one")
    pair: Jobs = {f"weights-{model}-z3-2": job("weights", tiny_models[model], "bfloat16", 3) for model in tiny_models}
    pair |= {f"weights-olmo3-z{stage}-2": job("weights", tiny_models["olmo3"], "bfloat16", stage) for stage in (0, 2)}
    pair |= {f"resume-z{stage}-2": job("resume", tiny_models["olmo3"], "float32", stage, **resume) for stage in (2, 3)}
    pair |= {f"stopped-z{stage}-2": job("stopped", tiny_models["olmo3"], "float32", stage) for stage in (1, 3)}
    pair |= {
        f"{kind}-sharded-z3-2": job(kind, tiny_models["olmo3"], "float32", 3, **how, **SHARDED)
        for kind, how in (("resume", resume), ("stopped", {}), ("diverged", {}))
    }
    pair |= {
        f"weights-{model}-sharded-z3-2": job("weights", tiny_models[model], "bfloat16", 3, **SHARDED)
        for model in ("olmo3", "qwen2")
    }
    pair["keep-sharded-bf16-z3-2"] = job("keep", tiny_models["olmo3"], "bfloat16", 3, **SHARDED)
    pair["keep-z2-2"] = job("keep", tiny_models["olmo3"], "float32", 2)
    pair["keep-bf16-z3-2"] = job("keep", tiny_models["olmo3"], "bfloat16", 3)
    for taker, keeper in TAKERS.items():
        if taker.endswith("-2"):
            pair[taker] = take(taker, tiny_models, exports / ("one" if keeper.endswith("-1") else "two") / keeper)
    done |= run_ranks(2, pair, exports / "two")
    back = {name: take(name, tiny_models, exports / "two" / TAKERS[name]) for name in TAKERS if name.endswith("-1")}
    return done | run_ranks(1, back, exports / "back")


def take(name: str, tiny_models: dict[str, str], checkpoint: Path) -> dict[str, Any]:
    dtype = "bfloat16" if "bf16" in name else "float32"
    sharded = SHARDED if "take-sharded" in name else {}
    taking = job("take", tiny_models["olmo3"], dtype, int(name[-3]), offload_optimizer="offload" in name, **sharded)
    return {**taking, "checkpoint": str(checkpoint)}


SHARDED = {"deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}}
"""DeepSpeed keeps weights of up to 100,000 values whole on every rank, which all weights of the tiny models are."""
TAKERS = {
    "take-z3-2": "keep-z2-2",
    "take-from-1-z2-2": "keep-z1-1",
    "take-bf16-z2-2": "keep-bf16-z1-1",
    "take-offload-z3-2": "keep-z1-1",
    "take-z1-1": "keep-z2-2",
    "take-offload-z2-1": "keep-z2-2",
    "take-z0-1": "keep-z2-2",
    "take-bf16-z1-1": "keep-bf16-z3-2",
    "take-sharded-z3-2": "keep-z2-2",
    "take-sharded-offload-z3-2": "keep-z1-1",
    "take-sharded-bf16-z3-2": "keep-bf16-z1-1",
    "take-of-sharded-bf16-z1-1": "keep-sharded-bf16-z3-2",
}
"""The restoring job, and the job whose checkpoint it restores."""
RESUMES = ["resume-z0-1", "resume-z1-1", "resume-z2-1", "resume-z3-1", "resume-bf16-1", "resume-z2-2", "resume-z3-2"]
RESUMES += ["resume-sharded-z3-2"]
WEIGHTS = ["weights-olmo3-z0-1", "weights-qwen2-z2-1", "weights-olmo3-z3-2", "weights-qwen2-z3-2", "weights-llama-z3-2"]
WEIGHTS += ["weights-olmo3-z0-2", "weights-olmo3-z2-2", "weights-olmo3-sharded-z3-2", "weights-qwen2-sharded-z3-2"]


@pytest.mark.parametrize("name", RESUMES)
def test_training_after_a_restore_is_bit_for_bit_the_same(results: Results, name: str) -> None:
    first = results[name][0]
    assert first["straight"].keys() == first["resumed"].keys()
    assert all(torch.equal(first["straight"][key], first["resumed"][key]) for key in first["straight"])
    for rank in results[name]:
        assert rank["values"][0] == rank["values"][1]
        assert rank["random_restored"]


@pytest.mark.parametrize(
    "name", ["stopped-z0-1", "stopped-z2-1", "stopped-z1-2", "stopped-z3-2", "stopped-sharded-z3-2"]
)
def test_a_step_that_is_given_up_midway_leaves_no_trace(results: Results, name: str) -> None:
    assert [rank["values"] for rank in results[name]] == [[None]] * int(name[-1])
    first = results[name][0]
    for got, wanted in (("after", "before"), ("resumed", "wanted")):
        assert all(torch.equal(first[got][key], first[wanted][key]) for key in first[wanted])
    assert any(not torch.equal(first["wanted"][key], first["before"][key]) for key in first["wanted"])


@pytest.mark.parametrize("name", ["diverged-z0-1", "diverged-z1-1", "diverged-sharded-z3-2"])
def test_a_gradient_that_is_not_finite_ends_the_run_by_name(results: Results, name: str) -> None:
    assert "step 1: the norm of the gradient is" in results[name][0]["error"]


@pytest.mark.parametrize("taker", TAKERS)
def test_a_checkpoint_is_taken_up_on_another_layout_bit_for_bit(results: Results, exports: Path, taker: str) -> None:
    keeper = TAKERS[taker]
    kept, taken = results[keeper][0], results[taker][0]
    for name in (keeper, taker):
        folder = next(exports.glob(f"*/{name}"))
        shares = Shares(folder)
        assert shares.steps == 2
        assert shares.numels == {key: weight.numel() for key, weight in kept["state"]["master"].items()}
        for kind, state in kept["state"].items():
            for key, tensor in state.items():
                assert torch.equal(shares.read(kind, key, 0, tensor.numel()), tensor.flatten()), (name, kind, key)
    for key, master in kept["state"]["master"].items():
        assert torch.equal(taken["snapshot"][key], master.to(taken["snapshot"][key].dtype)), key


@pytest.mark.parametrize("taker", TAKERS)
def test_training_goes_on_the_same_on_another_layout(results: Results, taker: str) -> None:
    kept, taken = results[TAKERS[taker]][0], results[taker][0]
    # Gradients in bfloat16 are rounded differently when other ranks add them up.
    weights_rel, values_rel = (0.1, 1e-2) if "bf16" in taker else (1e-3, 1e-4)
    for key, weight in kept["weights"].items():
        moved = weight - kept["state"]["master"][key]
        assert moved.norm() > 0
        assert (taken["weights"][key] - weight).norm() < weights_rel * moved.norm(), key
    for key, value in kept["values"][0].items():
        assert taken["values"][0][key] == pytest.approx(value, rel=values_rel, abs=1e-6), key


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_snapshot_takes_the_memory_of_the_one_before(results: Results, name: str) -> None:
    for rank in results[name]:
        before, after = rank["places"]
        assert before == after and any(before)


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_rank_copies_its_share_of_the_bytes(results: Results, name: str) -> None:
    held = [rank["held"] for rank in results[name]]
    whole = sum(tensor.nbytes for tensor in results[name][0]["snapshot"].values())
    assert sum(held) == whole and max(held) < 1.1 * whole / len(held)


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_a_reader_gets_is_the_master_weights_rounded(results: Results, name: str) -> None:
    masters = results[name][0]["masters"]
    for rank in results[name]:
        assert rank["snapshot"].keys() == masters.keys()
        for key, master in masters.items():
            assert torch.equal(rank["snapshot"][key], master.to(torch.bfloat16)), key
    assert any(master.to(torch.bfloat16).float().ne(master).any() for master in masters.values())


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_reader_gets_the_same_from_the_changes_of_each_shard(results: Results, name: str) -> None:
    for rank in results[name]:
        changed = rank["changed"]
        assert changed["deltas"] == [True] * len(results[name])
        for key, master in changed["masters"].items():
            assert torch.equal(changed["found"][key], master.to(torch.bfloat16)), key
        assert any(not torch.equal(changed["found"][key], rank["snapshot"][key]) for key in rank["snapshot"])


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_probe_is_what_the_snapshot_computes_at_temperature_1(
    results: Results, tiny_models: dict[str, str], name: str
) -> None:
    first, *others = results[name]
    assert [rank["probe"] for rank in others] == [None] * len(others)
    model = AutoModelForCausalLM.from_pretrained(tiny_models[name.split("-")[1]], dtype=torch.bfloat16)
    model.load_state_dict(first["snapshot"], strict=False)
    tokens = torch.tensor([first["probe"].token_ids])
    with torch.no_grad():
        logprobs_TV = model(tokens).logits[0, :-1].float().log_softmax(-1)
    wanted = logprobs_TV.gather(1, tokens[0, 1:, None])[:, 0]
    assert len(set(first["probe"].token_ids)) > 20
    assert first["probe"].logprobs == pytest.approx(wanted.tolist(), abs=0.1)


@pytest.mark.parametrize("name", WEIGHTS)
def test_export_loads_and_equals_the_snapshot(
    results: Results, exports: Path, tiny_models: dict[str, str], name: str
) -> None:
    folder = exports / ("one" if name.endswith("1") else "two") / name
    snapshot = results[name][0]["snapshot"]
    with safe_open(folder / "model.safetensors", framework="pt") as saved:
        assert set(saved.keys()) == snapshot.keys()
    assert ("lm_head.weight" in snapshot) == ("qwen2" not in name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    loaded = dict(model.named_parameters())
    assert all(torch.equal(loaded[key], tensor) for key, tensor in snapshot.items())
    again = folder / "of_checkpoint"
    settings = config.build({"model": {"path": tiny_models[name.split("-")[1]], "dtype": "bfloat16"}})
    export.write(folder / "shares", settings, again)
    for file in ("model.safetensors", "config.json"):
        assert (again / file).read_bytes() == (folder / file).read_bytes()
    source = AutoTokenizer.from_pretrained(tiny_models[name.split("-")[1]])
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == source.get_vocab()
