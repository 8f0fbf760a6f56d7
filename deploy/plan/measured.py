"""The rates of a finished run, from its metric lines and its rollouts.

The learner's time is fitted to the tokens of its steps. The engines' speed is fitted by replaying: a fake engine gets
the requests of an actor of the run, at their times. The fitted speed is the speed at which it finishes them as the
actor did. So the fit includes the wait for a slot, and batches that grow and shrink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from olmorl import config
from olmorl.actors.fake_answers import FakeAnswer
from olmorl.actors.fake_engine import FakeEngine
from olmorl.clock import run_simulated
from olmorl.config import Config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.plan.figures import COUNTED_KEYS, Figures, Lines, figures_of, warm_up
from olmorl.deploy.plan.workload import MEAN_TOKENS, RecordedAnswer, RecordedGroup, Workload
from olmorl.deploy.view.run_state import metric_lines
from olmorl.errors import ConfigError, DataError
from olmorl.learner.storage import rollout_log
from olmorl.messages import TokenIds
from olmorl.ports import Sampling
from olmorl.run_dir import RunFiles
from olmorl.simulation import Simulation

LEAST_LINES = 3
"""Counted steps of a run from which rates are measured."""
MOST_GROUPS = 4000
"""The newest groups of a run are read, up to this number."""
MOST_REPLAYED = 250
"""Groups of an actor that are replayed, the newest ones."""
WARM = 0.2
"""Share of the replayed groups that fill the engine and are not compared."""
SLOWDOWNS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.2)
"""Candidates for the share by which each further sequence slows a step."""
TRIES = 9
"""Replays that find the speed for one slowdown, by bisection."""
RANGE = 4.0
"""The speed of a sequence alone is within this factor of the slowest and the fastest that the run suggests."""
SURE = 2.0
"""Standard errors from 0 above which the learner's step has a fixed part."""


class FinishedRun(NamedTuple):
    """A run that a plan takes its rates from."""

    settings: Config
    workload: Workload
    figures: Figures
    """The figures of the counted steps."""
    steps: int
    """Counted steps."""


class _Request(NamedTuple):
    """One group as an actor received it."""

    actor: str
    started_at: float
    seconds: float
    """Seconds until the engine had finished it."""
    lengths: tuple[int, ...]


def finished_run(run_dir: Path) -> FinishedRun:
    """Measure the rates of a run.

    Raises:
        DataError: it is no run, it has too few steps, or no rollouts.
    """
    files = RunFiles(run_dir)
    if not files.config.exists():
        raise DataError(f"{run_dir}: no config.toml, so this is no run directory; give the folder of a run (runs/NAME)")
    try:
        settings = config.load(files.config, of_run=True)
    except ConfigError as error:
        raise DataError(f"{error}\n  so the run cannot be used: it is of another version of OlmoRL") from None
    lines, skipped = _counted(metric_lines(run_dir), settings, run_dir)
    for line in lines[skipped - 1 :]:
        if missing := [key for key in COUNTED_KEYS if line.get(key) is None]:
            raise DataError(
                f"{files.metrics}: the line of step {line.get('step')} has no {missing[0]}, so the run cannot be used: "
                "it is of another version of OlmoRL, or the file was changed"
            )
    records = _records(files)
    if not records:
        raise DataError(f"{files.rollouts}: no groups, so answer lengths are unknown; give a run with rollouts")
    simulation = Simulation(
        **_learner(lines, skipped, plan(settings).ranks),
        **_engine([_request(record) for record in records], settings.actors.max_running),
        mean_tokens=_mean_length(records),
        verify_s=_verify_s(records),
        publish_s=_median(lines, "weight_publish_s"),
        update_s=_median(lines, "weight_stall_s_mean"),
    )
    workload = Workload(simulation, [_answers(record) for record in records], f"{run_dir}, {len(records):,} groups")
    return FinishedRun(settings, workload, figures_of(lines, skipped), len(lines) - skipped)


def _counted(lines: Lines, settings: Config, run_dir: Path) -> tuple[Lines, int]:
    """The lines of the last start without the end of the run, and how many of them are not counted."""
    if lines:
        lines = [line for line in lines if line["incarnation"] == lines[-1]["incarnation"]]
    skipped, draining = warm_up(settings), settings.schedule.batches_ahead + 1
    ended = next((place for place, line in enumerate(lines) if line.get("data_ended")), len(lines))
    if ended < len(lines):
        lines = lines[:ended]  # nothing is drawn any more
    elif lines and lines[-1]["step"] == settings.schedule.steps:
        lines = lines[: max(len(lines) - draining, 0)]  # nothing is drawn for steps after the end
    if len(lines) < skipped + LEAST_LINES:
        raise DataError(
            f"{run_dir}: {max(len(lines) - skipped, 0)} step(s) to measure, and {LEAST_LINES} are needed: give a run "
            f"whose last start has {skipped + LEAST_LINES + draining} steps or more; the first {skipped} and the last "
            f"{draining} are not counted"
        )
    return lines, skipped


def _records(files: RunFiles) -> list[dict[str, Any]]:
    """What is needed of the newest scored groups, in the order of their draws."""
    found: list[dict[str, Any]] = []
    for path in reversed(rollout_log.files(files.rollouts)):
        found += [_without_texts(record) for record in rollout_log.read(path) if record["completions"]]
        if len(found) >= MOST_GROUPS:
            break
    return sorted(found, key=lambda record: int(record["prompt_id"]))


def _without_texts(record: Mapping[str, Any]) -> dict[str, Any]:
    """A group with the number of tokens of each completion, in the place of the tokens: those of all take many GB."""
    completions = [
        {"num_tokens": len(one["token_ids"]), "reward": one["reward"], "seconds": _seconds(one)}
        for one in record["completions"]
    ]
    return {key: record[key] for key in ("prompt_id", "actor", "started_at", "finished_at")} | {
        "completions": completions
    }


# --- answers ----------------------------------------------------------------------------------------------------------


def _answers(record: Mapping[str, Any]) -> RecordedGroup:
    rewards = [completion["reward"] or 0.0 for completion in record["completions"]]
    mean, alike = sum(rewards) / len(rewards), max(rewards) == min(rewards)
    return [
        RecordedAnswer(completion["num_tokens"], reward > 0 if alike else reward > mean)
        for completion, reward in zip(record["completions"], rewards, strict=True)
    ]


def _mean_length(records: Sequence[Mapping[str, Any]]) -> float:
    lengths: list[int] = [completion["num_tokens"] for record in records for completion in record["completions"]]
    return sum(lengths) / len(lengths)


def _verify_s(records: Sequence[Mapping[str, Any]]) -> float:
    return float(np.mean([completion["seconds"] for record in records for completion in record["completions"]]))


def _seconds(completion: Mapping[str, Any]) -> float:
    """Spent on the verdicts of a completion, which are made at the same time."""
    return max((verdict["seconds"] for verdict in completion["verdicts"].values()), default=0.0)


def _median(lines: Lines, key: str) -> float:
    values = [line[key] for line in lines if line.get(key) is not None]
    return median(values) if values else 0.0


# --- the learner ------------------------------------------------------------------------------------------------------


def _learner(lines: Lines, skipped: int, ranks: int) -> dict[str, float]:
    """Speed of a rank and fixed part of a step. The time between two steps belongs to the fixed part."""
    pairs = list(zip(lines[skipped - 1 :], lines[skipped:], strict=False))
    tokens = np.array([line["batch_tokens"] for _, line in pairs], float)
    seconds = np.array([line["learner_step_s"] for _, line in pairs])
    fixed, per_token = fit_line(tokens, seconds)
    between = [
        line["wall_s"] - before["wall_s"] - line["learner_step_s"] - line["learner_wait_s"] for before, line in pairs
    ]
    return {"train_overhead_s": fixed + max(median(between), 0.0), "train_tokens_per_s": 1 / (per_token * ranks)}


def fit_line(tokens: Any, seconds: Any) -> tuple[float, float]:
    """Fixed seconds and seconds per token of seconds (N) over tokens (N), by least squares.

    The fixed part is 0 unless it is clearly positive, and the part per token is always positive.
    """
    proportional = float(seconds.sum() / tokens.sum())
    spread = float(((tokens - tokens.mean()) ** 2).sum())
    if len(tokens) < LEAST_LINES or spread == 0.0:
        return 0.0, proportional
    slope = float(((tokens - tokens.mean()) * (seconds - seconds.mean())).sum() / spread)
    fixed = float(seconds.mean() - slope * tokens.mean())
    residual = float(((seconds - fixed - slope * tokens) ** 2).sum()) / max(len(tokens) - 2, 1)
    error = sqrt(residual * (1 / len(tokens) + float(tokens.mean()) ** 2 / spread))
    return (fixed, slope) if fixed > SURE * error and slope > 0 else (0.0, proportional)


# --- the engines ------------------------------------------------------------------------------------------------------


def _request(record: Mapping[str, Any]) -> _Request:
    verified = max(completion["seconds"] for completion in record["completions"])
    seconds = record["finished_at"] - record["started_at"] - verified
    lengths = tuple(completion["num_tokens"] for completion in record["completions"])
    return _Request(record["actor"], record["started_at"], max(seconds, 1e-3), lengths)


def _engine(requests: Sequence[_Request], max_running: int) -> dict[str, float]:
    """Speed of a sequence alone, and its loss with each further sequence."""
    by_actor: dict[str, list[_Request]] = {}
    for request in sorted(requests, key=lambda one: one.started_at):
        by_actor.setdefault(request.actor, []).append(request)
    busiest = max(by_actor.values(), key=len)[-MOST_REPLAYED:]
    _, speed, slowdown = min(_fit_speed(busiest, max_running, slowdown) for slowdown in SLOWDOWNS)
    return {"tokens_per_s": speed, "batch_slowdown": slowdown}


def _fit_speed(requests: Sequence[_Request], max_running: int, slowdown: float) -> tuple[float, float, float]:
    """The speed at which half of the groups take longer than in the run; with the mean error, and the slowdown."""
    alone = median(max(one.lengths) / one.seconds for one in requests)
    low, high = log(alone / RANGE), log(alone * RANGE * (1 + slowdown * (max_running - 1)))
    ratios: list[float] = []
    for _ in range(TRIES):
        speed = exp((low + high) / 2)
        ratios = _replay(requests, max_running, speed, slowdown)
        low, high = (log(speed), high) if median(ratios) > 0 else (low, log(speed))
    return float(np.mean(np.abs(ratios))), speed, slowdown


def _replay(requests: Sequence[_Request], max_running: int, speed: float, slowdown: float) -> list[float]:
    """Logarithm of simulated over recorded seconds of each group, without those that fill the engine."""
    unit = max(1.0, float(np.mean([length for one in requests for length in one.lengths])) / MEAN_TOKENS)
    simulation = Simulation(tokens_per_s=speed / unit, batch_slowdown=slowdown)
    begin = requests[0].started_at

    async def group(engine: FakeEngine, number: int, request: _Request) -> float:
        await asyncio.sleep(request.started_at - begin)
        started = asyncio.get_running_loop().time()
        prompt = np.array([number], np.int32)
        sampling = Sampling(max_tokens=max(request.lengths), seed=0)
        ids = [f"{number}/{index}" for index in range(len(request.lengths))]
        await asyncio.gather(*(engine.generate(one, prompt, sampling) for one in ids))
        return log((asyncio.get_running_loop().time() - started) / request.seconds)

    async def scenario() -> list[float]:
        engine = FakeEngine(simulation, max_running=max_running, max_model_len=1 << 30, answers=_Given(requests, unit))
        await engine.start(None)
        return list(await asyncio.gather(*(group(engine, number, one) for number, one in enumerate(requests))))

    return run_simulated(scenario())[int(WARM * len(requests)) :]


class _Given:
    """The lengths of recorded requests."""

    def __init__(self, requests: Sequence[_Request], unit: float) -> None:
        self._requests = requests
        self._unit = unit

    def sample(self, request_id: str, prompt: TokenIds, sampling: Sampling) -> FakeAnswer:
        number, index = map(int, request_id.split("/"))
        return FakeAnswer(max(1, round(self._requests[number].lengths[index] / self._unit)), lambda version: True)
