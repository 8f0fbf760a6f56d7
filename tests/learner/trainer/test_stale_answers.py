"""The weights of stale answers in real steps: on one rank and two, packed and alone, with shared prompts.

The reference sees each sample alone, and writes the formula out. It takes the threshold from the learner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

from olmorl.learner.algorithm.objective import NO_OUTLIERS

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]
Gradients = dict[str, torch.Tensor]

TEMPERATURE = 0.7
RATE, CLIP, CAP = 1e-4, 0.5, 2.0


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    """Three steps of two minibatches. The first has no threshold yet."""
    base = {
        "kind": "steps",
        "model": {"path": tiny_models["olmo3"], "dtype": "float32"},
        "row_tokens": 64,
        "temperature": TEMPERATURE,
    }
    learner = {"zero_stage": 2, "learning_rate": RATE, "max_grad_norm": CLIP, "minibatches": 2}
    one = base | {"learner": learner}
    pair = {
        "two-ranks": one,
        "stage-3": base | {"learner": learner | {"zero_stage": 3}},
        "shared-rows": base | {"learner": learner | {"sequence_parallel": 2}},
        "shared-prompts-on-two": one | {"one_prompt": True},
    }
    # The first step has no earlier weights, the second those of one version ago, the third those of two ago.
    old = one | {"objective": {"rho_kind": "two_factor"}, "max_lag": 2}
    pair |= {
        "two-factor-on-two": old,
        "two-factor-stage-3": old | {"learner": learner | {"zero_stage": 3}},
        "two-factor-shared-rows": old | {"learner": learner | {"sequence_parallel": 2}},
    }
    alone = {
        "two-factor": old,
        "two-factor-singles": old | {"row_tokens": 1},
        "alone": one,
        "singles": one | {"row_tokens": 1},
        "shared-prompts": one | {"one_prompt": True},
        "published": one | {"objective": {"rho_kind": "truncate"}},
    }
    return run_ranks(1, alone) | run_ranks(2, pair)


def logprobs_of(model: Any, sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the loss tokens of a sample: by the model, and by the engine."""
    tokens, first = torch.tensor([*sample.prompt_ids, *sample.completion_ids]).long(), len(sample.prompt_ids)
    logits = model(tokens[None]).logits[0, first - 1 : -1].float() / TEMPERATURE
    mask = torch.tensor(sample.loss_mask)
    logprobs = log_softmax(logits, dim=-1).gather(1, tokens[first:, None])[:, 0]
    return logprobs[mask], torch.tensor(sample.behaviour_logprobs)[mask]


def weights_of(whole: torch.Tensor, drift: torch.Tensor, stale: torch.Tensor, threshold: float) -> torch.Tensor:
    """min(exp(d_t + sum over the other stale tokens of the outliers), cap) * min(exp(the rest), cap), by token."""
    outliers = [
        float(d.sign() * min(2 * max(d.abs() - threshold, 0), d.abs())) * bool(old)
        for d, old in zip(drift, stale, strict=True)
    ]
    others = torch.tensor([sum(outliers) - own for own in outliers])
    rest = (whole - drift).exp().clamp(max=CAP) if drift is not whole else 1
    return (drift + others).exp().clamp(max=CAP) * rest


def plain_loop(
    folder: str, groups: dict[int, list[list[Any]]], thresholds: list[float], two_factor: bool = False
) -> Gradients:
    """The weights after a step for each threshold."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    start = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for step, threshold in enumerate(thresholds, 1):
        batches = [[sample for group in groups[step][first::2] for sample in group] for first in (0, 1)]
        with torch.no_grad():
            old = [[logprobs_of(model, sample)[0] for sample in batch] for batch in batches]
        for batch, old_logprobs in zip(batches, old, strict=True):
            optimizer.zero_grad()
            num_tokens = sum(int(sample.loss_mask.sum()) for sample in batch)
            for sample, before in zip(batch, old_logprobs, strict=True):
                logprobs, behaviour = logprobs_of(model, sample)
                lags, whole = torch.tensor(sample.lags[sample.loss_mask]), before - behaviour
                drift = whole
                if two_factor and step > 1:
                    with torch.no_grad():
                        line = (before - logprobs_of(start, sample)[0]) * lags / (step - 1)
                    drift = torch.where(lags > step - 1, whole, line)
                weight = weights_of(whole, drift, lags > 0, threshold)
                ratio, advantage = (logprobs - before).exp(), sample.advantage
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.272) * advantage)
                (-(weight * surrogate).sum() / num_tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(
    ("names", "of"),
    [
        (("alone", "singles", "two-ranks", "stage-3", "shared-rows"), "alone"),
        (("shared-prompts", "shared-prompts-on-two"), "shared-prompts"),
        (("published",), "published"),
        (
            ("two-factor", "two-factor-singles", "two-factor-on-two", "two-factor-stage-3", "two-factor-shared-rows"),
            "two-factor",
        ),
    ],
)
def test_steps_on_stale_answers_are_those_of_a_plain_loop_on_every_layout(
    results: Results, tiny_models: dict[str, str], names: tuple[str, ...], of: str
) -> None:
    chosen = [NO_OUTLIERS, *(values["outlier_threshold"] for values in results[of][0]["values"][:2])]
    assert all(0 < threshold < 5 for threshold in chosen[1:])
    used = [NO_OUTLIERS] * 3 if of == "published" else chosen
    wanted = plain_loop(tiny_models["olmo3"], results[of][0]["groups"], used, of == "two-factor")
    for name in names:
        for rank in results[name]:
            assert [values["outlier_threshold"] for values in rank["values"][:2]] == chosen[1:], name
            assert max((rank["weights"][key] - wanted[key]).abs().max().item() for key in wanted) <= 5e-6, name


def test_the_weights_of_stale_answers_change_the_steps(results: Results) -> None:
    ours, published = results["alone"][0]["weights"], results["published"][0]["weights"]
    assert max((ours[key] - published[key]).abs().max().item() for key in ours) > 2e-5


@pytest.fixture(scope="module")
def anchors(run_ranks: Callable[[int, Jobs], Results], tiny_models: dict[str, str]) -> Results:
    base = {"kind": "anchor", "objective": {"rho_kind": "two_factor"}, "max_lag": 2}
    jobs = {
        f"{dtype}-{stage}": base
        | {"model": {"path": tiny_models["olmo3"], "dtype": dtype}, "learner": {"zero_stage": stage}}
        for dtype, stages in (("float32", (0, 2, 3)), ("bfloat16", (1, 3)))
        for stage in stages
    }
    return run_ranks(2, jobs)


NAMES = ("float32-0", "float32-2", "float32-3", "bfloat16-1", "bfloat16-3")


@pytest.mark.parametrize("name", NAMES)
def test_the_anchor_is_what_the_learner_gave_two_versions_ago(anchors: Results, name: str) -> None:
    for rank in anchors[name]:
        assert rank["age"] == 2
        for started, scored, moved in zip(rank["started"], rank["scored"], rank["moved"], strict=True):
            assert torch.equal(scored, started)
            assert (moved - started).abs().max() > 1e-3
        assert all(map(torch.equal, rank["moved"], rank["moved_again"])), "training goes on from the present weights"
        for before, after in zip(rank["before"], rank["after"], strict=True):
            assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_has_the_weights_of_auto_until_it_has_earlier_versions_and_says_so(
    anchors: Results, name: str
) -> None:
    for rank in anchors[name]:
        resumed, auto = rank["two_factor"], rank["auto"]
        assert resumed["said"] == [
            'step 3: tokens of a lag above 0 have the weights of rho_kind = "auto": older weights are not kept'
        ]
        assert not auto["said"]
        assert resumed["values"] == auto["values"]
        assert all(torch.equal(resumed["weights"][key], auto["weights"][key]) for key in auto["weights"])
