"""The conversations of one agent with the policy, as tokens.

    request ── repeats a held conversation? ── yes: its tokens, and the new messages rendered ──> engine ──> turn
                                           └─ no:  the whole request rendered, a new branch ──┘

What the policy sampled is never rendered or tokenized again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from olmorl import seeds
from olmorl.actors.episodes.agent_play import AgentPlay
from olmorl.actors.episodes.chat_request import Answer, ChatRequest, Message, Refused, after
from olmorl.actors.episodes.turns import MAX_TURNS, TOO_LONG, CacheSalt, Turns
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import Clock
from olmorl.errors import EnvironmentFailed, PromptRefused
from olmorl.messages import Completion, TokenIds
from olmorl.ports import Engine, Renderer, Sampling

T = TypeVar("T")


class _Held(NamedTuple):
    """A conversation that ends with an answer of the policy."""

    turn: int
    messages: tuple[Message, ...]
    """Without the answer."""
    reply: Message
    answer: Completion
    sequence: TokenIds


class _Place(NamedTuple):
    """Where a request continues, and the prompt of its answer."""

    parent: int
    kept: int
    added: TokenIds
    messages: Sequence[Message]
    prompt: TokenIds
    room: int
    """Tokens that the answer may have."""


class AgentSession:
    """A request continues the longest conversation that it repeats, or is a new branch. It is answered once."""

    def __init__(
        self,
        engine: Engine,
        play: AgentPlay,
        clock: Clock,
        work: LeasedGroup,
        request_id: str,
        sampling: Sampling,
        *,
        tasks: asyncio.TaskGroup,
        thread: Executor | None = None,
        note_waiting: Callable[[bool], None],
    ) -> None:
        """
        Args:
            tasks: of the episode. An error of the engine ends it.
            thread: one thread, for the tokenizer.
            note_waiting: called with whether the policy waits for the agent, whenever that changes.
        """
        self._engine = engine
        self._play = play
        self._clock = clock
        self._work = work
        self._request_id = request_id
        self._sampling = sampling
        self._tasks = tasks
        self._thread = thread
        self._note_waiting = note_waiting
        self.turns = Turns()
        self.exit = ""
        """The bound that refused the last request; empty if an answer came after that."""
        self.fault = ""
        """Why the episode cannot be scored."""
        self.refusal = ""
        """Why the last refused request was refused."""
        self._salt = CacheSalt()
        self._num_asked = 0
        self._held: dict[bytes, _Held] = {}
        self._running: dict[Any, asyncio.Task[Answer | Refused]] = {}
        self._given: dict[Any, Answer] = {}
        self._renderers: dict[bytes, Renderer] = {}

    async def answer(self, request: ChatRequest, *, is_retry: bool = False) -> Answer:
        """The policy's answer. A request that is sent again gets the answer of the first one.

        Raises:
            Refused: a bound of the episode, or the chat template, allows no answer.
        """
        key = request.identity
        if is_retry and key in self._given:
            return self._given[key]
        task = self._running.get(key)
        if task is None:
            task = self._tasks.create_task(self._sample(request, self._count()))
            self._running[key] = task
            self._note_waiting(False)
            task.add_done_callback(lambda _: self._ended(key))
        found = await asyncio.shield(task)
        if isinstance(found, Refused):
            raise found
        return found

    def refuse(self, refused: Refused) -> Refused:
        """Note a refusal, for the cause of a failed episode."""
        self.refusal = str(refused)
        return refused

    def cancel(self) -> None:
        """No answer is wanted any more."""
        for task in self._running.values():
            task.cancel()

    def _ended(self, key: Any) -> None:
        del self._running[key]
        if not self._running:
            self._note_waiting(True)

    def _count(self) -> int:
        """The number of a new request. Raises Refused. Refused ones count too, so that no agent asks without end."""
        if self._num_asked >= self._play.max_turns:
            self.exit = self.exit or MAX_TURNS
            # Agents end at this status, and try others again.
            raise Refused(f"the episode is over after {self._num_asked} requests (episodes.max_turns)", 404, MAX_TURNS)
        self._num_asked += 1
        return self._num_asked - 1

    async def _place(self, request: ChatRequest) -> _Place | Refused:
        held = self._longest(request)
        try:
            if held is None:
                parent, messages, sequence = -1, request.messages, _NO_TOKENS
                added = await self._in_thread(lambda: self._renderer(request).prompt(messages))
            else:
                parent, messages, sequence = held.turn, request.messages[len(held.messages) + 1 :], held.sequence
                added = await self._in_thread(partial(self._added, request, held, messages))
        except PromptRefused as error:
            return self.too_long(str(error))
        except (EnvironmentFailed, ValueError) as error:
            self.fault = str(error)
            return Refused(self.fault)
        prompt = np.concatenate([sequence, added])
        room = self._play.max_sequence - len(prompt)
        if room <= 0:
            return self.too_long(f"the request has {len(prompt)}")
        return _Place(parent, len(sequence), added, messages, prompt, room)

    def _added(self, request: ChatRequest, held: _Held, messages: Sequence[Message]) -> TokenIds:
        return self._renderer(request).added(held.messages, held.reply, messages, held.answer)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Templates and tokenizers take long over long conversations, and tokenizers one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _longest(self, request: ChatRequest) -> _Held | None:
        """The longest held conversation that the request continues with messages of others."""
        for length in range(len(request.messages) - 1, 0, -1):
            if request.messages[length]["role"] == "assistant":
                return None
            if held := self._held.get(request.digests[length]):
                return held
        return None

    def _renderer(self, request: ChatRequest) -> Renderer:
        tools = request.digests[0]
        if tools not in self._renderers:
            self._renderers[tools] = self._play.renderer(request.tools)
        return self._renderers[tools]

    def too_long(self, cause: str) -> Refused:
        """The refusal of a request that no episode can hold."""
        self.exit = TOO_LONG
        longest = self._play.max_sequence
        return Refused(
            f"This model's maximum context length is {longest} tokens: {cause}.",
            code="context_length_exceeded",
        )

    async def _sample(self, request: ChatRequest, number: int) -> Answer | Refused:
        place = await self._place(request)
        if isinstance(place, Refused):
            return place
        asked_at = self._clock.wall()
        sampling, salt = (
            self._sampling_of(request, place, number),
            self._salt.at(self._engine.version, self._play.max_cache_age),
        )
        request_id = f"{self._request_id}.{number}"
        try:
            answer = await self._engine.generate(request_id, place.prompt, sampling, self._work.priority, salt)
        except PromptRefused as error:
            return self.too_long(str(error))
        self._work.num_tokens += len(answer.token_ids)
        self.exit = ""
        turn = self.turns.add(
            answer,
            parent=place.parent,
            kept=place.kept,
            added=place.added,
            messages=place.messages,
            asked_at=asked_at,
            ended_at=self._clock.wall(),
        )
        reply = _with_ids(await self._in_thread(lambda: self._renderer(request).reply(answer)), turn)
        self.turns.reply(turn, reply)
        self._hold(
            request, _Held(turn, request.messages, reply, answer, np.concatenate([place.prompt, answer.token_ids]))
        )
        given = Answer(turn, reply, answer.finish_reason, len(place.prompt), len(answer.token_ids), int(asked_at))
        self._given[request.identity] = given
        return given

    def _sampling_of(self, request: ChatRequest, place: _Place, number: int) -> Sampling:
        ours = self._sampling
        seed = None if ours.seed is None else seeds.derive(ours.seed, "turn", number)
        most = min(ours.max_tokens, place.room, request.max_tokens or place.room)
        return replace(ours, max_tokens=most, seed=seed, stop=(*ours.stop, *request.stop))

    def _hold(self, request: ChatRequest, held: _Held) -> None:
        """The agent may repeat the answer with its thinking or without."""
        without_thinking = {key: value for key, value in held.reply.items() if key != "reasoning_content"}
        for reply in (held.reply, without_thinking):
            self._held[after(request.digests[-1], reply)] = held


_NO_TOKENS: TokenIds = np.zeros(0, np.int32)


def _with_ids(reply: Message, turn: int) -> Message:
    """The reply with names of its calls that no other turn has, of nine characters: some chat templates want those."""
    calls: Sequence[Mapping[str, Any]] = reply.get("tool_calls", ())
    if not calls:
        return reply
    return {**reply, "tool_calls": [{**call, "id": f"c{turn:05d}{place:03d}"} for place, call in enumerate(calls)]}
