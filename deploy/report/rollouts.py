"""The rollouts of a run for the browser: an index of small columns, and chunks with texts and tokens.

The page reads the index at once. It reads a chunk when it shows or searches it. A chunk has two parts: the texts, as
JSON, and the tokens, as a table of `columns`. The log-probability x of a token is one byte, round(60 sqrt(-x)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from olmorl.deploy.report.columns import Blob, blob, json_blob, pack
from olmorl.deploy.report.token_pieces import TokenPieces
from olmorl.learner.batching.scheduling import survives
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Version

LOGPROB_SCALE = 60.0
_CHUNK_TOKENS = 300_000
_SOLVED, _TRUNCATED, _ERROR = 1, 2, 4
"""Flags of a rollout: solved; cut off at the longest length; a verifier gave no verdict."""
OUTCOMES = ("trained", "zero_gradient", "stale", "failed")
_NO_VERSION = -1
_SHARE_OF_FILES = 0.45
"""Bytes of the chunks in a page for each byte of `rollouts/`, as measured."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class MaskRule:
    """Which tokens of a trained group fed the loss. Importance weights may mask more, which is not recorded."""

    max_lag: int = 1 << 30
    mask_truncated: bool = False
    starts: Sequence[Start] = ()

    def masked(self, completion: Record, step: int, version: Version) -> bool:
        """Whether tokens that `version` computed were left out of the loss of `step`."""
        if completion["reward"] is None or (self.mask_truncated and completion["finish_reason"] == "length"):
            return True
        return step - 1 - version.number > self.max_lag or not survives(version, self.starts)


class SourceCounts(NamedTuple):
    """Counts of the recorded groups of one source."""

    groups: int = 0
    completions: int = 0
    rewards: int = 0
    reward: float = 0.0
    solved: int = 0
    tokens: int = 0
    truncated: int = 0

    def __add__(self, other: tuple[float, ...]) -> SourceCounts:  # type: ignore[override]
        return SourceCounts._make(a + b for a, b in zip(self, other, strict=True))


@dataclass
class FileRollouts:
    """The part of a report from one file of `rollouts/`."""

    groups: list[tuple[Any, ...]] = field(default_factory=list)
    """Kept groups: the fields of `_GROUP`, names as text."""
    completions: list[tuple[Any, ...]] = field(default_factory=list)
    """Completions of the kept groups: the fields of `_COMPLETION`."""
    chunks: list[tuple[Blob, Blob]] = field(default_factory=list)
    tallies: dict[tuple[str, str], SourceCounts] = field(default_factory=dict)
    """Counts by source and outcome, over all groups."""
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Groups by outcome and cause, where there is one."""
    num_groups: int = 0
    num_completions: int = 0
    note: str = ""
    """Why the file was not read to its end; empty if it was."""


_GROUP = {
    "draw": "i4",
    "attempt": "u2",
    "outcome": "u1",
    "step": "i4",
    "trained": "i4",
    "source": "i4",
    "verifiers": "i4",
    "cause": "i4",
    "actor": "i4",
    "started": "f8",
    "seconds": "f4",
    "count": "u2",
    "chunk": "i4",
    "slot": "u2",
}
"""Columns of the index, one row for each group. `step` is the step that the group is filed under."""
_COMPLETION = {"reward": "f4", "tokens": "i4", "flags": "u1", "oldest": "i4", "newest": "i4", "logprob": "f4"}
"""Columns of the index, one row for each completion, in the order of the groups."""
_NAMES = ("source", "verifiers", "cause", "actor")


def read_file(path: Path, rule: MaskRule, pieces: TokenPieces | None, stride: int = 1) -> FileRollouts:
    """Read one file, and encode one of every `stride` groups of it; failed groups always.

    A file that a crash cut off gives its whole groups. A damaged or foreign file gives the groups before the damage,
    with a note.
    """
    found, chunk = FileRollouts(), _Chunk(pieces, rule)
    try:
        step = rollout_log.step_of(path)
        for record in rollout_log.read(path):
            if record["outcome"] == "failed" or record["prompt_id"] % stride == 0:
                row = _group_row(record, step, len(found.chunks), len(chunk.texts))
                completions = [_completion_row(each) for each in record["completions"]]
                chunk.add(record)
                found.groups.append(row)
                found.completions += completions
            _count(found, record)
            if chunk.num_tokens > _CHUNK_TOKENS:
                found.chunks.append(chunk.blobs())
                chunk = _Chunk(pieces, rule)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        found.note = f"{path}: not read to its end, after {found.num_groups} groups: {error!r}"
    if chunk.texts:
        found.chunks.append(chunk.blobs())
    return found


def index(files: Sequence[FileRollouts]) -> bytes:
    """The index over all files, as a table of `columns`. Chunks are numbered over all files."""
    names: dict[str, dict[str, int]] = {name: {} for name in _NAMES}
    rows, first_chunk = [], 0
    for file in files:
        for row in file.groups:
            fields = dict(zip(_GROUP, row, strict=True))
            for name in _NAMES:
                fields[name] = names[name].setdefault(fields[name], len(names[name]))
            fields["chunk"] += first_chunk
            rows.append(tuple(fields.values()))
        first_chunk += len(file.chunks)
    groups = _table(rows, _GROUP)
    completions = _table([row for file in files for row in file.completions], _COMPLETION)
    header = {"outcomes": OUTCOMES, "names": {name: list(known) for name, known in names.items()}}
    columns = {f"g_{name}": column for name, column in groups.items()}
    return pack(header, columns | {f"c_{name}": column for name, column in completions.items()})


def stride_for(folder: Path, most_bytes: int) -> int:
    """The stride N: one of N groups is kept, so that the rollouts take about `most_bytes` of a page."""
    size = _SHARE_OF_FILES * sum(path.stat().st_size for path in rollout_log.files(folder))
    return max(1, ceil(size / most_bytes))


def _table(rows: Sequence[tuple[Any, ...]], types: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return {name: np.array(values, kind) for (name, kind), values in zip(types.items(), columns, strict=True)}


def _count(found: FileRollouts, record: Record) -> None:
    completions = record["completions"]
    rewards = [each["reward"] for each in completions if each["reward"] is not None]
    key = (_source(record), record["outcome"])
    found.tallies[key] = found.tallies.get(key, SourceCounts()) + SourceCounts(
        1,
        len(completions),
        len(rewards),
        sum(rewards),
        sum(each["solved"] for each in completions),
        sum(len(each["token_ids"]) for each in completions),
        sum(each["finish_reason"] == "length" for each in completions),
    )
    if record["cause"]:
        found.causes[record["outcome"], record["cause"]] += 1
    found.num_groups += 1
    found.num_completions += len(completions)


def _source(record: Record) -> str:
    """The data source of a row: `file:line` without the line."""
    return str(record["row"]).rpartition(":")[0] or str(record["row"])


def _group_row(record: Record, step: int, chunk: int, slot: int) -> tuple[Any, ...]:
    names = {name for each in record["completions"] for name in each["verdicts"]} or set(record["datasets"])
    started, finished = record.get("started_at") or 0.0, record.get("finished_at") or 0.0
    return (
        *(record["prompt_id"], record["attempt"], OUTCOMES.index(record["outcome"]), step, record["step"] or 0),
        *(_source(record), "\n".join(sorted(names)), record["cause"], record["actor"]),
        *(started, finished - started, len(record["completions"]), chunk, slot),
    )


def _completion_row(completion: Record) -> tuple[Any, ...]:
    flags = _SOLVED * bool(completion["solved"]) + _TRUNCATED * (completion["finish_reason"] == "length")
    flags += _ERROR * any(verdict["error_kind"] for verdict in completion["verdicts"].values())
    versions = [span[0] for span in completion["versions"]] or [_NO_VERSION]
    logprobs, reward = _logprobs(completion), completion["reward"]
    mean = float(logprobs.mean()) if len(logprobs) else 0.0
    reward = float("nan") if reward is None else reward
    return (reward, len(completion["token_ids"]), flags, min(versions), max(versions), mean)


def _logprobs(completion: Record) -> npt.NDArray[np.float32]:
    """One log-probability for each token. A malformed group may have fewer, and values that are not finite."""
    values = np.nan_to_num(np.asarray(completion["logprobs"], np.float32), neginf=-100.0)
    return np.resize(values, len(completion["token_ids"])) if len(values) else np.zeros(0, np.float32)


class _Chunk:
    """Groups whose texts and tokens are compressed together."""

    def __init__(self, pieces: TokenPieces | None, rule: MaskRule) -> None:
        self._pieces = pieces
        self._rule = rule
        self.texts: list[dict[str, Any]] = []
        self.num_tokens = 0
        self._spans: list[list[list[list[int]]]] = []
        self._lengths: list[bytes] = []
        self._logprobs: list[npt.NDArray[np.float32]] = []

    def add(self, record: Record) -> None:
        """Add a group, or raise and add nothing of it."""
        texts, spans, lengths, logprobs = [], [], [], []
        for completion in record["completions"]:
            cut = self._pieces.cut(completion["token_ids"], completion["text"]) if self._pieces else None
            verdicts = {name: _told(verdict) for name, verdict in completion["verdicts"].items()}
            texts.append(
                {"text": cut.text if cut else completion["text"], "verdicts": verdicts, **_episode(completion)}
            )
            spans.append(list(self._spans_of(completion, record["step"])))
            # Lengths of 0 say that the text could not be cut.
            lengths.append(cut.lengths if cut else bytes(len(completion["token_ids"])))
            logprobs.append(_logprobs(completion))
        told = {key: record[key] for key in ("row", "prompt", "ground_truths", "datasets")}
        self.texts.append({**told, "detail": record.get("detail", ""), "completions": texts})
        self.num_tokens += sum(map(len, lengths))
        self._spans.append(spans)
        self._lengths += lengths
        self._logprobs += logprobs

    def _spans_of(self, completion: Record, step: int | None) -> Iterator[list[int]]:
        for (number, start, end), incarnation in zip(completion["versions"], completion["incarnations"], strict=True):
            version = Version(incarnation, number)
            yield [incarnation, number, start, end, int(step is None or self._rule.masked(completion, step, version))]

    def blobs(self) -> tuple[Blob, Blob]:
        """The texts, then the tokens."""
        logprobs = np.concatenate([*self._logprobs, np.zeros(0, np.float32)])
        steps = np.rint(LOGPROB_SCALE * np.sqrt(np.maximum(-logprobs, 0.0)))
        columns = {
            "lengths": np.frombuffer(b"".join(self._lengths), np.uint8),
            "logprobs": np.minimum(steps, 255).astype(np.uint8),
        }
        return json_blob(self.texts), blob(pack({"spans": self._spans, "scale": LOGPROB_SCALE}, columns))


_OF_TURN = ("parent", "start", "end", "messages", "reply")


def _episode(completion: Record) -> dict[str, Any]:
    """The turns of an episode: what each continues, its tokens, what came in, and the answer. Empty without turns."""
    if "turns" not in completion:
        return {}
    turns = [{key: turn[key] for key in _OF_TURN} for turn in completion["turns"]]
    return {"exit": completion["exit"], "turns": turns}


def _told(verdict: Record) -> dict[str, Any]:
    """The fields of a verdict that have a value, without logged values."""
    return {key: value for key, value in verdict.items() if value not in (None, "", {}) and key != "logged"}
