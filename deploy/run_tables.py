"""Reads a run into Arrow tables: its metrics, every answer, every draw. `olmorl.read_run` is this module's `read_run`.

A run that is running, ended or resumed is read as far as it goes; nothing is locked and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from olmorl.errors import DataError
from olmorl.learner.storage import ledger, rollout_log
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.messages import TEACHER
from olmorl.metrics import family_of, meaning
from olmorl.run_dir import RunFiles


class RunTables(NamedTuple):
    """The tables of a run. `to_pandas()` of each gives a data frame."""

    metrics: pa.Table
    """One row for each step; the columns are the names of the lines of `metrics.jsonl`, null where a step lacks one.
    Integers, doubles or texts, with the meaning of `olmorl/metrics.py`."""
    answers: pa.Table
    """One row for each answer, those of filtered, failed and evaluated draws included; columns as `ANSWERS`."""
    draws: pa.Table
    """One row for each draw of the ledger; columns as `DRAWS`."""


_JSON: Final = "as JSON"
ANSWERS: Final = {
    "draw": (pa.int64(), "Number of the draw. The answers of one group have the same draw and attempt."),
    "attempt": (pa.int32(), "Which attempt of the draw, from 1."),
    "outcome": (pa.string(), "trained, zero_gradient, stale, failed or evaluation."),
    "step": (pa.int64(), "The step that trained it; null otherwise."),
    "filed": (pa.int64(), "The step, or the version of an evaluation, in whose file it is."),
    "evaluation": (pa.string(), "Name of the evaluation set; null for training."),
    "cause": (pa.string(), "Why the draw ended without training; empty otherwise."),
    "row": (pa.string(), "Place of the row, `file:line`."),
    "prompt": (pa.string(), f"Text of the prompt, or its turns {_JSON}."),
    "verifiers": (pa.list_(pa.string()), "Names of the verifiers of the row."),
    "labels": (pa.string(), f"Labels of the row, one for each verifier, {_JSON}."),
    "actor": (pa.string(), "The actor that generated it."),
    "index": (pa.int32(), "Number of the answer in its group, from 0."),
    "text": (pa.string(), "Text of the answer."),
    "reward": (pa.float64(), "Combined reward; null without one."),
    "solved": (pa.bool_(), "Whether the answer counts as solved."),
    "verdicts": (pa.string(), f"What each verifier gave, {_JSON}."),
    "finish_reason": (pa.string(), "stop or length."),
    "tokens": (pa.int32(), "Sampled tokens."),
    "oldest_version": (pa.int64(), "Lowest number of a version that sampled a token; null without tokens."),
    "newest_version": (pa.int64(), "Highest number of a version that sampled a token."),
    "started_at": (pa.float64(), "When the group was started, Unix seconds."),
    "finished_at": (pa.float64(), "When the group was finished, Unix seconds."),
    "teacher": (pa.string(), "Name of the teacher that scored its tokens; null without one."),
    "teacher_kl": (pa.float64(), "Mean of log-probability minus that of the teacher, nats a token; null without one."),
}
"""Type and meaning of each column of `answers`."""
TOKENS: Final = {
    "token_ids": (pa.list_(pa.int32()), "Sampled tokens."),
    "logprobs": (pa.list_(pa.float32()), "The engine's log-probability of each sampled token, nats."),
    "teacher_logprobs": (pa.list_(pa.float32()), "The teacher's log-probability of each of them; null without one."),
    "token_rewards": (pa.list_(pa.float32()), "Reward that came with each of them, null for none; null for the whole."),
}
"""Further columns of `answers`, if asked for."""
DRAWS: Final = {
    "draw": (pa.int64(), "Number of the draw."),
    "attempt": (pa.int32(), "The last attempt."),
    "outcome": (pa.string(), "trained, zero_gradient, stale, failed, or in_flight while there is none."),
    "step": (pa.int64(), "The step that trained it; null otherwise."),
    "cause": (pa.string(), "Why it ended without training."),
    "row": (pa.string(), "Place of the row, `file:line`."),
}
"""Type and meaning of each column of `draws`."""


class _Answer(msgspec.Struct):
    """What is long, and often only counted, stays JSON."""

    index: int
    token_ids: msgspec.Raw
    logprobs: msgspec.Raw
    versions: list[tuple[int, int, int]]
    reward: float | None
    solved: bool | None
    verdicts: msgspec.Raw
    finish_reason: str
    text: str
    teacher_logprobs: list[float] | None = None
    token_rewards: list[float | None] | None = None

    @property
    def num_tokens(self) -> int:
        ids = bytes(self.token_ids)
        return ids.count(b",") + 1 if ids != b"[]" else 0

    def teacher(self) -> tuple[str | None, float | None]:
        """The name of its teacher, and the estimate of the divergence from it; None without one."""
        if self.teacher_logprobs is None:
            return None, None
        pairs = zip(msgspec.json.decode(self.logprobs), self.teacher_logprobs, strict=True)
        apart = [own - theirs for own, theirs in pairs if own is not None]
        return msgspec.json.decode(self.verdicts)[TEACHER]["method"], fmean(apart) if apart else None


class _Group(msgspec.Struct):
    prompt_id: int
    attempt: int
    outcome: str
    step: int | None
    cause: str
    row: str
    prompt: msgspec.Raw
    datasets: list[str]
    ground_truths: msgspec.Raw
    actor: str
    completions: list[_Answer]
    started_at: float | None = None
    finished_at: float | None = None


def read_run(run_dir: str | os.PathLike[str], tokens: bool = False) -> RunTables:
    """Reads a run's directory, such as `runs/demo`.

    Args:
        run_dir: the folder of the run.
        tokens: also read `token_ids` and `logprobs` of the answers.

    Raises:
        DataError: the folder holds no run.
        ResourceError: a file is damaged.
    """
    files = RunFiles(Path(run_dir))
    if not files.config.exists():
        raise DataError(f"{run_dir}: no run directory (it has no {files.config.name}); give the folder of a run")
    schema = _schema(ANSWERS | TOKENS if tokens else ANSWERS)
    paths = [*rollout_log.files(files.rollouts), *rollout_log.evaluation_files(files.rollouts)]
    batches = [_batch(path, schema) for path in paths]
    return RunTables(
        _metrics(files),
        pa.Table.from_batches(batches, schema),
        pa.Table.from_pylist([{"draw": each.pop("prompt_id"), **each} for each in _draws(files)], _schema(DRAWS)),
    )


def _metrics(files: RunFiles) -> pa.Table:
    lines = MetricsLog(files.metrics).read()
    names = dict.fromkeys(name for line in lines for name in line)
    columns = {name: pa.array([line.get(name) for line in lines]) for name in names}
    types = {name: pa.float64() if pa.types.is_null(each.type) else each.type for name, each in columns.items()}
    return pa.table(columns, schema=_schema({name: (kind, _meaning(name)) for name, kind in types.items()}))


def _meaning(name: str) -> str:
    family = family_of(name)
    return meaning(name) or (family[0].help if family else "")


def _schema(columns: dict[str, tuple[pa.DataType, str]]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, metadata={"meaning": about}) for name, (kind, about) in columns.items()])


def _draws(files: RunFiles) -> Sequence[dict[str, Any]]:
    return list(ledger.read_ledger(files.run_dir)) if files.ledger.exists() else []


def _batch(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """The answers of one file of `rollouts/`."""
    rows: list[tuple[Any, ...]] = []
    with suppress(FileNotFoundError):  # `checkpoint.rollouts` has removed it since it was listed
        rows += _rows(path, "token_ids" in schema.names)
    return pa.RecordBatch.from_arrays(
        [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)], schema=schema
    )


def _rows(path: Path, tokens: bool) -> Iterator[tuple[Any, ...]]:
    """The columns of each answer, in the order of the schema."""
    filed, evaluation = rollout_log.step_of(path), rollout_log.evaluation_of(path)
    for group in rollout_log.read(path, msgspec.json.Decoder(_Group).decode):
        prompt = bytes(group.prompt)
        text = msgspec.json.decode(prompt) if prompt.startswith(b'"') else prompt.decode()
        labels = bytes(group.ground_truths).decode()
        head = (group.prompt_id, group.attempt, group.outcome, group.step, filed, evaluation, group.cause, group.row)
        for each in group.completions:
            versions = [version for version, _, _ in each.versions]
            more: tuple[Any, ...] = ()
            if tokens:
                ids, logprobs = msgspec.json.decode(each.token_ids), msgspec.json.decode(each.logprobs)
                more = (ids, logprobs, each.teacher_logprobs, each.token_rewards)
            yield (
                *(*head, text, group.datasets, labels, group.actor, each.index, each.text, each.reward, each.solved),
                *(bytes(each.verdicts).decode(), each.finish_reason, each.num_tokens),
                *(min(versions, default=None), max(versions, default=None), group.started_at, group.finished_at),
                *(*each.teacher(), *more),
            )
