"""The objective against an independent one in plain Python fp64: loops over sequences, gradients by formula."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product
from math import copysign, exp, fsum, inf, nan, prod
from typing import Any, NamedTuple, cast, get_args

import pytest
import torch
from torch import Tensor

from olmorl.config import Objective, Preset
from olmorl.learner.algorithm.objective import (
    NO_OUTLIERS,
    NUM_STATS,
    OUTLIERS_PER_ANSWER,
    LossInputs,
    next_threshold,
    policy_loss,
    step_metrics,
)
from olmorl.learner.algorithm.presets import RhoKind, Switches, resolve

PRESETS = get_args(Preset)


class Token(NamedTuple):
    """Log-probabilities of one sampled token."""

    pi: float
    old: float
    engine: float
    ref: float
    anchor: float


@dataclass
class Sequence:
    """A completion; `None` is a masked token."""

    advantage: float
    tokens: list[Token | None]
    lags: list[int]
    """Of the tokens: an answer may be of several versions."""


THRESHOLD, AGE = 0.4, 2
"""Some tokens are a version older than the anchor."""


def reference(sequences: list[Sequence], switches: Switches) -> tuple[float, list[list[float]]]:
    """Loss, and its gradient by each token's log-probability, straight from the papers' formulas."""
    kept = [[token for token in sequence.tokens if token is not None] for sequence in sequences]
    num_tokens, num_sequences = sum(map(len, kept)), sum(bool(tokens) for tokens in kept)
    losses, gradients = [], []
    for sequence, tokens in zip(sequences, kept, strict=True):
        n = {
            "token": 1 / num_tokens,
            "sequence": 1 / (num_sequences * max(len(tokens), 1)),
            "constant": 1 / (num_sequences * switches.constant_length),
        }[switches.normalize]
        log_ratios = [one.pi - (one.old if switches.proximal == "old" else one.engine) for one in tokens]
        lags = [lag for token, lag in zip(sequence.tokens, sequence.lags, strict=True) if token is not None]
        if switches.proximal == "behaviour":
            tokens = [one._replace(old=one.engine) for one in tokens]
        terms = [
            term(index, tokens, log_ratios, weights(tokens, lags, switches)[0], sequence.advantage, switches)
            for index in range(len(tokens))
        ]
        losses += [-n * (gain - switches.kl_beta * kl) for gain, _, kl, _ in terms]
        through_ratio = [-n * slope for _, slope, _, _ in terms]
        if switches.ratio == "sequence" and switches.clip in ("ppo", "dual") and tokens:
            through_ratio = [fsum(through_ratio) / len(tokens)] * len(tokens)
        whole = iter(g + n * switches.kl_beta * terms[i][3] for i, g in enumerate(through_ratio))
        gradients.append([0.0 if token is None else next(whole) for token in sequence.tokens])
    return fsum(losses), gradients


def term(
    index: int,
    tokens: list[Token],
    log_ratios: list[float],
    all_weights: list[float],
    advantage: float,
    switches: Switches,
) -> tuple[float, float, float, float]:
    """Weighted surrogate, its derivative by the log-ratio, KL and its derivative, of one token."""
    logprob, ref, weight = tokens[index].pi, tokens[index].ref, all_weights[index]
    log_ratio = log_ratios[index] if switches.ratio == "token" else fsum(log_ratios) / len(log_ratios)
    ratio = exp(log_ratio)
    clipped = min(max(ratio, 1 - switches.eps_low), 1 + switches.eps_high)
    if switches.clip == "cispo":
        gain, slope = clipped * advantage * logprob, clipped * advantage
    else:
        gain = min(ratio * advantage, clipped * advantage)
        slope = ratio * advantage if ratio * advantage <= clipped * advantage else 0.0
        if switches.clip == "dual" and advantage < 0 and gain < 3 * advantage:
            gain, slope = 3 * advantage, 0.0
    d = logprob - ref
    kl, kl_slope = {"k1": (d, d), "k2": (d * d / 2, d), "k3": (exp(-d) - 1 + d, 1 - exp(-d))}[switches.kl_estimator]
    return weight * gain, weight * slope, kl, kl_slope


def weights(tokens: list[Token], lags: list[int], switches: Switches) -> tuple[list[float], list[bool]]:
    """The importance weights of the tokens of an answer, and whether the cap changed each."""
    kind, cap = switches.rho_kind, switches.rho
    if cap is None:
        return [1.0] * len(tokens), [False] * len(tokens)
    drifts = drifts_of(tokens, lags, kind)
    raw = [exp(one.old - one.engine) for one in tokens]
    if kind == "mask":
        outside = [not 1 / cap <= w <= cap for w in raw]
        return [0.0 if out else w for w, out in zip(raw, outside, strict=True)], outside
    if kind.startswith("sequence"):
        raw = [prod(raw)] * len(raw)
    if kind == "sequence_mask":
        return [w if w <= cap else 0.0 for w in raw], [w > cap for w in raw]
    if kind in ("auto", "two_factor"):
        outliers = [outlier(d) if lag > 0 else 0.0 for d, lag in zip(drifts, lags, strict=True)]
        raw = [exp(d + fsum(outliers[:i] + outliers[i + 1 :])) for i, d in enumerate(drifts)]
    rests = [
        exp(one.old - one.engine - d) if kind == "two_factor" else 1.0 for one, d in zip(tokens, drifts, strict=True)
    ]
    capped = [min(w, cap) * min(rest, cap) for w, rest in zip(raw, rests, strict=True)]
    return capped, [w > cap or rest > cap for w, rest in zip(raw, rests, strict=True)]


def drifts_of(tokens: list[Token], lags: list[int], kind: str) -> list[float]:
    """log pi_old - log pi_engine, or the learner's own share of it since the version that sampled."""
    return [
        (one.old - one.anchor) * lag / AGE if kind == "two_factor" and lag <= AGE else one.old - one.engine
        for one, lag in zip(tokens, lags, strict=True)
    ]


def outlier(d: float) -> float:
    return copysign(min(2 * max(abs(d) - THRESHOLD, 0.0), abs(d)), d)


def random_sequences(rng: random.Random, count: int = 7) -> list[Sequence]:
    def token() -> Token | None:
        if rng.random() < 0.2:
            return None
        logprob = -rng.expovariate(1.0)
        old = logprob + rng.gauss(0, 0.3)
        return Token(logprob, old, old + rng.gauss(0, 0.6), logprob + rng.gauss(0, 0.5), old + rng.gauss(0, 0.8))

    lengths = [1, *(rng.randint(1, 9) for _ in range(count - 1))]
    sequences = [
        Sequence(
            rng.gauss(0, 1), [token() for _ in range(n)], sorted((rng.randint(0, 3) for _ in range(n)), reverse=True)
        )
        for n in lengths
    ]
    sequences[-1].tokens, sequences[-1].lags = [None, None], [0, 0]
    return sequences


def build(
    sequences: list[Sequence],
    layout: list[list[int]],
    padding: int = 0,
    dtype: torch.dtype = torch.float64,
    with_anchor: bool = False,
) -> LossInputs:
    """`layout[b]` lists the sequences of row b, each behind two prompt tokens. Masked places hold NaN or -inf."""
    loss_tokens = sum(token is not None for sequence in sequences for token in sequence.tokens)
    num_sequences = sum(any(token is not None for token in sequence.tokens) for sequence in sequences)
    width = max(sum(2 + len(sequences[i].tokens) for i in row) for row in layout) + padding
    values = torch.full((6, len(layout), width), nan, dtype=torch.float64)
    values[1] = -inf
    mask_BT = torch.zeros(len(layout), width, dtype=torch.bool)
    ids_BT = torch.full((len(layout), width), -1)
    lags_BT = torch.zeros(len(layout), width, dtype=torch.int32)
    for b, row in enumerate(layout):
        start = 0
        for slot, i in enumerate(row):
            end = start + 2 + len(sequences[i].tokens)
            ids_BT[b, start:end] = slot
            lags_BT[b, start + 2 : end] = torch.tensor(sequences[i].lags)
            for t, token in enumerate(sequences[i].tokens, start + 2):
                if token is not None:
                    mask_BT[b, t] = True
                    values[:, b, t] = torch.tensor([*token, sequences[i].advantage], dtype=torch.float64)
            start = end
    pi, old, engine, ref, anchor, advantages_BT = values.to(dtype)
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
        outlier_threshold=THRESHOLD,
        anchor_logprobs_BT=anchor if with_anchor else None,
        anchor_age=AGE,
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
    inputs = build(sequences, layout, with_anchor=switches.needs_anchor, **how)
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
@pytest.mark.parametrize("clip", ["ppo", "dual", "cispo"])
def test_every_combination_of_switches(normalize: str, ratio: str, clip: str) -> None:
    kinds = get_args(RhoKind)
    rhos = [(None, "truncate"), *((1.5, kind) for kind in kinds)]
    kls = [(0.0, "k3"), (0.3, "k1"), (0.3, "k2"), (0.3, "k3")]
    base = resolve(Objective(), max_tokens=12)
    base = replace(base, normalize=cast(Any, normalize), ratio=cast(Any, ratio), clip=cast(Any, clip))
    for seed, (rho, kl, proximal) in enumerate(product(rhos, kls, ("old", "behaviour"))):
        if rho[1] == "two_factor" and proximal == "behaviour":
            continue
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
def test_single_precision_is_close(preset: str) -> None:
    switches = resolve(Objective.model_validate({"preset": preset}), max_tokens=12)
    sequences = random_sequences(random.Random(11))
    loss, gradients, _ = evaluate(sequences, [[0, 1, 2, 3, 4, 5, 6]], switches, dtype=torch.float32)
    assert_same((loss, gradients), reference(sequences, switches), rel=3e-5 if preset == "gspo" else 1e-5)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rho_kind", ["truncate", "sequence", "auto", "two_factor"])
def test_the_gradient_does_not_depend_on_the_layout(preset: str, seed: int, rho_kind: str) -> None:
    # One row, one sequence a row with padding, and random rows each computed alone as micro-batches of several ranks.
    rng = random.Random(100 + seed)
    objective = {"preset": preset, "kl_beta": 0.1, "rho": 1.5, "rho_kind": rho_kind}
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
        inputs = build(sequences, [row], with_anchor=switches.needs_anchor)._replace(
            loss_tokens=whole.loss_tokens, num_sequences=whole.num_sequences
        )
        row_loss, row_S = policy_loss(inputs, switches)
        (grad_BT,) = torch.autograd.grad(row_loss, inputs.logprobs_BT)
        split |= gradients_of(sequences, [row], grad_BT)
        losses.append(row_loss.item())
        summed_S += row_S
    assert_same((fsum(losses), [split[i] for i in sorted(split)]), (loss, gradients), rel=1e-12)
    assert step_metrics(summed_S, 1) == pytest.approx(step_metrics(stats_S, 1), rel=1e-12, abs=1e-12)


def answers_of(sequences: list[Sequence]) -> list[tuple[list[Token], list[int]]]:
    """The loss tokens of each answer that has some, and their lags."""
    kept = [
        [(token, lag) for token, lag in zip(one.tokens, one.lags, strict=True) if token is not None]
        for one in sequences
    ]
    return [([token for token, _ in pairs], [lag for _, lag in pairs]) for pairs in kept if pairs]


@pytest.mark.parametrize("kind", get_args(RhoKind))
@pytest.mark.parametrize("seed", range(3))
def test_the_metrics_of_answers(kind: str, seed: int) -> None:
    switches = resolve(Objective.model_validate({"rho": 1.5, "rho_kind": kind}), max_tokens=12)
    sequences = random_sequences(random.Random(seed))
    _, _, stats_S = evaluate(sequences, [[0, 1, 2], [3, 4], [5, 6]], switches)
    means, cuts, kls, outliers, stale_answers = [], [], [], 0, 0
    for tokens, lags in answers_of(sequences):
        used, is_cut = weights(tokens, lags, switches)
        means.append(fsum(used) / len(used))
        cuts.append(sum(is_cut) / len(is_cut))
        kls.append(fsum(exp(one.old - one.engine) - 1 - (one.old - one.engine) for one in tokens))
        drifts = drifts_of(tokens, lags, kind)
        outliers += sum(lag > 0 and abs(d) > THRESHOLD for d, lag in zip(drifts, lags, strict=True))
        stale_answers += any(lags)
    found, count = step_metrics(stats_S, 1), len(means)
    assert found["importance_ess_fraction_answers"] == pytest.approx(
        fsum(means) ** 2 / fsum(m * m for m in means) / count
    )
    assert found["tis_clip_fraction_answers"] == pytest.approx(fsum(cuts) / count)
    assert found["kl_engine_learner_answers"] == pytest.approx(fsum(kls) / count)
    assert found["outlier_tokens_mean"] == pytest.approx(outliers / stale_answers)


@pytest.mark.parametrize("kind", ["auto", "two_factor"])
@pytest.mark.parametrize("seed", range(5))
def test_the_next_threshold_is_the_smallest_that_leaves_few_outliers(seed: int, kind: str) -> None:
    sequences = random_sequences(random.Random(seed), count=60)
    for sequence in sequences:
        sequence.tokens, sequence.lags = sequence.tokens * 4, sequence.lags * 4
    half = [[i for i in range(60) if i % 2 == part] for part in (0, 1)]
    switches = resolve(Objective.model_validate({"rho_kind": kind}), max_tokens=12)
    both_S = sum(policy_loss(build(sequences, [part], with_anchor=switches.needs_anchor), switches)[1] for part in half)
    assert isinstance(both_S, Tensor)
    found = next_threshold(both_S, NO_OUTLIERS)
    assert found == next_threshold(evaluate(sequences, [list(range(60))], switches)[2], NO_OUTLIERS), "on every layout"
    stale = [
        [abs(d) for d, lag in zip(drifts_of(tokens, lags, kind), lags, strict=True) if lag]
        for tokens, lags in answers_of(sequences)
    ]

    def outliers(threshold: float) -> float:
        return sum(d > threshold for ds in stale for d in ds) / sum(map(bool, stale))

    assert outliers(found) <= OUTLIERS_PER_ANSWER < outliers(found / 1.05), "bins are 4% wide"


def test_the_threshold_at_the_ends_of_its_range() -> None:
    def answers(engine: float, tokens: int, lag: int) -> list[Sequence]:
        return [Sequence(1.0, [Token(-1.0, -1.0, engine, -1.0, -1.0)] * tokens, [lag] * tokens)]

    def threshold(sequences: list[Sequence]) -> float:
        return next_threshold(evaluate(sequences, [[0]], resolve(Objective(), max_tokens=12))[2], before=0.7)

    assert threshold(answers(-9.0, 9, lag=0)) == 0.7, "no stale token: the one before"
    assert threshold(answers(-9.0, OUTLIERS_PER_ANSWER, lag=1)) == 0.0, "a short answer counts as a whole"
    assert 8 < threshold(answers(-9.0, OUTLIERS_PER_ANSWER + 1, lag=1)) < 8.5, "all are in one bin, and one is too many"
    assert 19 < threshold(answers(-500.0, 9, lag=1)) <= NO_OUTLIERS
