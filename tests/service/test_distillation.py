"""Runs whose tokens are scored in simulated time: outages, accounting, and replays with the same batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from olmorl import codec, config
from olmorl.actors.fake_engine import LOGPROB, FakeScorer
from olmorl.clock import Clock, LoopClock, run_simulated
from olmorl.errors import Unscorable
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import REFERENCE, TEACHER, Completion, Prompt, Shard, Verdict
from olmorl.verifiers.judge.service.failures import Unavailable
from olmorl.verifiers.teachers import Teachers

Build = Callable[..., Any]
TEACHERS = {
    "math": {"url": "http://math:8000", "timeout_s": 2.0, "sources": ["train.jsonl"]},
    "default": {"url": "http://default:8000", "timeout_s": 2.0},
}
ALONE = {"distillation.teachers": TEACHERS, "schedule.steps": 10, "schedule.max_lag": 0, "simulation.solve_rate": 1.0}
SERVED = {
    "objective.kl_beta": 0.1, "objective.kl_reference": {"url": "http://start:8000"},
    "schedule.steps": 10, "schedule.max_lag": 0, "simulation.solve_rate": 0.5,
}  # fmt: skip


class TeacherEndpoint:
    """A teacher that gives `-1 / (1 + token)`; it is down from one moment to another."""

    def __init__(self, clock: Clock, down: tuple[float, float]) -> None:
        self._clock = clock
        self._down = down

    async def post(self, request: Mapping[str, Any]) -> bytes:
        await self._clock.sleep(0.05)
        if self._down[0] <= self._clock.now() < self._down[1]:
            raise Unavailable("HTTP 503")
        entries = [{str(token): {"logprob": -1 / (1 + token)}} for token in request["prompt"]]
        return json.dumps({"choices": [{"prompt_logprobs": [None, *entries[1:]]}]}).encode()

    async def close(self) -> None: ...


class TaughtScorer(FakeScorer):
    """No verifier: the teachers alone decide. A reference leaves that to the last token."""

    def __init__(self, clock: Clock, down: tuple[float, float] = (-1.0, -1.0), role: str = TEACHER) -> None:
        super().__init__()
        settings = config.Distillation.model_validate({"teachers": TEACHERS})
        self.role = role
        self.teachers = Teachers(settings, clock, lambda teacher, clock: TeacherEndpoint(clock, down), role)

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        return {self.role: await self.teachers.verify_row(prompt, completion, "", None)}

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        for completion in completions:
            if kind := completion.verdicts[self.role].error_kind:
                raise Unscorable(kind, completion.verdicts[self.role].detail)
        return tuple(completions) if self.role == TEACHER else await super().combine(prompt, completions)


class RecordingTrainer(FakeTrainer):
    """Remembers the bytes of every batch."""

    batches: dict[int, list[bytes]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.batches = {}

    async def train(self, shard: Shard) -> dict[str, float] | None:
        made = codec.encode([shard.minibatches, shard.loss_tokens, shard.num_sequences])
        self.batches.setdefault(shard.step, []).append(made)
        return await super().train(shard)


@pytest.mark.parametrize("with_rewards", [False, True])
def test_a_simulated_run_filters_no_group_and_tells_the_divergence(service: Build, with_rewards: bool) -> None:
    settings = {**ALONE, "distillation.with_rewards": with_rewards}
    run = service(settings, scorer=lambda: FakeScorer(token_scorers=[TEACHER]))
    assert run_simulated(run.run()).reason == "all 10 steps are done"
    run.check_lines()
    assert {record["outcome"] for record in run.ledger} <= {"trained", "in_flight"}, "all rewards are 1"
    last = run.lines[-1]
    # The last token is right: the teacher gives it -0.1, and as much as the engine to all others.
    assert last["teacher_kl_answers"] == pytest.approx(LOGPROB + 0.1, abs=0.02)
    assert last["source_train.jsonl_teacher_kl_answers"] == last["teacher_kl_answers"]
    assert last["reward_mean"] == pytest.approx(1.0, abs=0.02)
    for record in run.rollouts:
        assert all(len(each["teacher_logprobs"]) == len(each["token_ids"]) for each in record["completions"])


def test_a_run_without_rewards_has_no_mean_reward(service: Build) -> None:
    run = service(ALONE, scorer=lambda: TaughtScorer(LoopClock()))
    assert run_simulated(run.run()).reason == "all 10 steps are done"
    run.check_lines()
    assert {(line["reward_mean"], line["batch_reward_mean"]) for line in run.lines} == {(None, None)}
    assert all(line["groups_zero_gradient_total"] == 0 for line in run.lines)
    assert {each["verdicts"]["teacher"]["method"] for r in run.rollouts for each in r["completions"]} == {"math"}


@pytest.mark.parametrize(("down_s", "fails"), [(10.0, False), (60.0, True)])
@pytest.mark.parametrize(("recipe", "role"), [(ALONE, TEACHER), (SERVED, REFERENCE)], ids=[TEACHER, REFERENCE])
def test_an_outage_costs_time_or_groups_and_is_never_a_zero(
    service: Build, recipe: dict[str, Any], role: str, down_s: float, fails: bool
) -> None:
    scorers: list[TaughtScorer] = []

    def scorer() -> TaughtScorer:
        scorers.append(TaughtScorer(LoopClock(), (8.0, 8.0 + down_s), role))
        return scorers[-1]

    run = service(recipe, scorer=scorer)
    assert run_simulated(run.run()).reason == "all 10 steps are done"
    run.check_lines()
    failed = [record for record in run.rollouts if record["outcome"] == "failed"]
    assert bool(failed) is fails
    assert all(each["cause"] == "unscorable" and each["detail"].startswith(f"{role}_down: math: ") for each in failed)
    assert run.lines[-1]["groups_failed_total"] == len(failed)
    assert sum(line.get("failures_unscorable", 0) for line in run.lines) == len(failed)
    counters = [each.teachers.counters[f"{role}_math"] for each in scorers]
    assert sum(each.retries for each in counters) > 0 and not any(each.breaker_open for each in counters)
    assert (sum(each.outcomes[f"{role}_down"] for each in counters) > 0) is fails
    trained = [record for record in run.rollouts if record["outcome"] == "trained"]
    assert len(trained) == 10 * 8
    assert all(f"{role}_logprobs" in each for record in trained for each in record["completions"])


def test_a_replay_trains_the_same_batches_and_asks_no_teacher_again(service: Build) -> None:
    settings = {**ALONE, "checkpoint.every": 4}
    options: dict[str, Any] = {"seed_attempts": False, "trainer": RecordingTrainer}
    whole = service(settings, scorer=lambda: TaughtScorer(LoopClock()), **options)
    run_simulated(whole.run())
    run = service(settings, scorer=lambda: TaughtScorer(LoopClock()), **options)

    async def scenario() -> dict[int, list[bytes]]:
        await run.start()
        await run.steps(6)
        before = run.trainers[0].batches
        await run.crash(actors=True)
        await run.start(resume=True)
        await run.finish()
        found: dict[int, list[bytes]] = before
        return found

    before, after = run_simulated(scenario()), run.trainers[0].batches
    assert set(after) >= {5, 6, 7, 8, 9, 10} and not set(after) & {1, 2, 3, 4}
    assert [after[step] for step in (5, 6)] == [before[step] for step in (5, 6)], "from the journal"
    assert {**before, **after} == whole.trainers[0].batches
    assert run.trained == whole.trained
    assert b"token_advantages" in after[5][0]
    run.check_lines()


def test_groups_of_an_earlier_start_without_teachers_go_on_with_rewards(service: Build) -> None:
    """A run to which teachers were added has groups without their numbers in the queue."""
    plain, taught = FakeScorer(), FakeScorer(token_scorers=[TEACHER])

    class Changing(FakeScorer):
        async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
            return await (plain if prompt.draw_id < 30 else taught).verify(prompt, completion)

    run = service({**ALONE, "distillation.with_rewards": True, "simulation.solve_rate": 0.5}, scorer=Changing)
    assert run_simulated(run.run()).reason == "all 10 steps are done"
    run.check_lines()
    outcomes = {(record["prompt_id"] < 30, record["outcome"]) for record in run.ledger}
    assert (True, "zero_gradient") in outcomes and (False, "zero_gradient") not in outcomes
