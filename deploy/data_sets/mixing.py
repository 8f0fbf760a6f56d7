"""Takes rows by source: as many of each as is asked, chosen by a seed, in the order of the input."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from olmorl import seeds
from olmorl.deploy.control.options import nearest
from olmorl.deploy.data_sets.conversion import RowCounts, Rows
from olmorl.errors import ConfigError, DataError
from olmorl.learner.data.readers import layout

DOLCI_THINK_RL = {
    "hamishivi/IF_multi_constraints_upto5_filtered": 29_813,
    "hamishivi/omega-combined-no-boxed_filtered": 15_000,
    "hamishivi/AceReason-Math_filtered": 6_598,
    "hamishivi/rlvr_orz_math_57k_collected_filtered": 2_999,
    "hamishivi/MathSub-30K_filtered": 2_999,
    "hamishivi/DAPO-Math-17k-Processed_filtered": 2_584,
    "hamishivi/rlvr_acecoder_filtered_filtered": 10_107,
    "hamishivi/klear-code-rlvr_filtered": 6_272,
    "hamishivi/synthetic2-rlvr-code-compressed_filtered": 3_000,
    "hamishivi/virtuoussy_multi_subject_rlvr_filtered": 7_106,
    "hamishivi/tulu_3_rewritten_400k_string_f1_only_v2_nocode_all_filtered_qwen2_5_openthoughts2_filtered": 7_109,
    "hamishivi/new-wildchat-english-general_filtered": 6_421,
    "hamishivi/llama-nemotron-rlvr-difficulty-6_filtered": 1_121,
    "hamishivi/llama-nemotron-rlvr-difficulty-7_filtered": 657,
    "hamishivi/llama-nemotron-rlvr-difficulty-8_filtered": 228,
}
"""The rows of allenai/Dolci-Think-RL-7B by `original_dataset`, as a reader counted them: 102,014 together."""
_COUNTED = (
    "  the published numbers are a reader's count, which was not compared with the hub; the report of Olmo 3 has "
    "104,869: math 30,186, instructions 30,186, code 23,110, chat 21,387"
)
SOURCE_COLUMNS = ("original_dataset", "dataset_source", "data_source", "source")
Read = Callable[[], Rows]


def sources(read: Read, column: str | None) -> tuple[str, Counter[str]]:
    """The column that names the source, and the number of usable rows of each. Raises DataError if a row has none."""
    counts: Counter[str] = Counter()
    names = (column,) if column else SOURCE_COLUMNS
    for place, row in read():
        column = column if counts else next((name for name in names if isinstance(row.get(name), str)), None)
        if column is None or not isinstance(row.get(column), str):
            raise DataError(f"{place}: the row has no column {' or '.join(names)} with its source; name it with --by")
        counts[row[column]] += not _problem(row)
    if column is None:
        raise DataError("it holds no row")
    return column, counts


def _problem(row: Mapping[str, Any]) -> str:
    """Why a run would not read the row; empty if it does."""
    try:
        layout(row, None, False)
    except ValueError as error:
        return str(error)
    return ""


def quotas(
    counts: Mapping[str, int], takes: Mapping[str, int], weights: Mapping[str, float], rows: int | None
) -> dict[str, int]:
    """How many rows of each source to take.

    Args:
        counts: rows that are there.
        takes: an exact number for a source.
        weights: a factor of the number that is there, 1 by default.
        rows: all together; the sources without an exact number share what is left, in proportion.

    Raises:
        ConfigError: a source has fewer rows than are asked of it, or a name is of none or of several.
    """
    exact = {_source(name, counts): number for name, number in takes.items()}
    factors = {_source(name, counts): factor for name, factor in weights.items()}
    shares = {name: number * factors.get(name, 1.0) for name, number in counts.items() if name not in exact}
    if rows is not None:
        left, total = rows - sum(exact.values()), sum(shares.values())
        if left < 0 or (left and not total):
            raise ConfigError(f"--rows {rows}: the sources of --take alone are {sum(exact.values())}")
        shares = {name: left * share / total if total else 0.0 for name, share in shares.items()}
    wanted = exact | _rounded(shares)
    for name, number in wanted.items():
        if number > counts[name]:
            raise ConfigError(
                f"{name} has {counts[name]} rows, and {number} are asked of it: lower --rows or its weight"
            )
    return wanted


def _rounded(shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers with the same sum: the largest remainders are rounded up."""
    whole = {name: int(share) for name, share in shares.items()}
    missing = round(sum(shares.values())) - sum(whole.values())
    for name in sorted(shares, key=lambda name: whole[name] - shares[name])[:missing]:
        whole[name] += 1
    return whole


def _source(text: str, counts: Mapping[str, int]) -> str:
    """The source of that name, or the only one whose name has this text in it."""
    found = [text] if text in counts else [name for name in counts if text in name]
    if len(found) != 1:
        known = ", ".join(f"{name} ({number})" for name, number in counts.items())
        hint = "" if found else nearest(text, list(counts))
        raise ConfigError(
            f"{text}: {'several sources have' if found else 'no source has'} this name{hint}; there are {known}"
        )
    return found[0]


def mix(
    read: Read, column: str, counts: Mapping[str, int], wanted: Mapping[str, int], seed: int, keep: Sequence[str],
    outcome: RowCounts,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The chosen rows with the columns of training and of their source. Unusable rows are counted and never chosen."""
    chosen = {
        name: set(random.Random(seeds.derive(seed, "mix", name)).sample(range(counts[name]), number))
        for name, number in wanted.items()
    }
    seen: Counter[str] = Counter()
    for place, row in read():
        outcome.columns |= dict.fromkeys(row)
        if problem := _problem(row):
            outcome.refuse(place, problem)
            continue
        number, seen[row[column]] = seen[row[column]], seen[row[column]] + 1
        if number not in chosen[row[column]]:
            continue
        outcome.written += 1
        kept = ("messages", "prompt", "ground_truth", "dataset", "reward_model", "data_source", column, *keep)
        yield {name: row[name] for name in dict.fromkeys(kept) if row.get(name) is not None}


def compared(taken: Mapping[str, int], published: Mapping[str, int]) -> list[str]:
    """A line for each source: its rows, and those of the published set; then where those numbers come from."""
    names = [*published, *(name for name in taken if name not in published)]
    lines = [
        f"  {taken.get(name, 0):7,} {name}{f' (published: {published[name]:,})' if name in published else ''}"
        for name in names
        if name in taken or name in published
    ]
    return lines + ([_COUNTED] if published else [])
