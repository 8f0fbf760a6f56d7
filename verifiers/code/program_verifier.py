"""The code verifiers. They run the program in an answer against assertions, or on standard input."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from olmorl.config import Verifiers
from olmorl.messages import Verdict
from olmorl.verifiers.check_outcomes import Done, Failed, Limit, WorkerProbe
from olmorl.verifiers.code import compare_output, extract_program
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import Sandbox, SandboxCounters
from olmorl.verifiers.code.sandbox.tiers import OUTPUT_KIB
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.verifier import AnswerVerifier, unscored

NAMES = ("code", "code_stdio")
_HERE = "olmorl.verifiers.code"
_PROBES = {
    f"{_HERE}.labels:assertions": WorkerProbe(f"{_HERE}.labels:assertions", ["assert f()"], ["assert f()"]),
    f"{_HERE}.labels:cases": WorkerProbe(f"{_HERE}.labels:cases", [{"input": "", "output": "1"}], [["", "1"]]),
    f"{_HERE}.extract_program:parsed_program": WorkerProbe(
        f"{_HERE}.extract_program:parsed_program", ("f()", True), "f()"
    ),
    f"{_HERE}.compare_output:same": WorkerProbe(f"{_HERE}.compare_output:same", ("1", "2"), False),
}
_KEPT_LABELS = 32
_EXTRACTED = 2048
ANSWER_TESTS = 10
"""The tests of one answer have together the time of so many tests. Tests after it fail."""
MAX_INPUT = 16 << 20
"""The most characters of standard input that a test may have."""


def code_verifiers(settings: Verifiers, pool: Pool) -> dict[str, AnswerVerifier]:
    """Both verifiers. They share one sandbox."""
    sandbox = Sandbox(settings)
    return {"code": AssertVerifier(settings, pool, sandbox), "code_stdio": StdioVerifier(settings, pool, sandbox)}


class Result(NamedTuple):
    """The result of one test."""

    passed: bool
    detail: str = ""
    limit: bool = False
    """The test failed because it exceeded a limit."""
    seconds: float = 0.0


class _CodeVerifier(AnswerVerifier):
    """The reward counts only tests that ran. A test that could not run gives an error instead of a reward."""

    _reader: str
    """The worker task that reads a label."""
    _called: bool
    """Whether the tests call functions and classes of the program."""

    def __init__(self, settings: Verifiers, pool: Pool, sandbox: Sandbox) -> None:
        self._settings = settings
        self._pool = pool
        self._sandbox = sandbox
        self._labels: OrderedDict[int, tuple[Any, list[Any]]] = OrderedDict()
        self._reading = asyncio.Lock()

    @property
    def counters(self) -> Mapping[str, SandboxCounters]:
        return {"sandbox": self._sandbox.counters}

    async def close(self) -> None:
        await self._sandbox.close()

    def usable(self, label: Any) -> bool:
        return False

    async def problem(self, label: Any) -> str | None:
        tests = await self._read(label)
        return tests.detail if isinstance(tests, Failed) else None

    async def verify(self, text: str, label: Any) -> Verdict:
        program = extract_program.quick_program(text, self._called)
        if program is None:
            found = await self._ask("extract_program:parsed_program", (text, self._called))
            if not isinstance(found, Done):
                return unscored(found)
            program = found.value
        if not program or not program.strip():
            return Verdict(reward=0.0, method="no_answer", detail="no program in the answer")
        tests = await self._tests(label)
        if isinstance(tests, Failed):
            return unscored(tests)
        return await self._judge(program, tests)

    async def _judge(self, program: str, tests: list[Any]) -> Verdict:
        """Run the tests in order until the time of the answer is used up."""
        results: list[Result] = []
        for test in tests:
            if sum(result.seconds for result in results) > ANSWER_TESTS * self._settings.code_test_timeout_s:
                results.append(Result(False, "the time limit of the answer was reached", limit=True))
                break
            result = await self._run(program, test)
            if isinstance(result, Failed):
                return unscored(result, program[:_EXTRACTED])
            results.append(result)
            if self._settings.code_reward == "all" and not result.passed:
                break
        passed = sum(result.passed for result in results)
        share = passed / len(tests)
        detail = next((f"; test {i}: {r.detail}" for i, r in enumerate(results, 1) if not r.passed), "")
        return Verdict(
            reward=share if self._settings.code_reward == "fraction" else float(passed == len(tests)),
            extracted=program[:_EXTRACTED],
            method="limit" if any(result.limit for result in results) else "tests",
            detail=f"{passed}/{len(tests)} passed{detail}",
        )

    async def _run(self, program: str, test: Any) -> Result | Failed:
        """Run one test of a program."""
        outcome, seconds = await self._sandbox.timed(self._job(program, test))
        if isinstance(outcome, Failed):
            return outcome
        if isinstance(outcome, Limit):
            return Result(False, f"exceeded its {outcome.kind} limit", limit=True, seconds=seconds)
        if outcome.outcome == "label":
            return Failed("label", outcome.detail)
        settled = await self._settle(outcome, test)
        return settled if isinstance(settled, Failed) else settled._replace(seconds=seconds)

    @abstractmethod
    def _job(self, program: str, test: Any) -> ProgramTest:
        """The form in which a test goes to the sandbox."""

    async def _settle(self, report: RunReport, test: Any) -> Result | Failed:
        return Result(report.outcome == "passed", report.detail)

    def _unfit(self, tests: list[Any]) -> str:
        """Why the settings are too small for the tests; empty when they suffice."""
        return ""

    async def _ask(self, task: str, args: Any) -> Done | Limit | Failed:
        name = f"{_HERE}.{task}"
        return await self._pool.run(name, args, _PROBES[name])

    async def _tests(self, label: Any) -> list[Any] | Failed:
        """The tests in a label. All completions of a group share one label, so it is read once."""
        async with self._reading:
            known = self._labels.get(id(label))
            if known is not None:
                return known[1]
            tests = await self._read(label)
            if isinstance(tests, list):
                # The reference keeps the label alive, so no other label can get the same id.
                self._labels[id(label)] = label, tests
                if len(self._labels) > _KEPT_LABELS:
                    self._labels.popitem(last=False)
            return tests

    async def _read(self, label: Any) -> list[Any] | Failed:
        outcome = await self._ask(self._reader, label)
        if isinstance(outcome, Limit):
            return Failed("label", f"reading the label exceeded the {outcome.kind} limit; make it smaller")
        if isinstance(outcome, Failed):
            return outcome
        problem = outcome.value if isinstance(outcome.value, str) else self._unfit(outcome.value)
        return Failed("label", problem) if problem else outcome.value


class AssertVerifier(_CodeVerifier):
    """Tests are assert statements about functions and classes of the program."""

    _reader = "labels:assertions"
    _called = True

    def _job(self, program: str, test: Any) -> ProgramTest:
        return ProgramTest(program, test=test)


class StdioVerifier(_CodeVerifier):
    """Tests are pairs of standard input and expected output."""

    _reader = "labels:cases"
    _called = False

    def _unfit(self, tests: list[Any]) -> str:
        if any(len(expected) > OUTPUT_KIB << 10 for _, expected in tests):
            return f"a test expects more than {OUTPUT_KIB} KiB of output; shorten it"
        return (
            "a test has more than 16 MiB of input; shorten it"
            if any(len(given) > MAX_INPUT for given, _ in tests)
            else ""
        )

    def _job(self, program: str, test: Any) -> ProgramTest:
        return ProgramTest(program, stdin=test[0])

    async def _settle(self, report: RunReport, test: Any) -> Result | Failed:
        if report.outcome != "printed":
            return Result(False, report.detail)
        printed, expected = report.output.decode("utf-8", "replace"), test[1]
        if printed.rstrip() == expected.rstrip():
            return Result(True)
        pair = printed, expected
        if len(printed) + len(expected) <= compare_output.SMALL:
            return _compared(compare_output.same(pair))
        outcome = await self._ask("compare_output:same", pair)
        if isinstance(outcome, Done):
            return _compared(outcome.value)
        return (
            outcome if isinstance(outcome, Failed) else Result(False, "the output is too long to compare", limit=True)
        )


def _compared(same: bool) -> Result:
    return Result(same, "" if same else "the output differs from the expected output")
