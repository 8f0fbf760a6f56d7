"""Calls user reward functions once per group in worker processes, in the convention of TRL or verl.

    def reward(prompts, completions, **columns) -> list[float | None]        sync or async
    def compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict
    def compute_score_batch(data_sources, solution_strs, ground_truths, extra_infos) -> list[float | dict]

The first form may also take completion_ids, trainer_state, log_metric and log_extra (see `function_call`). A reward of
`None` means that the function does not apply to the completion. In place of a reward each form may return a list with
one for each token of the completion; `None` is a token without one, and the reward is their sum. An exception, a
timeout, a wrong number of rewards or NaN is an error and never a reward of 0.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from olmorl.config import Verifiers
from olmorl.errors import RewardFunctionError
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.ports import Row
from olmorl.verifiers.check_outcomes import Counters, Done
from olmorl.verifiers.functions.function_call import FunctionCall, FunctionResult
from olmorl.verifiers.functions.runner import ENVIRONMENTS
from olmorl.verifiers.pool.fork_server import WorkerStartFailed
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.registry import NAMES, numbered

_LOAD = "olmorl.verifiers.functions.runner:load"
_SCORE = "olmorl.verifiers.functions.runner:score"
LARGEST_REWARD = 1e100
"""The largest absolute reward. Sums of squares stay finite, as the ledger needs."""
_SLOW_IMPORT_S = 3.0
_FORM = "package.module:function or file.py:function, each with an optional *weight"


class Function(NamedTuple):
    """One entry of `verifiers.functions`."""

    spec: str
    """`module:function`, or an absolute path to a file and a function."""
    name: str
    """The key of its verdicts and weight, unique among functions and built-in verifiers."""
    weight: float


def parse(entries: Sequence[str]) -> tuple[Function, ...]:
    """Read the entries of `verifiers.functions`. Raises RewardFunctionError for an entry of another form."""
    split = [_split(entry) for entry in entries]
    times = Counter(spec.rpartition(":")[2] for spec in {spec for spec, _ in split})
    names = []
    for spec, _ in split:
        place, _, name = spec.rpartition(":")
        if times[name] > 1 or name in NAMES:
            name = f"{Path(place).stem if place.endswith('.py') else place}.{name}"
        names.append(name)
    return tuple(Function(spec, name, weight) for (spec, weight), name in zip(split, numbered(names), strict=True))


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


def check(settings: Verifiers, rows: Sequence[Row] | None = None) -> None:
    """Import every function in a separate process, as the actors will; a slow import is announced after some seconds.

    Args:
        rows: rows of the run: a function may not want a column that none of them has.

    Raises:
        RewardFunctionError: a function is missing, or cannot be imported or called. The message names it.
    """
    columns = None if rows is None else sorted({name for row in rows for name in _row_columns(row)})
    if columns is not None and any(row.episode for row in rows or ()):
        columns.append(ENVIRONMENTS)
    scorer = FunctionScorer(settings.model_copy(update={"workers": 1}), columns=columns)

    async def start_and_stop() -> None:
        starting = asyncio.ensure_future(scorer.start())
        if not (await asyncio.wait([starting], timeout=_SLOW_IMPORT_S))[0]:
            specs = ", ".join(function.spec for function in scorer.functions)
            print(f"verifiers.functions: {specs}: the import has taken {_SLOW_IMPORT_S:g} s; waiting", flush=True)
        await starting
        await scorer.stop()

    asyncio.run(start_and_stop())


def _row_columns(row: Row) -> list[str]:
    return [*row.columns, *(("dataset", "ground_truth") if row.datasets else ())]


class FunctionScorer:
    """Gives every completion of a group the verdict of each function."""

    def __init__(self, settings: Verifiers, max_steps: int = 0, columns: Sequence[str] | None = None) -> None:
        """`max_steps` of the run is passed to functions that take it; 0 if it is unknown.

        With `columns`, those of all rows, a function that wants another one is not loaded.
        """
        self.functions = parse(settings.functions)
        self._max_steps = max_steps
        self._pool = Pool(
            settings.workers,
            settings.function_timeout_s,
            settings.memory_mib,
            setup=(_LOAD, ([function.spec for function in self.functions], columns)),
        )

    @property
    def counters(self) -> Counters:
        return self._pool.counters

    @property
    def queue_depth(self) -> int:
        return self._pool.queue_depth

    async def start(self) -> None:
        """Start the workers. Raises RewardFunctionError if a function cannot be loaded."""
        if not self.functions:
            return
        try:
            await self._pool.start()
        except WorkerStartFailed as error:
            reason = str(error).removeprefix("ImportError: ")
            if "was not ready" in reason:
                specs = ", ".join(function.spec for function in self.functions)
                raise RewardFunctionError(
                    f"verifiers.functions: {specs}: {reason}: its import hangs, or takes longer: move what it loads or "
                    "waits for (models, servers, input) into the function"
                ) from None
            raise RewardFunctionError(
                f"verifiers.functions: {reason}; write {_FORM}, with the module on PYTHONPATH or in the working "
                "directory, and parameters (prompts, completions, **columns)"
            ) from None

    async def stop(self) -> None:
        await self._pool.stop()

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[dict[str, Verdict]]:
        """For each completion, the verdicts by name of the functions that have not scored it beside its environment."""
        functions = [one for one in self.functions if not all(one.name in each.verdicts for each in completions)]
        calls = [call_of(function.spec, prompt, completions, self._max_steps) for function in functions]
        lengths = [len(completion.token_ids) for completion in completions]
        results = await asyncio.gather(*(self._verdicts(call, lengths) for call in calls))
        names = [function.name for function in functions]
        if not functions:
            return [{} for _ in completions]
        return [dict(zip(names, row, strict=True)) for row in zip(*results, strict=True)]

    async def _verdicts(self, call: FunctionCall, lengths: Sequence[int]) -> list[Verdict]:
        size = len(call.texts)
        outcome = await self._pool.run(_SCORE, call)
        if not isinstance(outcome, Done):
            kind, detail = outcome[0], outcome[-1]
            return [Verdict(reward=None, error_kind=f"function_{kind}", detail=detail)] * size
        return verdicts_of(outcome.value, lengths)


def call_of(spec: str, prompt: Prompt, completions: Sequence[Completion], max_steps: int) -> FunctionCall:
    """The call of one function for some completions of a prompt."""
    return FunctionCall(
        spec=spec,
        prompt=prompt.messages,
        texts=[completion.text if completion.submitted is None else completion.submitted for completion in completions],
        columns=_columns(prompt),
        turns=[completion.messages for completion in completions] if completions[0].turns else None,
        token_ids=_token_ids(completions),
        step=max(span.version.number for completion in completions for span in completion.spans),
        max_steps=max_steps,
    )


def verdicts_of(value: Any, lengths: Sequence[int]) -> list[Verdict]:
    """The verdicts on completions of `lengths` tokens, of a `FunctionResult` that came over the socket."""
    answer = msgspec.convert(value, FunctionResult)
    problem = _problem(answer.rewards, lengths)
    if problem is not None:
        return [Verdict(reward=None, error_kind=problem[0], detail=problem[1])] * len(lengths)
    return [
        Verdict(
            reward=_sum(reward) if isinstance(reward, list) else reward,
            token_rewards=np.array(reward, np.float32) if isinstance(reward, list) else UNSET,
            method="function",
            logged={} if index else answer.logged,
            extra={column: values[index] for column, values in answer.extra.items()},
        )
        for index, reward in enumerate(answer.rewards)
    ]


def _columns(prompt: Prompt) -> dict[str, Any]:
    """The columns of the row as in its file. The label of a single verifier is not in a list."""
    single = len(prompt.ground_truths) == 1
    labels = {
        "dataset": prompt.datasets[0] if single else list(prompt.datasets),
        "ground_truth": prompt.ground_truths[0] if single else list(prompt.ground_truths),
    }
    return {**(labels if prompt.datasets else {}), **prompt.columns}


def _token_ids(completions: Sequence[Completion]) -> list[bytes] | None:
    """The tokens of each completion; None if the completions are only text."""
    if not all(len(completion.token_ids) for completion in completions):
        return None
    return [completion.token_ids.astype("<i4", copy=False).tobytes() for completion in completions]


def _sum(rewards: list[float | None]) -> float | None:
    """The reward of a completion by those of its tokens; None if none has one."""
    there = [reward for reward in rewards if reward is not None]
    return math.fsum(there) if there else None


def _problem(rewards: list[float | list[float | None] | None], lengths: Sequence[int]) -> tuple[str, str] | None:
    """The error kind and reason if the rewards of a function cannot be used; None if they can.

    Args:
        lengths: the tokens of each completion; 0 if they are not known.
    """
    if len(rewards) != len(lengths):
        return "function_length", f"returned {len(rewards)} rewards for {len(lengths)} completions"
    for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        if isinstance(reward, list) and len(reward) != length:
            return "function_length", f"returned {len(reward)} rewards for the {length} tokens of completion {index}"
    values = [value for reward in rewards for value in (reward if isinstance(reward, list) else [reward])]
    if not all(value is None or abs(value) <= LARGEST_REWARD for value in values):  # NaN fails this comparison
        return "function_not_finite", f"returned NaN, infinity or more than {LARGEST_REWARD:g}"
    return None
