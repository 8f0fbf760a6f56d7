"""What an evaluation shows: one table of all models, the differences to the first, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from olmorl.deploy.evaluation.measures import METHODS, Answers, Estimate, Outcome, difference, estimates


class Result(NamedTuple):
    """The numbers of one model."""

    model: str
    prompts: Mapping[str, Answers]
    numbers: Mapping[str, Estimate]
    failed: Mapping[tuple[str, int], str]
    """Causes of the episodes that failed, by row and sample. They are no answers, and count in no number."""

    @property
    def answers(self) -> list[Outcome]:
        """All answers."""
        return [outcome for answers in self.prompts.values() for outcome in answers.outcomes]

    @property
    def tokens(self) -> float | None:
        """Mean length of an answer; None without one."""
        return _mean(outcome.tokens for outcome in self.answers)

    @property
    def cut_off(self) -> float | None:
        """Share of the answers that reached the limit of tokens; None without one."""
        return _mean(outcome.cut for outcome in self.answers)

    @property
    def unscored(self) -> int:
        """Answers without a reward. They count in no number but the length."""
        return sum(outcome.solved is None for outcome in self.answers)


def result(
    model: str, prompts: Mapping[str, Answers], samples: int, ks: Sequence[int], failed: Mapping[tuple[str, int], str]
) -> Result:
    """The numbers of one model from its scored answers."""
    return Result(model, prompts, estimates(prompts, samples, ks), failed)


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
    made.add_row("mean tokens", *(_or_dash(one.tokens, ",.0f") for one in results))
    made.add_row("cut off", *(_or_dash(one.cut_off, ".1%") for one in results))
    made.add_row("unscored answers", *(f"{one.unscored:,}" for one in results))
    if any(one.failed for one in results):
        made.add_row("failed episodes", *(f"{len(one.failed):,}" for one in results))
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
                "answers": len(one.answers),
                "unscored": one.unscored,
                "failed": [
                    {"row": row, "sample": sample, "cause": cause} for (row, sample), cause in one.failed.items()
                ],
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


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _plain(number: Estimate) -> dict[str, float]:
    return {"mean": number.mean, "low": number.low, "high": number.high, "prompts": len(number.values)}


def _percent(number: Estimate | None, signed: bool = False) -> str:
    if number is None:
        return "-"
    sign = "+" if signed else ""
    return f"{number.mean * 100:{sign}.1f} ({number.low * 100:{sign}.1f}, {number.high * 100:{sign}.1f})"
