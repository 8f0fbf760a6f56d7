"""User reward functions: called once per group, in worker processes, in TRL's convention or as verl's `compute_score`.

    def reward(prompts, completions, **columns) -> list[float | None]        sync or async
    def compute_score(data_source, solution_str, ground_truth, extra_info) -> float

`None` means that the function does not apply to the row. Raising, hanging, a wrong length or NaN is an error, never 0.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.config import Verifiers
from olmorl.errors import RewardFunctionError
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.checks import Counters, Done
from olmorl.verifiers.nursery import StartFailed
from olmorl.verifiers.pool import Pool
from olmorl.verifiers.registry import NAMES

_LOAD = "olmorl.verifiers.function_runner:load"
_SCORE = "olmorl.verifiers.function_runner:score"
LARGEST_REWARD = 1e100
"""By its size: sums of squares stay finite, and so the ledger can hold them."""
_FORM = "package.module:function or file.py:function, each with an optional *weight"


class Function(NamedTuple):
    """One entry of `verifiers.functions`."""

    spec: str
    """`module:function`, or an absolute path to a file and a function."""
    name: str
    """Unique among functions and built-in verifiers; the key of its verdicts and weight."""
    weight: float


def parse(entries: Sequence[str]) -> tuple[Function, ...]:
    """Read the entries of `verifiers.functions`. Raises RewardFunctionError for one of another form."""
    split = [_split(entry) for entry in entries]
    times = Counter(spec.rpartition(":")[2] for spec, _ in split)
    functions = []
    for spec, weight in split:
        place, _, name = spec.rpartition(":")
        if times[name] > 1 or name in NAMES:
            name = f"{Path(place).stem if place.endswith('.py') else place}.{name}"
        functions.append(Function(spec, name, weight))
    return tuple(functions)


def _split(entry: str) -> tuple[str, float]:
    spec, star, factor = entry.strip().partition("*")
    place, colon, name = spec.strip().rpartition(":")
    try:
        weight = float(factor) if star else 1.0
    except ValueError:
        raise RewardFunctionError(
            f"verifiers.functions: {entry!r}: {factor!r} is not a weight; write {_FORM}"
        ) from None
    if not colon or not place or not name.isidentifier() or not math.isfinite(weight):
        raise RewardFunctionError(f"verifiers.functions: {entry!r} is not of the form {_FORM}")
    if place.endswith(".py"):
        place = str(Path(place).expanduser().resolve())
    return f"{place}:{name}", weight


def check(settings: Verifiers) -> None:
    """Import every function as the actors will, in a process of its own.

    Raises:
        RewardFunctionError: it does not import, is not there, or cannot be called; the message says which and why.
    """
    scorer = FunctionScorer(settings.model_copy(update={"workers": 1}))

    async def start_and_stop() -> None:
        await scorer.start()
        await scorer.stop()

    asyncio.run(start_and_stop())


class FunctionScorer:
    """Gives every completion of a group each function's verdict."""

    def __init__(self, settings: Verifiers) -> None:
        self.functions = parse(settings.functions)
        self._pool = Pool(
            settings.workers,
            settings.function_timeout_s,
            settings.memory_mib,
            settings.recycle_after,
            settings.retries,
            setup=(_LOAD, [function.spec for function in self.functions]),
        )

    @property
    def counters(self) -> Counters:
        return self._pool.counters

    @property
    def queue_depth(self) -> int:
        return self._pool.queue_depth

    async def start(self) -> None:
        """Raises RewardFunctionError when a function cannot be loaded."""
        if not self.functions:
            return
        try:
            await self._pool.start()
        except StartFailed as error:
            reason = str(error).removeprefix("ImportError: ")
            raise RewardFunctionError(
                f"verifiers.functions: {reason}; write {_FORM}, with the module on PYTHONPATH or beside the recipe's "
                "working directory, and parameters (prompts, completions, **columns)"
            ) from None

    async def stop(self) -> None:
        await self._pool.stop()

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[dict[str, Verdict]]:
        """For each completion, the verdicts by function name."""
        texts = [completion.text for completion in completions]
        columns = _columns(prompt)
        results = await asyncio.gather(
            *(self._verdicts(function, prompt.messages, texts, columns) for function in self.functions)
        )
        names = [function.name for function in self.functions]
        return [dict(zip(names, row, strict=True)) for row in zip(*results, strict=True)]

    async def _verdicts(self, function: Function, messages: Any, texts: list[str], columns: Any) -> list[Verdict]:
        outcome = await self._pool.run(_SCORE, (function.spec, messages, texts, columns))
        if not isinstance(outcome, Done):
            kind, detail = outcome[0], outcome[-1]
            return [Verdict(reward=None, error_kind=f"function_{kind}", detail=detail)] * len(texts)
        problem = _problem(outcome.value, len(texts))
        if problem is not None:
            return [Verdict(reward=None, error_kind=problem[0], detail=problem[1])] * len(texts)
        return [Verdict(reward=value, method="function") for value in outcome.value]


def _columns(prompt: Prompt) -> dict[str, Any]:
    """The row's columns as its file has them: a single verifier's label is not in a list."""
    single = len(prompt.ground_truths) == 1
    labels = {
        "dataset": prompt.datasets[0] if single else list(prompt.datasets),
        "ground_truth": prompt.ground_truths[0] if single else list(prompt.ground_truths),
    }
    return {**(labels if prompt.datasets else {}), **prompt.columns}


def _problem(values: list[float | None], wanted: int) -> tuple[str, str] | None:
    """Why a function's return cannot be used."""
    if len(values) != wanted:
        return "function_length", f"returned {len(values)} rewards for {wanted} completions"
    if any(value is None for value in values) and not all(value is None for value in values):
        return "function_mixed_none", "returned None for some completions of a group: None is for the whole row"
    if not all(value is None or abs(value) <= LARGEST_REWARD for value in values):  # NaN is not
        return "function_not_finite", f"returned NaN, infinity or more than {LARGEST_REWARD:g}"
    return None
