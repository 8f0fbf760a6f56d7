"""Loads data sets as rows, with one policy's tokenizer and chat template.

    spec ── readers.read ──> values ── readers.layout ──> Labelled ─ Loader.load ──> Source ── PromptStream.draw ──> Row

Each row that is read is used, or counted with its place and its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from olmorl.config import Data, Evaluation, Model, Verifiers, box_tools
from olmorl.errors import DataError, ModelError, UserError, of_key
from olmorl.extension import load_function
from olmorl.file_tree import row_files
from olmorl.learner.data import chat_templates
from olmorl.learner.data.readers import Candidate, Labelled, Problem, layout, parse_spec, read
from olmorl.learner.data.stream import Source
from olmorl.messages import TRAIN_LANE, EpisodeStart
from olmorl.ports import LabelCheck, Row

BATCH = 512
ROW = "a row has a prompt, or messages; and ground_truth and dataset for a verifier, or columns for your functions"
Progress = Callable[[str, int], None]


class _Rendered(NamedTuple):
    """A usable row as text."""

    place: str
    labelled: Labelled
    text: str
    episode: EpisodeStart | None


@dataclass
class LoadReport:
    """Counts of the rows that were read: `read = used + over_long + refused`."""

    read: int = 0
    used: int = 0
    truncated: int = 0
    """Used rows that were shortened to `data.max_prompt_tokens`."""
    over_long: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    """`file:line: reason` of the first refused rows."""

    def __str__(self) -> str:
        parts = {"truncated": self.truncated, "over-long": self.over_long, "unusable": self.refused}
        rest = "".join(f", {number} {name}" for name, number in parts.items() if number)
        return f"{self.used} of {self.read} rows used{rest}"


def open_tokenizer(model: Model) -> Any:
    """The policy's tokenizer. A given `model.chat_template` replaces the tokenizer's own.

    Raises:
        ModelError: the folder or name holds no tokenizer.
    """
    from transformers import AutoTokenizer

    name = model.tokenizer or model.path
    if Path(name).is_dir():
        chat_templates.check_vocabulary(Path(name), name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{name}: no tokenizer there; give a Hugging Face folder or hub name ({reason})") from None
    if model.chat_template is not None:
        tokenizer.chat_template = chat_templates.template_of(model.chat_template)
    elif isinstance(tokenizer.chat_template, str):
        chat_templates.compiled(tokenizer.chat_template, f"the chat template of {name}")
    return tokenizer


class Loader:
    """Makes rows for one policy. Each row that is read is used, or counted with its place and reason.

    Args:
        data: system prompt, length limits, strictness.
        tokenizer: a transformers tokenizer, for instance of `open_tokenizer`.
        verifiers: with user functions, other columns are kept and labels may be absent.
        check: says why a verifier cannot use a label, or None.
        progress: called now and then with the data set's name and the number of rows read.
        episode: how the rows are played. The template shows its tools; its environment gets all columns, and labels may
            be absent.
        labels_optional: a training row that names no verifier is usable: a teacher decides.

    Raises:
        ConfigError: the chat template does not use a value of `data.chat_template_kwargs`.
    """

    MAX_REASONS = 20

    def __init__(
        self,
        data: Data,
        tokenizer: Any,
        verifiers: Verifiers,
        check: LabelCheck | None = None,
        progress: Progress | None = None,
        episode: EpisodeStart | None = None,
        *,
        labels_optional: bool = False,
    ) -> None:
        chat_templates.check_template_kwargs(tokenizer.chat_template, data.chat_template_kwargs)
        self._data = data
        self._tokenizer = tokenizer
        self._think_start = verifiers.think_tags[0]
        self._episode = episode
        self._chosen: dict[tuple[str, ...], EpisodeStart] = {}
        self._functions = bool(verifiers.functions or episode)
        self._labels_optional = labels_optional
        self._reader = data.reader and load_function("data.reader", data.reader)
        self._check = check
        self._progress = progress
        self._lengths: list[int] = []
        self._ease: dict[str, float] = {}
        self._unrendered = 0
        self._held_out = False
        self.report = LoadReport()

    def for_evaluation(self) -> Loader:
        """Returns a loader of evaluation sets, which has a report of its own."""
        loader = copy(self)
        loader._held_out = True
        loader.report = LoadReport()
        return loader

    def load(self, text: str, limit: int | None = None) -> Source:
        """Load one entry of `data.train` or `evaluation.data`, up to `limit` usable rows.

        Raises:
            DataError: the set is missing or malformed, a row is unusable and `data.strict` is on, or none is usable.
            ModelError: a row is a conversation and there is no chat template, or the template refuses all rows.
        """
        spec = parse_spec(text)
        before = replace(self.report)
        self._lengths, self._unrendered = [], 0
        rows = list(islice(self._rows(spec.name), limit))
        # Rows are read in batches. Used rows of the last batch beyond the limit do not count.
        self.report.read = self.report.used + self.report.over_long + self.report.refused
        if not rows:
            self._refuse_all(spec.name, before)
        return Source(spec.name, spec.weight, rows)

    def _refuse_all(self, name: str, before: LoadReport) -> NoReturn:
        """Raise an error that says why no row of a data set is usable."""
        report = self.report
        read = report.read - before.read
        if read and self._unrendered == read:
            raise ModelError(
                f"the chat template refuses all {read} rows of {name}: correct it, or give another in "
                f"model.chat_template; {report.reasons[-1]}"
            )
        causes = []
        if not read:
            causes.append("the file is empty: it needs one row a prompt")
        if self._lengths:
            causes.append(
                f"{len(self._lengths)} prompts are over data.max_prompt_tokens = {self._data.max_prompt_tokens} "
                f"({min(self._lengths)} to {max(self._lengths)} tokens): raise it, or set "
                'data.over_long = "truncate"'
            )
        if report.refused > before.refused:
            causes.append(f"{report.reasons[-1]} ({ROW})")
        raise DataError(f"{name}: none of its {read} rows can be used; {'; '.join(causes)}")

    def _rows(self, name: str) -> Iterator[Row]:
        batch: list[tuple[str, Candidate | str]] = []
        columns = self._functions or bool(self._reader or self._data.curriculum)
        rows = read(name, self._data.split, columns=columns, held_out=self._held_out)
        for number, (place, values) in enumerate(rows, 1):
            self.report.read += 1
            ease = values.get(self._data.curriculum or "")
            if isinstance(ease, int | float) and isfinite(ease):
                self._ease[place] = float(ease)
            batch.append((place, self._candidate(values)))
            if len(batch) == BATCH:
                yield from self._usable(batch)
                batch = []
                self._ease.clear()
            if self._progress and number % BATCH == 0:
                self._progress(name, number)
        yield from self._usable(batch)

    def _candidate(self, values: dict[str, Any]) -> Candidate | str:
        """The row in the common layout, or the reason why it has none."""
        try:
            if self._reader:
                values = self._read_by_user(self._reader, values)
            is_unlabelled = all(values.get(key) is None for key in ("dataset", "reward_model"))
            optional = self._labels_optional and not self._held_out and is_unlabelled
            return layout(values, self._data.default_verifier, self._functions or optional)
        except ValueError as error:
            return str(error)

    @staticmethod
    def _read_by_user(reader: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
        """The row as the user's `data.reader` returns it. Raises ValueError with the reason why it is not usable."""
        try:
            found = reader(values)
        except Exception as error:
            raise ValueError(f"data.reader raised {type(error).__name__}: {error}") from None
        if found is None:
            raise ValueError("data.reader left it out")
        if not isinstance(found, dict):
            raise ValueError(f"data.reader returned {type(found).__name__}: a row is a dict, or None to leave it out")
        return found

    def _usable(self, batch: list[tuple[str, Candidate | str]]) -> Iterator[Row]:
        """The rows with usable labels and conversations, in order. The other rows are refused."""
        problem = self._checked([candidate for _, candidate in batch if isinstance(candidate, Candidate)])
        rows: list[_Rendered] = []
        for place, candidate in batch:
            if isinstance(candidate, str):
                self._refuse(place, candidate)
                continue
            try:
                labelled = candidate.labelled(problem)
                episode = self._played(place, labelled.columns)
                text = self._render(place, labelled.messages, episode)
            except UserError:
                raise
            except ValueError as error:
                self._refuse(place, str(error))
                continue
            rows.append(_Rendered(place, labelled, text, episode))
        yield from self._tokenize(rows)

    def _checked(self, candidates: list[Candidate]) -> Problem | None:
        """The faults of all labels of the candidates, asked in one call."""
        if self._check is None:
            return None
        labels = [label for candidate in candidates for label in candidate.labels]
        reasons = self._check.check_many(labels)
        # By identity, because a label may be a list. The candidates keep it alive.
        known = {(name, id(label)): reason for (name, label), reason in zip(labels, reasons, strict=True)}
        return lambda name, label: known[name, id(label)]

    def _refuse(self, place: str, reason: str) -> None:
        if self._data.strict:
            raise DataError(f"{place}: {reason}; correct the row, or run without data.strict")
        self.report.refused += 1
        if len(self.report.reasons) < self.MAX_REASONS:
            self.report.reasons.append(f"{place}: {reason}")

    def _played(self, place: str, columns: Mapping[str, Any]) -> EpisodeStart | None:
        """How a row is played: with the built-in tools that its column `tools` names, or with all.

        Raises:
            DataError: the recipe does not list one of them.
            ValueError: its column `files` is no tree for the tool `bash`.
        """
        if self._episode is not None and "bash" in box_tools(self._episode.environment):
            row_files(columns.get("files"))
        names = columns.get("tools")
        if names is None or self._episode is None or not box_tools(self._episode.environment):
            return self._episode
        known = {tool["function"]["name"]: tool for tool in self._episode.tools}
        if not isinstance(names, list) or any(name not in [*known] for name in names):
            raise DataError(
                f"{place}: its column tools is {names!r}: give a list of tools that episodes.environment names "
                f"({', '.join(known)})"
            )
        key = tuple(name for name in known if name in names)
        return self._chosen.setdefault(key, msgspec.structs.replace(self._episode, tools=tuple(map(known.get, key))))

    def _render(self, place: str, messages: list[dict[str, Any]] | str, episode: EpisodeStart | None) -> str:
        """The prompt as text. A string is one user turn; without a chat template it stays plain text.

        Raises:
            ValueError: the chat template refuses it.
            ModelError: the prompt is a conversation, and there is no chat template.
        """
        from jinja2 import TemplateError

        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if self._data.system_prompt is not None and turns[0]["role"] != "system":
            turns = [{"role": "system", "content": self._data.system_prompt}, *turns]
        if not self._tokenizer.chat_template:
            if not isinstance(messages, str):
                raise ModelError(
                    f"{place}: a conversation, and the tokenizer has no chat template to write it with: give one in "
                    "model.chat_template, or write the prompt as a plain string"
                )
            return "\n\n".join(turn["content"] for turn in turns) + "\n"
        try:
            given: dict[str, Any] = dict(self._data.chat_template_kwargs)
            if episode and episode.tools:
                given["tools"] = [*episode.tools]
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **given))
        except (TemplateError, *chat_templates.RENDERING_FAILED) as error:
            self._unrendered += 1
            raise ValueError(f"the chat template refuses the conversation: {error}") from None

    def _tokenize(self, batch: list[_Rendered]) -> Iterator[Row]:
        if not batch:
            return
        special = not self._tokenizer.chat_template
        encoded = self._tokenizer([one.text for one in batch], add_special_tokens=special)["input_ids"]
        for (place, labelled, text, episode), ids in zip(batch, encoded, strict=True):
            if not ids:
                self._refuse(place, "the prompt is empty: the tokenizer makes no token of it")
                continue
            tokens = self._fit(np.asarray(ids, dtype=np.int32))
            if tokens is not None:
                self.report.used += 1
                opened = text.rstrip().endswith(self._think_start)
                columns = labelled.columns if self._functions else {}
                yield Row(
                    place,
                    labelled.messages,
                    tokens,
                    labelled.datasets,
                    labelled.ground_truths,
                    columns,
                    opened,
                    episode,
                    self._ease.get(place),
                )

    def _fit(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
        limit = self._data.max_prompt_tokens
        if len(tokens) <= limit:
            return tokens
        if self._data.over_long == "filter":
            self.report.over_long += 1
            self._lengths.append(len(tokens))
            return None
        self.report.truncated += 1
        return tokens[-limit:]


def training_sources(loader: Loader, data: Data, limit: int | None = None) -> list[Source]:
    """Load `data.train`, up to `limit` usable rows of each set.

    Raises:
        DataError: no data set is named, or one cannot be used.
    """
    if not data.train:
        raise DataError("data.train names no data set: give a file of rows, a folder, or the name of a hub data set")
    with of_key(DataError, "data.train"):
        return [loader.load(text, limit) for text in data.train]


def evaluation_sets(loader: Loader, evaluation: Evaluation, limit: int | None = None) -> dict[str, Sequence[Row]]:
    """Load `evaluation.data` by name, up to `limit` usable rows of each set.

    Raises:
        DataError: a name that is taken or not allowed, or a set that cannot be used.
    """
    texts = zip(evaluation_names(evaluation), evaluation.data, strict=True)
    limits = [number for number in (limit, evaluation.limit) if number is not None]
    with of_key(DataError, "evaluation.data"):
        return {name: loader.load(named(text)[1], min(limits, default=None)).rows for name, text in texts}


def evaluation_names(evaluation: Evaluation) -> list[str]:
    """The names of the evaluation sets and of their lanes: the part before `=`, else the file's stem or the last part
    of the hub name.

    Raises:
        DataError: a name that is taken, here or in Prometheus, or not allowed.
    """
    names: dict[str, str] = {}
    for text in evaluation.data:
        name, _ = named(text)
        told = re.sub(r"\W", "_", name)
        if told == TRAIN_LANE or told in names or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise DataError(
                f"evaluation.data: {text!r} would be called {name!r} ({told} in metrics), which is taken or not a "
                "plain name; put another name in front: name=path"
            )
        names[told] = name
    return list(names.values())


def named(text: str) -> tuple[str, str]:
    """The name and the data of one entry of `evaluation.data`: `name=data`, or data alone."""
    name, equals, rest = text.partition("=")
    if equals and not Path(text).exists():
        return name, rest
    return Path(parse_spec(text).name).stem, text
