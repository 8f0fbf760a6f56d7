"""Checks loaded data: enough rows for one step, and no training rows in the evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from olmorl.config import Data, Distillation
from olmorl.errors import ConfigError, DataError, ModelError
from olmorl.learner.data.stream import Source
from olmorl.ports import Row


def check_enough(sources: Sequence[Source], data: Data, prompts_per_step: int) -> None:
    """Refuse data that end before the first step.

    Raises:
        DataError: all passes over the rows together do not fill one batch.
    """
    rows = sum(len(source.rows) for source in sources)
    if data.epochs is not None and rows * data.epochs < prompts_per_step:
        raise DataError(
            f"data.train: {rows} usable rows in data.epochs = {data.epochs} are used up before the first step, which "
            f"takes schedule.prompts_per_step = {prompts_per_step}: give more rows, raise data.epochs or leave it out, "
            "or lower schedule.prompts_per_step"
        )


def check_ordered(sources: Sequence[Source], column: str | None) -> None:
    """Refuse a curriculum without numbers. Raises DataError for a source whose rows have none in the column."""
    for source in sources:
        if column and all(row.ease is None for row in source.rows):
            raise DataError(
                f"{source.name}: no row has a number in the column {column}: name another one in data.curriculum, "
                "leave the key out, or measure pass rates with `olmorl-data difficulty`"
            )


def check_taught(sources: Sequence[Source], distillation: Distillation, *, are_all: bool) -> None:
    """Refuse teachers without rows, and rows without a teacher if teachers alone decide.

    Args:
        are_all: the sources have all their rows, and not the first ones only.

    Raises:
        ConfigError: there are such teachers or rows.
    """
    places = {row.row.rpartition(":")[0]: row.row for source in sources for row in source.rows}
    for name, teacher in distillation.teachers.items():
        if are_all and teacher.sources and not any(teacher.covers(row) for row in places.values()):
            raise ConfigError(
                f"distillation.teachers.{name}.sources: no training row is from {', '.join(teacher.sources)}; rows are "
                f"from {', '.join(sorted(places)[:MOST_NAMED])}"
            )
    untaught = [place for place, row in places.items() if distillation.teacher_of(row) is None]
    if untaught and distillation.is_alone:
        raise ConfigError(
            f"distillation.teachers: none teaches the rows of {untaught[0]}: add it to the sources of one, name a "
            "teacher without sources, or set distillation.with_rewards = true to train those rows on rewards"
        )


MOST_ALIKE = 10
"""Different rows for each different prompt, on the mean, from which on the chat template is at fault."""


def check_different(sources: Sequence[Source]) -> None:
    """Refuse different rows that become few prompts.

    Raises:
        ModelError: the chat template writes them alike.
    """
    rows = [row for source in sources for row in source.rows]
    prompts, texts = {row.token_ids.tobytes() for row in rows}, {str(row.messages) for row in rows}
    if len(texts) > 1 and len(texts) >= len(prompts) * min(MOST_ALIKE, len(texts)):
        raise ModelError(
            f"all {len(rows)} prompts of data.train are {len(prompts)} as tokens, though their rows have {len(texts)} "
            "texts: the chat template does not write all messages (model.chat_template, or the tokenizer's own), or "
            'data.over_long = "truncate" cuts all but their common end'
        )


MOST_NAMED = 5
"""Most shared prompts that a note names."""


def shared_rows(sources: Sequence[Source], evaluations: Mapping[str, Sequence[Row]], strict: bool) -> list[str]:
    """One note for each evaluation set that shares prompts with the training data: how many, and the first of them.

    Compares prompts as the policy reads them: with the chat template applied, and cut to the length limit.

    Raises:
        DataError: there are shared prompts, and `strict` is on.
    """
    trained = {row.token_ids.tobytes(): row.row for source in sources for row in source.rows}
    notes = []
    for name, rows in evaluations.items():
        shared = [row for row in rows if row.token_ids.tobytes() in trained]
        if shared:
            pairs = [f"{row.row} is {trained[row.token_ids.tobytes()]}" for row in shared[:MOST_NAMED]]
            more = ", ..." if len(shared) > MOST_NAMED else ""
            notes.append(
                f"evaluation.data: {len(shared)} of {len(rows)} prompts of {name} are in data.train too "
                f"({', '.join(pairs)}{more}): its scores measure memory too; remove the prompts from one of the two"
            )
    if notes and strict:
        raise DataError("; ".join(notes))
    return notes
