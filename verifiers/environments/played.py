"""Runs the user's environment in its own worker process. The worker is lent for one episode at a time.

An environment is an object with `step(reply)`, and if it wants with `reset(**row)`, `reward()` and `close()`. Each may
be async. `step` gets the answer as a message and returns what the policy reads next: a text, a message, a list of
messages, or None when the episode is over. `reset` may return the conversation to begin with in the same forms.

An object without `step` has tools: its public methods. Their results are messages, and an answer without a call ends
the episode. This is the form of TRL's `environment_factory`: `reset` may return a text that is added to the prompt. A
list of functions is one too. Environments of Gymnasium, MCP servers and the built-in tools (`box`) have these forms.

Reward functions that take `environments` run here, because only here are the live objects: their connections and
processes cannot be sent. So each gets lists of one.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from olmorl.config import Verifiers
from olmorl.extension import load_function
from olmorl.verifiers.box import box
from olmorl.verifiers.box.box import Box
from olmorl.verifiers.box.tool import AnswerTime, ReportedError, ToolSettings
from olmorl.verifiers.environments import gymnasium_environment, mcp_server
from olmorl.verifiers.environments.gymnasium_environment import GymnasiumEnvironment
from olmorl.verifiers.environments.mcp_server import McpServer
from olmorl.verifiers.environments.tools import KEY, UNKNOWN, CountedCall, has_step, schemas_of, tools_of
from olmorl.verifiers.functions import runner
from olmorl.verifiers.pool.worker import describe

POLICY_ERRORS = (TypeError, ValueError, KeyError, IndexError, ArithmeticError)
"""Errors of a tool that its arguments caused: the policy reads them. Others are outages."""
Messages = list[dict[str, Any]]
_MAKERS = {"gymnasium": gymnasium_environment.maker, "mcp": mcp_server.maker}
"""Of the environments that are not the user's own: those of Gymnasium, and the tools of MCP servers."""


class Setup(msgspec.Struct, frozen=True):
    """What a process needs for its episodes."""

    environment: str
    tool_role: str
    think_tags: tuple[str, str]
    functions: list[str]
    """Reward functions. Those that take `environments` are called here, with the live object."""
    timeout_s: float
    """Deadline of a call."""
    programs: dict[str, Any]
    """The keys of `verifiers` for programs of the policy."""


class _Worker:
    """The state of this process: the factory, and the environment of the episode under way."""

    factory: Callable[[], Any]
    environment: Any = None
    setup: Setup
    scored_here: tuple[str, ...] = ()
    loop: asyncio.AbstractEventLoop | None = None


def shared() -> None:
    """Called in the fork server: what this module imports is then in all processes, and in memory once."""


def load(settings: Any) -> None:
    """Import the factory and the reward functions. Raises ConfigError, or ImportError for a function."""
    _Worker.setup = setup = msgspec.convert(settings, Setup)
    _Worker.factory = factory_of(setup)
    runner.load((setup.functions, None))
    _Worker.scored_here = tuple(filter(runner.takes_environments, setup.functions))


def make(_: None) -> list[dict[str, Any]]:
    """Make an environment that plays no episode. Returns the schemas of its tools, none if it has `step`."""
    return schemas_of(_made())


def _made() -> Any:
    made = environment_of(_Worker.factory(), _Worker.setup.think_tags)
    if isinstance(made, McpServer):
        _call(made.start)
    return made


class Start(msgspec.Struct, frozen=True):
    """What an episode begins with."""

    row: dict[str, Any]
    draw_id: int
    thinking_opened: bool


def reset(args: Any) -> Messages | None:
    """Make the environment of an episode. Returns the conversation that it begins with, or None for that of the row.

    Args:
        args: a `Start` as plain data from the socket.
    """
    start = msgspec.convert(args, Start)
    row = start.row
    _Worker.environment = environment = _made()
    if isinstance(environment, GymnasiumEnvironment):
        # All episodes of a draw begin alike.
        seed = row.get("seed", start.draw_id)
        return _with(row["prompt"], "\n" + environment.reset(seed, row.get("options"), start.thinking_opened))
    if not has_step(environment) and not tools_of(environment):
        raise TypeError(f"{KEY}: a {type(environment).__name__} has no method step(reply), and no tools")
    found = _call(environment.reset, **_named(environment.reset, row)) if hasattr(environment, "reset") else None
    if found is None:
        return None
    if has_step(environment) or not isinstance(found, str):
        return _messages(found)
    return _with(row["prompt"], found)


def _named(function: Callable[..., Any], row: dict[str, Any]) -> dict[str, Any]:
    """The columns that a function names; all of them if it takes any."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return row
    return {name: value for name, value in row.items() if name in parameters}


def _with(prompt: Any, text: str) -> Messages:
    """The conversation of a row, with a text at its end."""
    *before, last = _messages(prompt)
    return [*before, {**last, "content": f"{last['content']}{text}"}]


def step(reply: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy reads next, as a `ports.EnvironmentStep`, and the calls of tools, each as a `CountedCall`."""
    environment, calls = _Worker.environment, list[CountedCall]()
    submitted = None
    if has_step(environment):
        found = _call(environment.step, dict(reply))
        messages = [] if found is None else _messages(found)
    elif isinstance(environment, Box):
        environment.begin_answer()
        messages = []
        for call in reply.get("tool_calls", ()):
            messages.append(_result(call, environment.tools, calls))
            if (submitted := environment.submitted) is not None:  # calls after it do nothing
                messages = []
                break
    else:
        tools = tools_of(environment)
        messages = [_result(call, tools, calls) for call in reply.get("tool_calls", ())]
    truncated = getattr(environment, "truncated", False) is True
    found = {"messages": messages, "done": not messages, "truncated": truncated, "calls": calls}
    return found if submitted is None else found | {"submitted": _sendable(submitted)}


def _result(
    call: Mapping[str, Any], tools: Mapping[str, Callable[..., Any]], calls: list[CountedCall]
) -> dict[str, Any]:
    """The result of a call, or the error that its arguments caused, as a message. The call is added to `calls`."""
    name, arguments, began = call["function"]["name"], call["function"]["arguments"], time.perf_counter()
    if is_error := name not in tools:
        content = f"Error: no tool {name!r}; there are {', '.join(tools)}"
    else:
        try:
            found = _call(tools[name], **arguments)
            content, is_error = str(found), isinstance(found, ReportedError)
        except POLICY_ERRORS as error:
            content, is_error = f"Error: {type(error).__name__}: {error}", True
    calls.append(CountedCall(name if name in tools else UNKNOWN, time.perf_counter() - began, is_error))
    return {"role": _Worker.setup.tool_role, "name": name, "tool_call_id": call["id"], "content": _sendable(content)}


def _sendable(text: str) -> str:
    """It may have half of a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()


def reward(call: Mapping[str, Any]) -> dict[str, Any]:
    """The environment's own reward, and the results of the reward functions that take it, or their errors.

    Args:
        call: the `FunctionCall` of the episode, without a function.
    """
    environment = _Worker.environment
    methods = (getattr(environment, name, None) for name in ("reward", "get_reward"))
    own = next(filter(callable, methods), None)
    found = _call(own) if own else None
    scored: dict[str, Any] = {"own": None if found is None else float(found), "results": {}, "errors": {}}
    for spec in _Worker.scored_here:
        try:
            scored["results"][spec] = runner.score({**call, "spec": spec}, [environment])
        except Exception as error:  # the user's code may raise anything
            scored["errors"][spec] = describe(error)
    return scored


def close(_: None) -> None:
    """End the episode."""
    environment, _Worker.environment = _Worker.environment, None
    own = getattr(environment, "close", None)
    if callable(own):
        _call(own)


def _call(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Call a function of the user, and wait for it if it is async."""
    found = function(*args, **named)
    if not inspect.isawaitable(found):
        return found
    _Worker.loop = _Worker.loop or asyncio.new_event_loop()
    return _Worker.loop.run_until_complete(_awaited(found))


async def _awaited(found: Any) -> Any:
    return await found


def _messages(found: Any) -> Messages:
    """The messages in the forms that `step` may return. Raises TypeError for any other."""
    several = found if isinstance(found, list | tuple) else [found]
    made = [{"role": "user", "content": one} if isinstance(one, str) else one for one in several]
    if not made or not all(isinstance(one, dict) and _is_message(one) for one in made):
        raise TypeError(f"an environment replies with a text, messages or None, not with {str(found)[:80]!r}")
    return made


def _is_message(one: Mapping[str, Any]) -> bool:
    """Templates write any other content as Python shows it, such as `None`."""
    has_content = isinstance(one.get("content"), str | list) or bool(one.get("tool_calls"))
    return isinstance(one.get("role"), str) and has_content


def factory_of(setup: Setup) -> Callable[[], Any]:
    """What makes the objects of a value of `episodes.environment`. Raises ConfigError if it does not import."""
    name = setup.environment
    kind, _, rest = name.partition(":")
    if kind == "box":
        return box.maker(name, ToolSettings(Verifiers(**setup.programs), AnswerTime(setup.timeout_s)))
    maker = _MAKERS.get(kind)
    return load_function(KEY, name) if maker is None else maker(rest)


def environment_of(made: Any, think_tags: tuple[str, str]) -> Any:
    """An object with `step` or with tools. Raises TypeError for one of Gymnasium that is no text."""
    if gymnasium_environment.is_environment(made):
        return GymnasiumEnvironment(made, think_tags)
    return McpServer(made) if type(made).__name__ == "StdioServerParameters" else made
