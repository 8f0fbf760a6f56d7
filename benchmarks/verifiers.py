"""Measures checks per second: math on one core and with two workers, instructions, and tests of sandboxed programs.

All rows use the scorer of the actors. math-verify checks the same answers too, in this process and without a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import measure
import numpy as np

from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt, Span, Version
from olmorl.verifiers.scorer import VerifierScorer

FAST, MIXED, BARE = "math, numbers, one core", "math, mixed", "math-verify, mixed"
INSTRUCTIONS, CODE = "instructions", "tests of programs"
WORKERS = 2
NUMBERS = [
    ("42", r"so \boxed{42}"), ("1234", r"\boxed{1,234}"), ("0.5", r"\boxed{\frac{1}{2}}"), ("72", "#### 72"),
    ("18", r"The answer is \(18\) dollars."), ("east", r"\boxed{\text{East}}"), ("C", r"\boxed{\textbf{(C)}}"),
    ("50%", r"\boxed{50}"), ("3.14", "I get 3.15"), ("6.02e23", r"\boxed{6.02\times 10^{23}}"), ("7", r"\boxed{8}"),
    ("12 cm", r"\boxed{12\text{ cm}}"),
]  # fmt: skip
ALGEBRA = [
    ("x^2-1", r"\boxed{(x-1)(x+1)}"), (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"), (r"\{1,2,3\}", r"\boxed{3, 1, 2}"),
    (r"[3,\infty)", r"\boxed{x \ge 3}"), (r"\frac{\pi}{4}", r"\boxed{\arctan 1}"), ("(1,2)", r"\boxed{(2,1)}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}"),
    (r"1\pm\sqrt{5}", r"\boxed{1+\sqrt5,\ 1-\sqrt5}"), ("y=2x+1", r"\boxed{2x-y+1=0}"), (r"\sin 2x", r"\boxed{\sin x}"),
    (r"\frac{1}{2}+\frac{\sqrt3}{2}i", r"\boxed{e^{i\pi/3}}"), ("2^{10}", r"\boxed{2^{11}}"),
]  # fmt: skip
CONSTRAINTS = json.dumps(
    {
        "instruction_id": ["length_constraints:number_words", "punctuation:no_comma", "keywords:existence"],
        "kwargs": [{"num_words": 40, "relation": "at least"}, None, {"keywords": ["river", "stone"]}],
    }
)
ESSAY = "The river runs past the stone and on to the sea where nobody waits for it. " * 12
PROGRAM = "```python\ndef largest(numbers):\n    return max(numbers) if numbers else None\n```"
TESTS = [f"assert largest([{n}, {n + 1}, 0]) == {n + 1}" for n in range(7)] + ["assert largest([]) is None"]

Row = tuple[str, Any, str]
"""Verifier, label, completion."""


def prompt(dataset: str, label: Any) -> Prompt:
    return Prompt(
        draw_id=0,
        row="benchmark:1",
        messages="Please.",
        token_ids=np.zeros(1, np.int32),
        datasets=(dataset,),
        ground_truths=(label,),
        group_size=1,
        min_version=Version(0, 0),
    )


def completion(text: str) -> Completion:
    return Completion(
        index=0,
        token_ids=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        spans=(Span(Version(0, 0), 0, 1),),
        finish_reason="stop",
        text=text,
    )


async def checks_per_s(scorer: VerifierScorer, rows: Sequence[Row]) -> float:
    """All rows at once, as the completions of many groups."""
    given = [(prompt(dataset, label), completion(text)) for dataset, label, text in rows]
    gc.collect()  # else one collection of all of SymPy's objects falls into a measurement by chance
    started = time.perf_counter()
    verdicts = await asyncio.gather(*(scorer.verify(*pair) for pair in given))
    elapsed = time.perf_counter() - started
    failed = [verdict for found in verdicts for verdict in found.values() if verdict.reward is None]
    assert not failed, failed[0]
    return len(rows) / elapsed


def bare_checks_per_s(rows: Sequence[Row]) -> float:
    """math-verify alone."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    started = time.perf_counter()
    for _, label, text in rows:
        with contextlib.suppress(Exception):
            verify(
                parse(rf"\boxed{{{label}}}", parsing_timeout=None),
                parse(text, parsing_timeout=None),
                timeout_seconds=None,
            )
    return len(rows) / (time.perf_counter() - started)


def repeated(pairs: Sequence[tuple[str, str]], number: int) -> list[Row]:
    return [("math", *pairs[index % len(pairs)]) for index in range(number)]


@contextmanager
def one_core() -> Iterator[None]:
    """Run everything on the first core of this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    scale = 1 if quick else 4
    fast, mixed = repeated(NUMBERS, 2000 * scale), repeated([*NUMBERS, *ALGEBRA], 500 * scale)
    essays, programs = [("ifeval", CONSTRAINTS, ESSAY)] * (250 * scale), [("code", TESTS, PROGRAM)] * (5 * scale)
    scorer = VerifierScorer(Verifiers(workers=WORKERS, timeout_s=60))
    loop = asyncio.new_event_loop()

    def rate(measured: Awaitable[float]) -> float:
        return loop.run_until_complete(measured)

    def repeat() -> measure.Values:
        with one_core():
            numbers = rate(checks_per_s(scorer, fast))
        return {
            FAST: numbers,
            MIXED: rate(checks_per_s(scorer, mixed)),
            BARE: bare_checks_per_s(mixed[: 48 * scale]),
            INSTRUCTIONS: rate(checks_per_s(scorer, essays)),
            CODE: rate(checks_per_s(scorer, programs)) * len(TESTS),
        }

    loop.run_until_complete(scorer.start())
    try:
        yield repeat
    finally:
        loop.run_until_complete(scorer.stop())
        loop.close()


BENCHMARK = measure.Benchmark(
    name="verifiers",
    title=f"Verifiers: checks a second, {WORKERS} workers",
    units=dict.fromkeys((FAST, MIXED, BARE, INSTRUCTIONS), "checks/s") | {CODE: "tests/s"},
    ratio=(MIXED, BARE),
    target=5.0,
    prepare=prepare,
    packages=("python-flint", "math-verify", "msgspec"),
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
