"""The trainer against plain PyTorch, and against itself on every layout of rows, ranks and ZeRO stages.

The reference sees each sample alone: no rows, no packing, the formula of the objective written out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]
Gradients = dict[str, torch.Tensor]

ONE_ROW, SINGLES = 10_000, 1
"""`row_tokens` that put all samples into one row, and each sample into a separate row."""
EIGHT_ROWS = 36
NO_CLIPPING = {"max_grad_norm": 1e9}
CLIPPED = 0.05
"""A norm to which every gradient here is clipped."""
BOUND = {"float32": 1e-5, "bfloat16": 2e-2}
TEMPERATURE = 0.7
RANKS_LIMIT_S = 120.0
"""Of `ranks_process.py`."""
FP32_SUMS: Any = {"deepspeed": {"communication_data_type": "fp32"}}
SHARDED = {"deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}}
"""DeepSpeed keeps weights of up to 100,000 values whole on every rank, which all weights of the tiny models are."""


def gradient_job(model: str, dtype: str, stage: int, row_tokens: int, **learner: Any) -> dict[str, Any]:
    return {
        "kind": "gradient",
        "model": {"path": model, "dtype": dtype},
        "learner": {"zero_stage": stage} | NO_CLIPPING | learner,
        "row_tokens": row_tokens,
        "temperature": TEMPERATURE,
    }


LOOPS: Jobs = {
    "plain": {},
    "minibatches": {"minibatches": 2, "epochs": 2, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
}


def loop_jobs(model: str) -> Jobs:
    """Three steps each: two compared to a plain loop, two with a reference model."""
    base = {"kind": "steps", "model": {"path": model, "dtype": "float32"}, "temperature": TEMPERATURE}
    common = {"zero_stage": 2, "learning_rate": 1e-4, "max_grad_norm": 0.5}
    published = base | {"objective": {"rho_kind": "truncate"}}  # `test_stale_answers` has the default
    jobs: Jobs = {name: published | {"learner": common | learner} for name, learner in LOOPS.items()}
    for stage in (0, 3):
        learner = common | {"zero_stage": stage, "minibatches": 2}
        jobs[f"kl-z{stage}"] = base | {"learner": learner, "objective": {"preset": "grpo"}}
    return jobs


@pytest.fixture(scope="session")
def results(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """One gradient of the same samples for each layout: `DTYPE-zSTAGE-ROWS-RANKS`."""
    olmo, tied = tiny_models["olmo3"], tiny_models["qwen2"]
    rows = {"one": ONE_ROW, "eight": EIGHT_ROWS, "single": SINGLES}
    alone: Jobs = {
        f"{dtype}-z2-{name}-1": gradient_job(olmo, dtype, 2, row_tokens)
        for dtype, (name, row_tokens) in product(BOUND, rows.items())
    }
    stages = (("float32", 0), ("float32", 1), ("float32", 3), ("bfloat16", 1), ("bfloat16", 3))
    alone |= {f"{dtype}-z{stage}-eight-1": gradient_job(olmo, dtype, stage, EIGHT_ROWS) for dtype, stage in stages}
    alone["bfloat16-z3-single-1"] = gradient_job(olmo, "bfloat16", 3, SINGLES)
    alone |= {
        "float32-z3-checkpointing-1": gradient_job(olmo, "float32", 3, 64, gradient_checkpointing=True),
        "float32-z2-offload-1": gradient_job(olmo, "float32", 2, EIGHT_ROWS, offload_optimizer=True),
        "float32-z1-eager-1": gradient_job(olmo, "float32", 1, ONE_ROW, attention="eager"),
        "tied-z2-eight-1": gradient_job(tied, "float32", 2, EIGHT_ROWS),
    }
    stages = (*product(["float32"], range(4)), ("bfloat16", 2), ("bfloat16", 3))
    pair: Jobs = {f"{dtype}-z{stage}-uneven-2": gradient_job(olmo, dtype, stage, SINGLES) for dtype, stage in stages}
    pair["tied-z3-uneven-2"] = gradient_job(tied, "float32", 3, SINGLES)
    pair |= {f"{dtype}-z3-sharded-2": gradient_job(olmo, dtype, 3, SINGLES, **SHARDED) for dtype in BOUND}
    pair |= {
        f"{name}-z3-sharded-eager-2": gradient_job(folder, "float32", 3, SINGLES, attention="eager", **SHARDED)
        for name, folder in (("float32", olmo), ("tied", tied))
    }
    pair |= {
        "clipped-z3-sharded-eager-2": gradient_job(
            olmo, "float32", 3, SINGLES, attention="eager", max_grad_norm=CLIPPED, **SHARDED
        ),
        "tied-z3-sharded-2": gradient_job(tied, "float32", 3, SINGLES, **SHARDED),
        "float32-z3-sharded-checkpointing-2": gradient_job(
            olmo, "float32", 3, SINGLES, gradient_checkpointing=True, **SHARDED
        ),
        "float32-z3-sharded-offload-2": gradient_job(olmo, "float32", 3, SINGLES, offload_optimizer=True, **SHARDED),
        "bfloat16-z3-sharded-fp32-reduce-2": gradient_job(
            olmo, "bfloat16", 3, SINGLES, deepspeed={**FP32_SUMS["deepspeed"], **SHARDED["deepspeed"]}
        ),
        "bfloat16-z2-fp32-reduce-2": gradient_job(olmo, "bfloat16", 2, SINGLES, **FP32_SUMS),
    }
    sharded = {"learner": {"zero_stage": 3, "learning_rate": 1e-4, "max_grad_norm": 0.5, "minibatches": 2, **SHARDED}}
    base = {"kind": "steps", "model": {"path": olmo, "dtype": "float32"}, "temperature": TEMPERATURE}
    pair["kl-z3-sharded"] = base | sharded | {"objective": {"preset": "grpo"}}
    return run_ranks(1, alone | loop_jobs(olmo)) | run_ranks(2, pair)


def distance(got: Gradients, wanted: Gradients) -> float:
    """Relative difference of the whole gradient."""
    assert got.keys() == wanted.keys()
    error = sum((got[name].double() - wanted[name].double()).square().sum() for name in wanted)
    return float((error / sum(wanted[name].double().square().sum() for name in wanted)) ** 0.5)


def sample_logprobs(model: torch.nn.Module, sample: Any, temperature: float) -> torch.Tensor:
    """Log-probabilities of the completion tokens of one sample, computed alone."""
    tokens = torch.tensor([*sample.prompt_ids, *sample.completion_ids]).long()
    logits = model(tokens[None]).logits[0, len(sample.prompt_ids) - 1 : -1]
    return log_softmax(logits.float() / temperature, dim=-1).gather(1, tokens[len(sample.prompt_ids) :, None])[:, 0]


def sample_objective(logprobs: torch.Tensor, old: torch.Tensor, sample: Any) -> torch.Tensor:
    """Sum over loss tokens of w * min(ratio A, clip(ratio) A), with the numbers of the default preset."""
    weight = (old - torch.tensor(sample.behaviour_logprobs)).exp().clamp(max=2.0)
    ratio = (logprobs - old).exp()
    advantage = sample.advantage
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.272) * advantage)
    return (weight * surrogate)[torch.tensor(sample.loss_mask)].sum()


def reference_gradient(folder: str, groups: list[list[Any]], attention: str = "eager") -> Gradients:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    samples = [sample for group in groups for sample in group]
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    total = torch.zeros(())
    for sample in samples:
        logprobs = sample_logprobs(model, sample, TEMPERATURE)
        total = total - sample_objective(logprobs, logprobs.detach(), sample) / num_tokens
    total.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("dtype", BOUND)
def test_gradient_is_the_same_on_every_layout(results: Results, dtype: str) -> None:
    wanted = results[f"{dtype}-z2-one-1"][0]["gradients"]
    for name, ranks in results.items():
        if name.startswith(dtype):
            for rank in ranks:
                assert distance(rank["gradients"], wanted) <= BOUND[dtype], name


def test_weights_are_really_sharded(results: Results) -> None:
    """With DeepSpeed's default threshold, every rank holds all weights of a model this small."""
    for name, ranks in results.items():
        if "gradients" in ranks[0] and "z3" in name:
            everything = sum(gradient.numel() for gradient in ranks[0]["gradients"].values())
            assert {rank["whole"] for rank in ranks} == {0 if "sharded" in name else everything}, name


@pytest.mark.parametrize(
    ("in_fp32", "in_bf16", "alone"),
    [
        ("bfloat16-z2-fp32-reduce-2", "bfloat16-z2-uneven-2", "bfloat16-z2-single-1"),
        ("bfloat16-z3-sharded-fp32-reduce-2", "bfloat16-z3-sharded-2", "bfloat16-z3-single-1"),
    ],
)
def test_gradients_reduced_in_fp32_are_those_of_one_rank(
    results: Results, in_fp32: str, in_bf16: str, alone: str
) -> None:
    wanted = results[alone][0]["gradients"]
    for rank in results[in_fp32]:
        assert distance(rank["gradients"], wanted) < 1e-6
    assert distance(results[in_bf16][0]["gradients"], wanted) > 1e-4


def test_layouts_are_what_they_claim(results: Results) -> None:
    assert results["float32-z2-one-1"][0]["rows"] == [13]
    assert len(results["float32-z2-eight-1"][0]["rows"]) == 8
    assert results["float32-z2-single-1"][0]["rows"] == [1] * 13
    assert [rank["rows"] for rank in results["float32-z3-uneven-2"]] == [[1] * 7, [1] * 6 + [0]]


def test_collectives_of_deepspeed_have_the_limit_of_the_ranks_and_their_group(results: Results) -> None:
    for name in ("float32-z2-one-1", "float32-z3-uneven-2"):
        assert all(rank["one_group"] for rank in results[name]), "a second group of all ranks takes memory of each GPU"
        assert [rank["limit_s"] for rank in results[name]] == [RANKS_LIMIT_S] * len(results[name])


def test_no_rank_loads_the_compiler_that_it_does_not_use(results: Results) -> None:
    assert not any(rank["has_compiler"] for ranks in results.values() for rank in ranks if "gradients" in rank)


@pytest.mark.parametrize(
    ("job", "model"),
    [
        ("float32-z2-one-1", "olmo3"),
        ("float32-z3-sharded-2", "olmo3"),
        ("tied-z2-eight-1", "qwen2"),
        ("tied-z3-uneven-2", "qwen2"),
        ("tied-z3-sharded-2", "qwen2"),
    ],
)
def test_gradient_is_that_of_plain_pytorch(results: Results, tiny_models: dict[str, str], job: str, model: str) -> None:
    for rank in results[job]:
        wanted = reference_gradient(tiny_models[model], rank["groups"][1])
        assert distance(rank["gradients"], wanted) <= 1e-5


@pytest.mark.parametrize(
    ("job", "model", "attention"),
    [
        ("float32-z3-sharded-eager-2", "olmo3", "eager"),
        ("clipped-z3-sharded-eager-2", "olmo3", "eager"),
        ("tied-z3-sharded-eager-2", "qwen2", "eager"),
        ("tied-z3-sharded-2", "qwen2", "sdpa"),
    ],
)
def test_zero_3_of_two_ranks_gives_the_gradient_of_plain_pytorch(
    results: Results, tiny_models: dict[str, str], job: str, model: str, attention: str
) -> None:
    """The norm of the difference of the whole gradients is at most 1e-6 of the norm of plain PyTorch's gradient.

    Both compute attention with the same kernel. With different ones (above) 1e-6 cannot be asked for: the rounding of
    fp32 in forward and backward alone is larger. Measured against float64, plain PyTorch is off by 1.2e-6 to 1.9e-6 on
    these models, and the trainer by as much with every kernel. Sharding, the mean over ranks and the clipping do not
    show: with the same kernel the difference is 3e-7 to 6e-7, with one row and with many.
    """
    for rank in results[job]:
        wanted = reference_gradient(tiny_models[model], rank["groups"][1], attention)
        if job.startswith("clipped"):
            norm = float(torch.stack([gradient.norm() for gradient in wanted.values()]).norm())
            assert rank["values"]["grad_norm"] == pytest.approx(norm, rel=1e-6) and norm > CLIPPED
            wanted = {name: gradient * (CLIPPED / norm) for name, gradient in wanted.items()}
        assert distance(rank["gradients"], wanted) <= 1e-6


def test_metrics_are_global_and_not_multiplied_by_ranks(results: Results) -> None:
    alone = results["float32-z2-one-1"][0]["values"]
    assert alone["learner_flops"] > 0
    for stage in range(4):
        for rank in results[f"float32-z{stage}-uneven-2"]:
            assert rank["values"] == pytest.approx(alone, rel=1e-4, abs=1e-6)
    norm = sum(g.double().square().sum() for g in results["float32-z2-one-1"][0]["gradients"].values()) ** 0.5
    assert alone["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def plain_loop(folder: str, groups: dict[int, list[list[Any]]], learner: dict[str, Any], rates: list[float]) -> Any:
    """Three steps of PPO with AdamW, as anyone would write it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=learner.get("weight_decay", 0.0)
    )
    num_minibatches = learner.get("minibatches", 1)
    for step, rate in enumerate(rates, start=1):
        batches = [[*chain.from_iterable(groups[step][m::num_minibatches])] for m in range(num_minibatches)]
        with torch.no_grad():
            old = [[sample_logprobs(model, sample, TEMPERATURE) for sample in batch] for batch in batches]
        for _ in range(learner.get("epochs", 1)):
            for batch, old_logprobs in zip(batches, old, strict=True):
                optimizer.zero_grad()
                num_tokens = sum(int(sample.loss_mask.sum()) for sample in batch)
                for sample, before in zip(batch, old_logprobs, strict=True):
                    logprobs = sample_logprobs(model, sample, TEMPERATURE)
                    (-sample_objective(logprobs, before, sample) / num_tokens).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", LOOPS)
def test_three_steps_equal_a_plain_loop(results: Results, tiny_models: dict[str, str], name: str) -> None:
    result = results[name][0]
    rates = [values["lr"] for values in result["values"]]
    wanted = plain_loop(tiny_models["olmo3"], result["groups"], LOOPS[name], rates)
    assert wanted.keys() == result["weights"].keys()
    largest = max((result["weights"][key] - wanted[key]).abs().max().item() for key in wanted)
    assert largest <= 1e-6


def test_reference_model_is_the_starting_policy(results: Results) -> None:
    plain = results["kl-z0"][0]
    drifts = [values["kl_ref_mean"] for values in plain["values"]]
    assert 0 < drifts[0] < drifts[1] < drifts[2]
    for rank in (*results["kl-z3"], *results["kl-z3-sharded"]):
        for values, wanted in zip(rank["values"], plain["values"], strict=True):
            assert values == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    assert "kl_ref_mean" not in results["plain"][0]["values"][0]
