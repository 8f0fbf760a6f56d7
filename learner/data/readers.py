"""Reads data sets: JSONL, JSON arrays, Parquet and hub sets, in the common label layouts.

    Ai2     messages | prompt, ground_truth, dataset
    verl    prompt, data_source, reward_model.ground_truth, extra_info
    TRL     prompt and free columns, which user reward functions get by name

A file that cannot be read raises DataError. A row that cannot be used raises ValueError with the reason; the loader
reports it with the row's place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError
from olmorl.learner.data.json_rows import read_json

CONVERSATION = ("messages", "prompt")
USER_PREFIX = "user: "
_FILES = (".jsonl", ".parquet", ".json")
LABELS = ("ground_truth", "reward_model", "dataset", "data_source")

# Names of verifiers in published data sets, in lower case.
ALIASES = {
    "strict_math": "math",
    "string_matcher": "string_match",
    "puzzle": "string_match",
    "flan": "string_match",
    "string_f1": "f1",
    "code_stdin": "code_stdio",
    "general_quality": "general-quality",
    "general_quality_ref": "general-quality_ref",
}

UNLABELLED = frozenset(("general-quality", "reward_model", "format", "tag_count", "reasoning_steps"))
"""Verifiers that read no label. The label may be absent, or one of `_NOTHING`."""
_NOTHING: tuple[Any, ...] = (None, "", [])

# The verifier of a verl row without user functions: the first whose key, in lower case, is part of the data source.
VERL_VERIFIERS = {
    "ifeval": "ifeval",
    "ifbench": "ifeval",
    "codecontests": "code_stdio",
    "codeforces": "code_stdio",
    "code_contests": "code_stdio",
    "livecodebench": "code_stdio",
    "apps": "code_stdio",
    "taco": "code_stdio",
    "mbpp": "code",
    "humaneval": "code",
    "kodcode": "code",
    "gsm8k": "math",
    "math": "math",
    "aime": "math",
    "amc": "math",
    "numina": "math",
    "olympiad": "math",
    "deepscaler": "math",
    "geometry3k": "math",
    "dapo": "math",
}


class Spec(NamedTuple):
    """One entry of `data.train` or `evaluation.data`."""

    name: str
    """A path, or the name of a hub data set."""
    weight: float | None


Conversation = list[dict[str, Any]] | str
Problem = Callable[[str, Any], str | None]
"""Why a verifier cannot use a label, or None when it can."""


class Labelled(NamedTuple):
    """A row's values in one layout."""

    messages: Conversation
    datasets: tuple[str, ...]
    ground_truths: tuple[Any, ...]
    columns: dict[str, Any]


class Candidate(NamedTuple):
    """A row with unchecked labels. A list may be the label, or may contain it."""

    messages: Conversation
    datasets: tuple[str, ...]
    readings: tuple[tuple[Any, ...], ...]
    """One label for each verifier, the most likely reading first."""
    columns: dict[str, Any]

    @property
    def labels(self) -> list[tuple[str, Any]]:
        """All pairs of verifier and label that `problem` may be called with."""
        return [pair for reading in self.readings for pair in zip(self.datasets, reading, strict=True)]

    def labelled(self, problem: Problem | None = None) -> Labelled:
        """The row with the first reading that all its verifiers can use. Raises ValueError with the reason."""
        reasons = []
        for reading in self.readings:
            found = [_problem(name, truth, problem) for name, truth in zip(self.datasets, reading, strict=True)]
            reason = next((one for one in found if one), None)
            if reason is None:
                return Labelled(self.messages, self.datasets, reading, self.columns)
            reasons.append(reason)
        raise ValueError(f"no usable label: {reasons[0]}")


def parse_spec(text: str) -> Spec:
    """Read `name` or `name:weight`. A path that exists is a name, also with a colon in it.

    Raises:
        DataError: the weight is not over 0.
    """
    name, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Spec(text, None)
    try:
        number = float(weight)
    except ValueError:
        return Spec(text, None)
    if not 0 < number < float("inf"):
        raise DataError(f"{text}: the weight must be over 0")
    return Spec(name, number)


def check_there(name: str) -> None:
    """Whether `name` is a file or a folder; if not, it may be a hub data set.

    Raises:
        DataError: it can be none of them.
    """
    path = Path(name)
    may_be_of_hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w.-]+)?", name) and path.suffix not in _FILES
    if not path.exists() and not may_be_of_hub:
        raise DataError(f"{name}: no such file or folder (~ is not expanded), and not a name of a hub data set")


def read(name: str, split: str, columns: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as `(place, values)`, where place is `file:line` (Parquet and hub: the number of the row, from 1).

    Args:
        name: a file, a folder of files, or the name of a hub data set, `owner/name` or `owner/name@configuration`.
        split: the split of a hub data set.
        columns: also read columns that are neither conversation nor label.

    Raises:
        DataError: a missing or malformed file, or a hub data set that cannot be loaded.
    """
    path = Path(name)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".jsonl", ".parquet"))
        if not files:
            raise DataError(f"{name}: the folder holds no .jsonl and no .parquet file")
        for file in files:
            yield from read(str(file), split, columns)
    elif path.is_file():
        yield from _parquet(path, columns) if path.suffix == ".parquet" else read_json(path)
    else:
        check_there(name)
        yield from _hub(name, split, columns)


def _parquet(path: Path, columns: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = None if columns else _known(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=1024, columns=names):
                for values in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", values
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}:{number + 1}: not readable as Parquet: {str(error).rstrip('.')}; write it again, or give JSONL"
        ) from None


def _hub(name: str, split: str, columns: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    import datasets

    repository, _, configuration = name.partition("@")
    try:
        rows = datasets.load_dataset(repository, configuration or None, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name} (split {split!r}): no such file, and the hub does not have it: {reason}") from None
    if not columns:
        rows = rows.select_columns(_known(rows.column_names))
    for number, values in enumerate(rows, 1):
        yield f"{name}:{number}", values


def _known(names: list[str]) -> list[str]:
    return [name for name in names if name in (*CONVERSATION, *LABELS)]


# --- one row ------------------------------------------------------------------------------------


def layout(values: Mapping[str, Any], default_verifier: str | None, optional: bool, prompted: bool = True) -> Candidate:
    """Bring a row of any layout into one form.

    Args:
        values: the row as read; None is the same as an absent column.
        default_verifier: the verifier of rows that name none.
        optional: a row without verifier and label is usable, because user functions score it.
        prompted: a row without a prompt is not usable; otherwise its prompt is empty.

    Raises:
        ValueError: the row cannot be used, with the reason.
    """
    present = {key: value for key, value in values.items() if not _absent(value)}
    for key, value in present.items():
        if (optional or key in (*CONVERSATION, *LABELS)) and not _encodable(value):
            raise ValueError(f"{key} is not Unicode text: it has half of a surrogate pair, such as \\ud83d")
    messages = _conversation(present) if prompted or any(key in present for key in CONVERSATION) else ""
    names = _verifiers(present, default_verifier, optional)
    truth = present["ground_truth"] if "ground_truth" in present else _verl_truth(present)
    if truth is None and not (UNLABELLED.issuperset(names) if names else optional):
        raise ValueError("no usable label: the column ground_truth is missing")
    if truth is not None and not (names or optional):
        raise ValueError("no verifier: neither a column dataset nor data.default_verifier")
    readings = _readings(names, truth) if names else ((),)
    columns = {key: value for key, value in present.items() if key not in (*CONVERSATION, "ground_truth", "dataset")}
    if truth is not None and not names:
        columns["ground_truth"] = truth  # for the functions alone
    return Candidate(messages, names, readings, columns)


def _conversation(present: Mapping[str, Any]) -> Conversation:
    column = next((key for key in CONVERSATION if key in present), None)
    if column is None:
        raise ValueError("no prompt: neither a column messages nor a column prompt")
    value = present[column]
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"{column} is empty")
        # The published sets of Ai2 write a single user turn like this.
        return value.removeprefix(USER_PREFIX) if "dataset" in present else value
    if not isinstance(value, list):
        raise ValueError(f"{column} is neither a list of turns nor a string")
    turns = [_turn(column, turn) for turn in value]
    if turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not any(turn["role"] != "system" and turn["content"].strip() for turn in turns):
        raise ValueError(f"{column} asks nothing")
    return turns


def _turn(column: str, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
        raise ValueError(f"a turn of {column} has no role or no content: {str(turn)[:80]}")
    return {key: value for key, value in turn.items() if value is not None}


def _verifiers(present: Mapping[str, Any], default: str | None, optional: bool) -> tuple[str, ...]:
    named = present.get("dataset", default)
    if named is None and "reward_model" in present and not optional:  # in verl, a function replaces the verifier
        source = str(present.get("data_source", ""))
        named = next((verifier for part, verifier in VERL_VERIFIERS.items() if part in source.lower()), None)
        if named is None:
            raise ValueError(f"no verifier is known for data_source {source!r}: set data.default_verifier")
    names = [] if named is None else [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"dataset is neither a verifier's name nor a list of names: {str(named)[:80]}")
    if optional:  # in open-instruct these rows get no reward from a verifier
        names = [name for name in names if name.lower() != "passthrough"] if len(names) == 1 else names
    return tuple(_canonical(name) for name in names)


def _canonical(name: str) -> str:
    """Published sets write some names in capitals."""
    return ALIASES.get(name.lower(), name.lower())


def _absent(value: Any) -> bool:
    """Whether a value is None, or the NaN that pandas writes for it."""
    return value is None or (isinstance(value, float) and isnan(value))


def _encodable(value: Any) -> bool:
    """Whether all texts in the value can be written as UTF-8."""
    if isinstance(value, str):
        try:
            return value.isascii() or bool(value.encode())
        except UnicodeEncodeError:
            return False
    if isinstance(value, dict):
        return all(_encodable(key) and _encodable(inner) for key, inner in value.items())
    return not isinstance(value, list) or all(map(_encodable, value))


def _verl_truth(present: Mapping[str, Any]) -> Any:
    model = present.get("reward_model")
    if isinstance(model, str):
        try:
            model = json.loads(model)
        except ValueError:
            raise ValueError("reward_model is text, and not JSON") from None
    return model.get("ground_truth") if isinstance(model, dict) else None


def _readings(names: tuple[str, ...], truth: Any) -> tuple[tuple[Any, ...], ...]:
    """One label for each verifier. A list for a single verifier may be its label, or a label wrapped in a list."""
    if truth in _NOTHING:
        return ((truth,) * len(names),)
    if len(names) == 1:
        wrapped = isinstance(truth, list) and len(truth) == 1
        return ((_text(truth[0]),), (truth,)) if wrapped else ((_text(truth),),)
    if isinstance(truth, list) and len(truth) == len(names):
        return (tuple(map(_text, truth)),)
    number = len(truth) if isinstance(truth, list) else 1
    raise ValueError(f"dataset names {len(names)} verifiers, and ground_truth has {number} labels")


def _text(truth: Any) -> Any:
    return str(truth) if isinstance(truth, int | float) and not isinstance(truth, bool) else truth


def _problem(name: str, truth: Any, problem: Problem | None) -> str | None:
    if truth in _NOTHING and name not in UNLABELLED:
        return f"the label for {name} is empty"
    return problem(name, truth) if problem else None
