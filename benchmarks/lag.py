"""Steps until a policy is right with probability 0.8 when its answers are exactly L versions old, by weight rule.

    python benchmarks/lag.py --json benchmarks/results/lag.json

The policy is a table of logits for each of eight prompts, the answer 32 tokens of which two must fit together and none
of the others may go wrong. The loss is the learner's own, the engine a sampler of the policy of L versions ago. So the
probability of a right answer is known exactly, at every step. The columns add what real engines and long answers add:
rounding, and further tokens that do not decide.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import measure
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from olmorl.config import Objective
from olmorl.learner.algorithm.objective import NO_OUTLIERS, LossInputs, next_threshold, policy_loss, step_metrics
from olmorl.learner.algorithm.presets import resolve

WANTED = 0.8
STEPS = 36
PROMPTS, TOKENS, VOCABULARY, FITTING, SUM = 8, 32, 3, 2, 2
"""An answer is right when its first two tokens add up to 2 and all others are token 0, as they nearly always are."""
SPREAD, SETTLED = 0.5, 5.0
"""Standard deviation of the logits at the start, and what token 0 of the others has more."""
STEEPNESS = 22.5
"""Logits for each unit of a parameter, so that AdamW moves them as it moves those of a network."""
GROUPS, GROUP_SIZE, DRAWN = 32, 8, 3
"""A step takes the first 32 groups with a gradient of three times as many."""
FILLER, OUTERMOST = 8192, 64
"""Further tokens of an answer; the number of them that the loss sees, those with the largest |d|. The others are always
below the threshold c, so they change no weight of a token that learns, unless a weight is the product of all."""
BETAS = (0.9, 0.95)
RATE = 0.008
RATES = (0.004, RATE, 0.014)
LAGS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Column:
    """What engine and answers add. All noise is in log-probabilities (nats), and its weights have the mean 1."""

    noise: float = 0.0
    """Of each token, by the engine's numerics."""
    filler_noise: float = 0.0
    """Of `FILLER` further tokens together, by the engine's numerics. They decide nothing and do not learn."""
    filler_drift: float = 0.0
    """Of all of them together, at lag 4, because their probabilities changed."""

    def filler(self, lag: int) -> float:
        """The standard deviation of their sum."""
        return math.hypot(self.filler_noise, self.filler_drift * math.sqrt(lag / 4))


COLUMNS: Mapping[str, Column] = {
    "clean": Column(),
    "noise 0.3": Column(noise=0.3),
    "total 3": Column(filler_noise=3.0),
    "total 10": Column(filler_noise=10.0),
    "stale filler": Column(filler_drift=3.0),
}
RULES: Mapping[str, Mapping[str, Any]] = {
    "token": {"rho_kind": "truncate"},
    "answer": {"rho_kind": "sequence"},
    "auto": {"rho_kind": "auto"},
    "two_factor": {"rho_kind": "two_factor"},
}
FURTHER_RULES: Mapping[str, Mapping[str, Any]] = {
    "off": {"rho": "off"},
    "mask": {"rho_kind": "mask"},
    "behaviour": {"proximal": "behaviour"},
}
"""At lag 4 without noise alone."""


class Run(NamedTuple):
    """One seed."""

    right: list[float]
    """The probability of a right answer, by version."""
    metrics: list[dict[str, float]]
    """The learner's metrics, by step."""

    @property
    def steps(self) -> int | None:
        """Steps until the wanted probability; None if it never had it."""
        return next((step for step, right in enumerate(self.right, 1) if right >= WANTED), None)


def learn(
    seed: int,
    lag: int,
    objective: Mapping[str, Any],
    column: Column,
    rate: float = RATE,
    steps: int = STEPS,
) -> Run:
    """Train for `steps` steps on answers that are exactly `lag` versions old, once there are as many versions."""
    chance = torch.Generator().manual_seed(seed)
    switches = resolve(Objective.model_validate(objective), TOKENS)
    start_PTV = torch.randn(PROMPTS, TOKENS, VOCABULARY, generator=chance) * SPREAD
    start_PTV[:, FITTING:, 0] += SETTLED
    moved_PTV = torch.zeros_like(start_PTV).requires_grad_()
    optimizer = torch.optim.AdamW([moved_PTV], lr=rate, betas=BETAS, weight_decay=0.0)

    def logprobs() -> Tensor:
        return torch.log_softmax(start_PTV + STEEPNESS * moved_PTV, -1)

    versions = deque([logprobs().detach()], maxlen=lag + 1)
    kept: deque[tuple[int, Tensor]] = deque(maxlen=2)  # as the learner keeps them
    run, threshold = Run([], []), NO_OUTLIERS
    for step in range(steps):
        if lag and step % lag == 0:
            kept.append((step, versions[-1]))
        age, anchor_PTV = (step - kept[0][0], kept[0][1]) if lag else (0, versions[-1])
        prompts_B, tokens_BT, advantages_B1 = _answers(versions[0], chance)
        policy_BT, engine_BT, anchor_BT = (
            table_PTV[prompts_B].gather(2, tokens_BT[..., None]).squeeze(2)
            for table_PTV in (logprobs(), versions[0], anchor_PTV)
        )
        advantages_BT = advantages_B1.expand_as(engine_BT)
        if column.noise:
            engine_BT = engine_BT - _noise(engine_BT.shape, column.noise, chance)
        if filler := column.filler(len(versions) - 1):
            noise_BF = _filler(filler, switches.rho_kind == "sequence", chance)
            policy_BT = torch.cat([policy_BT, torch.full_like(noise_BF, -1.0)], 1)
            engine_BT = torch.cat([engine_BT, -1.0 - noise_BF], 1)
            moved = age / (len(versions) - 1) if column.filler_drift else 0.0
            anchor_BT = torch.cat([anchor_BT, -1.0 - noise_BF * moved], 1)
            advantages_BT = torch.cat([advantages_BT, advantages_B1.expand_as(noise_BF)], 1)
        inputs = _inputs(policy_BT, engine_BT, advantages_BT, len(versions) - 1)._replace(outlier_threshold=threshold)
        if switches.needs_anchor and age:
            inputs = inputs._replace(anchor_logprobs_BT=anchor_BT, anchor_age=age)
        loss, stats_S = policy_loss(inputs, switches)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([moved_PTV], 1.0)
        optimizer.step()
        threshold = next_threshold(stats_S, threshold)
        versions.append(logprobs().detach())
        run.right.append(_right(versions[-1].exp()))
        run.metrics.append(step_metrics(stats_S, 1) | {"outlier_threshold": threshold})
    return run


def _answers(engine_PTV: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts, tokens and advantages of the answers of a step, by active sampling: equal rewards go last."""
    prompts_D = torch.arange(DRAWN * GROUPS) % PROMPTS
    tokens_DGT = (
        torch.multinomial(engine_PTV.exp()[prompts_D].flatten(0, 1), GROUP_SIZE, replacement=True, generator=chance)
        .view(-1, TOKENS, GROUP_SIZE)
        .transpose(1, 2)
    )
    fits_DG = tokens_DGT[..., :FITTING].sum(-1) == SUM
    rewards_DG = (fits_DG & (tokens_DGT[..., FITTING:] == 0).all(-1)).float()
    taken_N = torch.argsort((rewards_DG.amax(1) == rewards_DG.amin(1)).int(), stable=True)[:GROUPS]
    advantages_NG = rewards_DG[taken_N] - rewards_DG[taken_N].mean(1, keepdim=True)
    return (
        prompts_D[taken_N].repeat_interleave(GROUP_SIZE),
        tokens_DGT[taken_N].flatten(0, 1),
        advantages_NG.view(-1, 1),
    )


def _inputs(policy_BT: Tensor, engine_BT: Tensor, advantages_BT: Tensor, lag: int) -> LossInputs:
    return LossInputs(
        logprobs_BT=policy_BT,
        old_logprobs_BT=policy_BT.detach(),
        behaviour_logprobs_BT=engine_BT,
        advantages_BT=advantages_BT,
        loss_mask_BT=torch.ones(policy_BT.shape, dtype=torch.bool),
        sequence_ids_BT=torch.zeros(policy_BT.shape, dtype=torch.int64),
        lags_BT=torch.full(policy_BT.shape, lag),
        loss_tokens=float(policy_BT.numel()),
        num_sequences=len(policy_BT),
    )


def _filler(size: float, whole: bool, chance: torch.Generator) -> Tensor:
    """Log-ratios of further tokens: the outermost ones, or as many whose sum is that of all."""
    answers, token = GROUPS * GROUP_SIZE, size / math.sqrt(FILLER)
    if whole:
        return _noise((answers, OUTERMOST), size / math.sqrt(OUTERMOST), chance)
    # The chances of |d| above the k largest of n are sums of k of n + 1 exponential variables, over the sum of all.
    waits_BF = torch.empty(answers, OUTERMOST).exponential_(generator=chance).cumsum(1)
    rest_B1 = FILLER + 1 - OUTERMOST + math.sqrt(FILLER) * torch.randn(answers, 1, generator=chance)
    sizes_BF = -torch.special.ndtri(waits_BF / (waits_BF[:, -1:] + rest_B1) / 2)
    return token * sizes_BF * torch.randn(sizes_BF.shape, generator=chance).sign() - token**2 / 2


def _noise(shape: Sequence[int], size: float, chance: torch.Generator) -> Tensor:
    """Log-ratios of policy and engine whose exponentials have the mean 1."""
    return size * torch.randn(*shape, generator=chance) - size**2 / 2


def _right(probabilities_PTV: Tensor) -> float:
    """The exact probability of a right answer, over the prompts."""
    first_PV, second_PV = probabilities_PTV[:, 0], probabilities_PTV[:, 1]
    fits_P = (first_PV * second_PV.flip(1)).sum(1)
    return float((fits_P * probabilities_PTV[:, FITTING:, 0].prod(1)).mean())


@dataclass(frozen=True)
class Cell:
    """One rule under one lag, rate and column."""

    rule: str
    objective: Mapping[str, Any]
    lag: int
    rate: float
    column: str


def cells() -> list[Cell]:
    """The cells of both tables: every lag and rate without noise; with it every lag of the rules that hold there."""
    found = []
    for rate in RATES:
        found.append(Cell("token", RULES["token"], 0, rate, "clean"))
        found += [Cell(rule, RULES[rule], lag, rate, "clean") for lag in LAGS for rule in RULES]
    found += [Cell(rule, objective, 4, RATE, "clean") for rule, objective in FURTHER_RULES.items()]
    for name in list(COLUMNS)[1:]:
        found += [Cell(rule, RULES[rule], 0, RATE, name) for rule in ("token", "answer")]
        found += [Cell(rule, RULES[rule], 4, RATE, name) for rule in ("token", "answer")]
        found += [Cell(rule, RULES[rule], lag, RATE, name) for rule in ("auto", "two_factor") for lag in LAGS]
    return found


def summary(cell: Cell, runs: Sequence[Run]) -> dict[str, Any]:
    """Means and standard errors over the seeds. A seed that was never right counts in `never`, not in the mean."""
    steps = [run.steps for run in runs if run.steps is not None]
    level, steps_error = [run.right[-1] for run in runs], _error(steps)

    def extreme(name: str, of: Any) -> float:
        return float(mean(of(metrics[name] for metrics in run.metrics) for run in runs))

    return {
        "rule": cell.rule,
        "objective": dict(cell.objective),
        "lag": cell.lag,
        "rate": cell.rate,
        "column": cell.column,
        "seeds": len(runs),
        "steps": mean(steps) if steps else None,
        "steps_error": steps_error,
        "never": len(runs) - len(steps),
        "level": mean(level),
        "level_error": _error(level),
        "kl_answers_max": extreme("kl_engine_learner_answers", max),
        "ess_answers_min": extreme("importance_ess_fraction_answers", min),
        "ess_tokens_min": extreme("importance_ess_fraction", min),
        "outlier_threshold": mean(run.metrics[-1]["outlier_threshold"] for run in runs),
    }


def _error(values: Sequence[float]) -> float | None:
    """The standard error of the mean."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each cell; `ratio` is to lag 0 of the token weights in the same column, at the same rate."""
    fresh = {(row["column"], row["rate"]): row for row in rows if row["lag"] == 0 and row["rule"] == "token"}
    made = Table(title=f"steps until the probability of a right answer is {WANTED}", title_justify="left")
    for heading in ("column", "rate", "lag", "rule", "steps", "ratio", "never", f"level at {STEPS}", "KL", "ESS", "c"):
        made.add_column(heading, justify="right" if heading not in ("column", "rule") else "left")
    for row in rows:
        base = fresh.get((row["column"], row["rate"]), {}).get("steps")
        steps = row["steps"]
        made.add_row(
            row["column"],
            f"{row['rate']:g}",
            str(row["lag"]),
            row["rule"],
            f"{steps:.1f} ± {row['steps_error'] or 0:.1f}" if steps else "",
            f"{steps / base:.2f}" if steps and base else "",
            str(row["never"] or ""),
            f"{row['level']:.3f} ± {row['level_error'] or 0:.3f}",
            f"{row['kl_answers_max']:.2f}",
            f"{row['ess_answers_min']:.2f} / {row['ess_tokens_min']:.2f}",
            f"{row['outlier_threshold']:.2g}",
        )
    made.caption = "KL: the largest of a step, nats an answer. ESS: the smallest of a step, of answers / of tokens."
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = _parser().parse_args(argv)
    torch.set_num_threads(1)
    console, rows = Console(width=150), []
    for cell in cells():
        column = COLUMNS[cell.column]
        how = (cell.objective, column, cell.rate)
        rows.append(summary(cell, [learn(seed, cell.lag, *how) for seed in range(given.seeds)]))
    console.print(table(rows))
    if given.json:
        whole = {"benchmark": "lag", "wanted": WANTED, "filler": FILLER, "rows": rows}
        measure.write(given.json, whole, ("torch",))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, default=16, help="default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
