"""`olmorl-verify` on episodes: recorded answers are played again, and a failure of the environment is no reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olmorl import deadlines
from olmorl.deploy.verify.cli import main

Line = dict[str, Any]
COUNTER = """
class World:
    def reset(self, goal=2, **row):
        self.goal, self.right, self.said = goal, 0, []
    def step(self, reply):
        self.said.append(reply["content"])
        if "crash" in reply["content"]:
            raise OSError("the disk is gone")
        self.right += "right" in reply["content"]
        return None if self.right == self.goal or reply["content"] == "stop" else "go on"
    def reward(self):
        return self.right / self.goal
"""
TOOLS = """
class World:
    def reset(self, start, **row):
        self.total = start
    def add(self, number: int) -> int:
        '''Adds.

        Args:
            number: what to add
        '''
        if number == 99:
            raise OSError("no such number")
        self.total += number
        return self.total

def total(environments, completions, goal, **columns):
    return [float(one.total == wanted) for one, wanted in zip(environments, goal)]
"""


def says(*texts: str) -> list[Line]:
    """Messages of a conversation, with a user's words between the answers."""
    answers = [[{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}] for text in texts]
    return [message for pair in answers for message in pair][:-1]


def calls(number: Any, name: str = "add") -> Line:
    """An answer with a call, as OpenAI's API has it."""
    arguments = number if isinstance(number, str) else json.dumps({"number": number})
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "RESTART_PAUSE_S", 0.01)


def verify(folder: Path, code: str, *rows: Line, options: tuple[str, ...] = (), exits: int = 0) -> list[Line]:
    """The lines that the command writes for episodes in the class `World`."""
    (folder / "world.py").write_text(code)
    (folder / "recipe.toml").write_text(f'[episodes]\nenvironment = "{folder}/world.py:World"\n')
    (folder / "in.jsonl").write_text("".join(json.dumps({"prompt": "?"} | row) + "\n" for row in rows))
    words = [str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "--config", str(folder / "recipe.toml")]
    assert main([*words, "--workers", "2", "--force", *options]) == exits
    output = folder / "out.jsonl"
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def test_the_recorded_answers_are_played_and_the_environment_gives_the_reward(tmp_path: Path) -> None:
    lines = verify(
        tmp_path,
        COUNTER,
        {"completion": says("wrong", "right", "right")},
        {"completion": says("right", "stop"), "goal": 4},
        {"completions": ["stop", says("right"), [*says("right"), {"role": "user", "content": "well done"}]], "goal": 1},
    )
    assert [line["reward"] for line in lines] == [1.0, 0.25, 0.0, 1.0, 1.0]
    assert [line["num_turns"] for line in lines] == [3, 2, 1, 1, 1]
    assert {line["exit"] for line in lines} == {"done"} and {line["verifier"] for line in lines} == {"environment"}
    assert [line.get("completion") for line in lines] == [None, None, 0, 1, 2]


def test_episodes_of_olmorl_eval_are_played(tmp_path: Path) -> None:
    turns = [[{"role": "assistant", "content": "wrong"}], [{"role": "user", "content": "go on"}, *says("right")]]
    row = {"completion": "right", "episode": {"exit": "done", "turns": turns, "verdicts": {}}, "goal": 1}
    cut = {"completion": "right", "episode": {"exit": "too_long", "turns": turns}, "finish_reason": "length"}
    lines = verify(tmp_path, COUNTER, row, cut, {"completion": "right", "episode": None, "goal": 1})
    assert [(line["reward"], line["exit"], line["num_turns"]) for line in lines] == [
        (1.0, "done", 2),
        (0.0, "too_long", 2),  # an answer that was cut reaches no environment
        (1.0, "done", 1),
    ]


def test_a_reply_that_did_not_fit_came_after_the_environment_had_the_last_answer(tmp_path: Path) -> None:
    turns = [{"reply": answer, "finish_reason": "stop"} for answer in says("wrong", "right")[::2]]
    row: Line = {"completion": {"text": "right", "turns": turns, "exit": "too_long", "token_ids": [1, 2]}}
    turns = [*turns[:-1], {**turns[-1], "finish_reason": "length"}]
    lines = verify(tmp_path, COUNTER, row, {"completion": row["completion"] | {"turns": turns}})
    assert [(line["reward"], line["exit"]) for line in lines] == [(0.5, "too_long"), (0.0, "too_long")]


def test_tools_are_called_as_in_training_and_functions_see_the_live_environment(tmp_path: Path) -> None:
    rows = [
        {"completion": [calls(3), {"role": "tool", "content": "5"}, calls(4), *says("it is 9")], "start": 2, "goal": 9},
        {"completion": [calls(3), calls(3, "multiply"), calls("{}"), *says("it is 6")], "start": 2, "goal": 6},
        {"completion": [calls(3), calls("{")], "start": 2, "goal": 5},
        {"completion": says(r"\boxed{4}"), "start": 2, "goal": 9, "dataset": "math", "ground_truth": "4"},
    ]
    lines = verify(tmp_path, TOOLS, *rows, options=("--function", f"{tmp_path}/world.py:total"))
    assert [line["reward"] for line in lines] == [1.0, 0.0, 1.0, 1.0]
    assert [line["exit"] for line in lines] == ["done", "done", "bad_call", "done"]
    assert [line["num_turns"] for line in lines] == [3, 4, 2, 1]
    assert {name: verdict["reward"] for name, verdict in lines[3]["verdicts"].items()} == {"math": 1.0, "total": 0.0}


def test_an_environment_that_fails_is_named_and_is_never_a_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = verify(
        tmp_path, COUNTER, {"completions": [says("wrong", "crash"), says("right")], "goal": 1}, {"completion": "stop"}
    )
    assert [line["reward"] for line in lines] == [None, 1.0, 0.0]
    assert (lines[0]["error_kind"], lines[0]["verifier"]) == ("environment", "environment")
    assert lines[0]["detail"] == "failed 3 times, at last: step: OSError: the disk is gone"
    assert "1 environment" in capsys.readouterr().out
    assert verify(tmp_path, COUNTER, {"completion": "crash"}, exits=1)[0]["reward"] is None
    tools = {"completion": [calls(99), *says("well")], "start": 1, "goal": 1}
    assert "no such number" in verify(tmp_path, TOOLS, tools, exits=1)[0]["detail"]


def test_an_episode_that_ends_elsewhere_than_its_recording_has_no_reward(tmp_path: Path) -> None:
    rows: list[Line] = [
        {"completion": says("right", "right", "right")},
        {"completion": says("right")},
        {"completion": says("right"), "finish_reason": "length"},
        {"completion": says("wrong", "wrong", "wrong")},
        {"completion": says("wrong", "wrong", "wrong", "wrong")},
    ]
    lines = verify(tmp_path, COUNTER, *rows, options=("--episodes.max_turns", "3"))
    assert [line["reward"] for line in lines] == [None, None, 0.0, 0.0, None]
    assert [line.get("exit") for line in lines] == [None, None, "too_long", "max_turns", None]
    assert [line["detail"] for line in lines if line["error_kind"] == "recording"] == [
        "it ends as done after 2 of 3 recorded answers",
        "the environment goes on after the last of 1 recorded answers",
        "it ends as max_turns after 3 of 4 recorded answers",
    ]


def test_a_completion_that_is_no_episode_is_the_fault_of_its_row(tmp_path: Path) -> None:
    rows: list[Line] = [
        {"completion": [{"role": "user", "content": "hm"}]},
        {"completion": [{"role": "assistant", "content": ["hm"]}, *says("stop")]},
        {"completion": {"text": "right", "turns": [{"finish_reason": "stop"}], "exit": "done"}},
        {"completion": "stop"},
    ]
    lines = verify(tmp_path, COUNTER, *rows)
    assert [line["error_kind"] for line in lines] == ["bad_row"] * 3 + [None]
    assert "no message of an assistant" in lines[0]["detail"]
    assert "answer 1 of the completion cannot be read: messages[0].content" in lines[1]["detail"]
    assert "no recorded episode: KeyError: 'reply'" in lines[2]["detail"]


def test_what_cannot_be_played_is_refused_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path, "raise ImportError('no shop')", {"completion": "stop"}, exits=2) == []
    assert "no shop" in capsys.readouterr().err
    recipe = tmp_path / "agent.toml"
    recipe.write_text('[episodes]\nagent = "python agent.py"\n')
    words = [str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "new.jsonl"), "--config", str(recipe)]
    assert main(words) == 2
    assert "episodes.agent: an agent asks the policy itself" in capsys.readouterr().err
    assert not (tmp_path / "new.jsonl").exists()


def test_lines_of_another_environment_are_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"prompt": "?", "completion": says("wrong", "stop")}
    verify(tmp_path, COUNTER, row)
    words = [str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--config", str(tmp_path / "recipe.toml")]
    assert main([*words, "--resume", "--workers", "1", "--episodes.timeout_s", "9"]) == 0
    assert main([*words, "--resume", "--workers", "1", "--episodes.max_turns", "1"]) == 2
    assert "a setting has changed" in capsys.readouterr().err
