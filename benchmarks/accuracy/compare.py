"""Scores the rows of a suite with our verifiers and with the checkers of other projects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from accuracy import peers
from accuracy.packages import Scratch
from accuracy.suites import Row
from olmorl.errors import ResourceError
from olmorl.messages import Verdict
from olmorl.verifiers.scorer import VerifierScorer

OURS = "ours"
PATIENCE_S = 20.0
"""Deadline of one row of another checker. After it the row counts as not paid, and the checker is restarted."""
START_S = 120.0
"""Deadline of its imports."""
AT_A_TIME = 64


class Peer(NamedTuple):
    """The requirements of a checker: packages in its environment, and the sources from which it is loaded."""

    requirements: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


PEERS = {
    "math-verify": Peer(("math-verify[antlr4_13_2]",)),
    "verl math": Peer((), ("verl",)),
    "verl dapo": Peer((), ("verl",)),
    "verl prime": Peer(("sympy", "pylatexenc", "antlr4-python3-runtime==4.11.1", "numpy"), ("verl",)),
    "lm-eval": Peer(("math-verify", "antlr4-python3-runtime==4.11.1", "datasets"), ("lm-eval",)),
    "inspect-ai": Peer(("inspect-ai", "latex2sympy2-extended==1.11.0", "antlr4-python3-runtime==4.13.2"), ()),
}
OPEN_INSTRUCT = Peer(("sympy", "antlr4-python3-runtime==4.11.1"))


@dataclass(frozen=True)
class Result:
    """The verdicts of one checker on one suite."""

    paid: Sequence[bool | None]
    """The verdict by row; None: no verdict."""
    seconds: float

    def counts(self, rows: Sequence[Row]) -> dict[str, float]:
        """Counts over all rows: right, paid though wrong, right and not paid; and rows per second."""
        pairs = list(zip(rows, self.paid, strict=True))
        wrong = sum(bool(paid) and not row.right for row, paid in pairs)
        missed = sum(row.right and not paid for row, paid in pairs)
        return {
            "rows": len(rows), "right": len(rows) - wrong - missed, "paid_though_wrong": wrong,
            "right_not_paid": missed, "rows_per_s": len(rows) / self.seconds,
        }  # fmt: skip


async def ours(scorer: VerifierScorer, rows: Sequence[Row]) -> tuple[Result, list[Verdict]]:
    """Our verdicts, a few rows at a time, as in an actor."""
    import verifiers as benchmark  # noqa: TID251  benchmarks/verifiers.py, not the package

    room = asyncio.Semaphore(AT_A_TIME)

    async def one(row: Row) -> Verdict:
        async with room:
            given = benchmark.prompt(row.verifier, row.label), benchmark.completion(row.completion)
            (verdict,) = (await scorer.verify(*given)).values()
            return verdict

    started = time.perf_counter()
    verdicts = await asyncio.gather(*map(one, rows))
    elapsed = time.perf_counter() - started
    return Result([v.reward >= 1 if v.reward is not None else None for v in verdicts], elapsed), list(verdicts)


def theirs(name: str, scratch: Scratch, rows: Sequence[Row], checkout: Path | None) -> Result:
    """The verdicts of another checker, row by row. Raises ResourceError if the checker does not start."""
    peer = PEERS.get(name, OPEN_INSTRUCT)
    python = scratch.environment(*peer.requirements)
    folders = [str(scratch.source(source)) for source in peer.sources]
    command = [str(python), peers.__file__, name, *folders, *([str(checkout)] if checkout else [])]
    paid: list[bool | None] = []
    seconds = 0.0
    while len(paid) < len(rows):
        verdicts, spent = _through(command, rows[len(paid) :])
        paid += verdicts
        seconds += spent
        if len(paid) < len(rows):  # it hangs or died in the next one
            paid.append(None)
            seconds += PATIENCE_S
    return Result(paid, seconds)


def _through(command: list[str], rows: Sequence[Row]) -> tuple[list[bool | None], float]:
    """The verdicts of one process until it ends, hangs or dies."""
    return asyncio.run(_ask(command, rows))


async def _ask(command: list[str], rows: Sequence[Row]) -> tuple[list[bool | None], float]:
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 24)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    talk = asyncio.create_task(process.stderr.read())
    paid: list[bool | None] = []
    seconds = 0.0
    try:
        if await asyncio.wait_for(process.stdout.readline(), START_S) != b"ready\n":
            said = (await talk).decode(errors="replace").strip().splitlines()
            raise ResourceError(f"the checker does not start: {said[-1] if said else 'it wrote no error'}")
        for row in rows:
            process.stdin.write(json.dumps([str(row.label), row.completion]).encode() + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
            if not line:
                break
            verdict, spent = json.loads(line)
            paid.append(verdict)
            seconds += spent
    except (TimeoutError, ConnectionError):
        pass
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 1.0)
        if process.returncode is None:
            process.kill()
        await process.wait()
        talk.cancel()
    return paid, seconds
