"""Plays episodes: the policy answers, its environment replies, until one of them ends it.

    prompt ── engine ──> answer ── environment ──> messages ── renderer ──> more tokens ── engine ──> answer ...

The next prompt is the tokens that the engine saw and made, and then the rendered messages: nothing that the policy
wrote is tokenized again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from olmorl import seeds
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import Clock
from olmorl.errors import EnvironmentFailed, PromptRefused, Unscorable
from olmorl.messages import Completion, Episode, Prompt, Span, TokenIds, Turn, Version
from olmorl.ports import Engine, Environment, Environments, Renderer, Sampling

TRIES = 3
"""Times that an episode is played before its group fails."""
DONE, MAX_TURNS, TOO_LONG, BAD_CALL = "done", "max_turns", "too_long", "bad_call"


class Play(NamedTuple):
    """What an actor needs for episodes."""

    environments: Environments
    renderer: Renderer
    max_turns: int
    max_prompt: int
    """Longest prompt that an environment may write, in tokens."""
    max_tokens: int
    """Longest episode after its prompt, in tokens."""
    max_cache_age: int
    """Versions after which the keys of an episode's earlier turns are computed again."""


class EpisodeRunner:
    """Every episode ends with an exit, and is scored; or its environment failed every time, and its group fails."""

    def __init__(self, engine: Engine, play: Play, clock: Clock, note_change: Callable[[], None]) -> None:
        """`note_change` is called when an episode begins or ends to wait for its environment."""
        self._engine = engine
        self._play = play
        self._clock = clock
        self._note_change = note_change

    async def run(self, work: LeasedGroup, index: int, request_id: str, sampling: Sampling) -> Completion:
        """Play the episode `index` of a group. Tokens of failed tries count as lost.

        Raises:
            Unscorable: its environment failed `TRIES` times.
            PromptRefused: the prompt that the environment wrote is too long, or the engine refuses it.
        """
        causes = []
        for number in range(TRIES):
            path = _Path(work.prompt.token_ids)
            environment = self._play.environments.open()
            try:
                return await self._episode(work, index, f"{request_id}/{number}", sampling, environment, path)
            except EnvironmentFailed as error:
                work.discard(len(path.sampled))
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
        with self._waiting(work):
            written = await environment.reset(prompt, index)
        conversation = conversation_of(prompt) if written is None else written
        if written is not None:
            path.rewrite(self._play.renderer.prompt(written), written, self._play.max_prompt)
        while not path.exit:
            answer = await self._answer(work, f"{request_id}.{len(path.turns)}", sampling, path)
            reply = self._play.renderer.reply(answer)
            path.reply(reply)
            path.exit = _exit_of(answer, reply)
            if path.exit:
                break
            with self._waiting(work):
                step = await environment.step(reply)
            if step.done:
                path.exit = MAX_TURNS if step.truncated else DONE
            elif len(path.turns) == self._play.max_turns:
                path.exit = MAX_TURNS
            else:
                path.go_on(self._play.renderer.added(conversation, reply, step.messages, answer), step.messages)
                conversation = [*conversation, reply, *step.messages]
                if path.length >= self._play.max_tokens:
                    path.exit = TOO_LONG
        with self._waiting(work):
            episode = path.completion()
            return replace(episode, verdicts=await environment.reward(episode))

    async def _answer(self, work: LeasedGroup, request_id: str, sampling: Sampling, path: _Path) -> Completion:
        """The next answer of the policy, with a seed of its own."""
        room = self._play.max_tokens - path.length
        seed = None if sampling.seed is None else seeds.derive(sampling.seed, "turn", len(path.turns))
        of_turn = replace(sampling, max_tokens=min(sampling.max_tokens, room), seed=seed)
        asked_at = self._clock.wall()
        salt = path.salt_at(self._engine.version, self._play.max_cache_age)
        answer = await self._engine.generate(request_id, path.sequence, of_turn, work.priority, salt)
        work.num_tokens += len(answer.token_ids)
        path.answered(answer, asked_at, self._clock.wall())
        return answer

    @contextmanager
    def _waiting(self, work: LeasedGroup) -> Iterator[None]:
        """The episode waits for its environment, not for the engine."""
        work.num_waiting += 1
        self._note_change()
        try:
            yield
        finally:
            work.num_waiting -= 1
            self._note_change()


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
    """The tokens of an episode so far. Each sampled token is in exactly one turn."""

    sequence: TokenIds
    """The prompt and everything after it."""
    turns: list[Turn] = field(default_factory=list)
    exit: str = ""
    sampled: TokenIds = field(default_factory=_NOTHING.copy)
    length: int = 0
    """Tokens after the prompt."""

    def __post_init__(self) -> None:
        self._answers: list[Completion] = []
        self._salt: Version | None = None
        self._kept = len(self.sequence)
        self._added = _NOTHING
        self._messages: list[dict[str, Any]] = []

    def salt_at(self, now: Version, max_cache_age: int) -> str:
        """The salt of its prefix cache: its first version, so that updates keep the cache, until that is too old."""
        first = self._salt
        if first is None or first.incarnation != now.incarnation or now.number - first.number > max_cache_age:
            self._salt = now
        return str(self._salt)

    def rewrite(self, prompt: TokenIds, messages: list[dict[str, Any]], limit: int) -> None:
        """The environment wrote the prompt. Raises PromptRefused if it is too long."""
        if not 0 < len(prompt) <= limit:
            raise PromptRefused(f"the environment wrote a prompt of {len(prompt)} tokens: the run takes 1 to {limit}")
        self._kept, self._added, self._messages, self.sequence = 0, prompt, messages, prompt

    def answered(self, answer: Completion, asked_at: float, ended_at: float) -> None:
        """The policy answered."""
        start = len(self.sampled)
        self.turns.append(
            Turn(
                parent=len(self.turns) - 1,
                kept=self._kept,
                added=self._added,
                start=start,
                end=start + len(answer.token_ids),
                finish_reason=answer.finish_reason,
                messages=self._messages,
                asked_at=asked_at,
                ended_at=ended_at,
            )
        )
        self._answers.append(answer)
        self.sampled = np.concatenate([self.sampled, answer.token_ids])
        self.sequence = np.concatenate([self.sequence, answer.token_ids])
        self.length += len(answer.token_ids)

    def reply(self, message: dict[str, Any]) -> None:
        """The last answer as a message."""
        self.turns[-1] = replace(self.turns[-1], reply=message)

    def go_on(self, added: TokenIds, messages: list[dict[str, Any]]) -> None:
        """The environment replied: its tokens follow."""
        self._kept, self._added, self._messages = len(self.sequence), added, messages
        self.sequence = np.concatenate([self.sequence, added])
        self.length += len(added)

    def completion(self) -> Completion:
        """The episode as a completion: the sampled tokens of all turns, the text of the last one."""
        pairs = list(zip(self.turns, self._answers, strict=True))
        spans = (
            Span(span.version, turn.start + span.start, turn.start + span.end)
            for turn, answer in pairs
            for span in answer.spans
        )
        return Completion(
            index=0,
            token_ids=self.sampled,
            logprobs=np.concatenate([answer.logprobs for answer in self._answers]),
            spans=tuple(spans),
            finish_reason="length" if self.exit == TOO_LONG else "stop",
            text=self._answers[-1].text,
            episode=Episode(turns=tuple(self.turns), exit=self.exit),
        )
