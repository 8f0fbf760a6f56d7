"""Two agents from the package index, unchanged, in an environment of their own. A scripted policy answers them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl.actors.episodes.agent_runner import Agents
from olmorl.messages import Completion, Group
from tests.actors.episodes.test_agent_session import Renderer
from tests.actors.episodes.test_agents import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Make = Callable[..., Any]
PACKAGES = ("mini-swe-agent==2.4.6", "smolagents[openai]==1.26.0")
MINI = (
    "MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_GLOBAL_CONFIG_DIR={folder} "
    "{bin}/mini -m openai/$OPENAI_MODEL -t 'Say hello.' -y --exit-immediately -o {folder}/trajectory.json"
)
SMOL = "{bin}/python {here}/smol_agent.py"


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment with both agents; the test is skipped where they cannot be installed."""
    folder = tmp_path_factory.mktemp("agents")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    python = folder / "bin" / "python"
    for command in (
        ["venv", str(folder), "--clear", "--python", sys.executable],
        ["pip", "install", "--python", str(python), *PACKAGES],
    ):
        done = subprocess.run([uv, *command], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"the agents cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "bin"


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
    command = SMOL.format(bin=bin_folder, here=Path(__file__).parent)
    group, _ = await run(service, draw, play(command, policy), group_size=1)
    assert isinstance(group, Group), group
    (completion,) = group.completions
    assert [turn.parent for turn in completion.turns] == [-1, -1]
    assert "7" in str(completion.turns[1].messages[-1]["content"])
    assert (completion.exit, len(completion.token_ids)) == ("done", 40)
