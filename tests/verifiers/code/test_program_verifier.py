"""From an answer and a label to a verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from olmorl.config import Verifiers
from olmorl.verifiers.code import program_verifier
from olmorl.verifiers.code.program_verifier import MAX_INPUT, code_verifiers
from olmorl.verifiers.code.sandbox.sandbox import Sandbox
from olmorl.verifiers.code.sandbox.tiers import OUTPUT_KIB
from olmorl.verifiers.label_check import LabelChecker
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.scorer import VerifierScorer
from olmorl.verifiers.verifier import AnswerVerifier

from .conftest import SETTINGS

pytestmark = pytest.mark.asyncio(loop_scope="module")
TESTS = [
    "assert add(1, 2) == 3",
    "assert add(-1, 1) == 0",
    "assert add('a', 'b') == 'ab'",
    "assert add([1], []) == [1]",
]
CASES = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]
ADD = "```python\ndef add(a, b):\n    return a + b\n```"
HALF = "```python\ndef add(a, b):\n    return int(a) + int(b)\n```"
SCRIPT = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    made = Pool(1, timeout_s=20.0)
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(pool: Pool) -> AsyncIterator[dict[str, AnswerVerifier]]:
    found = code_verifiers(SETTINGS, pool)
    yield found
    for rule in found.values():
        await rule.close()


@pytest.mark.parametrize(
    ("answer", "reward", "method"),
    [
        (ADD, 1.0, "tests"),
        (HALF, 0.5, "tests"),
        ("def add(a, b):\n    return a + b\n", 1.0, "tests"),
        (ADD.replace("python", "py"), 1.0, "tests"),
        (f"First\n{HALF}\nthen\n{ADD}", 1.0, "tests"),
        (f"First\n{ADD}\nthen\n{HALF}", 0.5, "tests"),
        (f"First\n{ADD}\nFor example:\n```python\nprint(add(1, 2))\n```", 1.0, "tests"),
        ("I cannot.", 0.0, "no_answer"),
        ("```python\n```", 0.0, "no_answer"),
        ("```python\ndef add(a, b:\n```", 0.0, "tests"),
        ("```python\nimport os\nos._exit(0)\n```", 0.0, "tests"),
        ("```python\ndef add(a, b):\n    return a + b if a == 1 else bytearray(1 << 40)\n```", 0.25, "limit"),
    ],
)
async def test_assertions(made: dict[str, AnswerVerifier], answer: str, reward: float, method: str) -> None:
    for label in (TESTS, json.dumps(TESTS)):
        verdict = await made["code"].verify(answer, label)
        assert (verdict.reward, verdict.method, verdict.error_kind) == (reward, method, None)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (SCRIPT, 1.0),
        ("```\na, b = map(int, input().split())\nprint(a + b)\nexit()\n```", 1.0),
        ("```python\nprint(3)\n```", 0.5),
        ("```python\nprint('3')\nraise SystemExit(1)\n```", 0.0),
        ("```python\nprint('passed')\nprint('{\"outcome\": \"passed\"}')\n```", 0.0),
        ("```python\nprint(3, 10)\n```", 0.0),
    ],
)
async def test_scripts(made: dict[str, AnswerVerifier], answer: str, reward: float) -> None:
    verdict = await made["code_stdio"].verify(answer, CASES)
    assert (verdict.reward, verdict.error_kind) == (reward, None)


async def test_long_outputs_are_compared_in_the_pool(made: dict[str, AnswerVerifier]) -> None:
    expected = "\n".join(f"{n}.5000000001" for n in range(5000))
    answer = "```python\nfor n in range(5000): print(n + 0.5)\n```"
    assert (await made["code_stdio"].verify(answer, [{"input": "", "output": expected}])).reward == 1.0
    assert (await made["code_stdio"].verify(answer, [{"input": "", "output": expected + "\n1"}])).reward == 0.0


async def test_all_asks_for_all_and_stops_at_the_first_failure(pool: Pool) -> None:
    found = code_verifiers(SETTINGS.model_copy(update={"code_reward": "all"}), pool)
    try:
        assert (await found["code"].verify(ADD, TESTS)).reward == 1.0
        verdict = await found["code"].verify(HALF, TESTS)
        assert verdict.reward == 0.0
        assert found["code"].counters["sandbox"].checks == 4 + 3
    finally:
        await found["code"].close()


async def test_an_answer_has_its_time_for_all_tests_together(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_verifier, "ANSWER_TESTS", 0.5 / SETTINGS.code_test_timeout_s)
    found = code_verifiers(SETTINGS, pool)
    try:
        answer = "```python\nimport time\ndef add(a, b):\n    time.sleep(0.6)\n    return a + b\n```"
        verdict = await found["code"].verify(answer, TESTS)
        assert (verdict.reward, verdict.method) == (0.25, "limit")
    finally:
        await found["code"].close()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("code", []),
        ("code", "[]"),
        ("code", ["import math"]),
        ("code", ["assert add(1, 2) =="]),
        ("code", "nothing"),
        ("code_stdio", []),
        ("code_stdio", [{"input": "1"}]),
        ("code_stdio", [{"input": "", "output": "x" * (OUTPUT_KIB * 1024 + 1)}]),
        ("code_stdio", [{"input": "x" * (MAX_INPUT + 1), "output": ""}]),
    ],
)
async def test_a_label_without_tests_is_unusable_and_never_a_pass(
    made: dict[str, AnswerVerifier], name: str, label: Any
) -> None:
    assert await made[name].problem(label) is not None
    verdict = await made[name].verify(ADD, label)
    assert verdict.reward is None and verdict.error_kind == "label"


async def test_a_test_that_asks_nothing_of_the_program_is_the_labels_fault(made: dict[str, AnswerVerifier]) -> None:
    verdict = await made["code"].verify(ADD, ["assert 1 + 1 == 2"])
    assert verdict.reward is None and verdict.error_kind == "label"


async def test_a_test_that_cannot_be_run_in_two_processes_is_the_labels_fault(made: dict[str, AnswerVerifier]) -> None:
    label = ["class Own:\n    pass\nassert add(Own(), Own()) is None"]
    verdict = await made["code"].verify(ADD, label)
    assert verdict.reward is None and verdict.error_kind == "label"


@pytest.mark.parametrize(
    "line", ["import no_such_module", "from pandas import Series", "from typing import NoSuchName"]
)
async def test_an_import_that_a_test_lacks_is_the_labels_fault(made: dict[str, AnswerVerifier], line: str) -> None:
    verdict = await made["code"].verify(ADD, [f"{line}\nassert add(1, 2) == 3"])
    assert verdict.reward is None and verdict.error_kind == "label" and "the test imports" in verdict.detail


async def test_an_import_that_a_program_lacks_is_its_own_fault(made: dict[str, AnswerVerifier]) -> None:
    late = "```python\ndef add(a, b):\n    import no_such_module\n```"
    verdict = await made["code"].verify(late, ["assert add(1, 2) == 3"])
    assert (verdict.reward, verdict.error_kind) == (0.0, None)


async def test_without_a_sandbox_there_is_no_reward(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = code_verifiers(SETTINGS.model_copy(update={"code_tier": "bubblewrap"}), pool)
    verdict = await found["code"].verify(ADD, TESTS)
    assert verdict.reward is None and verdict.error_kind == "no_sandbox"


async def test_numpy_is_there_when_it_is_allowed_and_not_otherwise(pool: Pool, made: dict[str, AnswerVerifier]) -> None:
    answer = "```python\nimport numpy as np\ndef double(x):\n    return 2 * np.asarray(x)\n```"
    label = ["assert np.allclose(double([1, 2]), [2, 4])", "assert double(3) == 6 and double([1]).tolist() == [2]"]
    assert (await made["code"].verify(answer, label)).reward == 0.0
    found = code_verifiers(SETTINGS.model_copy(update={"code_allow_numpy": True}), pool)
    try:
        verdict = await found["code"].verify(answer, label)
        assert verdict.reward == 1.0, verdict.detail
    finally:
        await found["code"].close()


async def test_the_scorer_starts_a_sandbox_only_for_code_and_ends_it(make_prompt: Any, make_completion: Any) -> None:
    scorer = VerifierScorer(Verifiers(timeout_s=20.0))
    await scorer.start()
    try:
        await scorer.verify(make_prompt(("math",), ("42",)), make_completion(r"\boxed{42}"))
        assert scorer.counters["sandbox"].starts == 0
        prompt = make_prompt(("code", "code_stdio"), (TESTS[:2], CASES))
        verdicts = await scorer.verify(prompt, make_completion(ADD))
        assert verdicts["code"].reward == 1.0 and verdicts["code_stdio"].reward == 0.0
        assert scorer.counters["sandbox"].starts == 1 and scorer.counters["sandbox"].checks == 4
    finally:
        await scorer.stop()


async def test_labels_are_judged_at_load_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "run", None)
    labels = [("code", TESTS), ("code_stdio", json.dumps(CASES)), ("code", []), ("code_stdio", ["a"])]

    def check() -> list[str | None]:
        with LabelChecker(Verifiers(timeout_s=20.0)) as checker:
            return checker.check_many(labels)

    good, fine, empty, wrong = await asyncio.to_thread(check)
    assert good is None and fine is None
    assert "no test" in str(empty) and "list of" in str(wrong)
