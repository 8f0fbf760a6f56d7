"""User functions in a whole run: their arguments, completions without a reward, and logged values."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from olmorl.actors.fake_engine import RIGHT, FakeScorer
from olmorl.clock import SystemClock, run_simulated
from olmorl.config import Verifiers
from olmorl.messages import Completion, Prompt
from olmorl.ports import Row
from olmorl.verifiers.scorer import VerifierScorer

Build = Callable[..., Any]
FUNCTION = f"""
def last_token(completions, completion_ids, trainer_state, log_metric, log_extra):
    right = [ids[-1] == {RIGHT} for ids in completion_ids]
    log_metric("right", sum(right) / len(right))
    log_metric("reward_mean", 1000.0)
    log_metric("step", trainer_state.global_step + 0.5 * (trainer_state.max_steps == 6))
    log_extra("last", [ids[-1] for ids in completion_ids])
    return [None if len(ids) % 3 == 0 else float(good) for ids, good in zip(completion_ids, right)]
"""


class Sometimes(FakeScorer):
    """No verifier applies to an answer of odd length, nor, for every fifth prompt, to more than one answer."""

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        scored = await super().combine(prompt, completions)
        few = prompt.draw_id % 5 == 0
        return tuple(
            replace(one, reward=None, solved=False) if (index > 0 if few else len(one.token_ids) % 2) else one
            for index, one in enumerate(scored)
        )


def test_groups_stay_whole_and_batches_full(service: Build) -> None:
    run = service({"sampling.group_size": 6, "schedule.max_useless_groups": 1000}, scorer=Sometimes)
    assert run_simulated(run.run()).reason == "all 12 steps are done"
    run.check_lines()
    seen: Counter[str] = Counter()
    for record in run.rollouts:
        rewards = [one["reward"] for one in record["completions"] if one["reward"] is not None]
        assert len(record["completions"]) == 6
        seen[record["outcome"]] += 1
        if record["prompt_id"] % 5 == 0:
            assert record["outcome"] == "zero_gradient", "one reward alone has no baseline"
        if record["outcome"] == "trained":
            assert len(set(rewards)) == 2
        if len(set(rewards)) < 2:
            assert record["outcome"] != "trained"
        seen["without"] += 6 - len(rewards)
    assert seen["trained"] == 12 * 8
    assert seen["without"] and seen["zero_gradient"]


def test_without_a_filter_such_groups_are_trained_on_and_move_nothing(service: Build) -> None:
    run = service({"schedule.filter_zero_gradient": False, "schedule.steps": 4}, scorer=Sometimes)
    assert run_simulated(run.run()).reason == "all 4 steps are done"
    run.check_lines()


def test_a_function_as_trls_users_write_it(service: Build, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTION)
    verifiers = Verifiers(functions=[f"{tmp_path}/own.py:last_token"])

    async def scenario() -> Any:
        unlabelled = [
            Row(f"rows.jsonl:{n}", f"problem {n}", np.array([n, 5], np.int32), (), (), {}, False) for n in range(1, 300)
        ]
        run = service(
            {"schedule.steps": 6, "schedule.prompts_per_step": 4, "sampling.max_tokens": 40,
             "simulation.mean_tokens": 10, "simulation.tokens_per_s": 2000, "schedule.max_useless_groups": 1000},
            clock=SystemClock(), num_actors=2, rows=unlabelled, scorer=lambda: VerifierScorer(verifiers, 6),
        )  # fmt: skip
        assert (await run.run()).reason == "all 6 steps are done"
        return run

    run = asyncio.run(asyncio.wait_for(scenario(), 120))
    run.check_lines()
    right: list[float] = []
    for record in run.rollouts:
        if record["outcome"] == "failed":
            assert (record["cause"], record["completions"]) == ("unscorable", [])
            assert "no verifier applies" in record["detail"], "None for all of them"
            continue
        ends = [one["token_ids"][-1] for one in record["completions"]]
        right.append(sum(end == RIGHT for end in ends) / len(ends))
        for one, end in zip(record["completions"], ends, strict=True):
            verdict = one["verdicts"]["last_token"]
            assert verdict["extra"] == {"last": end}
            assert verdict["reward"] == one["reward"]
            assert one["reward"] == (None if len(one["token_ids"]) % 3 == 0 else float(end == RIGHT))
        newest = max(version for one in record["completions"] for version, *_ in one["versions"])
        assert record["completions"][0]["verdicts"]["last_token"]["logged"]["step"] == newest + 0.5
    assert any(one["reward"] is None for record in run.rollouts for one in record["completions"])
    for line in run.lines:
        assert 0 <= line["logged_right_mean"] <= 1
        assert line["logged_reward_mean_mean"] == 1000.0 != line["reward_mean"]
        assert line["step"] == int(line["step"])
    assert right


BY_TOKEN = """
def steps(completions, completion_ids, prompts):
    extra = [1 if prompt.endswith("7") and n == 1 else 0 for n, prompt in enumerate(prompts)]
    return [
        [0.5 if place % 5 == 0 else None for place in range(len(ids) - 1)] + [1.0] + [0.0] * more
        for ids, more in zip(completion_ids, extra)
    ]
"""


def test_a_function_that_rewards_tokens(service: Build, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BY_TOKEN)
    verifiers = Verifiers(functions=[f"{tmp_path}/own.py:steps*2"])

    async def scenario() -> Any:
        rows = [
            Row(f"rows.jsonl:{n}", f"problem {n}", np.array([n, 5], np.int32), (), (), {}, False) for n in range(1, 300)
        ]
        run = service(
            {"schedule.steps": 4, "schedule.prompts_per_step": 4, "sampling.max_tokens": 40,
             "simulation.mean_tokens": 10, "simulation.tokens_per_s": 2000},
            clock=SystemClock(), num_actors=2, rows=rows, scorer=lambda: VerifierScorer(verifiers, 4),
        )  # fmt: skip
        assert (await run.run()).reason == "all 4 steps are done"
        return run

    run = asyncio.run(asyncio.wait_for(scenario(), 120))
    run.check_lines()
    for record in run.rollouts:
        if record["prompt"].endswith("7"):
            assert (record["outcome"], record["cause"]) == ("failed", "unscorable")
            assert "steps: returned" in record["detail"] and "tokens of completion 1" in record["detail"]
        for one in record["completions"]:
            places = range(len(one["token_ids"]) - 1)
            expected = [*(1.0 if place % 5 == 0 else None for place in places), 2.0]
            assert one["token_rewards"] == expected
            assert one["reward"] == sum(reward for reward in expected if reward is not None)
    assert {record["outcome"] for record in run.rollouts} >= {"trained", "failed"}
    trained = [record for record in run.rollouts if record["outcome"] == "trained" and record["step"] == 1]
    sums = [one["reward"] for record in trained for one in record["completions"]]
    assert run.lines[0]["reward_mean"] == sum(sums) / len(sums)
