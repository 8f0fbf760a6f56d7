"""Two agents from the package index, unchanged, in an environment of their own. A scripted policy answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl.actors.episodes.agent_runner import Agents
from olmorl.messages import Completion, Group
from tests.actors.episodes.test_agent_session import Renderer
from tests.actors.episodes.test_agents import run
from tests.public_agents import MINI, SMOL, installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("agents"))


class Scripted(Renderer):
    """Gives these calls of tools in turn."""

    calls: Sequence[tuple[str, dict[str, Any]]] = ()

    def reply(self, answer: Completion) -> dict[str, Any]:
        self._number += 1
        name, arguments = self.calls[self._number - 1]
        call = {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": f"step {self._number}", "tool_calls": [call]}


def scripted(*calls: tuple[str, dict[str, Any]]) -> type[Scripted]:
    return type("Script", (Scripted,), {"calls": calls})


def play(command: str, renderer: Any) -> Agents:
    return Agents(command, renderer, "tool", timeout_s=120, max_turns=4, max_sequence=100_000, max_cache_age=1)


async def test_mini_swe_agent_appends_to_its_history(
    service: Make, draw: Make, bin_folder: Path, tmp_path: Path
) -> None:
    policy = scripted(
        ("bash", {"command": "echo hello"}), ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    )
    command = MINI.format(bin=bin_folder, folder=tmp_path)
    group, _ = await run(service, draw, play(command, policy), group_size=1)
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert [turn.parent for turn in completion.turns] == [-1, 0]
    assert "hello" in completion.turns[1].messages[0]["content"]
    assert (completion.exit, len(completion.token_ids)) == ("done", 40)


async def test_smolagents_rewrite_their_history_and_each_step_is_a_branch(
    service: Make, draw: Make, bin_folder: Path
) -> None:
    policy = scripted(("add", {"a": 3, "b": 4}), ("final_answer", {"answer": "7"}))
    command = SMOL.format(bin=bin_folder)
    group, _ = await run(service, draw, play(command, policy), group_size=1)
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert [turn.parent for turn in completion.turns] == [-1, -1]
    assert "7" in str(completion.turns[1].messages[-1]["content"])
    assert (completion.exit, len(completion.token_ids)) == ("done", 40)
