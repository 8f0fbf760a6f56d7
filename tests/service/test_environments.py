"""Environments as their libraries document them, in their own processes, train some steps of a whole service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl.actors.episodes.fake_environments import FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.clock import SystemClock
from olmorl.config import Episodes, Verifiers
from olmorl.messages import Completion, EpisodeStart
from olmorl.ports import Row
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments
from olmorl.verifiers.scorer import VerifierScorer
from tests.service.conftest import rows
from tests.verifiers.environments.test_forked_environments import calls
from tests.verifiers.environments.test_gymnasium_environment import GUESS, said
from tests.verifiers.environments.test_mcp_server import SERVER

Build = Callable[..., Any]
STEPS = 3


class Acting(FakeRenderer):
    """Reads an action from the last token of an answer, which the fake engine samples."""

    def __init__(self, act: Callable[[int], dict[str, Any]]) -> None:
        super().__init__()
        self._act = act

    def reply(self, answer: Completion) -> dict[str, Any]:
        return self._act(int(answer.token_ids.sum()))


def trained(
    service: Build,
    environment: str,
    act: Callable[[int], dict[str, Any]],
    *functions: str,
    group_size: int = 4,
    labelled: bool = False,
) -> Any:
    """The service after some steps; each row is an episode, with its level as a label of `math` or without one."""
    settings = Episodes(environment=environment)
    verifiers = Verifiers(workers=1, functions=list(functions), code_tier="landlock")

    def play() -> Play:
        return Play(ForkedEnvironments(settings, verifiers, STEPS), Acting(act), 4, 100, 400, 2)

    async def scenario() -> Any:
        made: list[Row] = [
            row._replace(
                messages=[{"role": "user", "content": f"problem {n}"}],
                datasets=("math",) * labelled,
                ground_truths=(str(n % 3),) * labelled,
                columns={"level": n % 3},
                episode=EpisodeStart(environment=environment),
            )
            for n, row in enumerate(rows(300))
        ]
        run = service(
            {"schedule.steps": STEPS, "schedule.prompts_per_step": 2, "sampling.group_size": group_size,
             "sampling.max_tokens": 40,
             "episodes.environment": environment, "episodes.max_tokens": 400, "simulation.mean_tokens": 6,
             "simulation.tokens_per_s": 2000, "schedule.max_useless_groups": 1000},
            clock=SystemClock(), num_actors=1, rows=made, play=play,
            scorer=lambda: VerifierScorer(verifiers, STEPS),
        )  # fmt: skip
        assert (await run.run()).reason == f"all {STEPS} steps are done"
        return run

    run = asyncio.run(asyncio.wait_for(scenario(), 180))
    run.check_lines()
    return run


def episodes(run: Any) -> list[dict[str, Any]]:
    trained = [record for record in run.rollouts if record["outcome"] == "trained"]
    assert len(trained) == STEPS * 2
    return [one for record in run.rollouts for one in record["completions"]]


TRL = '''
class Total:
    """As TRL's guide writes them."""

    def __init__(self):
        self.reward = 0.0

    def reset(self, **kwargs) -> str | None:
        self.total = self.level = kwargs["level"]
        return f"The total is {self.total}."

    def add(self, number: int) -> str:
        """
        Add to the total.

        Args:
            number: The number to add.

        Returns:
            The total.
        """
        self.total += number
        self.reward = self.total / 10
        return str(self.total)


def reward_func(environments, **kwargs):
    return [env.reward for env in environments]


def talk(completions, **kwargs):
    return [len(one) / 100 for one in completions]
'''


def test_an_environment_class_of_trl_trains_with_a_reward_function_that_reads_it(
    service: Build, tmp_path: Path
) -> None:
    (tmp_path / "trl_total.py").write_text(TRL)

    def act(number: int) -> dict[str, Any]:
        return calls(("add", {"number": number % 5})) if number % 3 else said("done")

    place = f"{tmp_path}/trl_total.py"
    run = trained(service, f"{place}:Total", act, f"{place}:reward_func", f"{place}:talk")
    several = 0
    for one in episodes(run):
        first, *_ = one["turns"]
        level = int(first["messages"][0]["content"].removesuffix(".").rpartition(" ")[2])
        added = [
            call["function"]["arguments"]["number"]
            for turn in one["turns"]
            for call in turn["reply"].get("tool_calls", ())
        ]
        several += len(added) > 1
        verdicts = one["verdicts"]
        assert verdicts["reward_func"]["reward"] == pytest.approx((level + sum(added)) / 10 if added else 0)
        read = sum(len(turn["messages"]) for turn in one["turns"][1:]) + len(one["turns"])
        assert verdicts["talk"]["reward"] == read / 100, "a function without environments reads the whole conversation"
    assert several


def test_a_registered_environment_of_gymnasium_trains(
    service: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guess_registered.py").write_text(GUESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = trained(service, "gymnasium:guess_registered:olmorl/Guess-v0", lambda number: said(str(number % 10)))
    found = episodes(run)
    for one in found:
        *wrong, _ = one["turns"]
        hints = [turn["messages"][0]["content"] for turn in one["turns"][1:]]
        assert one["turns"][0]["messages"][0]["content"].endswith("guess a number up to 9") and len(hints) == len(wrong)
        assert set(hints) <= {"higher", "lower"}
        reward = one["verdicts"]["environment"]["reward"]
        assert one["reward"] == reward == (1 if one["exit"] == "done" else -0.25) - 0.25 * len(wrong)
        assert one["exit"] == "done" or (one["exit"], len(wrong)) == ("max_turns", 2)
    assert {one["exit"] for one in found} == {"done", "max_turns"}
    for record in run.rollouts:
        right = {one["turns"][-1]["reply"]["content"] for one in record["completions"] if one["exit"] == "done"}
        assert len(right) <= 1, "all answers to a row look for the same number"


def test_a_policy_that_computes_with_python_and_submits_trains(service: Build) -> None:
    def act(number: int) -> dict[str, Any]:
        if number % 2:
            return calls(("python", {"code": "times = globals().get('times', 0) + 1\ntimes"}))
        return calls(("submit", {"answer": str(number // 2 % 3)}))

    run = trained(service, "box:python,submit", act, labelled=True)
    found = episodes(run)
    for one in found:
        last = one["turns"][-1]
        results = [turn["messages"][0]["content"] for turn in one["turns"][1:]]
        assert results == [f"{n}\n" for n in range(1, len(results) + 1)], "the state of this episode, and of no other"
        submitted = last["reply"].get("submitted")
        assert (submitted is None) == (one["exit"] == "max_turns")
        if submitted is not None:
            assert submitted == last["reply"]["tool_calls"][0]["function"]["arguments"]["answer"]
    for record in run.rollouts:
        for one in record["completions"]:
            right = one["turns"][-1]["reply"].get("submitted") == record["ground_truths"][0]
            assert one["reward"] == one["verdicts"]["math"]["reward"] == float(right)
    assert any(len(one["turns"]) == 3 and one["exit"] == "done" for one in found), "python twice, then submit"
    assert {0.0, 1.0} == {one["reward"] for one in found}


BY_TOTAL = """
def by_total(completions, **kwargs):
    results = [[one["content"] for one in turns if one["role"] == "tool"] for turns in completions]
    return [float(found[-1].removeprefix("total ")) if found else 0.0 for found in results]
"""


@pytest.mark.slow
def test_the_tools_of_an_mcp_server_train_and_a_server_that_ends_fails_its_group(
    service: Build, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "by_total.py").write_text(BY_TOTAL)

    def act(number: int) -> dict[str, Any]:
        # The server does not survive 99. An episode fails once all its three tries have met it.
        last = 99 if number % 6 in (1, 4) else number % 7
        return calls(("add", {"number": 2}), ("add", {"number": last})) if number % 3 else said("done")

    command = f"mcp:{sys.executable} {tmp_path}/server.py"
    run = trained(service, command, act, f"{tmp_path}/by_total.py:by_total", group_size=2)
    for one in episodes(run):
        made = [call for turn in one["turns"] for call in turn["reply"].get("tool_calls", ())]
        assert one["reward"] == sum(call["function"]["arguments"]["number"] for call in made)
    failed = [record for record in run.rollouts if record["outcome"] == "failed"]
    assert failed
    for record in failed:
        assert (record["cause"], record["completions"]) == ("unscorable", [])
        assert "failed 3 times, at last: step: ConnectionError: the MCP server gave no answer: " in record["detail"]
        assert "it last wrote: the disk is gone" in record["detail"]
