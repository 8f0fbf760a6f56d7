"""Plays episodes: the policy answers, its environment replies, until one of them ends it.

    prompt ── engine ──> answer ── environment ──> messages ── renderer ──> more tokens ── engine ──> answer ...

The next prompt is the tokens that the engine saw and made, and then the rendered messages: nothing that the policy
wrote is tokenized again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from olmorl import deadlines, seeds
from olmorl.actors.episodes.turns import BAD_CALL, DONE, MAX_TURNS, TOO_LONG, CacheSalt, Turns
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import Clock
from olmorl.errors import EnvironmentFailed, PromptRefused, Unscorable
from olmorl.messages import Completion, Prompt, TokenIds
from olmorl.ports import Engine, Environment, Environments, Renderer, Sampling

T = TypeVar("T")
TRIES = 3
"""Times that an episode is played before its group fails."""


async def pause_before(number: int, work: LeasedGroup, clock: Clock, note_change: Callable[[], None]) -> None:
    """Wait before try `number`, longer before each: an outage that ends soon fails no group."""
    if number:
        with work.waiting(note_change, lends=False):
            await clock.sleep(deadlines.RESTART_PAUSE_S * number)


class Player(Protocol):
    """Plays the episodes of an actor."""

    async def start(self) -> None:
        """Start what the episodes share. Raises ConfigError or DeadlinePassed, with the cause."""
        ...

    async def run(self, work: LeasedGroup, index: int, request_id: str, sampling: Sampling) -> Completion:
        """Play the episode `index` of a group. Raises Unscorable or PromptRefused."""
        ...

    def counts(self) -> dict[str, float]:
        """Tries of `episodes`, and of them `failures`; and what `Environments.counts` has."""
        ...

    async def stop(self) -> None: ...


class Plays(Protocol):
    """What an actor needs for episodes."""

    def player(self, engine: Engine, clock: Clock, note_change: Callable[[], None]) -> Player:
        """`note_change` is called when an episode begins or ends to wait for its environment."""
        ...


class Play(NamedTuple):
    """What an actor needs for episodes in environments."""

    environments: Environments
    renderer: Renderer
    max_turns: int
    max_prompt: int
    """Longest prompt that an environment may write, in tokens."""
    max_tokens: int
    """Longest episode after its prompt, in tokens."""
    max_cache_age: int
    """Versions after which the keys of an episode's earlier turns are computed again."""

    def player(self, engine: Engine, clock: Clock, note_change: Callable[[], None]) -> EpisodeRunner:
        """Plays them."""
        return EpisodeRunner(engine, self, clock, note_change)


class EpisodeRunner:
    """Every episode ends with an exit, and is scored; or its environment failed every time, and its group fails."""

    def __init__(self, engine: Engine, play: Play, clock: Clock, note_change: Callable[[], None]) -> None:
        self._engine = engine
        self._play = play
        self._clock = clock
        self._note_change = note_change
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._begun = self._failed = 0

    async def start(self) -> None:
        await self._play.environments.start()

    def counts(self) -> dict[str, float]:
        return {"episodes": self._begun, "failures": self._failed, **self._play.environments.counts()}

    async def stop(self) -> None:
        await self._play.environments.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: LeasedGroup, index: int, request_id: str, sampling: Sampling) -> Completion:
        """Play the episode `index` of a group. Tokens of failed tries count as lost.

        Raises:
            Unscorable: its environment failed `TRIES` times.
            PromptRefused: the prompt that the environment wrote is too long, or the engine refuses it.
        """
        causes = []
        for number in range(TRIES):
            await pause_before(number, work, self._clock, self._note_change)
            path = _Path(work.prompt.token_ids)
            environment = self._play.environments.open()
            self._begun += 1
            try:
                return await self._episode(work, index, f"{request_id}/{number}", sampling, environment, path)
            except EnvironmentFailed as error:
                self._failed += 1
                work.discard(path.turns.num_sampled)
                causes.append(str(error))
            finally:
                await environment.close()
        raise Unscorable("environment", f"failed {TRIES} times, at last: {causes[-1]}")

    async def _episode(
        self,
        work: LeasedGroup,
        index: int,
        request_id: str,
        sampling: Sampling,
        environment: Environment,
        path: _Path,
    ) -> Completion:
        prompt = work.prompt
        with work.waiting(self._note_change, lends=False):
            written = await environment.reset(prompt, index)
        conversation = conversation_of(prompt) if written is None else written
        if written is not None:
            tokens = await self._in_thread(partial(self._play.renderer.prompt, written))
            path.rewrite(tokens, written, self._play.max_prompt)
        while not path.exit:
            answer = await self._answer(work, f"{request_id}.{path.num_turns}", sampling, path)
            reply = self._play.renderer.reply(answer)
            path.turns.reply(-1, reply)
            path.exit = _exit_of(answer, reply)
            if path.exit:
                break
            with work.waiting(self._note_change, lends=True):
                step = await environment.step(reply)
            if step.done:
                path.exit = MAX_TURNS if step.truncated else DONE
                if step.submitted is not None:
                    path.turns.reply(-1, {**reply, "submitted": step.submitted})
            elif path.num_turns == self._play.max_turns:
                path.exit = MAX_TURNS
            else:
                added = partial(self._play.renderer.added, conversation, reply, step.messages, answer)
                try:
                    path.go_on(await self._in_thread(added), step.messages)
                except PromptRefused:
                    path.exit = TOO_LONG
                conversation = [*conversation, reply, *step.messages]
                if path.length >= self._play.max_tokens:
                    path.exit = TOO_LONG
        with work.waiting(self._note_change, lends=True):
            episode = path.turns.completion(path.exit, {})
            return replace(episode, verdicts=await environment.reward(episode))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Templates and tokenizers take long over long texts, and tokenizers one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _answer(self, work: LeasedGroup, request_id: str, sampling: Sampling, path: _Path) -> Completion:
        """The next answer of the policy, with a seed of its own."""
        room = self._play.max_tokens - path.length
        seed = None if sampling.seed is None else seeds.derive(sampling.seed, "turn", path.num_turns)
        of_turn = replace(sampling, max_tokens=min(sampling.max_tokens, room), seed=seed)
        asked_at = self._clock.wall()
        salt = path.salt.at(self._engine.version, self._play.max_cache_age)
        answer = await self._engine.generate(request_id, path.sequence, of_turn, work.priority, salt)
        work.num_tokens += len(answer.token_ids)
        path.answered(answer, asked_at, self._clock.wall())
        return answer


def _exit_of(answer: Completion, reply: dict[str, Any]) -> str:
    """The exit of an answer to which no environment can reply; else nothing. A cut answer has no stop token."""
    if answer.finish_reason == "length":
        return TOO_LONG
    return BAD_CALL if "bad_call" in reply else ""


def conversation_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The conversation of a row; a text is one turn of a user."""
    messages = prompt.messages
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


_NOTHING: TokenIds = np.zeros(0, np.int32)


@dataclass
class _Path:
    """The tokens of an episode so far."""

    sequence: TokenIds
    """The prompt and everything after it."""
    exit: str = ""
    length: int = 0
    """Tokens after the prompt."""

    def __post_init__(self) -> None:
        self.turns = Turns()
        self.salt = CacheSalt()
        self._kept = len(self.sequence)
        self._added = _NOTHING
        self._messages: list[dict[str, Any]] = []

    @property
    def num_turns(self) -> int:
        return len(self.turns.turns)

    def rewrite(self, prompt: TokenIds, messages: list[dict[str, Any]], limit: int) -> None:
        """The environment wrote the prompt. Raises PromptRefused if it is too long."""
        if not 0 < len(prompt) <= limit:
            raise PromptRefused(f"the environment wrote a prompt of {len(prompt)} tokens: the run takes 1 to {limit}")
        self._kept, self._added, self._messages, self.sequence = 0, prompt, messages, prompt

    def answered(self, answer: Completion, asked_at: float, ended_at: float) -> None:
        """The policy answered."""
        self.turns.add(
            answer,
            parent=self.num_turns - 1,
            kept=self._kept,
            added=self._added,
            messages=self._messages,
            asked_at=asked_at,
            ended_at=ended_at,
        )
        self.sequence = np.concatenate([self.sequence, answer.token_ids])
        self.length += len(answer.token_ids)

    def go_on(self, added: TokenIds, messages: list[dict[str, Any]]) -> None:
        """The environment replied: its tokens follow."""
        self._kept, self._added, self._messages = len(self.sequence), added, messages
        self.sequence = np.concatenate([self.sequence, added])
        self.length += len(added)
