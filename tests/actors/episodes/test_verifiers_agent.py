"""Tasksets for the package `verifiers`, in an environment of their own: rows, rewards, and what has no reward."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from olmorl.actors.episodes import verifiers_agent
from olmorl.actors.episodes.agent_process import AgentProcess
from olmorl.actors.episodes.agent_runner import Agents
from olmorl.errors import EnvironmentFailed
from olmorl.messages import ENVIRONMENT, Failure, Group
from tests.actors.episodes.test_agent_session import Renderer
from tests.actors.episodes.test_agents import run
from tests.public_agents import VERIFIERS, installed
from tests.waiting import until

Make = Callable[..., Any]
POLICY = "http://127.0.0.1:1/v1"


def trace(**changes: Any) -> SimpleNamespace:
    config = SimpleNamespace(client=SimpleNamespace(base_url=POLICY))
    fields: dict[str, Any] = {
        "agent": SimpleNamespace(name="agent", trainable=True, config=config),
        "rewards": {"right": SimpleNamespace(score=1.0), "short": SimpleNamespace(score=0.5)},
        "metrics": {"length": 3.0, "never": None},
        "reward": 1.25,
        "errors": [],
        "is_timeout": False,
        "stop_condition": "agent_completed",
    }
    return SimpleNamespace(**fields | changes)


def episode(*traces: SimpleNamespace, **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"ok": True, "errors": [], "traces": list(traces)} | changes)


def user(url: str) -> SimpleNamespace:
    config = SimpleNamespace(client=SimpleNamespace(base_url=url))
    return trace(agent=SimpleNamespace(name="user", trainable=False, config=config), rewards={})


@pytest.fixture(autouse=True)
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", POLICY)


@pytest.mark.parametrize("played", [episode(trace()), episode(trace(), user("http://other:8000/v1"))])
def test_the_reward_of_an_episode_comes_with_its_scores_and_metrics(played: SimpleNamespace) -> None:
    assert verifiers_agent.scores(played) == {"reward": 1.25, "logged": {"length": 3.0, "right": 1.0, "short": 0.5}}


ERROR = SimpleNamespace(type="TaskError", message="scoring: no such file")


@pytest.mark.parametrize(
    ("played", "cause"),
    [
        (episode(trace(errors=[ERROR], reward=0.0), ok=False), "TaskError: scoring: no such file"),
        (episode(ok=False, errors=[ERROR]), "TaskError: scoring: no such file"),
        (episode(trace(rewards={"right": None}, reward=0.0)), "no score of right"),
        (episode(trace(rewards={}, reward=0.0)), "the taskset has no reward"),
        (episode(trace(is_timeout=True, stop_condition="setup_timeout")), r"a deadline passed \(setup_timeout\)"),
        (episode(trace(), trace()), "2 agents are trained"),
        (episode(trace(), user(POLICY)), "user is not trained and was played by the policy"),
    ],
)
def test_an_episode_without_a_whole_reward_has_none(played: SimpleNamespace, cause: str) -> None:
    with pytest.raises(verifiers_agent.Unscored, match=cause):
        verifiers_agent.scores(played)


def test_a_row_of_another_set_is_named() -> None:
    with pytest.raises(verifiers_agent.Unscored, match="no column verifiers_task: make rows with olmorl-data"):
        asyncio.run(verifiers_agent.play(None, None, None, {"prompt": "1 + 1"}))


def written(folder: Path, text: str) -> Any:
    (folder / "reward").write_text(text, encoding="utf-8")
    process: Any = None
    return AgentProcess(process, folder).verdict()


def test_an_agent_may_write_values_to_log_with_its_reward(tmp_path: Path) -> None:
    verdict = written(tmp_path, '{"reward": 0.5, "logged": {"length": 3}}\n')
    assert (verdict.reward, verdict.logged) == (0.5, {"length": 3.0})
    assert written(tmp_path, "1e-1").reward == 0.1


@pytest.mark.parametrize(
    "text", ["", "nan", "verifiers: TaskError", "{", '{"logged": {}}', '{"reward": null}', '{"reward": 1, "logged": 2}']
)
def test_what_is_no_reward_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(EnvironmentFailed, match="write a number") as caught:
        written(tmp_path, text)
    assert repr(text) in str(caught.value)


def test_a_python_without_the_package_is_named(tmp_path: Path) -> None:
    command = [sys.executable, verifiers_agent.__file__, "letters_v1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"{sys.executable}, which needs verifiers>=0.4 and the taskset: No module named 'verifiers'\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with verifiers."""
    return installed(tmp_path_factory.mktemp("verifiers"), VERIFIERS) / "python"


TASKSETS = Path(__file__).parents[2] / "tasksets"


def play(python: Path, taskset: str = "letters_v1", **changes: Any) -> Agents:
    fields = {"tool_role": "tool", "timeout_s": 120.0, "max_turns": 4, "max_sequence": 400, "max_cache_age": 1}
    command = f"PYTHONPATH={TASKSETS} {python} $OLMORL_VERIFIERS {taskset}"
    return Agents(command, Renderer, **fields | changes)


def rows(python: Path, taskset: str = "letters_v1") -> list[dict[str, Any]]:
    """The rows of the taskset, by the command of its agent."""
    command = play(python, taskset).command.replace("$OLMORL_VERIFIERS", verifiers_agent.__file__)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_taskset_plays_its_rows_and_scores_them(service: Make, draw: Make, python: Path) -> None:
    first, second = rows(python, "letters_v1 --env.taskset.size 9 -n 2")
    assert first["messages"] == [{"role": "user", "content": "goal 10"}]
    assert json.loads(second["verifiers_task"]) == {"idx": 1, "name": "goal 11", "goal": 11}
    group, _ = await run(service, draw, play(python), within_s=400, stall_s=60, group_size=1, columns=second)
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert [turn.parent for turn in completion.turns] == [-1, 0]
    assert completion.turns[0].messages[0]["content"] == "Write 11 different letters."
    verdict = completion.verdicts[ENVIRONMENT]
    assert verdict.reward == pytest.approx(len(set("answer 2")) / 11)
    assert verdict.logged == {"replies": 2.0, "different": verdict.reward}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_bound_of_turns_is_scored_by_the_taskset(service: Make, draw: Make, python: Path) -> None:
    group, _ = await run(
        service, draw, play(python, max_turns=1), within_s=400, stall_s=60, group_size=1, columns=rows(python)[0]
    )
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert (len(completion.turns), completion.exit) == (1, "done")
    assert completion.verdicts[ENVIRONMENT].logged["replies"] == 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_an_error_of_a_taskset_fails_the_group_and_is_no_reward(service: Make, draw: Make, python: Path) -> None:
    row = rows(python, "letters_v1 --env.taskset.broken true")[0]
    failure, status = await run(service, draw, play(python), within_s=400, stall_s=60, group_size=1, columns=row)
    assert isinstance(failure, Failure)
    assert "TaskError: task LettersTask scoring: LookupError: no such goal" in failure.detail
    assert status.tokens_wasted == status.tokens_generated == 120


@pytest.fixture
def openenv(python: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server of OpenEnv."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (tmp_path / "server.txt").open("wb") as output:
        server = subprocess.Popen([python, TASKSETS / "openenv_server.py", str(port)], stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(f"{url}/schema"))
        yield url
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=5).read())
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_an_environment_of_openenv_plays_by_the_taskset_that_verifiers_have(
    service: Make, draw: Make, python: Path, openenv: str
) -> None:
    player = "--env.player.harness.id null --env.player.runtime.type subprocess"
    taskset = f"openenv --env.taskset.base-url {openenv} {player}"
    (row,) = rows(python, taskset)
    group, _ = await run(service, draw, play(python, taskset), within_s=400, stall_s=60, group_size=1, columns=row)
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert "say letters" in completion.turns[0].messages[0]["content"]
    assert completion.verdicts[ENVIRONMENT].reward == pytest.approx((len({*"answer1 "}) + len({*"answer2 "})) / 20)
