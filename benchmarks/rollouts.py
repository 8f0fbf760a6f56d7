"""Measures the CPU time to record a step of 128 groups of 8 x 14,000 tokens in `rollouts/`.

    python benchmarks/rollouts.py --json benchmarks/results/rollouts.json

The reference encodes the same records in the orchestrator's own process, with a Python number for each token. Other
load on the machine changes CPU seconds little.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import msgspec
import numpy as np
import psutil
import zstandard

from olmorl.clock import SystemClock
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import Completion, Group, Prompt, Span, Version

GROUPS, ANSWERS, TOKENS = 128, 8, 14_000
WORDS = 5000


def make_groups(number: int) -> list[Group]:
    """Tokens and words of Zipf distributions, log-probabilities as of a trained policy."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(2, 9, WORDS)]
    return [_group(draw_id, rng, words) for draw_id in range(number)]


def _group(draw_id: int, rng: np.random.Generator, words: Sequence[str]) -> Group:
    completions = tuple(
        Completion(
            index=index,
            token_ids=np.minimum(rng.zipf(1.15, TOKENS), 100_000).astype(np.int32),
            logprobs=-rng.exponential(0.3, TOKENS).astype(np.float32),
            spans=(Span(Version(1, 0), 0, TOKENS),),
            finish_reason="stop",
            text=" ".join(words[number % WORDS] for number in rng.zipf(1.3, TOKENS * 3 // 4)),
            reward=1.0,
        )
        for index in range(ANSWERS)
    )
    prompt = Prompt(
        draw_id=draw_id,
        row=f"problems.jsonl:{draw_id}",
        messages=[{"role": "user", "content": "What is 17 + 25?"}],
        token_ids=np.arange(500, dtype=np.int32),
        datasets=("math",),
        ground_truths=("42",),
        group_size=ANSWERS,
        min_version=Version(1, 0),
    )
    return Group(prompt=prompt, completions=completions, actor="actor-0", started_at=0.0, finished_at=1.0)


def in_lists(groups: Sequence[Group], folder: Path) -> float:
    """CPU seconds of encoding, compressing and writing with Python's numbers."""
    began_at = time.process_time()
    lines = [msgspec.json.encode(_as_lists(group)) + b"\n" for group in groups]
    (folder / "lists.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines)))
    return time.process_time() - began_at


def _as_lists(group: Group) -> Mapping[str, Any]:
    return {
        "prompt": group.prompt.messages,
        "prompt_token_ids": group.prompt.token_ids.tolist(),
        "completions": [
            {
                "token_ids": completion.token_ids.tolist(),
                "logprobs": [round(value, 6) for value in completion.logprobs.tolist()],
                "text": completion.text,
            }
            for completion in group.completions
        ],
    }


async def in_the_log(groups: Sequence[Group], folder: Path) -> tuple[float, float, float]:
    """CPU seconds of this process and of the writer, and seconds until the records are in the file."""
    log = RolloutLog(folder, 1, 1, DiskWriter(SystemClock(), 60.0))
    try:
        await log.end_step(1, groups[:1])
        await log.flush()  # the process has started
        [writer] = psutil.Process().children()
        before, began_at, cpu_at = _cpu(writer), time.monotonic(), time.process_time()
        await log.end_step(2, groups)
        await log.flush()
        return time.process_time() - cpu_at, _cpu(writer) - before, time.monotonic() - began_at
    finally:
        await log.close()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    groups = make_groups(GROUPS // 8 if quick else GROUPS)
    tokens = sum(group.num_tokens for group in groups) / 1e6

    def repeat() -> measure.Values:
        with tempfile.TemporaryDirectory() as folder:
            lists = in_lists(groups, Path(folder))
            own, writer, seconds = asyncio.run(in_the_log(groups, Path(folder)))
            written = sum(path.stat().st_size for path in Path(folder).glob("step_000002.*"))
        return {
            "lists in the orchestrator": tokens / lists,
            "orchestrator": tokens / own,
            "writer": tokens / writer,
            "until written": tokens / seconds,
            "tokens in a byte of disk": tokens * 1e6 / written,
        }

    yield repeat


BENCHMARK = measure.Benchmark(
    name="rollouts",
    title=f"Recording a step in rollouts/: {GROUPS} groups of {ANSWERS} x {TOKENS:,} tokens, {os.cpu_count()} cores",
    units={
        "lists in the orchestrator": "million tokens/CPU s",
        "orchestrator": "million tokens/CPU s",
        "writer": "million tokens/CPU s",
        "until written": "million tokens/s",
        "tokens in a byte of disk": "tokens/byte",
    },
    ratio=("orchestrator", "lists in the orchestrator"),
    target=20.0,
    prepare=prepare,
    packages=("orjson", "zstandard", "msgspec", "numpy"),
    repetitions=3,
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
