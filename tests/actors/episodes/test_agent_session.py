"""Conversations of an agent as tokens, without HTTP and in simulated time: paths, branches, requests sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl import codec
from olmorl.actors.episodes.agent_play import AgentPlay
from olmorl.actors.episodes.agent_session import AgentSession
from olmorl.actors.episodes.chat_request import ChatRequest, Refused, read
from olmorl.actors.episodes.fake_environments import FakeRenderer
from olmorl.actors.episodes.suffix import TemplateRenderer
from olmorl.actors.fake_engine import FakeEngine
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import LoopClock, run_simulated
from olmorl.config import Objective
from olmorl.deploy.demo.tiny_model import build_tokenizer
from olmorl.errors import EnvironmentFailed, PromptRefused
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.samples import defect, samples
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Completion, EpisodeStart, Group, Lease, Version
from olmorl.ports import Sampling
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=20, tail=0)
"""Every answer takes 20 tokens, 2 s."""
ASKED = {"role": "user", "content": "begin"}
MORE = {"role": "user", "content": "go on"}


class Renderer(FakeRenderer):
    """Says the number of each answer, and calls a tool in answers of prompts with tools."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__()
        self._tools = tools
        self._number = 0

    def reply(self, answer: Completion) -> dict[str, Any]:
        self._number += 1
        said: dict[str, Any] = {"role": "assistant", "content": f"answer {self._number}", "reasoning_content": "hm"}
        if self._tools:
            said["tool_calls"] = [
                {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
            ]
        return said


def play(**changes: Any) -> AgentPlay:
    fields = {"tool_role": "tool", "timeout_s": 5.0, "max_turns": 9, "max_sequence": 400, "max_cache_age": 1}
    return AgentPlay("true", Renderer, **fields | changes)


def asks(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return read(json.dumps({"messages": messages, **fields}).encode(), "tool")


def episode(
    draw: Make, story: Callable[[AgentSession, FakeEngine], Awaitable[Any]], **changes: Any
) -> tuple[Completion, Any]:
    """What an agent that does `story` makes, and what the story returns. Its turns are checked against the engine."""
    seen: dict[str, list[int]] = {}

    class Watching(FakeEngine):
        async def generate(self, request_id: str, prompt: Any, *others: Any) -> Completion:
            seen[request_id] = prompt.tolist()
            return await super().generate(request_id, prompt, *others)

    async def scenario() -> tuple[Completion, Any]:
        engine = Watching(STEADY, max_running=8, max_model_len=20_000)
        engine._versions, engine._since = [prompt.min_version], [0]  # started
        work = LeasedGroup(Lease(prompt=prompt, lease_id="1", owner="a0", deadline=0.0))
        async with asyncio.TaskGroup() as tasks:
            session = AgentSession(
                engine,
                play(**changes),
                LoopClock(),
                work,
                "e",
                Sampling(max_tokens=50, seed=1),
                tasks=tasks,
                note_waiting=lambda is_waiting: None,
            )
            found = await story(session, engine)
        completion = session.turns.completion(session.exit or "done", {})
        assert work.num_tokens == engine.tokens_generated == len(completion.token_ids)
        return completion, found

    prompt = draw(0, group_size=1, episode=EpisodeStart())
    made, found = run_simulated(scenario())
    paths: list[list[int]] = []
    for turn in made.turns:
        before = paths[turn.parent][: turn.kept] if turn.parent >= 0 else []
        assert before + turn.added.tolist() in seen.values(), "the engine saw the prompt that the turn records"
        paths.append(before + turn.added.tolist() + made.token_ids[turn.start : turn.end].tolist())
    group = Group(prompt=prompt, completions=(made,), actor="a0", started_at=0.0, finished_at=1.0)
    assert defect(group) == "no completion has a reward"
    return made, found


def shape(made: Completion) -> list[tuple[int, int, int]]:
    """Parent, kept tokens and added tokens of each turn."""
    return [(turn.parent, turn.kept, len(turn.added)) for turn in made.turns]


def test_a_history_that_grows_is_one_path(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> None:
        history = [ASKED]
        for _ in range(3):
            answer = await session.answer(asks(*history))
            history += [answer.message, MORE]

    made, _ = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (0, 23, 3), (1, 46, 3)]
    assert [turn.messages for turn in made.turns] == [[ASKED], [MORE], [MORE]]
    assert made.text == "right" or made.text == "wrong"


def test_updates_between_and_inside_turns_label_their_tokens(draw: Make, staged: Make) -> None:
    async def story(session: AgentSession, engine: FakeEngine) -> None:
        first = await session.answer(asks(ASKED))
        await engine.update(staged(Version(1, 1)))
        second = asyncio.create_task(session.answer(asks(ASKED, first.message, MORE)))
        await asyncio.sleep(1.05)
        await engine.update(staged(Version(1, 2)))
        await second

    made, _ = episode(draw, story)
    assert [(span.version.number, span.start, span.end) for span in made.spans] == [
        (0, 0, 20),
        (1, 20, 30),
        (2, 30, 40),
    ]


@pytest.mark.parametrize("keeps_thinking", [True, False])
def test_calls_come_back_as_text_and_results_follow(draw: Make, keeps_thinking: bool) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]

    async def story(session: AgentSession, _: Any) -> str:
        first = await session.answer(asks(ASKED, tools=tools))
        said = first.body()["choices"][0]
        (call,) = said["message"]["tool_calls"]
        assert said["finish_reason"] == "tool_calls"
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
        echo = dict(said["message"], content=[{"type": "text", "text": said["message"]["content"]}])
        if not keeps_thinking:
            del echo["reasoning_content"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        second = await session.answer(asks(ASKED, echo, result, tools=tools))
        return str(second.message["tool_calls"][0]["id"])

    made, second_id = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (0, 23, 3)]
    assert second_id != made.turns[0].reply["tool_calls"][0]["id"] and len(second_id) == 9


def test_a_rewritten_history_is_a_branch_with_a_prompt_of_its_own(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> None:
        first = await session.answer(asks(ASKED))
        await session.answer(asks(ASKED, {"role": "assistant", "content": f"{first.message['content']}!"}, MORE))
        await session.answer(asks({"role": "system", "content": "short"}, ASKED))

    made, _ = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (-1, 0, 9), (-1, 0, 6)]


def test_an_answer_that_the_agent_drops_is_a_leaf_and_its_parent_goes_on(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> None:
        first = await session.answer(asks(ASKED))
        path = (ASKED, first.message, MORE)
        await session.answer(asks(*path))
        await session.answer(asks(*path, {"role": "user", "content": "again"}))

    made, _ = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (0, 23, 3), (0, 23, 6)]


def test_a_request_that_is_sent_again_joins_the_running_one_or_gets_its_answer(draw: Make) -> None:
    async def story(session: AgentSession, engine: FakeEngine) -> None:
        one = asyncio.create_task(session.answer(asks(ASKED)))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(session.answer(asks(ASKED)))
        await asyncio.sleep(0)
        one.cancel()  # the client hung up
        late = await session.answer(asks(ASKED), is_retry=True)
        assert await two is late and engine.tokens_generated == 20
        assert await session.answer(asks(ASKED), is_retry=True) is late
        assert await session.answer(asks(ASKED)) is not late, "asked anew"

    made, _ = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (-1, 0, 3)]


def test_answers_that_are_asked_for_together_are_branches(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> None:
        other = {"role": "user", "content": "another"}
        await asyncio.gather(session.answer(asks(ASKED)), session.answer(asks(other)))

    made, _ = episode(draw, story)
    assert shape(made) == [(-1, 0, 3), (-1, 0, 3)]
    assert [span.end for span in made.spans] == [20, 40]


@pytest.mark.parametrize(
    ("changes", "exit_", "status", "what"),
    [
        ({"max_turns": 1}, "max_turns", 404, "the episode is over after 1 requests"),
        ({"max_sequence": 26}, "too_long", 400, "This model's maximum context length is 26 tokens"),
    ],
)
def test_the_bounds_of_an_episode_are_errors_that_agents_know(
    draw: Make, changes: dict[str, int], exit_: str, status: int, what: str
) -> None:
    async def story(session: AgentSession, _: Any) -> Refused:
        first = await session.answer(asks(ASKED))
        with pytest.raises(Refused, match=what) as refused:
            await session.answer(asks(ASKED, first.message, MORE))
        return refused.value

    made, refused = episode(draw, story, **changes)
    assert (made.exit, len(made.turns), refused.status) == (exit_, 1, status)


def test_an_agent_may_shorten_its_history_when_it_is_too_long(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> None:
        first = await session.answer(asks(ASKED))
        with pytest.raises(Refused):
            await session.answer(asks(ASKED, first.message, MORE))
        await session.answer(asks(MORE))

    made, _ = episode(draw, story, max_sequence=26)
    assert (made.exit, shape(made)) == ("done", [(-1, 0, 3), (-1, 0, 3)])


def test_an_agent_that_repeats_what_is_too_long_comes_to_an_end_with_that_exit(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> list[int]:
        path = (ASKED, (await session.answer(asks(ASKED))).message, MORE)
        statuses = []
        for _ in range(4):
            with pytest.raises(Refused) as refused:
                await session.answer(asks(*path))
            statuses.append(refused.value.status)
        return statuses

    made, statuses = episode(draw, story, max_sequence=26, max_turns=3)
    assert (made.exit, statuses) == ("too_long", [400, 400, 404, 404])


def test_an_answer_has_the_room_that_is_left_and_the_tokens_that_were_asked_for(draw: Make) -> None:
    async def story(session: AgentSession, _: Any) -> list[Any]:
        asked = [await session.answer(asks(ASKED, max_tokens=8, max_completion_tokens=7))]
        asked.append(await session.answer(asks(MORE)))
        return [(one.sampled_tokens, one.finish_reason, one.body()["usage"]["prompt_tokens"]) for one in asked]

    made, found = episode(draw, story, max_sequence=15)
    assert found == [(7, "length", 3), (12, "length", 3)]
    assert [turn.finish_reason for turn in made.turns] == ["length", "length"]


def test_messages_that_the_template_refuses_are_a_fault_and_no_exit(draw: Make) -> None:
    class Refusing(Renderer):
        def added(self, *_: Any) -> Any:
            raise EnvironmentFailed("the chat template refuses a message of the role 'tool'")

    async def story(session: AgentSession, _: Any) -> str:
        session._play = session._play._replace(renderer=Refusing)
        first = await session.answer(asks(ASKED))
        with pytest.raises(Refused, match="refuses a message of the role 'tool'"):
            await session.answer(asks(ASKED, first.message, MORE))
        return session.fault

    _, fault = episode(draw, story)
    assert fault == "the chat template refuses a message of the role 'tool'"


def test_130_turns_cost_linear_tokens(draw: Make) -> None:
    rendered: list[int] = []

    class Counting(Renderer):
        def prompt(self, messages: Sequence[dict[str, Any]]) -> Any:
            rendered.append(len(messages))
            return super().prompt(messages)

    async def story(session: AgentSession, _: Any) -> None:
        session._play = session._play._replace(renderer=Counting)
        history = [ASKED]
        for _ in range(130):
            history += [(await session.answer(asks(*history))).message, MORE]

    made, _ = episode(draw, story, max_turns=130, max_sequence=10_000)
    assert rendered == [1] * 130 and np.concatenate([turn.added for turn in made.turns]).size == 3 * 130


class Reader:
    """A tokenizer that notes how much text it has read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.read: list[int] = []

    def __call__(self, texts: list[str], **options: Any) -> Any:
        self.read += map(len, texts)
        return self._tokenizer(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_a_tokenizer_reads_each_message_of_130_turns_once(draw: Make) -> None:
    tokenizer = build_tokenizer(256)
    reader = Reader(tokenizer)

    async def story(session: AgentSession, _: Any) -> None:
        renderer = TemplateRenderer(reader, [tokenizer.eos_token_id])
        session._play = session._play._replace(renderer=lambda tools: renderer)
        history = [ASKED]
        for number in range(130):
            more = {"role": "user", "content": f"go on {number:03d}"}
            history += [(await session.answer(asks(*history))).message, more]

    made, _ = episode(draw, story, max_turns=130, max_sequence=10_000)
    assert len(reader.read) == 130 and len(set(reader.read[1:])) == 1, "as much in the last turn as in the second"
    assert len({len(turn.added) for turn in made.turns[1:]}) == 1, "and as many tokens are new to the engine"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_an_agent_does_each_sampled_token_is_trained_in_one_sequence(draw: Make, seed: int) -> None:
    random = Random(seed)

    async def talk(session: AgentSession, histories: list[list[dict[str, Any]]]) -> None:
        history = [*random.choice(histories), {"role": "user", "content": str(random.randrange(3))}]
        if random.random() < 0.3:  # rewrites or drops something earlier
            history[random.randrange(len(history))] = {"role": "user", "content": f"note {random.randrange(9)}"}
        answer = await session.answer(asks(*history), is_retry=random.random() < 0.2)
        histories.append([*history, answer.message])

    async def story(session: AgentSession, _: Any) -> None:
        histories: list[list[dict[str, Any]]] = [[]]
        for _ in range(5):
            await asyncio.gather(*(talk(session, histories) for _ in range(random.randint(1, 3))))

    made, _ = episode(draw, story, max_turns=20, max_sequence=2000)
    group = Group(
        prompt=draw(0, group_size=1, episode=EpisodeStart()),
        completions=(replace(made, reward=1.0),),
        actor="a0",
        started_at=0.0,
        finished_at=1.0,
    )
    found = samples(group, 0, max_lag=2, max_tokens=2000, starts=[Start(1, 0, 0)], switches=resolve(Objective(), 2000))
    trained = [sample.completion_ids[sample.loss_mask] for sample in found]
    leaves = set(range(len(made.turns))) - {turn.parent for turn in made.turns}
    assert len(found) == len(leaves)
    assert sorted(np.concatenate(trained).tolist()) == sorted(made.token_ids.tolist())


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("{", "the body of the request is no JSON"),
        ("[]", "a request has a list of messages"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "robot"}]}', r"messages\[0\]: a message has one of the roles"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', r"messages\[0\].content: a text"),
        ('{"messages": [{"role": "user", "content": "a"}], "n": 2}', "n: one answer"),
        ('{"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}', "max_tokens is a number over 0"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": [3]}', "tools: each one is a function"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{}]}]}', r"messages\[0\].tool_calls: KeyError"),
        (
            '{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}}',
            "response_format: the policy is sampled without a grammar",
        ),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "no JSON: 'utf-8' codec can't encode"),
        ('{"messages": [{"role": "user", "content": "a"}], "stop": [""]}', "stop: a text, or a list of texts"),
        ('{"messages": [{"role": "user", "content": "a"}], "logprobs": true}', "logprobs: the endpoint gives none"),
        (
            '{"messages": [{"role": "user", "content": "a"}], "stream_options": true}',
            "stream_options: an object, and not True",
        ),
        (
            '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]}',
            r"messages\[0\].tool_calls: TypeError: a call has a name",
        ),
        (
            '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '
            '"{\\"a\\": 99999999999999999999}"}}]}]}',
            r"messages\[0\].tool_calls: ValueError: can't serialize ints",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(body: str, what: str) -> None:
    with pytest.raises(Refused, match=what) as refused:
        read(body.encode(), "tool")
    assert refused.value.status == 400 and refused.value.body()["error"]["type"] == "invalid_request_error"


VALUES = [None, True, 0, -1, 0.5, 1 << 70, "x", "\ud800", [], [1], [""], [None], [[]], [{}], {}, {"a": 1}, float("inf")]
IN_A_REQUEST = (
    "messages",
    "tools",
    "stop",
    "stream",
    "stream_options",
    "n",
    "response_format",
    "max_tokens",
    "temperature",
)
IN_A_MESSAGE = ("role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls")


def at_odds() -> Iterator[dict[str, Any]]:
    """Requests with a value that does not belong in its place."""
    for value, key in product(VALUES, IN_A_REQUEST):
        yield {"messages": [ASKED], key: value}
    for value, key, role in product(VALUES, IN_A_MESSAGE, ("user", "assistant", "tool")):
        yield {"messages": [{"role": role, "content": "a", key: value}, MORE]}
    for value in VALUES:
        for function in (value, {"name": value}, {"name": "f", "arguments": value}):
            yield {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]}
            yield {"messages": [ASKED], "tools": [{"type": "function", "function": function}]}


def test_whatever_a_request_holds_it_is_refused_or_has_messages_that_templates_and_queues_take() -> None:
    num_read = 0
    for request in at_odds():
        try:
            found = read(json.dumps(request).encode(), "tool")
        except Refused as refused:
            assert refused.status == 400
            continue
        num_read += 1
        codec.encode([*found.messages])
        texts = [value for message in found.messages for key, value in message.items() if key != "tool_calls"]
        calls = [call["function"] for message in found.messages for call in message.get("tool_calls", ())]
        assert all(isinstance(text, str) for text in [*texts, *found.stop, *(call["name"] for call in calls)])
        assert all(isinstance(call["arguments"], dict) for call in calls) and "" not in found.stop
    assert num_read > 100
    with pytest.raises(Refused, match="the body of the request is no JSON: maximum recursion depth exceeded"):
        read(b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", "tool")


def test_messages_that_no_tokens_can_hold_are_too_long(draw: Make) -> None:
    class Long(Renderer):
        def added(self, *_: Any) -> Any:
            raise PromptRefused("a text of 9000 characters has over 400 tokens")

    async def story(session: AgentSession, _: Any) -> None:
        session._play = session._play._replace(renderer=Long)
        first = await session.answer(asks(ASKED))
        with pytest.raises(Refused, match="maximum context length is 400 tokens: a text of 9000 characters"):
            await session.answer(asks(ASKED, first.message, MORE))
        assert not session.fault

    made, _ = episode(draw, story)
    assert made.exit == "too_long"
