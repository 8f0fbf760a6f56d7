"""The pass rate of each prompt: one row per prompt, to leave out prompts that are too easy or too hard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO

from olmorl.deploy.verify.row_scoring import BAD_ROW, IDENTITY, Scored
from olmorl.deploy.verify.writer import Line, encoded


@dataclass(slots=True)
class _Count:
    """The counts of one prompt."""

    scored: int = 0
    solved: int = 0
    reward: float = 0.0
    errors: int = 0


class PassRates:
    """Counts the completions of each prompt, in any order of rows. The prompts themselves wait on disk."""

    def __init__(self, prompts: BinaryIO) -> None:
        """`prompts` is an empty file to keep them in."""
        self._counts: dict[bytes, _Count] = {}
        self._contents: set[bytes] = set()
        self._prompts = prompts
        self._rows = self._kept = 0

    def add(self, row: Scored) -> None:
        """Count the completions of a row. An unusable row has no prompt."""
        if any(line["error_kind"] == BAD_ROW for line in row.lines):
            return
        self._rows += 1
        prompt = {key: value for key, value in row.item.values.items() if key != "finish_reason"}
        content = _digest({key: prompt[key] for key in _CONTENT if key in prompt} or prompt)
        digest = content + _digest({key: prompt[key] for key in IDENTITY if key in prompt})
        self._contents.add(content)
        count = self._counts.get(digest)
        if count is None:
            count = self._counts[digest] = _Count()
            self._prompts.write(encoded(prompt))
        for line in row.lines:
            if line["reward"] is None:
                count.errors += 1
            else:
                count.scored += 1
                count.solved += line["solved"]
                count.reward += line["reward"]

    def rows(self, lowest: float | None, highest: float | None) -> Iterator[Line]:
        """Each prompt, in the order of the input, if its pass rate is within the bounds or unknown."""
        least, most = 0.0 if lowest is None else lowest, 1.0 if highest is None else highest
        self._prompts.seek(0)
        for line, count in zip(self._prompts, self._counts.values(), strict=True):
            rate = count.solved / count.scored if count.scored else None
            if rate is None or least <= rate <= most:
                self._kept += 1
                mean = count.reward / count.scored if count.scored else None
                yield json.loads(line) | {
                    "num_samples": count.scored, "num_errors": count.errors, "pass_rate": rate, "reward_mean": mean,
                }  # fmt: skip

    def summary(self) -> list[str]:
        """A line for people: how many prompts were kept, and how many were left out."""
        prompts, contents = len(self._counts), len(self._contents)
        lines = [f"{self._rows:,} rows are of {prompts:,} prompts; {self._kept:,} of these are written"]
        if contents < prompts:
            lines.append(
                f"{prompts - contents:,} of these prompts differ from another in their id alone (a column "
                f"{', '.join(IDENTITY)}); rows without one are counted together"
            )
        return lines


_CONTENT = ("messages", "prompt", "dataset", "ground_truth", "data_source", "reward_model")
"""The columns that rows of one prompt share: the conversation, the verifiers and the labels."""


def _digest(values: dict[str, Any]) -> bytes:
    content = json.dumps(values, sort_keys=True, default=str).encode("utf-8", "backslashreplace")
    return blake2b(content, digest_size=16).digest()
