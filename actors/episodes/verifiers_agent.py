"""Plays tasks of a taskset for the package `verifiers`, 0.4 or newer. It imports only that and the standard library.

    VENV/bin/python verifiers_agent.py TASKSET [options of vf-eval] > rows.jsonl     the rows of its tasks
    agent = "VENV/bin/python $OLMORL_VERIFIERS TASKSET [options of vf-eval]"         plays the task of a row

Without a reward there is a cause in place of one, which fails the episode: an error, a deadline or absent scores are
never a reward of 0.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TASK = "verifiers_task"
"""Column with the task's data as JSON."""


class Unscored(Exception):
    """The episode has no reward, and why."""


def scores(episode: Any) -> dict[str, Any]:
    """The reward of an episode, and its scores and metrics by name. Raises Unscored."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        raise Unscored("; ".join(f"{error.type}: {error.message}" for error in errors) or "it failed without a cause")
    if late := {trace.stop_condition for trace in episode.traces if trace.is_timeout}:
        raise Unscored(f"a deadline passed ({', '.join(late)}): raise that of the taskset")
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    if len(trained) != 1:
        raise Unscored(f"{len(trained)} agents are trained, and an episode has one reward")
    url = os.environ["OPENAI_BASE_URL"]
    for trace in episode.traces:
        if not trace.agent.trainable and trace.agent.config.client.base_url == url:
            name = trace.agent.name
            raise Unscored(f"{name} is not trained and was played by the policy: set --env.{name}.client.base-url")
    (trace,) = trained
    given = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    if not given or len(given) < len(trace.rewards):
        absent = ", ".join(name for name in trace.rewards if name not in given)
        raise Unscored(f"no score of {absent}" if absent else "the taskset has no reward")
    measured = {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "logged": measured | given}


def rows(tasks: Any) -> Iterator[dict[str, Any]]:
    """The rows of tasks. Their prompts serve reports and bounds of length; the taskset asks the policy itself."""
    for task in tasks:
        data = task.data
        asked = data.prompt_text or data.description or data.name or f"task {data.idx}"
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        messages = [*system, {"role": "user", "content": asked}]
        yield {"messages": messages, TASK: data.model_dump_json(exclude_defaults=True)}


async def play(vf: Any, env: Any, sampling: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Play the task of a row; returns its scores. Raises Unscored."""
    if TASK not in row:
        raise Unscored(f"the row has no column {TASK}: make rows with olmorl-data verifiers")
    kind = env.taskset.task_type()
    task = kind(kind.data_type().model_validate_json(row[TASK]), env.config.taskset.task)
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        (slot,) = env.slots(task)
        context = vf.ModelContext(client=client, model=os.environ["OPENAI_MODEL"], sampling=sampling)
        return scores(await env.run_slot(slot, context))


def environment(vf: Any, asked: Any) -> Any:
    """The environment of the command line. The run's bound ends its agents, and the taskset scores what they did."""
    for _, agent in asked if "OLMORL_MAX_TURNS" in os.environ else ():
        if isinstance(agent, vf.AgentConfig) and agent.max_turns is None:
            agent.max_turns = int(os.environ["OLMORL_MAX_TURNS"])
    return vf.load_environment(asked)


def main(words: list[str]) -> None:
    here = str(Path(__file__).parent)
    if here in sys.path:
        sys.path.remove(here)  # its modules are none of the packages of the same names
    sys.path.append(str(Path.cwd()))  # which may have the taskset
    # The programs of tasksets start with uv.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if words and not words[0].startswith(("-", "@")):
        words = ["--env.taskset.id", *words]
    try:
        vf: Any = importlib.import_module("verifiers.v1")
        options = importlib.import_module("verifiers.v1.configs.cli.eval").EvalConfig
        asked = importlib.import_module("pydantic_config").cli(options, args=words, plain=True)
        env = environment(vf, asked.env)
    except Exception as error:
        sys.exit(f"{sys.executable}, which needs verifiers>=0.4 and the taskset: {error}")
    if "OLMORL_ROW" not in os.environ:
        for row in rows(env.taskset.select(asked.select)):
            print(json.dumps(row, ensure_ascii=False))
        return
    result = Path(os.environ["OLMORL_REWARD"])
    result.write_text("verifiers gave no reward", encoding="utf-8")  # stays there if this process is ended
    row = json.loads(Path(os.environ["OLMORL_ROW"]).read_text(encoding="utf-8"))
    try:
        found = json.dumps(asyncio.run(play(vf, env, asked.sampling, row)))
    except Unscored as cause:
        found = f"verifiers: {cause}"
    result.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
