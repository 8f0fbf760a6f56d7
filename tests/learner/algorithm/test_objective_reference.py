"""The objective against an independent one in plain Python fp64: loops over sequences, gradients by formula."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product
from math import exp, fsum, inf, nan, prod
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from olmorl.config import Objective
from olmorl.learner.algorithm.objective import NUM_STATS, LossInputs, policy_loss, step_metrics
from olmorl.learner.algorithm.presets import Switches, resolve

PRESETS = ("olmorl", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo_decoupled")


@dataclass
class Sequence:
    """A completion; `None` is a masked token."""

    advantage: float
    tokens: list[tuple[float, float, float, float] | None]
    """log pi, log pi_old, log pi_engine, log pi_ref."""
    lag: int


def reference(sequences: list[Sequence], switches: Switches) -> tuple[float, list[list[float]]]:
    """Loss, and its gradient by each token's log-probability, straight from the papers' formulas."""
    kept = [[token for token in sequence.tokens if token is not None] for sequence in sequences]
    num_tokens, num_sequences = sum(map(len, kept)), sum(bool(tokens) for tokens in kept)
    losses, gradients = [], []
    for sequence, tokens in zip(sequences, kept, strict=True):
        if is_rejected(tokens, switches):
            gradients.append([0.0] * len(sequence.tokens))
            continue
        n = {
            "token": 1 / num_tokens,
            "sequence": 1 / (num_sequences * max(len(tokens), 1)),
            "constant": 1 / (num_sequences * switches.constant_length),
        }[switches.normalize]
        log_ratios = [pi - (old if switches.proximal == "old" else engine) for pi, old, engine, _ in tokens]
        log_weights = [0.0 if switches.proximal == "behaviour" else old - engine for _, old, engine, _ in tokens]
        terms = [
            term(index, tokens, log_ratios, log_weights, sequence.advantage, switches) for index in range(len(tokens))
        ]
        losses += [-n * (gain - switches.kl_beta * kl) for gain, _, kl, _ in terms]
        through_ratio = [-n * slope for _, slope, _, _ in terms]
        if switches.ratio == "sequence" and switches.clip == "ppo" and tokens:
            through_ratio = [fsum(through_ratio) / len(tokens)] * len(tokens)
        whole = iter(g + n * switches.kl_beta * terms[i][3] for i, g in enumerate(through_ratio))
        gradients.append([0.0 if token is None else next(whole) for token in sequence.tokens])
    return fsum(losses), gradients


def is_rejected(tokens: list[tuple[float, float, float, float]], switches: Switches) -> bool:
    """Whether the geometric mean of pi_old / pi_engine is too far from 1."""
    if switches.reject_beyond is None or not tokens:
        return False
    mean = prod(exp(old - engine) for _, old, engine, _ in tokens) ** (1 / len(tokens))
    return not 1 / switches.reject_beyond <= mean <= switches.reject_beyond


def term(
    index: int,
    tokens: list[tuple[float, float, float, float]],
    log_ratios: list[float],
    log_weights: list[float],
    advantage: float,
    switches: Switches,
) -> tuple[float, float, float, float]:
    """Weighted surrogate, its derivative by the log-ratio, KL and its derivative, of one token."""
    logprob, _, _, ref = tokens[index]
    log_ratio = log_ratios[index] if switches.ratio == "token" else fsum(log_ratios) / len(log_ratios)
    ratio = exp(log_ratio)
    weight = 1.0
    if switches.rho is not None:
        weight = exp(fsum(log_weights) if switches.rho_kind == "sequence" else log_weights[index])
        if switches.rho_kind == "mask":
            weight = weight if 1 / switches.rho <= weight <= switches.rho else 0.0
        else:
            weight = min(weight, switches.rho)
    clipped = min(max(ratio, 1 - switches.eps_low), 1 + switches.eps_high)
    if switches.clip == "cispo":
        gain, slope = clipped * advantage * logprob, clipped * advantage
    else:
        gain = min(ratio * advantage, clipped * advantage)
        slope = ratio * advantage if ratio * advantage <= clipped * advantage else 0.0
    d = logprob - ref
    kl, kl_slope = {"k1": (d, d), "k2": (d * d / 2, d), "k3": (exp(-d) - 1 + d, 1 - exp(-d))}[switches.kl_estimator]
    return weight * gain, weight * slope, kl, kl_slope


def random_sequences(rng: random.Random, count: int = 7) -> list[Sequence]:
    def token() -> tuple[float, float, float, float] | None:
        if rng.random() < 0.2:
            return None
        logprob = -rng.expovariate(1.0)
        old = logprob + rng.gauss(0, 0.3)
        return logprob, old, old + rng.gauss(0, 0.6), logprob + rng.gauss(0, 0.5)

    lengths = [1, *(rng.randint(1, 9) for _ in range(count - 1))]
    sequences = [Sequence(rng.gauss(0, 1), [token() for _ in range(n)], rng.randint(0, 1)) for n in lengths]
    sequences[-1].tokens = [None, None]
    return sequences


def build(
    sequences: list[Sequence], layout: list[list[int]], padding: int = 0, dtype: torch.dtype = torch.float64
) -> LossInputs:
    """`layout[b]` lists the sequences of row b, each behind two prompt tokens. Masked places hold NaN or -inf."""
    loss_tokens = sum(token is not None for sequence in sequences for token in sequence.tokens)
    num_sequences = sum(any(token is not None for token in sequence.tokens) for sequence in sequences)
    width = max(sum(2 + len(sequences[i].tokens) for i in row) for row in layout) + padding
    values = torch.full((5, len(layout), width), nan, dtype=torch.float64)
    values[1] = -inf
    mask_BT = torch.zeros(len(layout), width, dtype=torch.bool)
    ids_BT = torch.full((len(layout), width), -1)
    lags_BT = torch.zeros(len(layout), width, dtype=torch.int32)
    for b, row in enumerate(layout):
        start = 0
        for slot, i in enumerate(row):
            end = start + 2 + len(sequences[i].tokens)
            ids_BT[b, start:end] = slot
            lags_BT[b, start:end] = sequences[i].lag
            for t, token in enumerate(sequences[i].tokens, start + 2):
                if token is not None:
                    mask_BT[b, t] = True
                    values[:, b, t] = torch.tensor([*token, sequences[i].advantage], dtype=torch.float64)
            start = end
    pi, old, engine, ref, advantages_BT = values.to(dtype)
    return LossInputs(
        logprobs_BT=pi.clone().requires_grad_(),
        old_logprobs_BT=old,
        behaviour_logprobs_BT=engine,
        advantages_BT=advantages_BT,
        loss_mask_BT=mask_BT,
        sequence_ids_BT=ids_BT,
        lags_BT=lags_BT,
        loss_tokens=float(loss_tokens),
        num_sequences=num_sequences,
        ref_logprobs_BT=ref,
    )


def gradients_of(sequences: list[Sequence], layout: list[list[int]], grad_BT: Tensor) -> dict[int, list[float]]:
    """The gradient by the tokens of each sequence."""
    found = {}
    for b, row in enumerate(layout):
        start = 0
        for i in row:
            end = start + 2 + len(sequences[i].tokens)
            found[i] = grad_BT[b, start + 2 : end].tolist()
            start = end
    return found


def evaluate(
    sequences: list[Sequence], layout: list[list[int]], switches: Switches, **how: Any
) -> tuple[float, list[list[float]], Tensor]:
    inputs = build(sequences, layout, **how)
    loss, stats_S = policy_loss(inputs, switches)
    (grad_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    assert not grad_BT[~inputs.loss_mask_BT].any(), "masked tokens have a gradient of exactly 0"
    found = gradients_of(sequences, layout, grad_BT)
    return loss.item(), [found[i] for i in sorted(found)], stats_S


def assert_same(
    found: tuple[float, list[list[float]]], wanted: tuple[float, list[list[float]]], rel: float = 1e-10
) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=rel, abs=rel)
    assert [g for row in found[1] for g in row] == pytest.approx(
        [g for row in wanted[1] for g in row], rel=rel, abs=rel
    )


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(5))
def test_presets(preset: str, seed: int) -> None:
    switches = resolve(Objective.model_validate({"preset": preset}), max_tokens=12)
    sequences = random_sequences(random.Random(seed))
    loss, gradients, _ = evaluate(sequences, [[0, 1, 2], [3, 4, 5, 6]], switches)
    assert_same((loss, gradients), reference(sequences, switches))


@pytest.mark.parametrize("normalize", ["token", "sequence", "constant"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("clip", ["ppo", "cispo"])
def test_every_combination_of_switches(normalize: str, ratio: str, clip: str) -> None:
    rhos = [(None, "truncate"), (1.5, "truncate"), (1.5, "mask"), (1.5, "sequence")]
    kls = [(0.0, "k3"), (0.3, "k1"), (0.3, "k2"), (0.3, "k3")]
    base = resolve(Objective(), max_tokens=12)
    base = replace(base, normalize=cast(Any, normalize), ratio=cast(Any, ratio), clip=cast(Any, clip))
    for seed, (rho, kl, proximal) in enumerate(product(rhos, kls, ("old", "behaviour"))):
        switches = replace(
            base,
            rho=rho[0],
            rho_kind=cast(Any, rho[1]),
            kl_beta=kl[0],
            kl_estimator=cast(Any, kl[1]),
            proximal=cast(Any, proximal),
        )
        sequences = random_sequences(random.Random(seed))
        loss, gradients, _ = evaluate(sequences, [[0, 1], [2, 3, 4], [5, 6]], switches)
        assert_same((loss, gradients), reference(sequences, switches))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("proximal", ["old", "behaviour"])
@pytest.mark.parametrize("rho", ["off", 1.5])
def test_rejected_answers(preset: str, proximal: str, rho: float | str) -> None:
    objective = {"preset": preset, "reject_beyond": 1.25, "proximal": proximal, "rho": rho}
    switches = resolve(Objective.model_validate(objective), max_tokens=12)
    found = []
    for seed in range(6):
        sequences = random_sequences(random.Random(seed))
        loss, gradients, stats_S = evaluate(sequences, [[0, 1], [2, 3, 4], [5, 6]], switches)
        assert_same((loss, gradients), reference(sequences, switches))
        kept = [[token for token in sequence.tokens if token is not None] for sequence in sequences]
        found.append(step_metrics(stats_S, 1)["rejected_fraction"])
        assert found[-1] == pytest.approx(sum(is_rejected(t, switches) for t in kept) / sum(map(bool, kept)))
    assert 0.2 < fsum(found) / len(found) < 0.8, "the cases reject some and keep some"


@pytest.mark.parametrize("preset", PRESETS)
def test_single_precision_is_close(preset: str) -> None:
    switches = resolve(Objective.model_validate({"preset": preset}), max_tokens=12)
    sequences = random_sequences(random.Random(11))
    loss, gradients, _ = evaluate(sequences, [[0, 1, 2, 3, 4, 5, 6]], switches, dtype=torch.float32)
    assert_same((loss, gradients), reference(sequences, switches), rel=3e-5 if preset == "gspo" else 1e-5)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reject_beyond", ["off", 1.25])
def test_the_gradient_does_not_depend_on_the_layout(preset: str, seed: int, reject_beyond: float | str) -> None:
    # One row, one sequence a row with padding, and random rows each computed alone as micro-batches of several ranks.
    rng = random.Random(100 + seed)
    objective = {"preset": preset, "kl_beta": 0.1, "reject_beyond": reject_beyond}
    switches = resolve(Objective.model_validate(objective), max_tokens=12)
    sequences = random_sequences(rng)
    everything = list(range(len(sequences)))
    loss, gradients, stats_S = evaluate(sequences, [everything], switches)
    padded_loss, padded, padded_S = evaluate(sequences, [[i] for i in everything], switches, padding=4)
    assert_same((padded_loss, padded), (loss, gradients), rel=1e-12)
    torch.testing.assert_close(padded_S, stats_S, rtol=1e-12, atol=1e-12)

    rng.shuffle(everything)
    cuts = sorted(rng.sample(range(1, len(sequences)), 2))
    rows = [everything[: cuts[0]], everything[cuts[0] : cuts[1]], everything[cuts[1] :]]
    losses, split, summed_S = [], dict[int, list[float]](), torch.zeros(NUM_STATS, dtype=torch.float64)
    whole = build(sequences, [list(range(len(sequences)))])
    for row in rows:
        inputs = build(sequences, [row])._replace(loss_tokens=whole.loss_tokens, num_sequences=whole.num_sequences)
        row_loss, row_S = policy_loss(inputs, switches)
        (grad_BT,) = torch.autograd.grad(row_loss, inputs.logprobs_BT)
        split |= gradients_of(sequences, [row], grad_BT)
        losses.append(row_loss.item())
        summed_S += row_S
    assert_same((fsum(losses), [split[i] for i in sorted(split)]), (loss, gradients), rel=1e-12)
    assert step_metrics(summed_S, 1) == pytest.approx(step_metrics(stats_S, 1), rel=1e-12, abs=1e-12)
