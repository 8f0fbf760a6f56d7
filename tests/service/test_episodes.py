"""A whole service trains episodes of two turns, and its accounts balance in draws and tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from olmorl import metrics
from olmorl.actors.episodes.agent_play import AgentPlay
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.fake_environments import ADDED, FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import Clock, run_simulated
from olmorl.learner.trainer.fake_trainer import FakeTrainer
from olmorl.messages import Completion, EpisodeStart, Shard
from olmorl.ports import Engine, Row, Sampling
from tests.actors.episodes.test_agent_session import ASKED, MORE, asks
from tests.service.conftest import rows

Build = Callable[..., Any]
SETTINGS = {
    "schedule.steps": 8,
    "sampling.max_tokens": 150,
    "episodes.max_tokens": 400,
    "episodes.environment": "fake:fake",
    "simulation.mean_tokens": 60,
    "deadlines.BETWEEN_HEARTBEATS_S": 0.5,
}


def episode_rows(number: int = 3000) -> list[Row]:
    return [row._replace(episode=EpisodeStart(environment="fake")) for row in rows(number)]


def two_turns(**more: Any) -> Callable[[], Play]:
    return lambda: Play(FakeEnvironments(turns=2, reply_s=0.3, **more), FakeRenderer(), 4, 100, 400, 2)


class Recording(FakeTrainer):
    """Keeps what it trains."""

    shards: list[Shard]

    async def train(self, shard: Shard) -> dict[str, float] | None:
        self.shards = [*getattr(self, "shards", []), shard]
        return await super().train(shard)


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize("over_age", ["wait", "mask", "drop"])
def test_a_scripted_two_turn_episode_trains_and_every_token_has_one_outcome(
    service: Build, over_age: str, max_lag: int
) -> None:
    settings = {**SETTINGS, "schedule.over_age": over_age, "schedule.max_lag": max_lag}
    run = service(settings, rows=episode_rows(), play=two_turns(failures=5), trainer=Recording, num_actors=2)
    run_simulated(run.run())
    run.check_lines()
    line = run.lines[-1]
    assert line["step"] == 8 and line["tokens_lost_total"] > 0, "the tries that failed"
    assert line["tokens_trained_total"] > 0 == line["tokens_failed_total"]
    assert set(metrics.OUTCOMES) >= {"trained", "lost"}
    episodes = [one for record in run.rollouts for one in record["completions"]]
    assert {one["exit"] for one in episodes} <= {"done", "too_long"}
    assert {len(one["turns"]) for one in episodes if one["exit"] == "done"} == {2}
    assert {name for name in line if name.startswith("exits_")} <= {"exits_done", "exits_too_long"}
    assert 1 < line["episode_turns_mean"] <= 2 and line["episode_between_turns_s_mean"] >= 0.15
    samples = [
        sample
        for trainer in run.trainers
        for shard in trainer.shards
        for minibatch in shard.minibatches
        for row in minibatch
        for sample in row
    ]
    assert len(samples) == 8 * 8 * 4, "one sample for each episode of a trained group"
    by_draw = {record["prompt_id"]: record for record in run.rollouts if record["outcome"] == "trained"}
    for sample in samples:
        added = sample.completion_ids >= ADDED
        assert not sample.loss_mask[added].any()
        assert sample.prompt_ids.tolist() == by_draw[sample.draw_id]["prompt_token_ids"]
        sampled = sample.completion_ids[~added].tolist()
        assert sampled in [one["token_ids"] for one in by_draw[sample.draw_id]["completions"]]
        assert len(sample.completion_ids) <= 400
    trained = sum(len(one["token_ids"]) for record in by_draw.values() for one in record["completions"])
    assert sum(int((s.completion_ids < ADDED).sum()) for s in samples) == trained


def test_no_more_environments_start_at_the_same_time_than_the_engine_has_slots(service: Build) -> None:
    environments = FakeEnvironments(turns=2, start_s=30.0)
    settings = {**SETTINGS, "schedule.max_lag": 4, "schedule.draw_ahead": "fixed", "actors.max_running": 16}
    run = service(
        settings, rows=episode_rows(), play=lambda: Play(environments, FakeRenderer(), 4, 100, 400, 2), num_actors=1
    )
    run_simulated(run.run())
    assert 16 < environments.most_open < 2 * 16, "and not the 160 episodes of five batches"


class Rewriting:
    """Plays an agent that asks three times: a second time with its history, and then with a rewritten one."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def counts(self) -> dict[str, float]:
        return {}

    async def run(self, work: LeasedGroup, index: int, request_id: str, sampling: Sampling) -> Completion:
        agent = AgentPlay("", lambda tools: FakeRenderer(), "tool", 5.0, 9, 500, 2)
        async with asyncio.TaskGroup() as tasks:
            session = AgentSession(
                self._engine,
                agent,
                self._clock,
                work,
                request_id,
                sampling,
                tasks=tasks,
                note_waiting=lambda is_waiting: None,
            )
            first = await session.answer(asks(ASKED))
            await session.answer(asks(ASKED, first.message, MORE))
            await session.answer(asks(MORE))
        return session.turns.completion("done", {})


class RewritingPlay:
    def player(self, engine: Engine, clock: Clock, note_change: Any) -> Rewriting:
        return Rewriting(engine, clock)


def test_branches_are_sequences_and_every_token_has_one_outcome(service: Build) -> None:
    run = service(SETTINGS, rows=episode_rows(), play=RewritingPlay, trainer=Recording, num_actors=2)
    run_simulated(run.run())
    run.check_lines()
    line = run.lines[-1]
    samples = [sample for trainer in run.trainers for shard in trainer.shards for sample in _samples(shard)]
    assert len(samples) == 8 * 8 * 4 * 2, "two branches for each episode of a trained group"
    assert {sample.prompt_ids.tolist()[0] for sample in samples} == {ADDED}, "prompts of the agent"
    trained = [
        len(one["token_ids"])
        for record in run.rollouts
        if record["outcome"] == "trained"
        for one in record["completions"]
    ]
    assert line["tokens_trained_total"] == sum(trained) == sum(int(sample.loss_mask.sum()) for sample in samples)
    by_draw: dict[int, list[float]] = {}
    for sample in samples:
        by_draw.setdefault(sample.draw_id, []).append(sample.advantage)
    assert all(sum(values) == pytest.approx(0.0, abs=1e-6) for values in by_draw.values()), "of episodes"


def test_a_crashed_run_resumes_from_a_journal_of_episodes_with_the_same_batches(service: Build) -> None:
    def whole(crash: bool) -> Any:
        run = service(
            {**SETTINGS, "checkpoint.every": 4}, rows=episode_rows(), play=two_turns(), trainer=Recording, num_actors=2
        )

        async def story() -> None:
            await run.start()
            if crash:
                await run.steps(6)
                await run.crash(actors=True)
                run.before = [trainer.shards for trainer in run.trainers]
                await run.start(resume=True)
            await run.finish()

        run_simulated(story())
        run.check_lines()
        return run

    run = whole(crash=True)
    # Steps 5 and 6 were trained, are after the checkpoint, and are replayed from the journal.
    for rank, before in enumerate(run.before):
        again = {shard.step: shard for shard in run.trainers[rank].shards}
        for shard in before:
            if shard.step in again and shard.step in (5, 6):
                pairs = zip(_samples(shard), _samples(again[shard.step]), strict=True)
                assert all(np.array_equal(a.completion_ids, b.completion_ids) for a, b in pairs)
                break
        else:
            raise AssertionError("no step was replayed")


def _samples(shard: Shard) -> list[Any]:
    return [sample for minibatch in shard.minibatches for row in minibatch for sample in row]
