"""Plays recorded episodes again: an actor's code plays them, with the recorded answers in the place of an engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from olmorl.actors.episodes.chat_request import Refused, message_of
from olmorl.actors.episodes.runner import Play
from olmorl.actors.episodes.turns import TOO_LONG
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import SystemClock
from olmorl.config import Config
from olmorl.errors import PromptRefused, Unscorable
from olmorl.messages import Completion, Lease, Prompt, Span, TokenIds, Version
from olmorl.ports import Engine, Sampling
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments

_START = Version(0, 0)
_NO_BOUND = 1 << 30
"""The lengths were those of the recording."""


class Recording(NamedTuple):
    """The answers of an episode."""

    replies: Sequence[dict[str, Any]]
    """As messages, at least one."""
    is_cut: bool
    """The last one was cut at the longest length."""
    exit: str = ""
    """Why the episode ended; empty if that was not recorded."""


def recording_of(completion: Any, is_cut: bool) -> Recording:
    """The answers in a completion of a row: a text, messages, a completion of `rollouts/` or an episode of olmorl-eval.

    Raises ValueError if it holds none, or one that is no message.
    """
    try:
        replies, is_cut, exit_ = _recorded(completion, is_cut)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the completion is no recorded episode: {type(error).__name__}: {error}") from None
    if not replies:
        raise ValueError("the completion has no message of an assistant, and so no answer to play")
    return Recording([_reply(reply, number) for number, reply in enumerate(replies)], is_cut, exit_)


def _recorded(completion: Any, is_cut: bool) -> Recording:
    turns = completion.get("turns") if isinstance(completion, dict) else None
    if not turns:
        text = completion["text"] if isinstance(completion, dict) else completion
        messages = [{"role": "assistant", "content": text}] if isinstance(text, str) else text
        replies = [one for one in messages if isinstance(one, dict) and one.get("role") == "assistant"]
        return Recording(replies, is_cut)
    last = turns[-1]
    is_cut = last["finish_reason"] == "length" if isinstance(last, dict) else is_cut
    replies = [turn["reply"] if isinstance(turn, dict) else turn[-1] for turn in turns]
    return Recording(replies, is_cut, completion["exit"])


def _reply(reply: dict[str, Any], number: int) -> dict[str, Any]:
    """A call that cannot be read ends an episode; any other message that cannot is the fault of the row."""
    bad = {"bad_call": reply["bad_call"]} if "bad_call" in reply else {}
    try:
        return message_of(reply, number) | bad
    except Refused as error:
        try:
            return message_of(reply | {"tool_calls": None}, number) | {"bad_call": str(error)}
        except Refused as other:
            raise ValueError(f"answer {number + 1} of the completion cannot be read: {other}") from None


class _Answer(Completion, frozen=True, kw_only=True):
    """An answer of a recording."""

    reply: dict[str, Any]
    is_last: bool


class _Recordings:
    """What the runner of episodes needs of an engine and of a renderer. Prompts have no tokens."""

    version = _START

    def __init__(self) -> None:
        self.playing: dict[str, tuple[Recording, TokenIds]] = {}

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> _Answer:
        """The recorded answer. All tokens of an episode are in its first one."""
        episode, _, place = request_id.rpartition("/")
        number = int(place.rpartition(".")[2])
        (replies, is_cut, _), tokens = self.playing[episode]
        token_ids = tokens if number == 0 else tokens[:0]
        is_last = number == len(replies) - 1
        return _Answer(
            index=0,
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), np.float32),
            spans=(Span(_START, 0, len(token_ids)),),
            finish_reason="length" if is_last and is_cut else "stop",
            text=replies[number]["content"],
            reply=replies[number],
            is_last=is_last,
        )

    def prompt(self, messages: Sequence[dict[str, Any]]) -> TokenIds:
        return np.zeros(1, np.int32)

    def reply(self, answer: Completion) -> dict[str, Any]:
        assert isinstance(answer, _Answer)
        return answer.reply

    def added(
        self,
        conversation: Sequence[dict[str, Any]],
        reply: dict[str, Any],
        messages: Sequence[dict[str, Any]],
        answer: Completion,
    ) -> TokenIds:
        """Raises PromptRefused after the last answer, as where what comes in is too long: the runner ends there."""
        assert isinstance(answer, _Answer)
        if answer.is_last:
            raise PromptRefused("the recording ends")
        return np.zeros(0, np.int32)


class RecordedEpisodes:
    """Exactly the recorded answers are played. An environment that fails, or ends elsewhere, is never a reward."""

    def __init__(self, settings: Config) -> None:
        environments = ForkedEnvironments(settings.episodes, settings.verifiers, settings.schedule.steps)
        self._recordings = _Recordings()
        max_turns = settings.episodes.max_turns
        play = Play(environments, self._recordings, max_turns, _NO_BOUND, _NO_BOUND, max_cache_age=0)
        # The runner asks an engine for its version and for answers alone.
        self._runner = play.player(cast(Engine, self._recordings), SystemClock(), lambda: None)
        self._room = asyncio.Semaphore(settings.verifiers.workers)
        self._begun = 0

    async def start(self) -> None:
        """Start a process. Raises ConfigError if it cannot load the environment."""
        await self._runner.start()

    async def stop(self) -> None:
        await self._runner.stop()

    async def play(self, prompt: Prompt, index: int, recording: Recording, token_ids: TokenIds) -> Completion:
        """The episode with the verdicts of its environment. Raises Unscorable."""
        self._begun += 1
        name = str(self._begun)
        work = LeasedGroup(Lease(prompt=prompt, lease_id=name, owner="olmorl-verify", deadline=0.0))
        async with self._room:
            self._recordings.playing[name] = (recording, token_ids)
            try:
                episode = await self._runner.run(work, index, name, Sampling(max_tokens=_NO_BOUND))
            finally:
                del self._recordings.playing[name]
        num_turns, recorded = len(episode.turns), len(recording.replies)
        if num_turns < recorded:
            raise Unscorable("recording", f"it ends as {episode.exit} after {num_turns} of {recorded} recorded answers")
        if episode.exit == TOO_LONG and not (recording.is_cut or recording.exit == TOO_LONG):
            raise Unscorable("recording", f"the environment goes on after the last of {recorded} recorded answers")
        return episode
