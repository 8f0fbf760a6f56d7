"""Tries the first rows, to find mistakes in data, labels and chat template before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.learner.data.checks import check_different, check_enough, check_taught, shared_rows
from olmorl.learner.data.loader import Loader, LoadReport, evaluation_sets, named, training_sources
from olmorl.learner.data.readers import parse_spec
from olmorl.learner.data.stream import Source
from olmorl.ports import Row

ROWS = 256
"""Rows of each data set that are tried: enough to find a mistake in all rows, and quick to read."""


class Tried(NamedTuple):
    """The first rows of all data sets, as the run will load them."""

    sources: Sequence[Source]
    evaluations: Mapping[str, Sequence[Row]]
    report: LoadReport
    """What loading the training rows reported."""
    held_out_report: LoadReport
    notes: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        held_out = [row for rows in self.evaluations.values() for row in rows]
        return [row for source in self.sources for row in source.rows] + held_out


def try_rows(settings: Config, tokenizer: Any, limit: int = ROWS) -> Tried:
    """Load the first rows of every data set under `tokenizer`.

    Raises:
        UserError: the rows or the chat template cannot be used.
    """
    from olmorl.verifiers.label_check import LabelChecker

    data = settings.data
    with closing(LabelChecker(settings.verifiers)) as check:
        alone = settings.distillation.is_alone
        episode = wiring.episode(settings)
        loader = Loader(data, tokenizer, settings.verifiers, check, episode=episode, labels_optional=alone)
        held_out = loader.for_evaluation()
        sources = training_sources(loader, data, limit)
        evaluations = evaluation_sets(held_out, settings.evaluation, limit)
    check_different(sources)
    check_taught(sources, settings.distillation, are_all=False)
    if all(len(source.rows) < limit for source in sources):
        check_enough(sources, data, settings.schedule.prompts_per_step)
    notes = shared_rows(sources, evaluations, data.strict)
    return Tried(sources, evaluations, loader.report, held_out.report, notes)


def all_in_files(settings: Config) -> bool:
    """Whether all data sets are in files here, so that none must be fetched from the hub."""
    return all(Path(parse_spec(text).name).exists() for texts in specs(settings).values() for text in texts)


def specs(settings: Config) -> dict[str, list[str]]:
    """All data sets that the recipe names, by key."""
    return {
        "data.train": list(settings.data.train),
        "evaluation.data": [named(text)[1] for text in settings.evaluation.data],
    }
