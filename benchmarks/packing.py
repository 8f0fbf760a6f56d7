"""Packing: how full rows are, what splitting groups costs, and how evenly ranks are loaded.

    python benchmarks/packing.py --json benchmarks/results/packing.json

Groups of 8 answers with log-normal lengths cut at 20 times their mean. A row has `row` times the tokens of the longest
sample. All columns but the last two are the same on every machine:

fill      tokens with one prompt for each group, over the tokens of all rows
possible  the largest fill: rows are whole, and every rank has as many
copies    tokens of prompts that are in more than one row, over all tokens
balance   cost with one prompt for each group, over the cost of the slowest rank in each round, times the ranks
own       cost of the slowest ranks without shared prompts, over that with them
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from rich.console import Console
from rich.table import Table

from olmorl.learner.batching.packing import pack, prompt_blocks, row_cost
from olmorl.messages import Sample, Shard

GROUP, MEAN, CUT, PROMPT = 8, 700, 20, 100
"""Answers of a group, their mean length, the longest in means, and the mean prompt."""
GROUPS = 128
REPETITIONS = 5


class Cell(NamedTuple):
    """One workload."""

    sigma: float
    ranks: int
    row: int


CELLS = [Cell(*cell) for cell in product((0.9, 1.3), (1, 4, 16), (1, 2, 4))]


def make_groups(sigma: float) -> list[list[Sample]]:
    rng = np.random.default_rng(0)
    groups = []
    for draw in range(GROUPS):
        prompt_ids = np.zeros(rng.integers(PROMPT // 2, 3 * PROMPT // 2), np.int32)
        lengths = np.clip(rng.lognormal(np.log(MEAN) - sigma**2 / 2, sigma, GROUP), 1, CUT * MEAN).astype(int)
        groups.append([_sample(draw, prompt_ids, length) for length in lengths])
    return groups


def _sample(draw: int, prompt_ids: Any, length: int) -> Sample:
    return Sample(
        draw_id=draw,
        prompt_ids=prompt_ids,
        completion_ids=np.zeros(length, np.int32),
        behaviour_logprobs=np.zeros(length, np.float32),
        loss_mask=np.ones(length, np.bool_),
        lags=np.zeros(length, np.int32),
        advantage=1.0,
    )


def measured(cell: Cell) -> dict[str, Any]:
    """The columns of one row of the table."""
    groups, row_tokens = make_groups(cell.sigma), cell.row * (CUT * MEAN + 3 * PROMPT // 2)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    packed: dict[bool, tuple[Shard, ...]] = {}
    for _, shares in product(range(REPETITIONS), (False, True)):
        began = time.process_time()
        packed[shares] = pack(
            groups, step=1, num_ranks=cell.ranks, num_minibatches=1, row_tokens=row_tokens, share_prompts=shares
        )
        seconds[shares].append(time.process_time() - began)
    shards = packed[True]
    rows = [row for shard in shards for row in shard.minibatches[0]]
    least, tokens = sum(map(_tokens, groups)), sum(map(_tokens, rows))
    fewest = ceil(ceil(least / row_tokens) / cell.ranks) * cell.ranks
    slowest, cost = _slowest(shards, True), sum(row_cost(group, True) for group in groups)
    return {
        **cell._asdict(),
        "rows": len(rows),
        "fill": least / len(rows) / row_tokens,
        "possible": least / fewest / row_tokens,
        "copies": tokens / least - 1,
        "balance": cost / slowest / cell.ranks,
        "own": _slowest(packed[False], False) / slowest,
        "us_a_group": min(seconds[True]) / GROUPS * 1e6,
        "us_a_group_own": min(seconds[False]) / GROUPS * 1e6,
    }


def _tokens(row: Sequence[Sample]) -> int:
    return sum(
        len(block[0].prompt_ids) + sum(len(sample.completion_ids) for sample in block)
        for block in prompt_blocks(row, True)
    )


def _slowest(shards: Sequence[Shard], share_prompts: bool) -> float:
    """Cost of the slowest rank, summed over the rounds in which all ranks run a row each."""
    rounds = zip(*(shard.minibatches[0] for shard in shards), strict=True)
    return sum(max(row_cost(row, share_prompts) for row in rows) for rows in rounds)


def table(found: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title=f"{GROUPS} groups of {GROUP} answers", title_justify="left")
    for heading in (
        "sigma",
        "ranks",
        "row",
        "rows",
        "fill",
        "possible",
        "copies",
        "balance",
        "own",
        "µs a group",
        "own, µs",
    ):
        shown.add_column(heading, justify="right")
    for one in found:
        shown.add_row(
            f"{one['sigma']}",
            str(one["ranks"]),
            f"{one['row']}x",
            str(one["rows"]),
            *(f"{one[name]:.1%}" for name in ("fill", "possible", "copies", "balance")),
            f"{one['own']:.2f}",
            f"{one['us_a_group']:.0f}",
            f"{one['us_a_group_own']:.0f}",
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/packing.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one cell")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements there")
    arguments = parser.parse_args()
    found = [measured(cell) for cell in (CELLS[:1] if arguments.quick else CELLS)]
    Console().print(table(found))
    if arguments.json:
        measure.write(arguments.json, {"benchmark": "packing", "rows": found}, ("numpy",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
