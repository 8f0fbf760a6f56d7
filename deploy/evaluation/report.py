"""What an evaluation shows: one table of all models, the differences to the first, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from olmorl.deploy.evaluation.measures import METHODS, Answers, Estimate, difference, estimates


class Result(NamedTuple):
    """The numbers of one model."""

    model: str
    prompts: Mapping[str, Answers]
    numbers: Mapping[str, Estimate]

    @property
    def tokens(self) -> float:
        """Mean length of an answer."""
        return fmean(outcome.tokens for answers in self.prompts.values() for outcome in answers.outcomes)

    @property
    def cut_off(self) -> float:
        """Share of the answers that reached the limit of tokens."""
        return fmean(outcome.cut for answers in self.prompts.values() for outcome in answers.outcomes)

    @property
    def unscored(self) -> int:
        """Answers without a reward. They count in no number but the length."""
        return sum(outcome.solved is None for answers in self.prompts.values() for outcome in answers.outcomes)


def result(model: str, prompts: Mapping[str, Answers], samples: int, ks: Sequence[int]) -> Result:
    """The numbers of one model from its scored answers."""
    return Result(model, prompts, estimates(prompts, samples, ks))


def table(results: Sequence[Result], title: str) -> Table:
    """The models side by side, and the difference of each other one to the first."""
    made = Table(title=title, title_justify="left")
    made.add_column("", no_wrap=True)
    for heading in (*(one.model for one in results), *(f"{one.model} - {results[0].model}" for one in results[1:])):
        made.add_column(heading, justify="right", no_wrap=True)
    gaps = [_differences(one, results[0]) for one in results[1:]]
    for name in dict.fromkeys(name for one in results for name in one.numbers):
        cells = [_percent(one.numbers.get(name)) for one in results]
        made.add_row(name, *cells, *(_percent(gap.get(name), signed=True) for gap in gaps))
    made.add_row("prompts", *(f"{len(one.prompts):,}" for one in results))
    made.add_row("mean tokens", *(f"{one.tokens:,.0f}" for one in results))
    made.add_row("cut off", *(f"{one.cut_off:.1%}" for one in results))
    made.add_row("unscored answers", *(f"{one.unscored:,}" for one in results))
    return made


def as_json(results: Sequence[Result], head: Mapping[str, Any]) -> dict[str, Any]:
    """The table with full precision, and how its numbers are made."""
    return {
        **head,
        "methods": METHODS,
        "models": [
            {
                "model": one.model,
                "prompts": len(one.prompts),
                "answers": sum(len(answers.outcomes) for answers in one.prompts.values()),
                "unscored": one.unscored,
                "completion_tokens_mean": one.tokens,
                "truncated_fraction": one.cut_off,
                "numbers": {name: _plain(number) for name, number in one.numbers.items()},
            }
            for one in results
        ],
        "differences": [
            {
                "model": one.model,
                "minus": results[0].model,
                "numbers": {name: _plain(gap) for name, gap in _differences(one, results[0]).items()},
            }
            for one in results[1:]
        ],
    }


def _differences(one: Result, first: Result) -> dict[str, Estimate]:
    pairs = {name: difference(number, first.numbers[name]) for name, number in one.numbers.items()
             if name in first.numbers}  # fmt: skip
    return {name: gap for name, gap in pairs.items() if gap is not None}


def _plain(number: Estimate) -> dict[str, float]:
    return {"mean": number.mean, "low": number.low, "high": number.high, "prompts": len(number.values)}


def _percent(number: Estimate | None, signed: bool = False) -> str:
    if number is None:
        return "-"
    sign = "+" if signed else ""
    return f"{number.mean * 100:{sign}.1f} ({number.low * 100:{sign}.1f}, {number.high * 100:{sign}.1f})"
