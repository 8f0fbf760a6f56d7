"""Prompts: data sets become rows under one policy's tokenizer and chat template.

    spec ── rows.read ──> values ── rows.label ──> labelled ── Loader.load ──> Source ── PromptStream.draw ──> Row

Each row that is read is used, or counted with its place and its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from olmorl.config import Data, Evaluation, Model, Verifiers
from olmorl.errors import DataError, ModelError
from olmorl.learner.rows import Candidate, Labelled, Problem, layout, parse_spec, read
from olmorl.learner.stream import PromptStream, Source
from olmorl.messages import TRAIN_LANE
from olmorl.ports import LabelCheck, Row

BATCH = 512
Progress = Callable[[str, int], None]


@dataclass
class Report:
    """What became of every row that was read: `read = used + over_long + refused`."""

    read: int = 0
    used: int = 0
    truncated: int = 0
    """Of the used ones, shortened to `data.max_prompt_tokens`."""
    over_long: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    """`file:line: reason` of the first refused rows."""

    def __str__(self) -> str:
        parts = {"truncated": self.truncated, "over-long": self.over_long, "unusable": self.refused}
        rest = "".join(f", {number} {name}" for name, number in parts.items() if number)
        return f"{self.used} of {self.read} rows used{rest}"


def open_tokenizer(model: Model) -> Any:
    """The policy's tokenizer, with `model.chat_template` in place of its own where one is given.

    Raises:
        ModelError: the folder or name holds no tokenizer.
    """
    from transformers import AutoTokenizer

    name = model.tokenizer or model.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{name}: no tokenizer there; give a Hugging Face folder or hub name ({reason})") from None
    if model.chat_template is not None:
        tokenizer.chat_template = _template(model.chat_template)
    return tokenizer


def _template(text: str) -> str:
    if re.search(r"[{}\n]", text):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"model.chat_template: {text} is neither a Jinja text nor a readable file: {error}") from None


class Loader:
    """Makes rows for one policy: each row that is read is used, or counted with its place and reason.

    Args:
        data: system prompt, length limits, strictness.
        tokenizer: a transformers tokenizer, for instance of `open_tokenizer`.
        verifiers: with user functions, other columns are kept and labels may be absent.
        check: says why a verifier cannot use a label.
        progress: called now and then with the data set's name and the number of rows read.
    """

    MAX_REASONS = 20

    def __init__(
        self,
        data: Data,
        tokenizer: Any,
        verifiers: Verifiers,
        check: LabelCheck | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._think_start = verifiers.think_start
        self._functions = bool(verifiers.functions)
        self._check = check
        self._progress = progress
        self.report = Report()

    def load(self, text: str, limit: int | None = None) -> Source:
        """Load one entry of `data.train` or `evaluation.data`, up to `limit` usable rows.

        Raises:
            DataError: the set is missing or malformed, a row is unusable and `data.strict` is on, or none is usable.
        """
        spec = parse_spec(text)
        before = self.report.read
        rows = list(islice(self._rows(spec.name), limit))
        # Rows are read in batches: those of the last one that lie beyond the limit do not count.
        self.report.read = self.report.used + self.report.over_long + self.report.refused
        if not rows:
            reason = self.report.reasons[-1] if self.report.reasons else "it is empty, or every prompt is over-long"
            raise DataError(f"{spec.name}: none of its {self.report.read - before} rows can be used; {reason}")
        return Source(spec.name, spec.weight, rows)

    def _rows(self, name: str) -> Iterator[Row]:
        batch: list[tuple[str, Candidate | str]] = []
        for number, (place, values) in enumerate(read(name, self._data.split, columns=self._functions), 1):
            self.report.read += 1
            batch.append((place, self._candidate(values)))
            if len(batch) == BATCH:
                yield from self._usable(batch)
                batch = []
            if self._progress and number % BATCH == 0:
                self._progress(name, number)
        yield from self._usable(batch)

    def _candidate(self, values: dict[str, Any]) -> Candidate | str:
        """The row in one layout, or why it has none."""
        try:
            return layout(values, self._data.default_verifier, self._functions)
        except ValueError as error:
            return str(error)

    def _usable(self, batch: list[tuple[str, Candidate | str]]) -> Iterator[Row]:
        """The rows whose labels and conversations can be used; the others are refused, in order."""
        problem = self._checked([candidate for _, candidate in batch if isinstance(candidate, Candidate)])
        rows: list[tuple[str, Labelled, str]] = []
        for place, candidate in batch:
            if isinstance(candidate, str):
                self._refuse(place, candidate)
                continue
            try:
                labelled = candidate.labelled(problem)
                rows.append((place, labelled, self._render(labelled.messages)))
            except ValueError as error:
                self._refuse(place, str(error))
        yield from self._tokenize(rows)

    def _checked(self, candidates: list[Candidate]) -> Problem | None:
        """What is wrong with any label of the candidates, all asked at once."""
        if self._check is None:
            return None
        labels = [label for candidate in candidates for label in candidate.labels]
        reasons = self._check.check_many(labels)
        # By identity: a label may be a list, and the candidates keep it alive.
        known = {(name, id(label)): reason for (name, label), reason in zip(labels, reasons, strict=True)}
        return lambda name, label: known[name, id(label)]

    def _refuse(self, place: str, reason: str) -> None:
        if self._data.strict:
            raise DataError(f"{place}: {reason}; mend the row, or run without data.strict")
        self.report.refused += 1
        if len(self.report.reasons) < self.MAX_REASONS:
            self.report.reasons.append(f"{place}: {reason}")

    def _render(self, messages: list[dict[str, Any]] | str) -> str:
        """The prompt as text. A string is one user turn; without a chat template, turns are parted by empty lines."""
        from jinja2 import TemplateError

        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if self._data.system_prompt is not None and turns[0]["role"] != "system":
            turns = [{"role": "system", "content": self._data.system_prompt}, *turns]
        if not self._tokenizer.chat_template:
            return "\n\n".join(turn["content"] for turn in turns) + "\n"
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from None

    def _tokenize(self, batch: list[tuple[str, Labelled, str]]) -> Iterator[Row]:
        if not batch:
            return
        special = not self._tokenizer.chat_template
        encoded = self._tokenizer([text for _, _, text in batch], add_special_tokens=special)["input_ids"]
        for (place, labelled, text), ids in zip(batch, encoded, strict=True):
            tokens = self._fit(np.asarray(ids, dtype=np.int32))
            if tokens is not None:
                self.report.used += 1
                opened = text.rstrip().endswith(self._think_start)
                columns = labelled.columns if self._functions else {}
                yield Row(place, labelled.messages, tokens, labelled.datasets, labelled.ground_truths, columns, opened)

    def _fit(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
        limit = self._data.max_prompt_tokens
        if len(tokens) <= limit:
            return tokens
        if self._data.over_long == "filter":
            self.report.over_long += 1
            return None
        self.report.truncated += 1
        return tokens[-limit:]


def training_stream(loader: Loader, data: Data, seed: int) -> PromptStream:
    """Load `data.train` into a stream.

    Raises:
        DataError: no data set is named, or one cannot be used.
    """
    if not data.train:
        raise DataError("data.train names no data set: give a JSONL or Parquet file, or the name of a hub data set")
    return PromptStream([loader.load(text) for text in data.train], seed, data.shuffle, data.epochs)


def evaluation_sets(loader: Loader, evaluation: Evaluation) -> dict[str, Sequence[Row]]:
    """Load `evaluation.data` by name.

    Raises:
        DataError: a name that is taken or cannot be one, or a set that cannot be used.
    """
    texts = zip(evaluation_names(evaluation), evaluation.data, strict=True)
    return {name: loader.load(named(text)[1], evaluation.limit).rows for name, text in texts}


def evaluation_names(evaluation: Evaluation) -> list[str]:
    """The names of the evaluation sets and their lanes: what stands before `=`, else the file's stem or the hub
    name's last part.

    Raises:
        DataError: a name that is taken, here or in Prometheus, or cannot be one.
    """
    names: dict[str, str] = {}
    for text in evaluation.data:
        name, _ = named(text)
        told = re.sub(r"\W", "_", name)
        if told == TRAIN_LANE or told in names or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise DataError(
                f"evaluation.data: {text!r} would be called {name!r} ({told} in metrics), which is taken or not a "
                "plain name; put another one in front: name=path"
            )
        names[told] = name
    return list(names.values())


def named(text: str) -> tuple[str, str]:
    """An evaluation set's name, and the data that it is; `name=data` where it is given one."""
    name, equals, rest = text.partition("=")
    if equals and not Path(text).exists():
        return name, rest
    return Path(parse_spec(text).name).stem, text
