"""A compiled policy against the plain one: loss and gradients of each family, and what turns it off.

The traced pieces are compared in fp64, where torch runs them operation by operation. The kernels that it writes for
them are compared in fp32: they sum in another order, so they are as far from fp64 as the plain computation is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from olmorl import config
from olmorl.learner.trainer import compiled
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.compat import compile_in_pieces
from olmorl.learner.trainer.compiled import compile_policy
from olmorl.learner.trainer.logprobs import PLAIN, compiled_passes
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow
from tests.learner.trainer.test_deepspeed_trainer import (
    EIGHT_ROWS,
    ONE_ROW,
    SINGLES,
    Jobs,
    Results,
    distance,
    gradient_job,
)
from tests.models.families import FAMILIES, build

CPU = torch.device("cpu")
PASSING = ("Olmo 3", "Qwen 3", "Gemma 3")
"""Families that show what there is: norms after and before, norms of heads or of all, windows."""
DENSE = [name for name, family in FAMILIES.items() if "experts" not in family.has]
ROWS = {
    "packed": ((20, 30, 7), ()),
    "one sample": ((100,), ()),
    "shared prompts": ((24, 9, 40, 30, 5), (0, 17, 17, 0, 21)),
}
"""Lengths and prefixes. Windows have 16 tokens."""
Outcome = dict[str, Tensor]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Callable[[str, torch.dtype], PackedPolicy]]:
    """A random policy of a family."""

    def made(name: str, dtype: torch.dtype) -> PackedPolicy:
        build(FAMILIES[name], tmp_path)
        model = models.load(config.Model(path=str(tmp_path), dtype="float32"), "sdpa", CPU).to(dtype)
        model.train()
        return PackedPolicy(model, 0.7, chunk=16)

    def forget() -> None:
        torch._dynamo.reset()
        compiled_passes.cache_clear()

    forget()
    yield made
    forget()


def graphs() -> int:
    """All that torch has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def outcome(policy: PackedPolicy, lengths: tuple[int, ...], prefixes: tuple[int, ...]) -> Outcome:
    """Loss, log-probabilities, entropies and the gradients of a row."""
    number = sum(lengths)
    tokens_T = torch.arange(number) * 7919 % policy.model.config.vocab_size
    policy.zero_grad()
    logprobs_T, entropy_T = policy(PolicyRow(tokens_T, lengths, torch.arange(2, number), prefixes), with_entropy=True)
    loss = (logprobs_T * torch.linspace(-1, 1, number, dtype=logprobs_T.dtype)).sum() / number
    loss.backward()
    gradients = {name: weight.grad.double() for name, weight in policy.named_parameters() if weight.grad is not None}
    assert entropy_T is not None
    return {"loss": loss.detach(), "logprobs": logprobs_T.detach(), "entropy": entropy_T} | gradients


def distances(found: Outcome, wanted: Outcome) -> dict[str, float]:
    assert found.keys() == wanted.keys()
    return {k: float((found[k].double() - v.double()).norm() / v.double().norm()) for k, v in wanted.items()}


@pytest.mark.parametrize("name", [n if n in PASSING else pytest.param(n, marks=pytest.mark.slow) for n in DENSE])
def test_the_pieces_compute_the_plain_loss_and_gradients_in_fp64(
    tiny: Callable[..., PackedPolicy], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    policy = tiny(name, torch.float64)
    wanted = {row: outcome(policy, *ROWS[row]) for row in ROWS}
    start = graphs()
    assert compile_policy(policy, CPU) is None
    assert graphs() - start == 4, "two pieces for all layers, and two of the head"
    outcome(policy, (30, 30), ())  # a chunk of the head is a part of a row here
    before = graphs()
    for row in ROWS:
        assert max(distances(outcome(policy, *ROWS[row]), wanted[row]).values()) <= 1e-12, row
    assert graphs() == before, "the same for all rows"


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_the_kernels_are_as_near_to_fp64_as_the_plain_computation(tiny: Callable[..., PackedPolicy], name: str) -> None:
    exact = {row: outcome(tiny(name, torch.float64), *ROWS[row]) for row in ROWS}
    policy = tiny(name, torch.float32)
    plain = {row: outcome(policy, *ROWS[row]) for row in ROWS}
    assert compile_policy(policy, CPU) is None
    for row in ROWS:
        found = outcome(policy, *ROWS[row])
        assert abs(float(found["loss"] - plain[row]["loss"])) <= 1e-6
        after, before = (distances(each, exact[row]) for each in (found, plain[row]))
        assert sum(after.values()) <= 1.2 * sum(before.values()), row
        assert max(distances(found, plain[row]).values()) <= 5e-6, row


@pytest.mark.parametrize("every", [1, 2])
def test_with_recomputed_layers(tiny: Callable[..., PackedPolicy], every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    policy = tiny("Qwen 3", torch.float64)
    wanted = outcome(policy, *ROWS["shared prompts"])
    assert compile_policy(policy, CPU) is None
    policy.model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
    assert max(distances(outcome(policy, *ROWS["shared prompts"]), wanted).values()) <= 1e-12


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in DENSE])
def test_experts_stay_as_they_are(tiny: Callable[..., PackedPolicy], name: str) -> None:
    policy = tiny(name, torch.float32)
    why = compile_policy(policy, CPU)
    assert why is not None and "not an attention and an MLP each" in why
    assert policy.head.passes is PLAIN


def wrong(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a layer, or of any, whose output is 1% off."""
    return lambda *given, **options: forward(*given, **options) * 1.01


def broken(forward: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*given: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler\nand more")

    return fail


@pytest.mark.parametrize(("kind", "said"), [(wrong, "layer 3 is 1.0e-02 away"), (broken, "here: no C++ compiler")])
def test_a_layer_that_differs_or_does_not_compile_leaves_the_policy_plain(
    tiny: Callable[..., PackedPolicy], kind: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last layer differs: every one is compared."""
    policy = tiny("Llama 3", torch.float32)
    forwards = [layer.forward for layer in policy.model.model.layers]
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(compiled, "compile_in_pieces", lambda each: kind(each) if each == forwards[3] else each)
    why = compile_policy(policy, CPU)
    assert why is not None and said in why
    assert [layer.forward for layer in policy.model.model.layers] == forwards
    assert policy.head.passes is PLAIN


def test_one_compilation_serves_a_function_that_calls_another_which_stays_outside() -> None:
    """The setting of torch that makes two pieces of a layer and not four is still there."""
    torch._dynamo.reset()
    before = graphs()
    outside = torch.compiler.disable(torch.sin)

    def inner(x: Tensor) -> Tensor:
        return outside(x + 1) * 2

    run = compile_in_pieces(lambda x: inner(x + 3) + 4)
    for number in (5, 6, 9):
        x = torch.arange(float(number))
        torch.testing.assert_close(run(x), (x + 4).sin() * 2 + 4)
    assert graphs() == before + 2


def layouts(models: dict[str, str]) -> tuple[Jobs, Jobs]:
    """Gradients on one rank and on two, by name."""
    olmo, tied = models["olmo3"], models["qwen2"]
    alone = {f"stage {stage}": gradient_job(olmo, "float32", stage, EIGHT_ROWS) for stage in (0, 1, 2)}
    alone["recomputed, tied"] = gradient_job(tied, "float32", 2, ONE_ROW, gradient_checkpointing=True)
    alone["bfloat16"] = gradient_job(olmo, "bfloat16", 2, EIGHT_ROWS)
    shared = gradient_job(olmo, "float32", 2, ONE_ROW, sequence_parallel=2) | {"one_prompt": True}
    return alone, {"stage 2, uneven": gradient_job(olmo, "float32", 2, SINGLES), "shared row of one prompt": shared}


ALONE, PAIR = layouts({"olmo3": "", "qwen2": ""})


@pytest.fixture(scope="module")
def both(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """Each job plain and compiled."""
    found: Results = {}
    for world, jobs in enumerate(layouts(tiny_models), 1):
        compiled_jobs = {
            f"{name}, compiled": job | {"learner": job["learner"] | {"compile": True}} for name, job in jobs.items()
        }
        found |= run_ranks(world, jobs | compiled_jobs)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*ALONE, *PAIR])
def test_the_trainer_gives_the_plain_gradient_on_every_layout(both: Results, name: str) -> None:
    for plain, found in zip(both[name], both[f"{name}, compiled"], strict=True):
        assert found["rows"] == plain["rows"]
        if name == "bfloat16":  # both round: they are as far from fp32
            exact = both["stage 2"][0]["gradients"]
            assert distance(found["gradients"], exact) <= 1.2 * distance(plain["gradients"], exact)
        else:
            assert distance(found["gradients"], plain["gradients"]) <= 5e-6
