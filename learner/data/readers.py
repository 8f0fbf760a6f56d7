"""Reads data sets: files, folders, sets that `datasets` saved, and hub sets, in the common label layouts.

    Ai2     messages | prompt, ground_truth, dataset
    verl    prompt, data_source, reward_model.ground_truth, extra_info
    TRL     prompt and free columns, which user reward functions get by name

A file that cannot be read raises DataError. A row that cannot be used raises ValueError with the reason; the loader
reports it with the row's place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.errors import DataError
from olmorl.learner.data.folders import chosen, files_of, is_saved_dataset
from olmorl.learner.data.row_files import CONVERSATION, LABELS, SUFFIXES, known, read_file, suffix_of

USER_PREFIX = "user: "

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


_FROM_SHAREGPT = "name the column messages, from role (human: user, gpt: assistant) and value content"
_IMITATED = "its answers are texts to imitate, which no rule can check: add labels, or let a judge score the answers"
FOREIGN_LAYOUTS = {
    "conversations": f"ShareGPT's layout: {_FROM_SHAREGPT}; {_IMITATED}",
    "conversation": f"ShareGPT's layout: {_FROM_SHAREGPT}; {_IMITATED}",
    "instruction": "Alpaca's layout: join instruction and input into prompt, and put the label into ground_truth; "
    + _IMITATED,
    "chosen": "pairs of preferred answers: training needs prompts with a verifier",
    "question": "convert it with olmorl-data jsonl --input FILE --question question --answer COLUMN -o OUT",
    "problem": "convert it with olmorl-data jsonl --input FILE --question problem --answer COLUMN -o OUT",
    "text": "plain text: training needs prompts with a verifier",
}
"""What to do with layouts that are not read, by a column of theirs."""


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
    may_be_of_hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w.-]+)?", name) and suffix_of(path) not in SUFFIXES
    if not path.exists() and not may_be_of_hub:
        raise DataError(f"{name}: no such file or folder (~ is not expanded), and not a name of a hub data set")


def read(name: str, split: str, columns: bool, held_out: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as `(place, values)`, where place is `file:line`, or `name:number` with the number of the row, from 1.

    Args:
        name: a file, a folder of files, or the name of a hub data set, `owner/name` or `owner/name@configuration`.
        split: the split of a hub data set, or of a folder that has several.
        columns: also read columns that are neither conversation nor label.
        held_out: for evaluation: of a folder with two splits, read the one that is not `split`.

    Raises:
        DataError: a missing or malformed file, or a data set that cannot be loaded, or has no such split.
    """
    path = Path(name)
    if path.is_file():
        yield from read_file(path, columns)
    elif path.is_dir() and is_saved_dataset(path):
        yield from _numbered(name, _saved(name, split, held_out), columns)
    elif path.is_dir():
        for file in files_of(path, split, held_out):
            yield from read_file(file, columns)
    else:
        check_there(name)
        yield from _numbered(name, _hub(name, split), columns)


def _saved(name: str, split: str, held_out: bool) -> Any:
    """A folder that `save_to_disk` wrote."""
    import datasets

    try:
        rows = datasets.load_from_disk(name)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{name}: not readable as a saved data set: {_one_line(error)}; save it again") from None
    return rows[chosen(name, rows, split, held_out)] if isinstance(rows, datasets.DatasetDict) else rows


def _hub(name: str, split: str) -> Any:
    import datasets

    repository, _, configuration = name.partition("@")
    try:
        return datasets.load_dataset(repository, configuration or None, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{name} (split {split!r}): no such file, and the hub does not have it: {_one_line(error)}"
        ) from None


def _numbered(name: str, rows: Any, columns: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    if not columns:
        rows = rows.select_columns(known(rows.column_names))
    for number, values in enumerate(rows, 1):
        yield f"{name}:{number}", values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


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
        layout_name = next((f" ({name})" for key, name in FOREIGN_LAYOUTS.items() if key in present), "")
        raise ValueError(
            f"no prompt: neither a column messages nor a column prompt, but {', '.join(present)[:200]}{layout_name}"
        )
    value = present[column]
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"{column} is empty")
        # The published sets of Ai2 write a single user turn like this.
        return value.removeprefix(USER_PREFIX) if "dataset" in present else value
    if not isinstance(value, list):
        raise ValueError(f"{column} is neither a list of turns nor a string")
    turns = [_turn(f"turn {number} of {column}", turn) for number, turn in enumerate(value, 1)]
    if turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not any(turn["role"] != "system" and turn["content"].strip() for turn in turns):
        raise ValueError(f"{column} asks nothing")
    return turns


def _turn(place: str, turn: Any) -> dict[str, Any]:
    """A turn with a role and a text."""
    if not isinstance(turn, dict):
        raise ValueError(f"{place} is no object with role and content: {str(turn)[:80]}")
    values = {key: value for key, value in turn.items() if not _absent(value)}
    if "role" not in values and {"from", "value"} <= values.keys():
        raise ValueError(f"{place} is in ShareGPT's layout: {_FROM_SHAREGPT}")
    if isinstance(values.get("content"), list):
        values["content"] = _joined(place, values["content"])
    if "content" not in values and values.get("tool_calls"):
        raise ValueError(
            f"{place} has tool_calls and no content (OpenAI's layout of tool calls): tools are not called in training; "
            "leave such rows out, or write the call as text in content"
        )
    if not all(isinstance(values.get(key), str) for key in ("role", "content")):
        raise ValueError(f"{place} has no role or no content: {str(turn)[:80]}")
    return values


def _joined(place: str, parts: Sequence[Any]) -> str:
    """The text of a content in parts, joined as vLLM's server does for templates that take text."""
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f"{place} has a part of the type {kind!r} in its content: only parts of the type 'text', with a text, "
                "can be used; leave rows with images, audio or files out"
            )
    return "\n".join(part["text"] for part in parts)


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
