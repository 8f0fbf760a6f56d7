"""The token-time model by hand: 10 tokens a second alone, each further sequence makes a step 10% slower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from olmorl.actors.fake_engine import RIGHT, WRONG, FakeEngine, FakeScorer
from olmorl.clock import run_simulated
from olmorl.errors import PromptRefused
from olmorl.messages import Completion, Prompt, Span, Version
from olmorl.ports import Sampling
from olmorl.simulation import Simulation

MODEL = Simulation(tokens_per_s=10, batch_slowdown=0.1, mean_tokens=100, tail=0, update_s=0.5)
PROMPT = np.arange(20, dtype=np.int32)


def engine(**changes: Any) -> FakeEngine:
    own = ("max_running", "max_model_len", "kv_tokens", "recompute")
    limits = {key: changes.pop(key) for key in own if key in changes}
    return FakeEngine(MODEL.model_copy(update=changes), **({"max_running": 8, "max_model_len": 1000} | limits))


async def timed(fake: FakeEngine, *max_tokens: int) -> list[tuple[float, Completion]]:
    """Submit one request for each limit at once; the seconds each took, with its completion."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(index: int, limit: int) -> tuple[float, Completion]:
        completion = await fake.generate(str(index), PROMPT, Sampling(max_tokens=limit, seed=index))
        return loop.time() - start, completion

    return list(await asyncio.gather(*(one(i, limit) for i, limit in enumerate(max_tokens))))


def test_one_sequence_takes_its_tokens_over_the_speed() -> None:
    ((seconds, completion),) = run_simulated(timed(engine(), 500))
    assert seconds == pytest.approx(10.0)
    assert (len(completion.token_ids), len(completion.logprobs), completion.finish_reason) == (100, 100, "stop")


def test_sequences_share_the_batch_and_free_it_as_they_end() -> None:
    (short, _), (long, completion) = run_simulated(timed(engine(), 40, 100))
    assert short == pytest.approx(40 * 0.11)
    assert long == pytest.approx(40 * 0.11 + 60 * 0.1)
    assert completion.finish_reason == "stop"


def test_a_third_sequence_waits_for_a_slot() -> None:
    took = [seconds for seconds, _ in run_simulated(timed(engine(max_running=2), 20, 50, 30))]
    assert took == pytest.approx([20 * 0.11, 50 * 0.11, 50 * 0.11])


def test_waiting_sequences_begin_by_their_priority_and_then_as_they_came() -> None:
    async def scenario() -> list[str]:
        fake, ended = engine(max_running=1), list[str]()

        async def one(name: str, priority: int) -> None:
            await fake.generate(name, PROMPT, Sampling(max_tokens=10), priority)
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, priority in (("runs", 9), ("new", 8), ("old", 3), ("new too", 8), ("old too", 3), ("first", 0)):
                tasks.create_task(one(name, priority))
        return ended

    assert run_simulated(scenario()) == ["runs", "first", "old", "old too", "new", "new too"]


def test_a_prompt_waits_until_the_cache_has_room_for_it() -> None:
    async def scenario() -> Any:
        fake = engine(kv_tokens=70)
        requests = asyncio.create_task(timed(fake, 40, 40))
        await asyncio.sleep(3.55)
        load = fake.load()
        third = asyncio.create_task(timed(fake, 10))
        await asyncio.sleep(0.1)
        return load, fake.load(), await requests, await third

    before, after, _, ((third, _),) = run_simulated(scenario())
    assert (before.running, before.waiting, before.kv_used) == (2, 0, 1.0)
    assert (after.running, after.waiting) == (2, 1)
    assert third == pytest.approx(40 * 0.11 - 3.55 + 1.0)


def test_a_truncated_answer_is_wrong_and_says_so() -> None:
    ((_, completion),) = run_simulated(timed(engine(solve_rate=1.0), 10))
    assert (len(completion.token_ids), completion.finish_reason, completion.text) == (10, "length", "wrong")
    assert completion.token_ids[-1] == WRONG


def test_an_update_stalls_once_and_labels_from_the_step_under_way(staged: Callable[[Version], Any]) -> None:
    async def scenario() -> Any:
        fake = engine()
        await fake.start(staged(Version(1, 0)))
        request = asyncio.create_task(timed(fake, 500))
        await asyncio.sleep(4.05)
        update = await fake.update(staged(Version(1, 1)))
        return update, await request

    update, ((seconds, completion),) = run_simulated(scenario())
    assert (update.version, update.stall_s) == (Version(1, 1), pytest.approx(0.5))
    assert completion.spans == (Span(Version(1, 0), 0, 40), Span(Version(1, 1), 40, 100))
    assert seconds == pytest.approx(10.0 + 0.5 + 0.05)


def test_an_update_may_compute_the_cache_again(staged: Callable[[Version], Any]) -> None:
    async def scenario() -> Any:
        fake = engine(recompute=True, recompute_tokens_per_s=60)
        await fake.start(staged(Version(1, 0)))
        request = asyncio.create_task(timed(fake, 500))
        await asyncio.sleep(4.05)
        update = await fake.update(staged(Version(1, 1)))
        return update, await request

    update, ((seconds, _),) = run_simulated(scenario())
    assert update.stall_s == pytest.approx(0.5 + (20 + 40) / 60)
    assert seconds == pytest.approx(10.0 + 1.5 + 0.05)


def test_a_drained_engine_ends_what_runs_and_begins_nothing(staged: Callable[[Version], Any]) -> None:
    async def scenario() -> Any:
        fake, loop = engine(max_running=2, batch_slowdown=0.0), asyncio.get_running_loop()
        await fake.start(staged(Version(1, 0)))
        first = asyncio.create_task(timed(fake, 30, 50, 40))
        await asyncio.sleep(1.0)
        async with fake.drained():
            empty_at, load = loop.time(), fake.load()
            await fake.update(staged(Version(1, 1)))
        async with fake.drained():
            later = loop.time()
        return empty_at, load, later, await first

    empty_at, load, later, requests = run_simulated(scenario())
    assert empty_at == pytest.approx(5.0)
    assert (load.running, load.waiting) == (0, 1)
    assert later == pytest.approx(5.0 + 0.5 + 4.0)
    assert [[span.version.number for span in answer.spans] for _, answer in requests] == [[0], [0], [1]]


def test_two_updates_between_two_tokens_leave_the_last(staged: Callable[[Version], Any]) -> None:
    async def scenario() -> Any:
        fake = engine(update_s=0.0)
        await fake.start(None)
        request = asyncio.create_task(timed(fake, 500))
        await asyncio.sleep(1.0)
        await fake.update(staged(Version(1, 1)))
        await fake.update(staged(Version(1, 2)))
        return await request

    ((_, completion),) = run_simulated(scenario())
    assert completion.spans == (Span(Version(0, 0), 0, 10), Span(Version(1, 2), 10, 100))


def test_tokens_of_unfinished_and_of_cancelled_requests_are_counted() -> None:
    async def scenario() -> Any:
        fake = engine(batch_slowdown=0.0)
        first, second = (asyncio.create_task(timed(fake, limit)) for limit in (100, 30))
        await asyncio.sleep(2.01)
        middle = fake.tokens_generated
        first.cancel()
        await second
        return middle, fake.tokens_generated, fake.tokens_aborted, fake.load()

    middle, generated, aborted, load = run_simulated(scenario())
    assert (middle, generated, aborted) == (40, 50, 20)
    assert (load.running, load.waiting, load.kv_used) == (0, 0, 0.0)


def test_the_time_of_busy_slots_is_counted_and_idle_time_is_not() -> None:
    async def scenario() -> Any:
        fake = engine()
        await timed(fake, 40, 100)
        await asyncio.sleep(5.0)
        return fake.use()

    use = run_simulated(scenario())
    assert use.busy_s == pytest.approx(40 * 0.11 + 60 * 0.1)
    assert use.running_s == pytest.approx(2 * 40 * 0.11 + 60 * 0.1)


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(PromptRefused, match="prompt of 20 tokens, the context has 20"):
        run_simulated(timed(engine(max_model_len=20), 10))


def test_lengths_are_long_tailed_around_the_mean() -> None:
    fake = engine(tail=0.7, max_running=2000, max_model_len=10_000, batch_slowdown=0.0)
    lengths = [len(completion.token_ids) for _, completion in run_simulated(timed(fake, *[5000] * 2000))]
    assert np.mean(lengths) == pytest.approx(100, rel=0.1)
    assert np.median(lengths) == pytest.approx(100 * np.exp(-(0.7**2) / 2), rel=0.1)


def test_later_versions_solve_more_and_groups_without_a_gradient_occur(
    staged: Callable[[Version], Any], draw: Callable[..., Prompt]
) -> None:
    async def rewards(version: Version) -> np.ndarray[Any, Any]:
        fake = engine(max_running=1000, batch_slowdown=0.0)
        await fake.start(staged(version))
        scorer = FakeScorer()

        async def group(prompt: Prompt) -> list[float | None]:
            seeds = range(8 * prompt.draw_id, 8 * prompt.draw_id + 8)
            sampled = [
                fake.generate(f"{seed}", prompt.token_ids, Sampling(max_tokens=500, seed=seed)) for seed in seeds
            ]
            return [completion.reward for completion in await scorer.combine(prompt, await asyncio.gather(*sampled))]

        return np.array(await asyncio.gather(*(group(draw(i)) for i in range(100))))

    early, late = run_simulated(rewards(Version(1, 0))), run_simulated(rewards(Version(1, 40)))
    assert early.mean() == pytest.approx(0.5, abs=0.1)
    assert late.mean() > 0.9
    assert 0 < np.mean(early.min(axis=1) == early.max(axis=1)) < 0.5


def test_the_last_token_carries_the_verdict(draw: Callable[..., Prompt]) -> None:
    async def scenario() -> Any:
        fake, scorer, prompt = engine(solve_rate=1.0), FakeScorer(), draw(0)
        completion = await fake.generate("0", prompt.token_ids, Sampling(max_tokens=500, seed=1))
        return completion, await scorer.verify(prompt, completion)

    completion, verdicts = run_simulated(scenario())
    assert (completion.token_ids[-1], completion.text) == (RIGHT, "right")
    assert (verdicts["math"].reward, verdicts["math"].method) == (1.0, "last_token")


async def test_it_runs_in_real_time_too() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    ((seconds, _),) = await timed(engine(tokens_per_s=1000), 500)
    assert 0.1 <= seconds <= loop.time() - start < 5.0
