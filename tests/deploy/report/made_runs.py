"""Run directories without a run: made from the same messages and written by the same code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from olmorl.clock import SystemClock
from olmorl.learner.storage import ledger
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.ledger import Ledger
from olmorl.learner.storage.ledger_state import Decided, Drawn, Outcome, Started, Trained, journaled
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.messages import Completion, Episode, Failure, Group, Prompt, Result, Span, Turn, Verdict, Version

BEGAN = 1_700_000_000.0
STEP_S = 10.0
WORDS = [f"w{i} " for i in range(90)] + ["yes ", "no ", "42 ", "\n", "é ", "the ", "sum ", "is ", "so ", "then "]
"""The vocabulary: token i is word i."""

Text = Callable[[int, int], str | None]


def tokenizer_json() -> str:
    """A tokenizer file whose token i is `WORDS[i]`."""
    vocabulary = {word.replace(" ", "▁"): i for i, word in enumerate(WORDS)}
    end = {"id": len(WORDS), "content": "<|end|>", "special": True}
    return json.dumps(
        {"model": {"type": "BPE", "vocab": vocabulary}, "decoder": {"type": "Metaspace"}, "added_tokens": [end]}
    )


class MadeRun:
    """A run of `steps` steps. Of each step `trained` groups are trained and `filtered` have no gradient."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int = 3,
        trained: int = 3,
        filtered: int = 1,
        group_size: int = 4,
        tokens: int = 12,
        failures: bool = True,
        sources: Sequence[str] = ("math.jsonl", "code.jsonl"),
        prompt: Callable[[int], Any] = lambda draw: [{"role": "user", "content": f"What is {draw} + 1?"}],
        hostile: str = "",
        tokenizer: bool = True,
        parents: Sequence[int] = (),
    ) -> None:
        """`hostile` is put into every text that people or models can write.

        Episodes have as many turns of equal lengths as `parents`, each with this parent: after the first one -1 is a
        history that the agent has rewritten.
        """
        self.folder = folder
        self._steps, self._trained, self._filtered = steps, trained, filtered
        self._group_size, self._tokens, self._failures = group_size, tokens, failures
        self._sources, self._prompt, self._hostile = [hostile + name for name in sources], prompt, hostile
        self._parents = parents
        self._random = np.random.default_rng(0)
        self._draw = 0
        self._now = BEGAN
        folder.mkdir(parents=True)
        self._write_settings(tokenizer)
        self._ledger = self._open_ledger()
        (folder / "rollouts").mkdir()
        # A thread of its own, because the driver of the browser runs an event loop in the main thread.
        with ThreadPoolExecutor(1) as thread:
            lines = thread.submit(asyncio.run, self._take_steps()).result()
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._ledger.close()
        self._write_processes()

    def _write_settings(self, tokenizer: bool) -> None:
        model = self.folder / "model"
        model.mkdir()
        if tokenizer:
            (model / "tokenizer.json").write_text(tokenizer_json())
        settings = {
            "run": {"mode": "real", "seed": 0},
            "model": {"path": str(model)},
            "schedule": {"steps": self._steps, "max_lag": 2, "over_age": "mask", "prompts_per_step": self._trained},
            "sampling": {"group_size": self._group_size},
            "objective": {"preset": "olmorl", "mask_truncated": False},
        }
        lines = []
        for section, keys in settings.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        (self.folder / "config.toml").write_text("\n".join(lines) + "\n")

    def _open_ledger(self) -> Ledger:
        folder = self.folder / "ledger"
        started = Started(incarnation=ledger.acquire(folder), step=0, replay_to=0, stream={})
        return Ledger(folder, started, ledger.fold(iter(())), lambda: self._now)

    async def _take_steps(self) -> list[dict[str, Any]]:
        rollouts = RolloutLog(self.folder / "rollouts", 1, 1, DiskWriter(SystemClock(), 60.0))
        lines = [await self._step(step, rollouts) for step in range(1, self._steps + 1)]
        await rollouts.close()
        return lines

    async def _step(self, step: int, rollouts: RolloutLog) -> dict[str, Any]:
        filtered = [self._group(step, rewarded=False) for _ in range(self._filtered)]
        failed = [self._failure(step)] if self._failures and step % 2 else []
        trained = [self._group(step, rewarded=True) for _ in range(self._trained)]
        made = [*filtered, *failed, *trained]
        self._ledger.append(*(_drawn(result.prompt, step - 1) for result in made))
        self._now = BEGAN + STEP_S * (step - 0.4)
        endings: list[tuple[Result, Outcome, str]] = [(group, Outcome.ZERO_GRADIENT, "") for group in filtered]
        endings += [(failure, Outcome.FAILED, failure.cause) for failure in failed]
        self._ledger.append(
            *(Decided(draw=r.prompt.draw_id, attempt=1, outcome=outcome, cause=cause) for r, outcome, cause in endings)
        )
        for result, outcome, cause in endings:
            await rollouts.put(result, outcome, cause)
        self._ledger.append(journaled(step, trained))
        self._now = BEGAN + STEP_S * step
        self._ledger.append(Trained(step=step, tokens=sum(group.num_tokens for group in trained)))
        await rollouts.end_step(step, trained)
        return self._line(step, [*filtered, *trained])

    def _line(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        rewards = [reward for group in groups for reward in group.rewards]
        line = {
            "step": step,
            "incarnation": 1,
            "version": step,
            "wall_s": STEP_S * step,
            "reward_mean": float(np.mean(rewards)),
            "loss": 0.1 / step,
            "entropy_mean": 1.0 / step,
            "lag_mean": 1.0,
            "lag_max": 2,
            "learner_step_s": 4.0,
            "learner_wait_s": 2.0,
            "prompts_drawn_total": self._draw,
            "groups_trained_total": step * self._trained,
            "groups_zero_gradient_total": step * self._filtered,
            "groups_stale_total": 0,
            "groups_failed_total": self._draw - step * (self._trained + self._filtered),
            "groups_in_flight": 0,
            "tokens_generated_total": step * (self._trained + self._filtered) * self._group_size * self._tokens,
            "tokens_trained_total": step * self._trained * self._group_size * self._tokens,
            "tokens_wasted_total": 0,
            "a_field_of_tomorrow": step * 2.0,
        }
        if step % 2 == 1:
            line |= {"eval_held_accuracy": 0.1 * step, "eval_held_version": step - 1}
            line |= {"eval_held_version_oldest": step - 1, "eval_held_version_newest": step}
        return line

    def _prompt_of(self, step: int) -> Prompt:
        draw, self._draw = self._draw, self._draw + 1
        return Prompt(
            draw_id=draw,
            row=f"{self._sources[draw % len(self._sources)]}:{draw + 1}",
            messages=self._prompt(draw),
            token_ids=np.arange(4, dtype=np.int32),
            datasets=("math",),
            ground_truths=(f"{self._hostile}{draw + 1}",),
            group_size=self._group_size,
            min_version=Version(1, max(0, step - 2)),
        )

    def _failure(self, step: int) -> Failure:
        return Failure(prompt=self._prompt_of(step), cause="unscorable", detail=f"{self._hostile}no judge answered")

    def _group(self, step: int, rewarded: bool) -> Group:
        prompt = self._prompt_of(step)
        began = BEGAN + STEP_S * (step - 1) + 0.001 * prompt.draw_id
        return Group(
            prompt=prompt,
            completions=tuple(self._completion(step, i, rewarded) for i in range(self._group_size)),
            actor=f"{self._hostile}actor-{prompt.draw_id % 3}",
            started_at=began,
            finished_at=began + 3.0,
        )

    def _completion(self, step: int, index: int, rewarded: bool) -> Completion:
        size = self._tokens
        ids = self._random.integers(0, len(WORDS), size).astype(np.int32)
        ids[-1] = len(WORDS)
        if self._hostile:
            ids = np.zeros(size, np.int32)
        text = self._hostile + "".join(WORDS[i] for i in ids if i < len(WORDS))
        reward = float(rewarded and index % 2 == 0)
        older, newer = Version(1, max(0, step - 4)), Version(1, step - 1)
        middle = size // 3
        spans = (Span(older, 0, middle), Span(newer, middle, size)) if older != newer else (Span(newer, 0, size),)
        verdict = Verdict(reward=reward, extracted=f"{self._hostile}{index}", method="number", detail=self._hostile)
        return Completion(
            index=index,
            token_ids=ids,
            logprobs=-self._random.exponential(0.5, size).astype(np.float32),
            spans=spans,
            finish_reason="stop" if index else "length",
            text=text,
            verdicts={f"{self._hostile}math": verdict},
            reward=reward,
            solved=reward > 0,
            episode=self._episode(size) if self._parents else UNSET,
        )

    def _episode(self, size: int) -> Episode:
        size //= len(self._parents)
        turns: list[Turn] = []
        lengths: list[int] = []
        for number, parent in enumerate(self._parents):
            came = [{"role": "tool", "name": "add", "content": f"{self._hostile}reply {number}"}] if number else []
            function = {"name": "add", "arguments": {"number": number}}
            kept = lengths[parent] if parent >= 0 else 0 if number else 4
            added = np.full(3 if number else 0, 5, np.int32)
            turn = Turn(
                parent=parent,
                kept=kept,
                added=added,
                start=number * size,
                end=(number + 1) * size,
                finish_reason="stop",
                messages=came,
                reply={
                    "role": "assistant",
                    "content": f"{self._hostile}answer {number}",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                },
                asked_at=BEGAN + number,
            )
            turns.append(turn)
            lengths.append(kept + len(added) + size)
        return Episode(turns=tuple(turns), exit="done")

    def _write_processes(self) -> None:
        events = [
            {"at": BEGAN - 5, "process": "launcher", "state": "started"},
            {"at": BEGAN - 4, "process": "actor-0", "state": "started"},
            {"at": BEGAN - 1, "process": "actor-0", "state": "working"},
            {"at": BEGAN + 12, "process": "actor-0", "state": "ended"},
            {"at": BEGAN + 12, "process": "actor-0", "state": "waiting", "cause": f"{self._hostile}actor-0 died"},
            {"at": BEGAN + 14, "process": "actor-0", "state": "started"},
        ]
        path = self.folder / "process_events.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))


def _drawn(prompt: Prompt, version: int) -> Drawn:
    return Drawn(draw=prompt.draw_id, row=prompt.row, position=prompt.draw_id, version=version)
