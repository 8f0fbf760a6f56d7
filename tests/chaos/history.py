"""What the history of a run must keep, whatever happened to the run: the list of what it did not keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from olmorl.deploy.rundir import metric_lines
from olmorl.learner import rollouts
from olmorl.learner.ledger import read_ledger

ENDS = ("trained", "zero_gradient", "stale", "failed")


def violations(run_dir: Path, prompts_per_step: int, max_lag: int) -> list[str]:
    """Everything that is wrong, in words; empty when nothing is."""
    lines = list(metric_lines(run_dir))
    return [
        *_of_lines(lines, prompts_per_step, max_lag),
        *_of_ledger(read_ledger(run_dir), len(lines), prompts_per_step),
        *_of_rollouts(run_dir, max_lag),
    ]


def _of_lines(lines: list[dict[str, Any]], prompts_per_step: int, max_lag: int) -> Iterator[str]:
    """Conservation, staleness and full batches in every line, and no step twice or left out."""
    if [line["step"] for line in lines] != list(range(1, len(lines) + 1)):
        yield f"metrics.jsonl has the steps {[line['step'] for line in lines]}"
    for line in lines:
        step = f"step {line['step']}"
        ended = sum(line[f"groups_{kind}_total"] for kind in ENDS)
        if line["prompts_drawn_total"] != ended + line["groups_in_flight"]:
            drawn, in_flight = line["prompts_drawn_total"], line["groups_in_flight"]
            yield f"{step}: {drawn} draws, and {ended} ended with {in_flight} in flight"
        if line["batch_groups"] != prompts_per_step:
            yield f"{step}: a batch of {line['batch_groups']} groups"
        if not 0 <= line["lag_mean"] <= line["lag_max"] <= max_lag:
            yield f"{step}: lag {line['lag_mean']} (max {line['lag_max']})"


def _of_ledger(records: list[dict[str, Any]], steps: int, prompts_per_step: int) -> Iterator[str]:
    """One record a draw, none missing, and every step trained its own groups once."""
    numbers = [record["prompt_id"] for record in records]
    if missing := sorted(set(range(len(numbers))) - set(numbers)):
        yield f"draws without a record: {missing}"
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        yield f"draws with more than one record: {twice}"
    trained = Counter(record["step"] for record in records if record["outcome"] == "trained")
    wrong = {step: number for step, number in trained.items() if number != prompts_per_step}
    if wrong or len(trained) != steps:
        yield f"{len(trained)} of {steps} steps have groups in the ledger; with another number than others: {wrong}"


def _of_rollouts(run_dir: Path, max_lag: int) -> Iterator[str]:
    """No draw trained twice, no token older than the lag allows or newer than its step."""
    trained: Counter[int] = Counter()
    for path in rollouts.files(run_dir / "rollouts"):
        for record in rollouts.read(path):
            if record["outcome"] != "trained":
                continue
            trained[record["prompt_id"]] += 1
            versions = [version for answer in record["completions"] for version, _, _ in answer["versions"]]
            lags = {record["step"] - 1 - version for version in versions}
            if not lags <= set(range(max_lag + 1)):
                yield f"draw {record['prompt_id']} was trained in step {record['step']} with tokens of lag {lags}"
    if twice := [draw for draw, times in trained.items() if times > 1]:
        yield f"draws that were trained more than once: {twice}"
