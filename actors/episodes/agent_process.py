"""Starts the command of an agent for one episode, and ends everything that it started."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from olmorl.actors.episodes import agent_guard, verifiers_agent
from olmorl.errors import EnvironmentFailed
from olmorl.messages import Prompt, Verdict

ROW, REWARD, VERIFIERS = "OLMORL_ROW", "OLMORL_REWARD", "OLMORL_VERIFIERS"
"""Variables with the path of the row, as JSON; the path at which the agent may write its reward; and the path of the
agent that plays tasksets for verifiers."""
_OWN = ("OLMORL_", "RAY_")
"""Beginnings of the variables that an agent does not get: the policy may read its environment, and these have keys."""
END_S = 10.0
"""Longest time in which the processes of an agent end."""
_SHOWN = 300
"""Characters of the end of its output that an error shows."""


class AgentProcess(NamedTuple):
    """A command that runs, in a folder of its own for its files."""

    process: asyncio.subprocess.Process
    folder: Path

    async def wait(self) -> int:
        """Returns the exit code of the command."""
        return await self.process.wait()

    def last_words(self) -> str:
        """The end of its output on one line, for errors."""
        text = (self.folder / "output.txt").read_bytes()[-4 * _SHOWN :].decode(errors="replace")
        return " ".join(text.split())[-_SHOWN:]

    def verdict(self) -> Verdict | None:
        """The reward that the agent wrote, with the values to log; None without one.

        Raises EnvironmentFailed if it is no number.
        """
        try:
            text = (self.folder / "reward").read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None
        try:
            written: Any = json.loads(text) if text.startswith("{") else {"reward": text}
            reward = _number(written["reward"])
            logged = {name: _number(value) for name, value in written.get("logged", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise EnvironmentFailed(f"the agent wrote {text[:_SHOWN]!r} to ${REWARD}: write a number") from None
        return Verdict(reward=reward, method="agent", logged=logged)


def _number(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


@asynccontextmanager
async def running(command: str, prompt: Prompt, index: int, address: Mapping[str, str]) -> AsyncIterator[AgentProcess]:
    """The command runs inside the block. At its end nothing that it started is left, nor its folder.

    Args:
        address: the variables that lead it to the policy.
    """
    with tempfile.TemporaryDirectory(prefix="olmorl-agent-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        row = folder / "row.json"
        row.write_text(json.dumps(_row(prompt, index), ensure_ascii=False, default=str), encoding="utf-8")
        host = urlsplit(address.get("OPENAI_BASE_URL", "")).hostname
        without_proxy = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", host)))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OWN)},
            **address,
            **dict.fromkeys(("NO_PROXY", "no_proxy"), without_proxy),
            ROW: str(row),
            REWARD: str(folder / "reward"),
            VERIFIERS: verifiers_agent.__file__,
        }
        with (folder / "output.txt").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", agent_guard.__file__, command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            yield AgentProcess(process, folder)
        finally:
            await _end(process)


def _row(prompt: Prompt, index: int) -> dict[str, Any]:
    """The columns of the row by name, with `prompt` and `index`, the number of the episode in its group."""
    return {**prompt.columns, "prompt": prompt.messages, "index": index}


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
