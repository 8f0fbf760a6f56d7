"""Time and memory of the orchestrator's books by the age of a run, and the time to open it again.

    python benchmarks/run_age.py --json benchmarks/results/run_age.json

The draws pass through the service's `Draws`, ledger, journal and checkpoints. The queue is a dictionary of the live
draws, no rollouts are written, and every group is the same. A process of its own opens the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
import psutil

from olmorl import config
from olmorl.clock import SystemClock
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.learner.orchestrator import recovery
from olmorl.learner.orchestrator.batcher import Ending
from olmorl.learner.orchestrator.draw_source import DrawSource
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.recovery import Reconciled, Recovered
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.storage import checkpoint_dir, ledger
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.learner.waits import Waits
from olmorl.messages import Completion, Group, Prompt, Span, Version
from olmorl.ports import Counts, Row, Taken
from olmorl.run_dir import RunFiles

BATCH, FILTERED, AHEAD, CHECKPOINT_EVERY = 512, 128, 2048, 50
ROWS = 10_000
MIB = 2**20
V0 = Version(1, 0)
COMPLETION = Completion(
    index=0,
    token_ids=np.arange(8, dtype=np.int32),
    logprobs=np.full(8, -0.5, np.float32),
    spans=(Span(V0, 0, 8),),
    finish_reason="stop",
    text="4",
    reward=1.0,
)


class LiveDraws:
    """A queue that answers every prompt at once."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}

    async def push(self, prompts: Sequence[Prompt]) -> None:
        self._prompts |= {prompt.draw_id: prompt for prompt in prompts}

    async def trim(self, taken: Iterable[Taken]) -> None:
        for item in taken:
            del self._prompts[item.draw_id]

    async def epoch(self) -> str:
        return ""

    async def counts(self, lane: str) -> Counts:
        return Counts(queued=len(self._prompts), leased=0, results=0, late=0, duplicates=0)

    def answers(self, number: int) -> list[tuple[Taken, Group]]:
        """The oldest live draws, answered."""
        found = []
        for draw_id, prompt in list(self._prompts.items())[:number]:
            group = Group(prompt=prompt, completions=(COMPLETION,), actor="a0", started_at=0.0, finished_at=1.0)
            found.append((Taken(str(draw_id), draw_id, group), group))
        return found


class NoRollouts:
    """Writes nothing."""

    async def put(self, *_: Any) -> None: ...

    async def end_step(self, *_: Any) -> None: ...

    async def close(self) -> None: ...


def stream() -> PromptStream:
    """The rows of the run."""
    tokens = np.arange(4, dtype=np.int32)
    rows = [Row(f"train.jsonl:{i + 1}", f"{i}", tokens, ("math",), ("1",), {}, False) for i in range(ROWS)]
    return PromptStream([Source("train", None, rows)], seed=0)


def opened(files: RunFiles) -> tuple[recovery.StartPlan, ledger.Ledger, DrawSource]:
    """The books of a start, as `Orchestrator.open` reads them."""
    incarnation = ledger.acquire(files.ledger)
    plan = recovery.plan(files, incarnation, 1 << 30)
    recovery.carry_out(files, plan)
    source = DrawSource(stream(), 1, SystemClock())
    return plan, recovery.open_ledger(files, plan, source, SystemClock()), source


async def grow(files: RunFiles, marks: Sequence[int]) -> list[dict[str, float]]:
    """Make as many draws as the last mark; returns the memory at each mark."""
    plan, books, source = opened(files)
    run = {"directory": files.run_dir.parent, "name": files.run_dir.name, "mode": "simulated"}
    settings, clock = config.build({"run": run}), SystemClock()
    queue: Any = LiveDraws()
    rollouts: Any = NoRollouts()
    recovered = Recovered(plan, books, source, {}, "", Reconciled(set(), set(), set()))
    control = RunControl(queue, Waits(clock))
    draws = Draws(settings, queue, recovered, rollouts, DiskWriter(clock, 60.0), clock, control, num_ranks=1)
    metrics, found, step = MetricsLog(files.metrics), [], 0
    began = time.perf_counter()
    for mark in marks:
        while draws.state.num_drawn < mark:
            step += 1
            await draws._draw(AHEAD - len(draws.state.open), Version(1, step - 1))
            answers = queue.answers(BATCH + FILTERED)
            await draws._decide([Ending(taken, Outcome.ZERO_GRADIENT) for taken, _ in answers[BATCH:]])
            await draws._write_batch(step, answers[:BATCH])
            await draws.train(step, 8 * BATCH, 0)
            metrics.append({"step": step, "wall_s": float(step), **{f"metric_{i}": 0.123456 for i in range(100)}})
            if step % CHECKPOINT_EVERY == 0:
                checkpoint_dir.shares_of(files.checkpoints, step, plan.incarnation).mkdir(parents=True)
                await draws.complete(step)
                checkpoint_dir.retain(files.checkpoints, 3)
        rss = psutil.Process().memory_info().rss / MIB
        seconds = time.perf_counter() - began
        found.append({"draws": draws.state.num_drawn, "steps": step, "rss_mib": rss, "seconds": seconds})
        print(f"{found[-1]}", file=sys.stderr)
    await draws.close()
    return found


def open_again(files: RunFiles) -> dict[str, float]:
    """Open the run in this process; returns the time, the memory that it took, and counts."""
    data = stream()  # the data is read before the books
    data.row_at(0)
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    plan, books, _ = opened(files)
    recovery.cut_metrics(files, plan)
    next(MetricsLog(files.metrics).newest_first())
    seconds = time.perf_counter() - began
    taken = (psutil.Process().memory_info().rss - before) / MIB
    state = books.state
    ended = state.outcomes.total() + len(state.open) + state.journaled
    assert state.num_drawn == ended, f"{state.num_drawn} drawn, {ended} in some place"
    return {"step": plan.step, "replay_to": plan.replay_to, "draws": state.num_drawn, "open_s": seconds, "mib": taken}


def main() -> None:
    """Run the benchmark, or one process of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, nargs="+", default=[100_000, 320_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="keep the run here")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(open_again(RunFiles(arguments.open))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        files = RunFiles(arguments.folder or Path(temporary))
        ages = asyncio.run(grow(files, arguments.draws))
        answer = subprocess.run(
            [sys.executable, __file__, "--open", str(files.run_dir)], check=True, capture_output=True, text=True
        )
        content = {"ages": ages, "opening": json.loads(answer.stdout)}
        print(json.dumps(content, indent=1))
        if arguments.json:
            measure.write(arguments.json, content, ("msgspec", "xxhash"))


if __name__ == "__main__":
    main()
