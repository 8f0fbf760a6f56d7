"""The prompts of an evaluation: rows of the protocol's layout become rows of training, read as a run reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.data_sets.conversion import Asked, RowCounts, convert, write
from olmorl.deploy.data_sets.layouts import KINDS, QuestionAnswer, by_columns
from olmorl.deploy.evaluation.protocol import Protocol
from olmorl.deploy.preflight import hub
from olmorl.errors import ConfigError, DataError
from olmorl.learner.data.loader import Loader, open_tokenizer
from olmorl.learner.data.readers import check_there, parse_spec, read
from olmorl.ports import Row
from olmorl.verifiers.label_check import LabelChecker

Say = Callable[[str], None]


def questions(settings: Config, protocol: Protocol, source: str, limit: int | None, say: Say) -> Sequence[Row]:
    """The usable rows of `source`, at most `limit`. `say` gets lines about rows that are left out.

    Raises:
        DataError: the source is missing, or no row of it can be used.
    """
    check_there(source)
    hub.check_data("--input", source)
    with tempfile.TemporaryDirectory() as folder, LabelChecker(settings.verifiers) as check:
        tokenizer, played = open_tokenizer(settings.model), wiring.episode(settings)
        loader = Loader(settings.data, tokenizer, settings.verifiers, check, episode=played).for_evaluation()
        if not protocol.converts:
            rows = loader.load(source, limit).rows
        else:
            file = Path(folder, f"{Path(source).stem}.jsonl")
            places = _convert(protocol, source, limit, file, say)
            loaded = loader.load(str(file)).rows
            # A row is named by its place in the source, not by its line in the copy.
            rows = [row._replace(row=places[int(row.row.rpartition(":")[2]) - 1]) for row in loaded]
    if loader.report.used < loader.report.read:
        say(f"{source}: {loader.report}")
        for reason in loader.report.reasons:
            say(f"  {reason}")
    return rows


def _convert(protocol: Protocol, source: str, limit: int | None, file: Path, say: Say) -> list[str]:
    """Write the rows as rows of training; returns where each of them comes from."""
    kind = KINDS[protocol.layout] if protocol.layout else None
    take: Callable[[Mapping[str, Any]], QuestionAnswer] = (
        kind.convert if kind else by_columns(protocol.question or "", protocol.answer or "")
    )
    counts = RowCounts()
    asked = Asked(kind.verifier if kind else protocol.verifier, protocol.template)
    rows = read(parse_spec(source).name, protocol.split or "test", columns=True, held_out=protocol.split is None)
    newest = ""
    places: list[str] = []

    def noted() -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal newest
        for place, row in rows:
            newest = place  # the converter has read no further than the row that it makes
            yield place, row

    def made() -> Iterator[dict[str, Any]]:
        for row in islice(convert(noted(), take, asked, counts), limit):
            places.append(newest)
            yield row

    write(made(), file)
    for reason in counts.reasons:
        say(f"left out: {reason}")
    if not counts.written:
        reason = counts.reasons[0] if counts.reasons else "it is empty"
        raise DataError(f"{source}: no row can be used; {reason} (columns: {', '.join(counts.columns) or 'none'})")
    return places


def source_of(protocol: Protocol, given: str | None) -> str:
    """Where the rows are. Raises ConfigError if neither the command line nor the protocol says so."""
    kind = KINDS.get(protocol.layout or "")
    source = given or protocol.source or (kind.source if kind else None)
    if source is None:
        raise ConfigError("the protocol names no source: give --input FILE")
    return source
