"""The loss of packed rows, as free functions over one input record.

Shape letters: B rows, T tokens of a row, S statistics. Entry t of every BT tensor belongs to token t, the one that was
predicted from token t - 1. Sequences never cross rows.

    A       advantage of the token                     log-probabilities of the sampled token under
    ratio   pi / pi_proximal                             pi            the policy being trained
    w       pi_proximal / pi_engine, capped              pi_old        the learner at the start of the step
    d       log w of one token, before any cap           pi_engine     the engine, when it sampled (behaviour)
    loss  = - sum_t n_t * (w_t * surrogate(ratio_t, A) - beta * kl_t)

n_t is the normaliser: 1 / loss tokens of the global minibatch, or a per-sequence one. So the objective is the plain sum
of `policy_loss` over the rows, micro-batches and ranks of a minibatch. It does not depend on the layout.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from olmorl.errors import ConfigError
from olmorl.extension import load_function
from olmorl.learner.algorithm.presets import Switches

LOG_RATIO_BOUND: Final = 20.0
"""Log-ratios are clamped here before `exp`: far outside every clip range, far inside the range of fp32."""
OUTLIERS_PER_ANSWER: Final = 4
"""Stale tokens above the threshold, on average over the answers with stale tokens."""
DUAL_CLIP: Final = 3.0
"""With `clip = "dual"` a token loses at most this times its negative advantage; verl's default."""
NO_OUTLIERS: Final = LOG_RATIO_BOUND
"""The threshold before any step has measured one: no |d| is above it."""
_OCTAVES, _BINS_PER_OCTAVE = 13, 16
_BINS: Final = 1 + ceil((log2(LOG_RATIO_BOUND) + _OCTAVES) * _BINS_PER_OCTAVE)
"""Bins of the histogram of |d|: one below 2^-13 nats, then 16 for each doubling."""


class LossInputs(NamedTuple):
    """The input of the objective: one or more rows, on one device. Only `logprobs_BT` has a gradient."""

    logprobs_BT: Tensor
    """Under the policy being trained."""
    old_logprobs_BT: Tensor
    """Under the learner at the start of the step. With one minibatch and one epoch: `logprobs_BT.detach()`."""
    behaviour_logprobs_BT: Tensor
    """Under the engine."""
    advantages_BT: Tensor
    loss_mask_BT: Tensor
    """Bool. Where it is False, the other tensors have no effect, not even infinities and NaN."""
    sequence_ids_BT: Tensor
    """Integer, 0 to T - 1: which sequence of its row a token belongs to; -1 for padding."""
    lags_BT: Tensor
    """Integer: versions between the policy that sampled the token and the one that is trained."""
    loss_tokens: float
    """Unmasked tokens of the whole minibatch, over all ranks."""
    num_sequences: int
    """Sequences with an unmasked token in the whole minibatch, over all ranks."""
    ref_logprobs_BT: Tensor | None = None
    """Under the reference policy; needed if `kl_beta > 0`."""
    entropy_BT: Tensor | None = None
    """Entropy of the policy being trained, without gradient; only for the statistics."""
    outlier_threshold: float = NO_OUTLIERS
    """c of `rho_kind = "auto"`: `next_threshold` of the step before."""
    anchor_logprobs_BT: Tensor | None = None
    """Under the learner of `anchor_age` versions ago, for `rho_kind = "two_factor"`, which is `auto` without it."""
    anchor_age: int = 1


CLIP: Final = "objective.clip"


class Surrogate(Protocol):
    """A surrogate of the user's own, `objective.clip = "module:function"`. Weight, normaliser and KL are as always."""

    def __call__(self, ratio_BT: Tensor, advantages_BT: Tensor, logprobs_BT: Tensor, switches: Switches, /) -> Tensor:
        """Returns the gain of each token, with a gradient by `ratio_BT` or `logprobs_BT`.

        Args:
            ratio_BT: pi / pi_proximal, or its geometric mean over the sequence.
            advantages_BT: the advantage of the token, often that of its sequence; 0 where the loss mask is False.
            logprobs_BT: log pi of the sampled token.
            switches: `eps_low`, `eps_high` and the others.
        """
        ...


def check_surrogate(switches: Switches) -> None:
    """Calls the user's surrogate once. Raises ConfigError if it cannot be used."""
    surrogate: Surrogate = load_function(CLIP, switches.clip)
    logprobs_BT = torch.tensor([[-0.5, -2.0, 0.0]], requires_grad=True)
    advantages_BT = torch.tensor([[1.0, -1.0, 0.0]])
    try:
        gain_BT = surrogate((logprobs_BT - logprobs_BT.detach()).exp(), advantages_BT, logprobs_BT, switches)
    except Exception as error:
        raise ConfigError(f"{CLIP} = {switches.clip!r}: it raised {type(error).__name__}: {error}") from None
    if not isinstance(gain_BT, Tensor) or gain_BT.shape != logprobs_BT.shape or not gain_BT.requires_grad:
        raise ConfigError(f"{CLIP} = {switches.clip!r}: it must return a tensor like ratio_BT, with a gradient")


STATS: Final = (
    "loss",
    "tokens",
    "fresh_tokens",
    "sequences",
    "stale_sequences",
    "clip_low",
    "clip_high",
    "tis_clip",
    "tis_clip_share",
    "weight",
    "weight_square",
    "mean_weight",
    "mean_weight_square",
    "outliers",
    "logprob_diff",
    "logprob_diff_fresh",
    "kl_engine_learner",
    "kl_engine_learner_fresh",
    "entropy",
    "kl_ref",
)
"""The first entries of `stats_S`: sums over loss tokens, to be added over rows, micro-batches, minibatches and ranks.
Names with `sequences`, `share` or `mean` are sums over sequences with a loss token. The histogram of
|d| over the stale loss tokens follows them."""
NUM_STATS: Final = len(STATS) + _BINS


def policy_loss(inputs: LossInputs, switches: Switches) -> tuple[Tensor, Tensor]:
    """The negated share of these rows in the objective of their minibatch, and its statistics.

    Computed in fp32, or in fp64 if `logprobs_BT` is. A NaN in an unmasked log-probability reaches the loss.

    Returns:
        The loss (a scalar with a gradient, exactly 0 for rows without loss tokens), and `stats_S`: fp64 sums named by
        `STATS`, without gradient.
    """
    rows = _masked(inputs)
    proximal_BT = rows.old_logprobs_BT if switches.proximal == "old" else rows.behaviour_logprobs_BT
    ratio_BT = _ratio(rows, proximal_BT, switches)
    weight_BT, tis_clip_BT = _importance_weight(rows, proximal_BT, switches)
    gain_BT = weight_BT * _surrogate(rows, ratio_BT, switches)
    kl_BT = torch.zeros_like(proximal_BT)
    if switches.needs_reference:
        assert rows.ref_logprobs_BT is not None, "kl_beta > 0 needs the log-probabilities of a reference"
        kl_BT = kl_estimate(rows.logprobs_BT, rows.ref_logprobs_BT, switches.kl_estimator)
    beta = 0.0 if switches.has_kl_reward else switches.kl_beta
    loss = -(_normaliser(rows, switches) * (gain_BT - beta * kl_BT)).sum()
    with torch.no_grad():
        stats_S = _stats(rows, loss, ratio_BT, weight_BT, tis_clip_BT, kl_BT, switches)
    return loss, stats_S


def step_metrics(stats_S: Tensor, num_updates: int) -> dict[str, float]:
    """The means of `stats_S`, summed over all rows and ranks of `num_updates` updates, named as `metrics.LEARNER`."""
    total = _named(stats_S)
    tokens, fresh_tokens = max(total["tokens"], 1.0), max(total["fresh_tokens"], 1.0)
    answers = max(total["sequences"], 1.0)
    return {
        "loss": total["loss"] / max(num_updates, 1),
        "clip_fraction_low": total["clip_low"] / tokens,
        "clip_fraction_high": total["clip_high"] / tokens,
        "tis_clip_fraction": total["tis_clip"] / tokens,
        "tis_clip_fraction_answers": total["tis_clip_share"] / answers,
        "importance_ess_fraction": _effective_share(total["weight"], total["weight_square"], total["tokens"]),
        "importance_ess_fraction_answers": _effective_share(
            total["mean_weight"], total["mean_weight_square"], total["sequences"]
        ),
        "outlier_tokens_mean": total["outliers"] / max(total["stale_sequences"], 1.0),
        "logprob_diff_mean": total["logprob_diff"] / tokens,
        "logprob_diff_mean_fresh": total["logprob_diff_fresh"] / fresh_tokens,
        "kl_engine_learner": total["kl_engine_learner"] / tokens,
        "kl_engine_learner_fresh": total["kl_engine_learner_fresh"] / fresh_tokens,
        "kl_engine_learner_answers": total["kl_engine_learner"] / answers,
        "entropy_mean": total["entropy"] / tokens,
        "kl_ref_mean": total["kl_ref"] / tokens,
    }


def next_threshold(stats_S: Tensor, before: float) -> float:
    """The threshold c of the next step, from the sums over a whole step: the smallest for `OUTLIERS_PER_ANSWER`.

    It is the lower end of a bin, so equal sums give equal bits on every rank. A step without stale tokens keeps the
    threshold of `before`.
    """
    answers = round(_named(stats_S)["stale_sequences"])  # a sum of shares, which depends on the layout in its last bits
    if not answers:
        return before
    outliers_H = stats_S[len(STATS) :].flip(0).cumsum(0)
    bins = int((outliers_H <= OUTLIERS_PER_ANSWER * answers).sum())
    return _lower_end(_BINS - bins) if bins else NO_OUTLIERS


def _lower_end(index: int) -> float:
    """The smallest |d| in a bin."""
    return min(2.0 ** ((index - 1) / _BINS_PER_OCTAVE - _OCTAVES), LOG_RATIO_BOUND) if index else 0.0


def _named(stats_S: Tensor) -> dict[str, float]:
    return dict(zip(STATS, stats_S[: len(STATS)].tolist(), strict=True))


def _effective_share(weight: float, weight_square: float, count: float) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2, over the number of weights (L. Kish, "Survey Sampling", 1965).

    1: all weights are equal. 0: there is no weight. It is of the sums: shares of rows or ranks cannot be averaged.
    """
    return weight**2 / (weight_square * count) if weight_square else 0.0


def kl_estimate(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, estimator: str) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref) from samples of pi (J. Schulman, "Approximating KL divergence", 2020).

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, with d = log pi - log pi_ref. The mean of k1's own gradient is zero, so
    a loss cannot use it. So k1 gets the gradient of k2, which equals subtracting k1 from the reward of each token
    (arXiv 2510.01555).
    """
    diff_BT = _log_ratio(logprobs_BT, ref_logprobs_BT)
    half_square_BT = diff_BT.square() / 2
    if estimator == "k1":
        return diff_BT.detach() + (half_square_BT - half_square_BT.detach())
    if estimator == "k2":
        return half_square_BT
    return torch.expm1(-diff_BT) + diff_BT


def _masked(inputs: LossInputs) -> LossInputs:
    """Set values to zero where the mask is False, before any arithmetic: 0 * inf and its gradient would be NaN."""
    dtype = torch.promote_types(inputs.logprobs_BT.dtype, torch.float32)

    def keep(values_BT: Tensor) -> Tensor:
        return torch.where(inputs.loss_mask_BT, values_BT.to(dtype), 0.0)

    return inputs._replace(
        logprobs_BT=keep(inputs.logprobs_BT),
        old_logprobs_BT=keep(inputs.old_logprobs_BT).detach(),
        behaviour_logprobs_BT=keep(inputs.behaviour_logprobs_BT).detach(),
        advantages_BT=keep(inputs.advantages_BT).detach(),
        ref_logprobs_BT=None if inputs.ref_logprobs_BT is None else keep(inputs.ref_logprobs_BT).detach(),
        entropy_BT=None if inputs.entropy_BT is None else keep(inputs.entropy_BT).detach(),
        anchor_logprobs_BT=None if inputs.anchor_logprobs_BT is None else keep(inputs.anchor_logprobs_BT).detach(),
    )


def _log_ratio(above_BT: Tensor, below_BT: Tensor) -> Tensor:
    return (above_BT - below_BT).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _sequence_sum(values_BT: Tensor, sequence_ids_BT: Tensor) -> Tensor:
    """For each token, the sum of `values_BT` over its sequence."""
    index_BT = sequence_ids_BT.long() + 1
    # One slot for each token: reading the number of sequences would wait for the device.
    sums_BS = values_BT.new_zeros(values_BT.shape[0], values_BT.shape[1] + 1).scatter_add(1, index_BT, values_BT)
    return sums_BS.gather(1, index_BT)


def _sequence_tokens(rows: LossInputs) -> Tensor:
    """For each token, the number of loss tokens of its sequence, at least 1."""
    return _sequence_sum(rows.loss_mask_BT.to(rows.logprobs_BT.dtype), rows.sequence_ids_BT).clamp(min=1.0)


def _ratio(rows: LossInputs, proximal_BT: Tensor, switches: Switches) -> Tensor:
    """pi / pi_proximal of each token, or the geometric mean over its sequence (GSPO)."""
    log_ratio_BT = _log_ratio(rows.logprobs_BT, proximal_BT)
    if switches.ratio == "sequence":
        log_ratio_BT = _sequence_sum(log_ratio_BT, rows.sequence_ids_BT) / _sequence_tokens(rows)
    return log_ratio_BT.exp()


def _importance_weight(rows: LossInputs, proximal_BT: Tensor, switches: Switches) -> tuple[Tensor, Tensor]:
    """w of each token, without gradient, and the tokens where the cap changed it.

    `truncate` is min(w, rho), truncated importance sampling. `mask` is w within [1/rho, rho] and 0 outside (IcePop);
    such a token stays in the normaliser. `sequence` is the product over the sequence's loss tokens, capped once;
    `sequence_mask` is that product, or 0 above rho. `auto` is min(w * product over the other tokens of exp(outlier),
    rho), see `_outliers`. `two_factor` does that with the drift in place of w, and multiplies by the rest of w, capped
    too, see `_drift`.
    """
    if switches.rho is None:
        return torch.ones_like(proximal_BT), torch.zeros_like(rows.loss_mask_BT)
    log_weight_BT = _log_ratio(proximal_BT, rows.behaviour_logprobs_BT)
    numerics_BT = torch.zeros_like(log_weight_BT)
    if switches.rho_kind in ("sequence", "sequence_mask"):
        log_weight_BT = _sequence_sum(log_weight_BT, rows.sequence_ids_BT).clamp(max=LOG_RATIO_BOUND)
    elif switches.rho_kind in ("auto", "two_factor"):
        drift_BT = _drift(rows, log_weight_BT)
        outliers_BT = _outliers(rows, drift_BT)
        others_BT = _sequence_sum(outliers_BT, rows.sequence_ids_BT) - outliers_BT
        numerics_BT = log_weight_BT - drift_BT
        log_weight_BT = (drift_BT + others_BT).clamp(max=LOG_RATIO_BOUND)
    weight_BT = log_weight_BT.exp()
    if switches.rho_kind == "mask":
        outside_BT = (weight_BT > switches.rho) | (weight_BT < 1 / switches.rho)
        return weight_BT.masked_fill(outside_BT, 0.0), outside_BT
    cut_BT = weight_BT > switches.rho
    if switches.rho_kind == "sequence_mask":
        return weight_BT.masked_fill(cut_BT, 0.0), cut_BT
    weight_BT = weight_BT.clamp(max=switches.rho)
    if rows.anchor_logprobs_BT is None:
        return weight_BT, cut_BT
    factor_BT = numerics_BT.exp()
    return weight_BT * factor_BT.clamp(max=switches.rho), cut_BT | (factor_BT > switches.rho)


def _outliers(rows: LossInputs, drift_BT: Tensor) -> Tensor:
    """The part of d above c of stale tokens, doubled, at most d; 0 of fresh ones: their d is the engine's numerics."""
    above_BT = 2 * softshrink(drift_BT, rows.outlier_threshold)
    return torch.where(rows.lags_BT > 0, above_BT.clamp(-drift_BT.abs(), drift_BT.abs()), 0.0)


def _drift(rows: LossInputs, log_weight_BT: Tensor) -> Tensor:
    """log pi_old - log pi of the version that sampled the token, both by the learner; d if that is not known.

    The logarithm goes along a straight line from the anchor to the present. A token may be older than the anchor.
    """
    if rows.anchor_logprobs_BT is None:
        return log_weight_BT
    line_BT = _log_ratio(rows.old_logprobs_BT, rows.anchor_logprobs_BT) * rows.lags_BT / rows.anchor_age
    return torch.where(rows.lags_BT > rows.anchor_age, log_weight_BT, line_BT)


def _histogram(sizes_BT: Tensor, where_BT: Tensor) -> Tensor:
    """The number of tokens in each bin of |d|. A NaN may be in any bin: it reaches the loss."""
    bins_BT = ((sizes_BT.log2() + _OCTAVES) * _BINS_PER_OCTAVE).floor().nan_to_num().clamp(-1, _BINS - 2) + 1
    counts_H = torch.zeros(_BINS, dtype=torch.float64, device=sizes_BT.device)
    return counts_H.scatter_add(0, bins_BT.long().flatten(), where_BT.double().flatten())


def _surrogate(rows: LossInputs, ratio_BT: Tensor, switches: Switches) -> Tensor:
    """PPO's pessimistic minimum, with or without the bound of dual clip (arXiv 1912.09729), CISPO's clipped and
    detached ratio on the log-probability, or the user's own."""
    if ":" in switches.clip:
        gain: Surrogate = load_function(CLIP, switches.clip)
        return gain(ratio_BT, rows.advantages_BT, rows.logprobs_BT, switches)
    clipped_BT = ratio_BT.clamp(1 - switches.eps_low, 1 + switches.eps_high)
    if switches.clip == "cispo":
        return clipped_BT.detach() * rows.advantages_BT * rows.logprobs_BT
    gain_BT = torch.minimum(ratio_BT * rows.advantages_BT, clipped_BT * rows.advantages_BT)
    if switches.clip == "dual":
        return torch.maximum(gain_BT, torch.where(rows.advantages_BT < 0, DUAL_CLIP * rows.advantages_BT, gain_BT))
    return gain_BT


def _normaliser(rows: LossInputs, switches: Switches) -> Tensor:
    """n_t, the factor of each token's term; 0 where the mask is False."""
    mask_BT = rows.loss_mask_BT.to(rows.logprobs_BT.dtype)
    if switches.normalize == "token":
        return mask_BT / max(rows.loss_tokens, 1.0)
    if switches.normalize == "constant":
        return mask_BT / (max(rows.num_sequences, 1) * switches.constant_length)
    return mask_BT / (max(rows.num_sequences, 1) * _sequence_tokens(rows))


def _clipped(rows: LossInputs, ratio_BT: Tensor, switches: Switches) -> tuple[Tensor, Tensor]:
    """The tokens that are clipped, below and above. PPO clips only against the sign of the advantage."""
    low_BT, high_BT = ratio_BT < 1 - switches.eps_low, ratio_BT > 1 + switches.eps_high
    if switches.clip not in ("ppo", "dual"):
        return low_BT, high_BT
    return low_BT & (rows.advantages_BT < 0), high_BT & (rows.advantages_BT > 0)


def _stats(
    rows: LossInputs,
    loss: Tensor,
    ratio_BT: Tensor,
    weight_BT: Tensor,
    tis_clip_BT: Tensor,
    kl_BT: Tensor,
    switches: Switches,
) -> Tensor:
    mask_BT = rows.loss_mask_BT
    fresh_BT, stale_BT = mask_BT & (rows.lags_BT == 0), mask_BT & (rows.lags_BT > 0)
    low_BT, high_BT = _clipped(rows, ratio_BT, switches)
    sequence_share_BT = _sequence_tokens(rows).double().reciprocal()
    stale_tokens_BT = _sequence_sum(stale_BT.double(), rows.sequence_ids_BT)
    weight_BT = torch.where(mask_BT, weight_BT.double(), 0.0)
    mean_weight_BT = _sequence_sum(weight_BT, rows.sequence_ids_BT) * sequence_share_BT
    diff_BT = _log_ratio(rows.old_logprobs_BT, rows.behaviour_logprobs_BT)
    sizes_BT = _drift(rows, diff_BT).abs()
    # k3 from samples of the engine, so it estimates KL(engine || learner).
    drift_BT = kl_estimate(rows.behaviour_logprobs_BT, rows.old_logprobs_BT, "k3")
    entropy_BT = torch.zeros_like(diff_BT) if rows.entropy_BT is None else rows.entropy_BT

    def total(values_BT: Tensor, where_BT: Tensor) -> Tensor:
        return torch.where(where_BT, values_BT.double(), 0.0).sum()

    named = {
        "loss": loss.double(),
        "tokens": total(mask_BT, mask_BT),
        "fresh_tokens": total(fresh_BT, fresh_BT),
        "sequences": total(sequence_share_BT, mask_BT),
        "stale_sequences": total(stale_tokens_BT.reciprocal(), stale_BT),
        "clip_low": total(low_BT, mask_BT),
        "clip_high": total(high_BT, mask_BT),
        "tis_clip": total(tis_clip_BT, mask_BT),
        "tis_clip_share": total(sequence_share_BT, tis_clip_BT & mask_BT),
        "weight": total(weight_BT, mask_BT),
        "weight_square": total(weight_BT.square(), mask_BT),
        "mean_weight": total(mean_weight_BT * sequence_share_BT, mask_BT),
        "mean_weight_square": total(mean_weight_BT.square() * sequence_share_BT, mask_BT),
        "outliers": total(sizes_BT > rows.outlier_threshold, stale_BT),
        "logprob_diff": total(diff_BT, mask_BT),
        "logprob_diff_fresh": total(diff_BT, fresh_BT),
        "kl_engine_learner": total(drift_BT, mask_BT),
        "kl_engine_learner_fresh": total(drift_BT, fresh_BT),
        "entropy": total(entropy_BT, mask_BT),
        "kl_ref": total(kl_BT, mask_BT),
    }
    return torch.cat([torch.stack([named[name] for name in STATS]), _histogram(sizes_BT, stale_BT)])
