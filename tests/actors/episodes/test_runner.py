"""Episodes in simulated time: their tokens, exits, failures, and the waits for an environment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from olmorl import config
from olmorl.actors.episodes.fake_environments import FakeEnvironment, FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.fake_engine import FakeEngine
from olmorl.clock import run_simulated
from olmorl.errors import PromptRefused
from olmorl.messages import ENVIRONMENT, Completion, EpisodeStart, Failure, Group, Prompt, Verdict, Version
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=20, tail=0, update_s=0.5)
"""Every answer takes 20 tokens, 2 s."""
GO_ON = [{"role": "user", "content": "go on"}]
EPISODE = EpisodeStart(environment="fake")


def play(environments: FakeEnvironments, **changes: Any) -> Play:
    return Play(
        environments,
        FakeRenderer(),
        **{"max_turns": 5, "max_prompt": 100, "max_tokens": 200, "max_cache_age": 1} | changes,
    )


def run(service: Make, prompt: Prompt, play: Play, **fields: Any) -> tuple[Any, Any]:
    """The result of one draw, and the actor's last status."""

    async def scenario() -> Any:
        s = service(play=play, **{"simulation": STEADY} | fields)
        await s.push(prompt)
        actor = s.actor()
        async with s.running(actor):
            (result,) = await s.results(1)
        return result, actor.status()

    result, status = run_simulated(scenario())
    assert play.environments.counts() == {"processes": 0}, "every environment is closed"
    return result, status


def test_each_prompt_is_the_tokens_before_and_the_reply(service: Make, draw: Make) -> None:
    group, status = run(service, draw(0, episode=EPISODE), play(FakeEnvironments(turns=3, reply_s=1.0)))
    assert isinstance(group, Group)
    for completion in group.completions:
        first, second, third = completion.turns
        assert (first.parent, second.parent, third.parent) == (-1, 0, 1)
        assert (first.kept, second.kept, third.kept) == (5, 25, 48)
        assert [turn.added.tolist() for turn in completion.turns] == [[], [90, 91, 92], [90, 91, 92]]
        assert [(turn.start, turn.end) for turn in completion.turns] == [(0, 20), (20, 40), (40, 60)]
        assert [turn.messages for turn in completion.turns] == [[], GO_ON, GO_ON]
        assert (completion.exit, completion.path_length, len(completion.logprobs)) == ("done", 66, 60)
        assert [(span.start, span.end) for span in completion.spans] == [(0, 20), (20, 40), (40, 60)]
        assert second.asked_at - first.ended_at == pytest.approx(1.0, abs=0.01)
    assert group.num_tokens == status.tokens_stored == status.tokens_generated == 4 * 60


def test_an_update_between_two_turns_labels_their_tokens(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, play=play(FakeEnvironments(turns=2, reply_s=5.0)))
        await s.push(draw(0, episode=EPISODE))
        async with s.running(s.actor()):
            await s.clock.sleep(4.0)
            s.shelf.publish(Version(1, 1))
            return (await s.results(1))[0]

    for completion in run_simulated(scenario()).completions:
        assert [(span.version.number, span.start, span.end) for span in completion.spans] == [(0, 0, 20), (1, 20, 40)]
        assert completion.oldest == Version(1, 0)


def test_the_engine_sees_the_tokens_before_and_the_reply_under_one_salt_until_it_is_too_old(
    service: Make, draw: Make
) -> None:
    seen: list[tuple[list[int], str | None]] = []

    class Watching(FakeEngine):
        async def generate(self, request_id: str, prompt: Any, sampling: Any, *others: Any) -> Completion:
            answer = await super().generate(request_id, prompt, sampling, *others)
            seen.append((prompt.tolist(), others[1]))
            return answer

    async def scenario() -> Any:
        s = service(simulation=STEADY, play=play(FakeEnvironments(turns=4, reply_s=1.0)))
        await s.push(draw(0, episode=EPISODE, group_size=1))
        async with s.running(s.actor(engine=Watching(STEADY, max_running=4, max_model_len=500))):
            for number in range(1, 3):
                await s.clock.sleep(3.0)
                s.shelf.publish(Version(1, number))
            return (await s.results(1))[0]

    (episode,) = run_simulated(scenario()).completions
    sequence = list(range(5))
    for turn, (prompt, _) in zip(episode.turns, seen, strict=True):
        sequence = sequence[: turn.kept] + turn.added.tolist()
        assert prompt == sequence
        sequence += episode.token_ids[turn.start : turn.end].tolist()
    assert [salt for _, salt in seen] == ["1.0", "1.0", "1.0", "1.2"]


@pytest.mark.parametrize(
    ("changes", "turns", "exit_", "finish"),
    [
        ({"max_turns": 2}, 2, "max_turns", "stop"),
        ({"max_tokens": 40}, 2, "too_long", "length"),  # the second answer has room for 17 tokens
        ({"max_tokens": 22}, 1, "too_long", "length"),  # the reply leaves no room for another one
        ({"max_tokens": 10}, 1, "too_long", "length"),
        ({}, 4, "done", "stop"),
    ],
)
def test_what_the_policy_caused_is_an_exit_and_scored(
    service: Make, draw: Make, changes: dict[str, int], turns: int, exit_: str, finish: str
) -> None:
    group, _ = run(service, draw(0, episode=EPISODE), play(FakeEnvironments(turns=4), **changes))
    for completion in group.completions:
        assert (len(completion.turns), completion.exit, completion.finish_reason) == (turns, exit_, finish)
        assert completion.reward is not None
        longest = changes.get("max_tokens", 200)
        assert completion.path_length <= longest


def test_a_bad_call_ends_the_episode_and_is_scored(service: Make, draw: Make) -> None:
    class BadCalls(FakeRenderer):
        def reply(self, answer: Completion) -> dict[str, Any]:
            return super().reply(answer) | {"bad_call": "2 begun and 1 read"}

    of_calls = play(FakeEnvironments(turns=3))._replace(renderer=BadCalls())
    group, _ = run(service, draw(0, episode=EPISODE), of_calls)
    for completion in group.completions:
        assert (completion.exit, len(completion.turns), completion.reward is None) == ("bad_call", 1, False)
        assert completion.turns[0].reply["bad_call"] == "2 begun and 1 read"


def test_a_reply_that_no_tokens_can_hold_is_too_long_and_scored(service: Make, draw: Make) -> None:
    class Long(FakeRenderer):
        def added(self, *_: Any) -> Any:
            raise PromptRefused("a text of 9000 characters has over 400 tokens")

    group, _ = run(service, draw(0, episode=EPISODE), play(FakeEnvironments(turns=3))._replace(renderer=Long()))
    for completion in group.completions:
        assert (completion.exit, len(completion.turns), completion.reward is None) == ("too_long", 1, False)


async def test_the_actor_goes_on_while_a_long_text_is_read(service: Make, draw: Make) -> None:
    readers: set[str] = set()

    class Slow(FakeRenderer):
        def added(self, *reads: Any) -> Any:
            readers.add(threading.current_thread().name)
            return super().added(*reads)

    fast = Simulation(tokens_per_s=2000, batch_slowdown=0, mean_tokens=20, tail=0, update_s=0.01)
    s = service(simulation=fast, play=play(FakeEnvironments(turns=3))._replace(renderer=Slow()))
    await s.push(draw(0, episode=EPISODE))
    async with s.running(s.actor()):
        (group,) = await s.results(1)
    assert [len(one.turns) for one in group.completions] == [3] * 4
    assert readers == {"tokenizer_0"}


def test_an_episode_is_played_again_when_its_environment_fails_and_its_tokens_are_lost(
    service: Make, draw: Make
) -> None:
    group, status = run(service, draw(0, episode=EPISODE), play(FakeEnvironments(turns=2, failures=3)))
    assert isinstance(group, Group) and [len(one.turns) for one in group.completions] == [2] * 4
    assert (status.tokens_stored, status.tokens_wasted, status.tokens_generated) == (160, 60, 220)
    assert status.episodes == {"episodes": 4 + 3, "failures": 3, "processes": 0}


def test_an_environment_that_always_fails_is_an_outage_and_never_a_reward(service: Make, draw: Make) -> None:
    failure, status = run(service, draw(0, episode=EPISODE, group_size=1), play(FakeEnvironments(failures=99)))
    assert isinstance(failure, Failure)
    assert (failure.cause, failure.detail) == ("unscorable", "environment: failed 3 times, at last: a fake failure")
    assert failure.num_tokens == status.tokens_stored == 0
    assert status.tokens_wasted == status.tokens_generated == 60


def test_the_finished_turns_of_a_failed_group_are_counted_once(service: Make, draw: Make) -> None:
    class FirstFails(FakeEnvironment):
        async def reset(self, prompt: Prompt, index: int) -> None:
            self._fails = index == 0

    class Environments(FakeEnvironments):
        def open(self) -> FakeEnvironment:
            self.open_now += 1
            return FirstFails(self, 9, 0.1, fails=False)

    failure, status = run(service, draw(0, episode=EPISODE, group_size=3), play(Environments()))
    assert isinstance(failure, Failure)
    assert status.tokens_generated == failure.num_tokens + status.tokens_wasted
    assert failure.num_tokens >= 2 * 2 * 20, "finished turns of the other two episodes"


def test_a_long_wait_for_an_environment_does_not_end_the_actor(service: Make, draw: Make) -> None:
    group, _ = run(
        service,
        draw(0, episode=EPISODE),
        play(FakeEnvironments(turns=2, reply_s=400.0)),
        settings=config.Actors(max_running=16, stall_deadline_s=30),
    )
    assert [one.exit for one in group.completions] == ["done"] * 4


@pytest.mark.parametrize("way", ["in_flight", "recompute", "drain"])
def test_an_update_waits_for_no_episode_that_waits_and_a_drained_engine_gives_each_turn_one_version(
    service: Make, draw: Make, way: str
) -> None:
    ten_seconds = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0)

    async def scenario() -> Any:
        s = service(
            simulation=ten_seconds,
            settings=config.Actors(max_running=16, weight_update=way, stall_deadline_s=15),
            play=play(FakeEnvironments(turns=3, reply_s=40.0), max_tokens=400, max_cache_age=9),
        )
        await s.push(draw(0, episode=EPISODE))
        engine = FakeEngine(ten_seconds, max_running=16, max_model_len=500, recompute=way == "recompute")
        async with s.running(s.actor(engine=engine)):
            await s.clock.sleep(4.0)
            s.shelf.publish(Version(1, 1))  # inside the first turn
            await s.clock.sleep(11.0)
            assert engine.version == Version(1, 1)
            s.shelf.publish(Version(1, 2))  # all wait for their environments
            await s.clock.sleep(5.0)
            assert engine.version == Version(1, 2) and not engine.load().running
            return (await s.results(1))[0]

    first = [[0]] if way == "drain" else [[0, 1]]
    for episode in run_simulated(scenario()).completions:
        found = [
            [span.version.number for span in episode.spans if turn.start <= span.start < turn.end]
            for turn in episode.turns
        ]
        assert (episode.exit, found) == ("done", [*first, [2], [2]])


def test_an_actor_that_is_told_to_leave_plays_its_episodes_to_their_end(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(simulation=STEADY, play=play(FakeEnvironments(turns=3, reply_s=40.0)))
        await s.push(draw(0, episode=EPISODE))
        actor = s.actor()
        async with s.running(actor):
            await s.clock.sleep(4.0)
            leaving = asyncio.create_task(actor.drain())
            await s.clock.sleep(1.0)
            await s.push(draw(1, episode=EPISODE))
            await leaving
            return await s.results(1), await s.queue.counts("train")

    (group,), counts = run_simulated(scenario())
    assert [one.exit for one in group.completions] == ["done"] * 4
    assert (counts.queued, counts.leased) == (1, 0)


def test_waiting_episodes_lend_their_slots(service: Make, draw: Make) -> None:
    environments = FakeEnvironments(turns=2, reply_s=100.0)

    async def scenario() -> Any:
        s = service(simulation=STEADY, settings=config.Actors(max_running=4), play=play(environments))
        await s.push(*(draw(number, episode=EPISODE) for number in range(5)))
        async with s.running(s.actor()):
            await s.clock.sleep(50.0)
            assert environments.open_now == 20, "at most 4 of them in the engine at a time"
            return await s.results(5)

    assert len(run_simulated(scenario())) == 5


def test_the_next_turn_of_an_older_draw_goes_before_the_first_of_a_younger_one(service: Make, draw: Make) -> None:
    async def scenario() -> Any:
        s = service(
            simulation=STEADY,
            settings=config.Actors(max_running=4),
            play=play(FakeEnvironments(turns=2, reply_s=1.0)),
        )
        await s.push(*(draw(number, episode=EPISODE) for number in range(4)))
        async with s.running(s.actor()):
            return await s.results(4)

    groups = run_simulated(scenario())
    begun = {group.prompt.draw_id: max(c.turns[1].ended_at for c in group.completions) for group in groups}
    assert sorted(begun, key=begun.__getitem__) == [0, 1, 2, 3]
    # While the first draw waits, the second has its slots for 2 s; then the first goes on, before the third begins.
    assert begun[0] == pytest.approx(6.0, abs=0.1)


class Writer(FakeEnvironments):
    """Writes its own prompts, and a reward of -2.5 for each of its turns."""

    def __init__(self, messages: int) -> None:
        super().__init__(turns=2)
        self._messages = messages

    def open(self) -> FakeEnvironment:
        made = super().open()
        messages = [{"role": "user", "content": "begin"}] * self._messages

        async def reset(prompt: Prompt, index: int) -> list[dict[str, Any]]:
            return messages

        async def reward(episode: Completion) -> dict[str, Verdict]:
            return {ENVIRONMENT: Verdict(reward=-2.5 * len(episode.turns))}

        made.reset, made.reward = reset, reward  # type: ignore[method-assign, assignment]
        return made


def test_an_environment_may_write_the_prompt_and_give_any_reward(service: Make, draw: Make) -> None:
    group, _ = run(service, draw(0, episode=EPISODE), play(Writer(messages=2)))
    for completion in group.completions:
        first, second = completion.turns
        assert (first.kept, first.added.tolist(), second.kept) == (0, list(range(90, 96)), 26)
        assert len(first.messages) == 2
        assert completion.path_length == 2 * 20 + 6 + 3
        assert completion.verdicts[ENVIRONMENT].reward == -5.0


def test_a_written_prompt_that_is_too_long_fails_the_draw(service: Make, draw: Make) -> None:
    failure, _ = run(service, draw(0, episode=EPISODE), play(Writer(messages=40)))
    assert isinstance(failure, Failure)
    assert (failure.cause, failure.detail) == (
        "over_long",
        "the environment wrote a prompt of 120 tokens: the run takes 1 to 100",
    )


def test_the_turns_of_an_episode_are_sampled_apart_and_again_the_same(service: Make, draw: Make) -> None:
    random = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=20, tail=1.0)

    def lengths() -> list[list[int]]:
        group, _ = run(
            service, draw(0, episode=EPISODE), play(FakeEnvironments(turns=3), max_tokens=450), simulation=random
        )
        return [[turn.end - turn.start for turn in one.turns] for one in group.completions]

    first = lengths()
    assert lengths() == first
    assert len({length for one in first for length in one}) > 4


def test_a_single_answer_is_the_same_in_a_run_with_environments(service: Make, draw: Make) -> None:
    def answers(**fields: Any) -> list[list[int]]:
        async def scenario() -> Any:
            s = service(**fields)
            await s.push(draw(3))
            async with s.running(s.actor()):
                return (await s.results(1))[0]

        return [np.asarray(one.token_ids).tolist() for one in run_simulated(scenario()).completions]

    assert answers() == answers(play=play(FakeEnvironments()))
