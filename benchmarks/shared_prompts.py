"""Shared prompts: a learner step in which the answers of a group share their prompt, against a prompt for each answer.

    python benchmarks/shared_prompts.py --json benchmarks/results/shared_prompts.json

The same trainer takes the same answers both ways, in turn, with one thread. CPU seconds count, so that other load on
the machine matters less. The bound is what tokens alone would give: G (P + R) / (P + G R) for G answers of R tokens to
a prompt of P.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import learner_efficiency
import measure
import numpy as np
import torch
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import pack
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Sample, Shard

GROUP = 8
PACKAGES = ("torch", "deepspeed", "transformers")


class Workload(NamedTuple):
    """Groups of `GROUP` answers. An answer has between half and one and a half times `answer` tokens."""

    name: str
    prompt: int
    answer: int
    groups: int


WORKLOADS = (Workload("the demo's shape", 35, 100, 12), Workload("long prompts", 512, 128, 4))


def make_groups(workload: Workload) -> list[list[Sample]]:
    rng = np.random.default_rng(0)
    groups = []
    for draw in range(workload.groups):
        prompt_ids = rng.integers(0, learner_efficiency.VOCABULARY, workload.prompt).astype(np.int32)
        lengths = rng.integers(workload.answer // 2, 3 * workload.answer // 2 + 1, GROUP)
        groups.append([_sample(rng, draw, prompt_ids, int(length)) for length in lengths])
    return groups


def _sample(rng: np.random.Generator, draw: int, prompt_ids: Any, length: int) -> Sample:
    return Sample(
        draw_id=draw,
        prompt_ids=prompt_ids,
        completion_ids=rng.integers(0, learner_efficiency.VOCABULARY, length).astype(np.int32),
        behaviour_logprobs=rng.normal(-5.7, 0.1, length).astype(np.float32),
        loss_mask=np.ones(length, np.bool_),
        lags=np.zeros(length, np.int32),
        advantage=float(rng.normal()),
    )


def shards(workload: Workload) -> dict[str, Shard]:
    """The same answers with shared prompts, and each as a draw of its own."""
    groups = make_groups(workload)
    single = [
        [replace(one, draw_id=GROUP * one.draw_id + index)] for group in groups for index, one in enumerate(group)
    ]
    return {name: _packed(found) for name, found in (("shared", groups), ("own", single))}


def _packed(groups: Sequence[Sequence[Sample]]) -> Shard:
    rows = learner_efficiency.ROW_TOKENS
    return pack(groups, step=1, num_ranks=1, num_minibatches=1, row_tokens=rows, share_prompts=True)[0]


def bound(workload: Workload) -> float:
    """Tokens with a prompt for each answer, over tokens with one for each group."""
    groups = make_groups(workload)
    answers = sum(len(sample.completion_ids) for group in groups for sample in group)
    return (GROUP * len(groups) * workload.prompt + answers) / (len(groups) * workload.prompt + answers)


def measured(repetitions: int, quick: bool) -> list[dict[str, Any]]:
    """CPU seconds of a step by workload: of both ways in each repetition."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = learner_efficiency.make_model(Path(folder), quick)
        trainer = DeepSpeedTrainer(
            model,
            learner_efficiency.LEARNER,
            resolve(config.Objective(), max_tokens=640),
            temperature=1.0,
            steps=1000,
            seed=0,
            ranks=Ranks(0, 1, learner_efficiency.free_address()),
        )
    try:
        return [_compared(trainer, workload, repetitions) for workload in WORKLOADS]
    finally:
        trainer.close()


def _compared(trainer: DeepSpeedTrainer, workload: Workload, repetitions: int) -> dict[str, Any]:
    given = shards(workload)
    order = list(given)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(repetitions + 1):
        order.reverse()
        for name in order:
            began = time.process_time()
            asyncio.run(trainer.train(given[name]))
            if number:
                seconds[name].append(time.process_time() - began)
    gains = [own / shared for own, shared in zip(seconds["own"], seconds["shared"], strict=True)]
    return {"workload": workload._asdict(), "seconds": seconds, "gains": gains, "bound": bound(workload)}


def table(found: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="CPU seconds of a step with own and with shared prompts", title_justify="left")
    for heading in ("", "prompt", "answers", "own, s", "shared, s", "gain", "lowest", "highest", "bound"):
        shown.add_column(heading, justify="right" if heading else "left")
    for one in found:
        workload, seconds, gains = Workload(**one["workload"]), one["seconds"], one["gains"]
        shown.add_row(
            workload.name,
            str(workload.prompt),
            f"{GROUP} x {workload.answer}",
            *(f"{median(seconds[name]):.2f}" for name in ("own", "shared")),
            *(f"{value:.2f}" for value in (median(gains), min(gains), max(gains), one["bound"])),
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/shared_prompts.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements there")
    arguments = parser.parse_args()
    found = measured(3 if arguments.quick else 7, arguments.quick)
    Console().print(table(found))
    if arguments.json:
        measure.write(arguments.json, {"benchmark": "shared_prompts", "rows": found}, PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
