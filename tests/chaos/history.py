"""Checks the history of a run after faults, and lists the violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from olmorl.deploy.view.run_state import metric_lines
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger import read_ledger

ENDS = ("trained", "zero_gradient", "stale", "failed")


def violations(run_dir: Path, prompts_per_step: int, max_lag: int) -> list[str]:
    """Everything that is wrong, in words; empty when nothing is."""
    lines, records = list(metric_lines(run_dir)), list(read_ledger(run_dir))
    return [
        *_of_lines(lines, prompts_per_step, max_lag),
        *_of_ledger(records, lines, prompts_per_step),
        # A batch that was ready when the run stopped is there already; a later start trains it.
        *_of_rollouts([group for group in _trained(run_dir) if group["step"] <= len(lines)], records, max_lag),
    ]


def journaled_otherwise(run_dir: Path, journaled: Sequence[tuple[int, list[int]]]) -> Iterator[str]:
    """Steps that trained on other draws than the journal held for them while no process ran."""
    trained: dict[int, list[int]] = {}
    for group in _trained(run_dir):
        trained.setdefault(group["step"], []).append(group["prompt_id"])
    for step, draws in journaled:
        if trained.get(step) != draws:
            yield f"step {step} trained on {trained.get(step)}, and {draws} were in its journal"


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


def _of_ledger(records: list[dict[str, Any]], lines: list[dict[str, Any]], prompts_per_step: int) -> Iterator[str]:
    """A record for each draw, and every step trained its own groups once."""
    numbers, drawn = {record["prompt_id"] for record in records}, lines[-1]["prompts_drawn_total"] if lines else 0
    if missing := sorted(set(range(max(drawn, len(numbers)))) - numbers):
        yield f"draws without a record: {missing}"
    trained = Counter(record["step"] for record in records if record["outcome"] == "trained")
    wrong = {step: number for step, number in trained.items() if number != prompts_per_step}
    if wrong or len(trained) != len(lines):
        number = f"{len(trained)} of {len(lines)}"
        yield f"{number} steps have groups in the ledger; with another number than others: {wrong}"


def _of_rollouts(groups: list[dict[str, Any]], records: list[dict[str, Any]], max_lag: int) -> Iterator[str]:
    """Each draw is trained once, as in the ledger, with no token older than the lag allows or newer than its step."""
    for group in groups:
        versions = [version for answer in group["completions"] for version, _, _ in answer["versions"]]
        lags = {group["step"] - 1 - version for version in versions}
        if not lags <= set(range(max_lag + 1)):
            yield f"draw {group['prompt_id']} was trained in step {group['step']} with tokens of lag {lags}"
    trained = Counter((group["step"], group["prompt_id"]) for group in groups)
    booked = Counter((record["step"], record["prompt_id"]) for record in records if record["outcome"] == "trained")
    if differ := sorted(set((trained - booked) + (booked - trained))):
        yield f"ledger and rollouts differ in these steps and draws: {differ}"


def _trained(run_dir: Path) -> list[dict[str, Any]]:
    """Every group that was trained, in the order of the rollouts."""
    records = (record for path in rollout_log.files(run_dir / "rollouts") for record in rollout_log.read(path))
    return [record for record in records if record["outcome"] == "trained"]
