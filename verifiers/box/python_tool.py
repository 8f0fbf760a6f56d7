"""The tool `python`: an interpreter that keeps its state through an episode, in the sandbox of programs."""

from __future__ import annotations

from typing import Any

from olmorl.verifiers.box.tool import ReportedError, ToolSettings
from olmorl.verifiers.code.sandbox.interpreter import Interpreter


class Python:
    """Each episode has an interpreter of its own, from its first call on."""

    def __init__(self, argument: str, settings: ToolSettings) -> None:
        """The tool has no argument."""
        self._interpreter = Interpreter(settings.verifiers)
        self._time = settings.time
        self._cpu_s = settings.verifiers.code_test_timeout_s

    async def start(self, row: dict[str, Any]) -> None:
        """Start the sandbox, from which interpreters are forked."""
        await self._interpreter.start()

    async def close(self) -> None:
        await self._interpreter.close()

    async def python(self, code: str) -> str:
        """
        Run Python code. Variables, functions and imports stay for the next call.

        Args:
            code: The code. The result is what it prints, and the value of its last expression.
        """
        if not isinstance(code, str):
            raise TypeError("code is a text")
        # On a busy host the processor time of a call may take long: only a program that waits meets this limit.
        wall_s = self._time.limit_s()
        report = await self._interpreter.run(code, self._cpu_s, wall_s)
        if report.ended:
            return ReportedError(f"{report.output}Error: {self._why(report.ended, wall_s)}. All variables are lost.")
        return (ReportedError if report.raised else str)(report.output or "(no output)")

    def _why(self, ended: str, wall_s: float) -> str:
        if ended == "cpu":
            return f"it used more than {self._cpu_s:g} s of processor time"
        if ended == "wall":
            return f"it ran longer than {wall_s:.0f} s"
        return "the interpreter ended" + (f" ({ended})" if ended != "closed" else "")
