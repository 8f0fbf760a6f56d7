"""Whole runs without interruption of the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from statistics import mean, median
from typing import Any

import pytest

from olmorl import metrics
from olmorl.actors.fake_engine import FakeEngine, FakeScorer
from olmorl.clock import SystemClock, run_simulated
from olmorl.errors import DeadlinePassed, NothingToLearn, RunEnded, Unscorable, WeightError
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.orchestrator import Orchestrator
from olmorl.learner.storage import rollout_log
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import Completion, Owner, Prompt, Shard, Verdict, Version
from olmorl.ports import StagedWeights, Update

Build = Callable[..., Any]


@pytest.mark.parametrize("max_lag", [0, 1, 4, 8])
@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
def test_every_line_balances_and_no_token_is_too_old(service: Build, max_lag: int, over_age: str) -> None:
    run = service({"schedule.max_lag": max_lag, "schedule.over_age": over_age, "simulation.tail": 1.2})
    assert run_simulated(run.run()).reason == "all 12 steps are done"
    run.check_lines()
    assert len(run.lines) == 12
    assert set(metrics.ALWAYS) <= set(run.lines[-1])
    assert len(run.in_flight) <= run.lines[-1]["groups_in_flight"] <= max_lag * 8
    assert run.trainers[0].weights.hex() in (run.run_dir / "export" / "README.md").read_text()


def test_a_rank_waits_for_the_batch_of_its_next_step_and_for_no_later_one(
    service: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, report = Draws._write_batch, Orchestrator.report
    answered: list[float] = []

    async def slow(self: Draws, step: int, batch: Any) -> None:
        await asyncio.sleep(5)
        await journal(self, step, batch)

    async def timed(self: Orchestrator, said: Any) -> None:
        began_at = asyncio.get_running_loop().time()
        await report(self, said)
        answered.append(asyncio.get_running_loop().time() - began_at)

    monkeypatch.setattr(Draws, "_write_batch", slow)
    monkeypatch.setattr(Orchestrator, "report", timed)
    run = service({"schedule.max_lag": 4, "simulation.train_overhead_s": 60})
    run_simulated(run.run())
    run.check_lines()
    assert len(answered) == 12 and max(answered[:-1]) < 1


def test_the_last_steps_of_a_run_wait_for_no_second_round_of_draws(service: Build) -> None:
    steps, spares = last_steps(service)
    assert max(steps[-3:]) < 1.5 * median(steps)
    assert 0 < spares < 2 * 8, "few spares are left over"


def test_the_last_steps_wait_for_no_second_round_with_any_seed(service: Build) -> None:
    left_over = []
    for seed in range(8):
        steps, spares = last_steps(service, seed)
        assert max(steps[-3:]) < 3 * median(steps), "without spares 6 to 30 times"
        left_over.append(spares)
    assert 0 < mean(left_over) < 3 * 8


def last_steps(service: Build, seed: int | None = None) -> tuple[list[float], int]:
    """Seconds of each step of a run that replaces many draws, and the draws in flight at its end."""
    settings = {"schedule.max_lag": 4, "schedule.steps": 20, "simulation.solve_rate": 0.85}
    run = service(settings if seed is None else settings | {"run.seed": seed})
    run_simulated(run.run())
    run.check_lines()
    assert run.lines[-1]["groups_zero_gradient_total"] > 0.3 * 20 * 8, "many draws are replaced"
    ended = [line["wall_s"] for line in run.lines]
    return [b - a for a, b in pairwise(ended)], len(run.in_flight)


def test_waiting_throws_nothing_away(service: Build) -> None:
    run = service({"schedule.max_lag": 3, "schedule.steps": 20, "simulation.tail": 1.5})
    run_simulated(run.run())
    last = run.lines[-1]
    assert last["groups_stale_total"] == last["tokens_wasted_total"] == 0
    assert max(line["lag_max"] for line in run.lines) == 3


class Swallowing(FakeEngine):
    """From version 3 on it labels versions that it has not loaded."""

    async def update(self, staged: StagedWeights) -> Update:
        before = self._probe
        update = await super().update(staged)
        if update.version.number >= 3:
            self._probe = before
        return update


def test_an_engine_that_swallows_an_update_is_named_within_one_step(service: Build) -> None:
    engines = iter([Swallowing])
    run = service({"schedule.max_lag": 2}, engine=lambda *args, **more: next(engines, FakeEngine)(*args, **more))

    async def scenario() -> tuple[str, int]:
        await run.start()
        swallowing = run.actor_tasks["actor-0"]
        await run.until(swallowing.done)
        trained = len(run.lines)
        await run.finish()
        return str(swallowing.exception()), trained

    said, trained = run_simulated(scenario())
    assert "weights 1.3 in the engine of actor-0 are not what was published" in said
    assert trained <= 4, "version 3 is published after step 3, and step 4 has not ended when it is named"
    run.check_lines()
    assert len(run.lines) == 12
    assert all(line["weight_proof_diff_max"] < 1e-6 for line in run.lines if line["weight_proof_diff_max"] is not None)
    assert sum(line["weight_proof_diff_max"] is not None for line in run.lines) > 6


def test_masking_trains_the_young_tokens_of_old_groups(service: Build) -> None:
    run = service(
        {
            "schedule.max_lag": 1,
            "schedule.over_age": "mask",
            "schedule.steps": 20,
            "simulation.tail": 1.5,
            "simulation.tokens_per_s": 20.0,
        }
    )
    run_simulated(run.run())
    run.check_lines()
    last = run.lines[-1]
    assert last["tokens_trained_total"] < sum(line["batch_tokens"] for line in run.lines)
    assert last["groups_stale_total"] < 20


def test_dropping_replaces_groups_that_are_too_old(service: Build) -> None:
    run = service(
        {"schedule.max_lag": 1, "schedule.over_age": "drop", "schedule.steps": 20, "simulation.tail": 1.5},
        num_actors=2,
    )
    run_simulated(run.run())
    run.check_lines()
    assert run.lines[-1]["groups_stale_total"] > 0
    stale = [record for record in run.rollouts if record["outcome"] == "stale"]
    assert len(stale) == run.lines[-1]["groups_stale_total"]


def test_without_lag_the_batches_are_those_of_a_synchronous_loop(service: Build) -> None:
    run = service({"schedule.max_lag": 0})
    run_simulated(run.run())
    outcomes = {record["prompt_id"]: record["outcome"] for record in run.ledger}
    expected: list[list[int]] = [[]]
    for draw_id in sorted(outcomes):
        if len(expected[-1]) == 8:
            expected.append([])
        if outcomes[draw_id] == "trained":
            expected[-1].append(draw_id)
    assert [run.trained[step] for step in range(1, 13)] == expected
    assert all(line["lag_max"] == 0 for line in run.lines)
    steps = {record["prompt_id"]: record["step"] for record in run.rollouts if record["outcome"] == "trained"}
    for record in run.rollouts:
        for completion in record["completions"] if record["outcome"] == "trained" else []:
            assert [number for number, _, _ in completion["versions"]] == [steps[record["prompt_id"]] - 1]


def test_hundreds_of_actors_and_thousands_of_prompts(service: Build) -> None:
    run = service(
        {
            "schedule.prompts_per_step": 250,
            "schedule.steps": 4,
            "schedule.max_lag": 4,
            "actors.max_running": 16,
            "deadlines.BETWEEN_LOOKS_S": 2.0,
            "deadlines.BETWEEN_HEARTBEATS_S": 5.0,
            "sampling.group_size": 2,
        },
        num_actors=200,
    )
    run_simulated(run.run())
    run.check_lines()
    assert run.lines[-1]["prompts_drawn_total"] > 1000


@pytest.mark.parametrize(
    ("train_tokens_per_s", "tokens_per_s"), [(100.0, 1000.0), (1e6, 5.0)], ids=["slow learner", "slow actors"]
)
def test_neither_side_blocks_the_other_for_good(service: Build, train_tokens_per_s: float, tokens_per_s: float) -> None:
    run = service({"simulation.train_tokens_per_s": train_tokens_per_s, "simulation.tokens_per_s": tokens_per_s})
    run_simulated(run.run())
    run.check_lines()
    waited = sum(line["learner_wait_s"] for line in run.lines)
    trained = sum(line["learner_step_s"] for line in run.lines)
    assert (waited > trained) == (tokens_per_s < train_tokens_per_s / 1000)


def test_dying_actors_cost_attempts_and_nothing_else(service: Build) -> None:
    run = service({"schedule.steps": 15})

    async def scenario() -> None:
        await run.start()
        for step in (2, 5, 8):
            await run.steps(step)
            await run.kill_actor(f"actor-{step % 4}")
            run.add_actor()
        await run.finish()

    run_simulated(scenario())
    run.check_lines()
    last = run.lines[-1]
    assert last["groups_failed_total"] == last["groups_stale_total"] == 0
    assert max(record["attempt"] for record in run.ledger) == 2


def test_a_run_without_actors_ends_by_itself_and_says_what_it_waited_for(service: Build) -> None:
    run = service({"learner.batch_deadline_s": 300}, num_actors=0)
    with pytest.raises(DeadlinePassed, match=r"the batch of step 1, which the orchestrator owns.*24 are queued.*none"):
        run_simulated(run.run())


def test_a_run_in_which_everything_is_solved_ends_with_its_name(service: Build) -> None:
    run = service({"schedule.max_useless_groups": 50, "simulation.solve_rate": 1.0})
    with pytest.raises(NothingToLearn, match="50 groups in a row"):
        run_simulated(run.run())


class NothingRuns(FakeScorer):
    """Fails like a host that cannot run programs."""

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        raise Unscorable("no_sandbox", "install bubblewrap")


def test_a_run_in_which_nothing_can_be_scored_ends_with_the_cause(service: Build) -> None:
    run = service({"schedule.max_useless_groups": 50}, scorer=NothingRuns)
    with pytest.raises(
        RunEnded, match=r"[45]\d prompt.* in a row gave no scored group, the last: .*install bubblewrap"
    ):
        run_simulated(run.run())


class JudgeIsAway(FakeScorer):
    """A scorer whose judge does not answer for a while."""

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        raise Unscorable("judge_down", "judge: connection refused")


class Raises(FakeScorer):
    """Fails like a function with a mistake."""

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        raise Unscorable("function_raised", "concise: KeyError: 'answr'")


def test_a_function_that_fails_in_every_group_ends_the_run_after_a_few_dozen(service: Build) -> None:
    run = service({}, scorer=Raises)
    with pytest.raises(RunEnded, match=r"[45]\d prompt\(s\) in a row.*concise: KeyError: 'answr': correct the"):
        run_simulated(run.run())


def test_a_judge_that_is_away_has_as_long_as_the_recipe_says(service: Build) -> None:
    run = service({"schedule.max_useless_groups": 150}, scorer=JudgeIsAway)
    with pytest.raises(RunEnded, match=r"1[5-9]\d prompt\(s\) in a row.*connection refused \(schedule.max_useless"):
        run_simulated(run.run())


def test_a_deadline_names_what_failed(service: Build) -> None:
    run = service({"learner.batch_deadline_s": 20}, scorer=JudgeIsAway)
    with pytest.raises(DeadlinePassed, match=r"the batch of step 1.* in a row gave no scored group.*refused"):
        run_simulated(run.run())


def test_without_the_filter_every_group_is_trained(service: Build) -> None:
    run = service({"schedule.filter_zero_gradient": False})
    run_simulated(run.run())
    run.check_lines()
    assert run.lines[-1]["prompts_drawn_total"] == 12 * 8


def test_without_refill_no_group_is_replaced_and_batches_are_smaller(service: Build) -> None:
    run = service({"schedule.filter_zero_gradient": "without_refill", "simulation.solve_rate": 0.9})
    run_simulated(run.run())
    last, groups = run.lines[-1], [line["batch_groups"] for line in run.lines]
    assert (last["prompts_drawn_total"], last["groups_zero_gradient_total"]) == (12 * 8, 0)
    rewards = [(record["step"], {one["reward"] for one in record["completions"]}) for record in run.rollouts]
    teaching = [sum(at == step and len(each) > 1 for at, each in rewards) for step in range(1, 13)]
    assert groups == [number or 8 for number in teaching] and min(groups) < 8


def test_a_stop_ends_after_the_current_step_with_a_checkpoint(service: Build) -> None:
    run = service({"schedule.steps": 100, "checkpoint.every": 50})

    async def scenario() -> Any:
        await run.start()
        await run.steps(3)
        run.orchestrator.control.stop()
        stop = await run.finish()
        await run.start(resume=True)
        await run.steps(6)
        await run.crash(actors=True)
        return stop

    assert run_simulated(scenario()).reason == "asked to stop"
    assert not (run.run_dir / "export").exists()
    run.check_lines()
    assert [line["incarnation"] for line in run.lines] == [1] * (len(run.lines) - 3) + [2] * 3
    assert (run.run_dir / "checkpoints" / f"step_{len(run.lines) - 3}" / "complete").exists()


class StoppedMidway(FakeTrainer):
    """Gives the step up that a stop finds it in. One clock and steps of one length: all ranks agree."""

    interrupted = False

    def interrupt(self) -> None:
        StoppedMidway.interrupted = True

    async def train(self, shard: Shard) -> dict[str, float] | None:
        before = self.weights
        values = await super().train(shard)
        if not StoppedMidway.interrupted:
            return values
        self.weights = before
        return None


def test_a_stop_gives_the_step_under_way_up_and_the_next_start_replays_it(service: Build) -> None:
    run = service({"schedule.steps": 100, "checkpoint.every": 50, "simulation.train_tokens_per_s": 100})
    run.trainer = StoppedMidway

    async def scenario() -> tuple[Any, list[bytes]]:
        await run.start()
        await run.steps(3)
        run.orchestrator.control.stop()
        stop, weights = await run.finish(), [trainer.weights for trainer in run.trainers]
        StoppedMidway.interrupted = False
        await run.start(resume=True)
        await run.steps(5)
        await run.crash(actors=True)
        return stop, weights

    stop, weights = run_simulated(scenario())
    assert stop.reason == "asked to stop"
    saved = run.run_dir / "checkpoints" / "step_3"
    assert (saved / "complete").exists()
    assert [(saved / "learner.1" / f"rank_{rank}").read_bytes() for rank in range(2)] == weights
    run.check_lines()
    assert [line["incarnation"] for line in run.lines] == [1] * 3 + [2] * 2
    assert all(record["attempt"] == 1 for record in run.ledger if record["step"] == 4)


def test_a_stop_waits_for_the_report_of_the_last_step(service: Build) -> None:
    slow_learner = {"schedule.max_lag": 4, "simulation.train_tokens_per_s": 100}
    run = service({"schedule.steps": 100, "checkpoint.every": 1, **slow_learner})

    async def scenario() -> None:
        await run.start()
        await run.steps(3)
        run.orchestrator.control.stop()
        await run.finish()
        ledger = run.ledger
        await run.orchestrator.published(Version(1, len(run.lines)), 0.1)
        assert run.ledger == ledger

    run_simulated(scenario())
    run.check_lines()


def test_a_learner_that_asks_for_nothing_is_waited_for_with_a_deadline(
    service: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang while it loads, saves or exports, and only this deadline notices it."""
    run = service({"schedule.steps": 3, "deadlines.step_s": 50})

    def expected() -> list[str]:
        return [wait.what for wait in run.orchestrator.waits.current() if wait.owner is Owner.LEARNER]

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Orchestrator, "begin", lambda self, rank: asyncio.Event().wait())
            await run.start()
            await asyncio.sleep(60)
        (wait,) = [wait for wait in run.orchestrator.waits.current() if wait.owner is Owner.LEARNER]
        assert (wait.what, wait.deadline_s) == ("the learner to ask for a step", 50) and wait.waited_s > 50
        await run.crash(actors=False)

        await run.start(resume=True)
        await run.steps(1)
        assert all(wait.waited_s < 50 for wait in run.orchestrator.waits.current())
        await run.finish()
        assert expected() == ["the learner's end, its export included"]

    run_simulated(scenario())


def test_versions_may_be_published_every_other_step(service: Build) -> None:
    run = service({"weights.publish_every": 2, "schedule.max_lag": 2})
    run_simulated(run.run())
    run.check_lines()
    versions = {v for record in run.rollouts for c in record["completions"] for v, _, _ in c["versions"]}
    assert versions <= {0, 2, 4, 6, 8, 10, 12}


def test_a_row_that_is_solved_well_enough_is_not_drawn_again(service: Build) -> None:
    run = service({"schedule.steps": 8, "data.no_resample_above": 0.5, "data.shuffle": False}, num_rows=60)
    run_simulated(run.run())
    run.check_lines()
    rows = [record["row"] for record in run.ledger]
    assert rows[:60] == [f"train.jsonl:{i + 1}" for i in range(60)]
    assert len(rows) > 60
    first_pass = {record["row"]: record for record in run.rollouts if record["prompt_id"] < 30}
    retired = {row for row, record in first_pass.items() if sum(c["reward"] for c in record["completions"]) >= 2}
    assert retired.isdisjoint(rows[60:])


def test_rewards_of_a_line_are_those_of_the_rollouts_of_its_step(service: Build) -> None:
    run = service()
    run_simulated(run.run())
    for line in run.lines:
        (path,) = (run.run_dir / "rollouts").glob(f"step_{line['step']:06d}.*")
        rewards = [c["reward"] for record in rollout_log.read(path) for c in record["completions"]]
        assert line["reward_mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert line["reward_math_mean"] == pytest.approx(line["reward_mean"])


def test_completions_that_met_an_update_carry_both_versions(service: Build) -> None:
    run = service({"schedule.max_lag": 4})
    run_simulated(run.run())
    spans = [c["versions"] for record in run.rollouts for c in record["completions"]]
    assert sum(len(versions) > 1 for versions in spans) > 20
    for versions in spans:
        assert [start for _, start, _ in versions][1:] == [end for _, _, end in versions][:-1]
        assert versions == sorted(versions)


def test_a_publish_that_fails_ends_the_run_at_once(service: Build) -> None:
    run = service()

    def fail(*_: object) -> None:
        raise WeightError("no room for the weights")

    run.store.publish = fail
    with pytest.raises(WeightError, match="no room"):
        run_simulated(run.run())


async def test_it_runs_on_the_wall_clock_too(service: Build) -> None:
    fast = {"simulation.tokens_per_s": 4000.0, "deadlines.BETWEEN_LOOKS_S": 0.02, "deadlines.BETWEEN_HEARTBEATS_S": 0.1}
    run = service(fast, clock=SystemClock())
    await run.run()
    run.check_lines()
    recorded = {(record["prompt_id"], record["attempt"]) for record in run.rollouts}
    assert len(recorded) == len(run.ledger) - len(run.in_flight)
    assert all(line["actor_tokens_per_s"] >= 0 for line in run.lines)
    assert run.lines[-1]["tokens_generated_total"] >= run.lines[-1]["tokens_trained_total"]
