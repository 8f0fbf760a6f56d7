"""Environments in real worker processes: their forms, their state, and failures that are never a reward."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from olmorl.config import Episodes, Verifiers
from olmorl.errors import ConfigError, EnvironmentFailed
from olmorl.messages import ENVIRONMENT, Completion, Episode, EpisodeStart, Prompt, Span, Turn, Version
from olmorl.metrics import MOST_LABEL_VALUES
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from olmorl.verifiers.environments.tools import CountedCall, ToolCounts

Open = Callable[..., Any]
REPLY = {"role": "assistant", "content": "x"}
GO_ON = [{"role": "user", "content": "go on"}]


@pytest.fixture
def environments(tmp_path: Path) -> Open:
    """Starts environments from the text of a class named `World`."""

    @asynccontextmanager
    async def opened(code: str, timeout_s: float = 20.0, functions: tuple[str, ...] = ()) -> AsyncIterator[Any]:
        (tmp_path / "world.py").write_text(code)
        settings = Episodes(environment=f"{tmp_path}/world.py:World", timeout_s=timeout_s)
        scored_by = [f"{tmp_path}/world.py:{name}" for name in functions]
        made = ForkedEnvironments(settings, Verifiers(memory_mib=512, functions=scored_by), max_steps=9)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()

    return opened


def episode(*replies: dict[str, Any]) -> Completion:
    """An episode of answers of one token."""
    turns = (
        Turn(kept=2, added=np.zeros(0, np.int32), start=n, end=n + 1, finish_reason="stop", reply=reply, messages=GO_ON)
        for n, reply in enumerate(replies or [REPLY])
    )
    size = len(replies or [REPLY])
    return Completion(
        index=0,
        token_ids=np.arange(size, dtype=np.int32),
        logprobs=np.zeros(size, np.float32),
        spans=(Span(Version(1, 4), 0, size),),
        finish_reason="stop",
        text="x",
        episode=Episode(turns=tuple(turns), exit="done"),
    )


def prompt(**columns: Any) -> Prompt:
    return Prompt(
        draw_id=0,
        row="a.jsonl:1",
        messages=[{"role": "user", "content": "?"}],
        token_ids=np.zeros(2, np.int32),
        datasets=("math",),
        ground_truths=("7",),
        columns=columns,
        group_size=2,
        min_version=Version(1, 0),
    )


async def test_each_episode_has_its_own_object_and_its_row(environments: Open) -> None:
    code = (
        "import os\n"
        "class World:\n"
        "    def reset(self, prompt, ground_truth, level, **row):\n"
        "        self.said = [f'{prompt[0][\"content\"]} {ground_truth} {level}']\n"
        "    async def step(self, reply):\n"
        "        self.said.append(reply['content'])\n"
        "        return None if len(self.said) == 3 else f'{self.said} {os.getpid()}'\n"
        "    def reward(self):\n"
        "        return len(self.said) / 2\n"
    )
    async with environments(code) as made:
        one, other = made.open(), made.open()
        assert await one.reset(prompt(level=3), 0) is None and await other.reset(prompt(level=4), 1) is None
        first, second = await one.step(REPLY), await other.step({**REPLY, "content": "y"})
        assert first.messages[0]["content"].startswith("['? 7 3', 'x']") and not first.done
        assert second.messages[0]["content"].startswith("['? 7 4', 'y']")
        pids = {step.messages[0]["content"].split()[-1] for step in (first, second)}
        assert len(pids) == 2 and str(os.getpid()) not in pids
        last = await one.step(REPLY)
        assert (last.messages, last.done) == ([], True)
        assert (await one.reward(episode()))[ENVIRONMENT].reward == 1.5
        await one.close()
        await other.close()
        third = made.open()
        await third.reset(prompt(level=5), 0)
        step = await third.step(REPLY)
        assert step.messages[0]["content"].startswith("['? 7 5', 'x']"), "a new object"
        assert step.messages[0]["content"].split()[-1] in pids, "in a process that was given back"
        await third.close()
        assert made.counts() == {"processes": 2}, "no third one was started, and an environment with step has no tools"


async def test_replies_and_openings_may_be_texts_messages_or_lists(environments: Open) -> None:
    code = (
        "class World:\n"
        "    def reset(self, **row): return [{'role': 'system', 'content': 'a'}, 'b']\n"
        "    def step(self, reply): return {'role': 'tool', 'content': '7'}\n"
    )
    async with environments(code) as made:
        world = made.open()
        assert await world.reset(prompt(), 0) == [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        assert (await world.step(REPLY)).messages == [{"role": "tool", "content": "7"}]
        assert await world.reward(episode()) == {}
        await world.close()


@pytest.mark.parametrize(("parameters", "found"), [("", "nothing"), (", level", "5"), (", level, other=2", "5")])
async def test_reset_may_name_the_columns_that_it_reads(environments: Open, parameters: str, found: str) -> None:
    code = (
        "class World:\n"
        f"    def reset(self{parameters}): self.text = str(locals().get('level', 'nothing'))\n"
        "    def step(self, reply): return self.text\n"
    )
    async with environments(code) as made:
        world = made.open()
        assert await world.reset(prompt(level=5), 0) is None
        assert (await world.step(REPLY)).messages == [{"role": "user", "content": found}]
        await world.close()


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("raise OSError('the server is gone')", "step: OSError: the server is gone"),
        ("return 7", "step: TypeError: an environment replies with a text, messages or None, not with '7'"),
        ("return {'role': 'tool', 'content': None}", "step: TypeError: an environment replies with a text, messages"),
        ("import time; time.sleep(60)", r"step took longer than episodes.timeout_s = 0.5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"its process ended in step \(signal 9\)"),
        ("self.much = bytearray(1 << 30)", "step exceeded its memory"),
    ],
)
async def test_a_failure_is_an_error_and_its_process_takes_no_other_episode(
    environments: Open, body: str, cause: str
) -> None:
    code = f"class World:\n    def step(self, reply):\n        {body}\n"
    async with environments(code, timeout_s=0.5 if "sleep" in body else 20.0) as made:
        world = made.open()
        await world.reset(prompt(), 0)
        process = psutil.Process(world._worker.pid)
        with pytest.raises(EnvironmentFailed, match=cause):
            await world.step(REPLY)
        await world.close()
        assert await asyncio.to_thread(psutil.wait_procs, [process], 5) == ([process], [])
        again = made.open()
        assert await again.reset(prompt(), 0) is None
        await again.close()
        assert made.counts()["processes"] == 1, "the other one is gone"


async def test_a_cancelled_episode_ends_its_process(environments: Open) -> None:
    code = "import time\nclass World:\n    def step(self, reply): time.sleep(60)\n"
    async with environments(code) as made:
        world = made.open()
        await world.reset(prompt(), 0)
        process = psutil.Process(world._worker.pid)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await world.step(REPLY)
        await world.close()
        assert await asyncio.to_thread(psutil.wait_procs, [process], 5) == ([process], [])


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import nowhere_to_be_found", "episodes.environment = .*world.py:World.*does not import: ModuleNotFoundError"),
        ("x = 1", "has no function 'World'"),
    ],
)
async def test_an_environment_that_cannot_be_loaded_is_named_at_the_start(
    environments: Open, code: str, cause: str
) -> None:
    with pytest.raises(ConfigError, match=cause):
        async with environments(code):
            raise AssertionError


async def test_an_object_that_is_no_environment_is_named(environments: Open) -> None:
    async with environments("class World: pass\n") as made:
        world = made.open()
        with pytest.raises(EnvironmentFailed, match="a World has no method step"):
            await world.reset(prompt(), 0)
        await world.close()


TRL_STYLE = '''
class World:
    """As TRL documents it: `environment_factory=World`."""

    def reset(self, level, **kwargs):
        self.total = level
        return f" The level is {level}."

    async def add(self, number: int) -> int:
        """
        Adds to the total.

        Args:
            number: The number.
        """
        if number < 0:
            raise ValueError("a negative number")
        if number == 99:
            raise OSError("the disk is gone")
        self.total += number
        return self.total

    def _hidden(self): ...

    def get_reward(self):
        return self.total / 10
'''


def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"call{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def counted(environments: ForkedEnvironments) -> dict[str, float]:
    """The calls and errors of tools."""
    counts = ((name.removeprefix("tool_"), value) for name, value in environments.counts().items())
    return {name: value for name, value in counts if name.startswith(("calls.", "errors."))}


async def test_the_public_methods_of_an_environment_without_step_are_its_tools(
    environments: Open, tmp_path: Path
) -> None:
    async with environments(TRL_STYLE) as made:
        (schema,) = schemas(Episodes(environment=f"{tmp_path}/world.py:World"))
        world, start = made.open(), EpisodeStart(tools=(schema,))
        opening = await world.reset(replace(prompt(level=3), episode=start), 0)
        assert opening == [{"role": "user", "content": "? The level is 3."}]
        step = await world.step(calls(("add", {"number": 4}), ("add", {"number": -1}), ("add", {}), ("_hidden", {})))
        assert [(one["role"], one["tool_call_id"]) for one in step.messages] == [("tool", f"call{n}") for n in range(4)]
        results = [one["content"] for one in step.messages]
        assert results[:2] == ["7", "Error: ValueError: a negative number"]
        assert "missing 1 required positional argument" in results[2]
        assert results[3] == "Error: no tool '_hidden'; there are add"
        assert (await world.step({"role": "assistant", "content": "7"})).done
        assert (await world.reward(episode()))[ENVIRONMENT].reward == 0.7
        assert counted(made) == {"calls.add": 3, "errors.add": 2, "calls.unknown": 1, "errors.unknown": 1}
        assert made.counts()["processes"] == 1 and 0 < made.counts()["tool_s.add"] < 20
        with pytest.raises(EnvironmentFailed, match="step: OSError: the disk is gone"):
            await world.step(calls(("add", {"number": 99}), ("nothing", {})))
        await world.close()
        # No call of a step that failed has a result.
        assert counted(made) == {"calls.add": 4, "errors.add": 3, "calls.unknown": 2, "errors.unknown": 2}
    assert schema["function"]["name"] == "add"
    assert schema["function"]["parameters"]["properties"] == {
        "number": {"type": "integer", "description": "The number."}
    }


ODD = '''
import asyncio

class World:
    def nothing(self) -> None:
        """Returns nothing."""

    def raw(self) -> bytes:
        """Returns bytes."""
        return bytes([255])

    def half(self) -> str:
        """Returns half of a surrogate pair, as names of files may have it."""
        return chr(0xD800) + "x"

    def wrong(self) -> str:
        """Raises it."""
        raise ValueError(chr(0xD800))

    async def later(self) -> str:
        """Takes a while."""
        await asyncio.sleep(0.01)
        return "later"

    def close(self):
        raise RuntimeError("it closes badly")
'''


async def test_whatever_a_tool_returns_is_a_text_and_a_bad_close_costs_its_process_alone(environments: Open) -> None:
    async with environments(ODD) as made:
        world = made.open()
        await world.reset(prompt(), 0)
        process = psutil.Process(world._worker.pid)
        step = await world.step(calls(*((name, {}) for name in ("nothing", "raw", "wrong", "half", "later"))))
        assert [one["content"] for one in step.messages] == [
            "None", "b'\\xff'", "Error: ValueError: \\ud800", "\\ud800x", "later"
        ]  # fmt: skip
        await world.close()
        assert await asyncio.to_thread(psutil.wait_procs, [process], 5) == ([process], [])


def test_the_counts_have_a_bounded_number_of_tools() -> None:
    made = ToolCounts()
    for number in range(200):
        made.add([CountedCall(f"tool{number}", 0.5, is_error=number == 199)])
    made.add([CountedCall("tool0", 0.5, is_error=True)])
    counts = made.counts()
    assert len(counts) == 3 * MOST_LABEL_VALUES
    others = 200 - (MOST_LABEL_VALUES - 1)
    assert (counts["tool_calls.other"], counts["tool_errors.other"]) == (others, 1)
    assert counts["tool_s.other"] == others / 2
    assert (counts["tool_calls.tool0"], counts["tool_errors.tool0"], counts["tool_s.tool0"]) == (2, 1, 1.0)


REWARDS = """
class World:
    def __init__(self):
        self.reward = 0.0  # a value, as in TRL's examples, and no method

    def reset(self, **kwargs):
        self.moves = []

    def move(self, to: str) -> str:
        '''
        Moves.

        Args:
            to: Where to.
        '''
        self.moves.append(to)
        self.reward += 0.25
        return f"now at {to}"


def by_moves(environments, prompts, completions, completion_ids, level, trainer_state, log_metric, **kwargs):
    (environment,), (completion,), (ids,) = environments, completions, completion_ids
    assert isinstance(environment, World), "the class of this file"
    assert [one["content"] for one in completion] == ["", "go on", "x"] and ids == [0, 1]
    assert (level, trainer_state.global_step, trainer_state.max_steps) == ([3], 4, 9)
    log_metric("moves", len(environment.moves))
    return [environment.reward]


def nobody(environments):
    return [None for _ in environments]


def wrong(environments):
    return [environments[0].missing]


def by_text(completions, **kwargs):
    raise AssertionError("it takes no environments, so it is not called here")
"""


async def test_a_reward_function_that_takes_environments_sees_what_the_tools_changed(environments: Open) -> None:
    async with environments(REWARDS, functions=("by_moves", "nobody", "wrong", "by_text")) as made:
        for places in (["a", "b"], ["a"], []):
            world = made.open()
            await world.reset(prompt(level=3), 0)
            reply = calls(*(("move", {"to": place}) for place in places))
            step = await world.step(reply)
            assert [one["content"] for one in step.messages] == [f"now at {place}" for place in places]
            verdicts = await world.reward(episode(reply, REPLY))
            await world.close()
            assert verdicts.keys() == {"by_moves", "nobody", "wrong"}
            assert verdicts["by_moves"].reward == len(places) / 4 and verdicts["nobody"].reward is None
            assert verdicts["by_moves"].logged == {"moves": len(places)}
            assert verdicts["wrong"].error_kind == "function_raised"
            assert "has no attribute 'missing'" in str(verdicts["wrong"].detail)
        assert made.counts()["processes"] == 1, "an error of a reward function is no failure of the environment"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("class World:\n    def add(self, a): return a\n", "World.*add"),
        ("class World:\n    def __init__(self): raise OSError('no door')\n", "cannot be made: OSError: no door"),
        (
            "import time\nclass World:\n    def __init__(self): time.sleep(60)\n",
            "cannot be made: make took longer than episodes.timeout_s = 2",
        ),
        (
            "import os\nclass World:\n    def __init__(self): os.abort()\n",
            r"cannot be made: its process ended in make \(signal 6\)",
        ),
    ],
)
def test_an_environment_that_cannot_be_made_is_named_in_time(tmp_path: Path, code: str, cause: str) -> None:
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(ConfigError, match=cause):
        schemas(Episodes(environment=f"{tmp_path}/broken.py:World", timeout_s=2.0 if "sleep" in code else 60.0))
