"""User reward functions: found or refused at launch, called as TRL and verl do, and never a silent 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.errors import RewardFunctionError
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.functions.function_scorer import FunctionScorer, check, parse

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]

SOURCE = """
import asyncio, os, sys, time

def length(prompts, completions, **columns):
    print("a line that must not disturb anything")
    return [len(c) / 100 for c in completions]

async def matches(completions, ground_truth, hint):
    await asyncio.sleep(0)
    return [float(g in c and h == "near") for c, g, h in zip(completions, ground_truth, hint)]

def chat(prompts, completions, **columns):
    roles = {(p[0]["role"], c[0]["role"]) for p, c in zip(prompts, completions)}
    return [float(roles == {("user", "assistant")} and c[0]["content"] == "yes") for c in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth and extra_info["k"] == 1)}

def skips(completions, **columns): return [None for _ in completions]
def short(completions, **columns): return [1.0]
def nan(completions, **columns): return [float("nan"), 1.0]
def huge(completions, **columns): return [-1.7e308, 1.0]
def text(completions, **columns): return ["1", "0"]
def nothing(completions, **columns): return None
def raises(completions, **columns): raise KeyError("gone")
def hangs(completions, **columns): time.sleep(60)
def leaves(completions, **columns): sys.exit(0)
def dies(completions, **columns): os._exit(1)
def eats(completions, **columns): return [bytearray(1 << 34), 1.0]
not_a_function = 3
def no_completions(x): return x
"""


@pytest.fixture
def rewards(reward_file: Callable[[str], str]) -> str:
    return reward_file(SOURCE)


async def scores(
    settings: Verifiers, prompt: Prompt, completions: list[Completion], *entries: str
) -> list[dict[str, Verdict]]:
    scorer = FunctionScorer(settings.model_copy(update={"functions": list(entries)}))
    await scorer.start()
    try:
        return await scorer.score(prompt, completions)
    finally:
        await scorer.stop()


async def test_trl_and_verl_conventions(
    rewards: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    columns = {"hint": "near", "extra_info": {"k": 1}, "data_source": "gsm8k"}
    prompt = make_prompt(("math",), ("42",), columns=columns)
    group = [make_completion("42", 0), make_completion("no", 1)]
    entries = [f"{rewards}:{name}" for name in ("length", "matches", "compute_score")]
    rows = await scores(quick, prompt, group, *entries)
    assert [{name: verdict.reward for name, verdict in row.items()} for row in rows] == [
        {"length": 0.02, "matches": 1.0, "compute_score": 1.0},
        {"length": 0.02, "matches": 0.0, "compute_score": 0.0},
    ]


async def test_message_lists_stay_message_lists(
    rewards: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    prompt = make_prompt(messages=[{"role": "user", "content": "well?"}])
    rows = await scores(quick, prompt, [make_completion("yes"), make_completion("no", 1)], f"{rewards}:chat")
    assert [row["chat"].reward for row in rows] == [1.0, 0.0]


async def test_none_means_that_it_does_not_apply(
    rewards: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    rows = await scores(quick, make_prompt(), [make_completion("a"), make_completion("b", 1)], f"{rewards}:skips")
    assert [(row["skips"].reward, row["skips"].error_kind) for row in rows] == [(None, None)] * 2


async def test_every_fault_is_an_error_and_the_next_group_is_scored(
    rewards: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    kinds = {
        "short": "function_length",
        "nan": "function_not_finite",
        "huge": "function_not_finite",
        "text": "function_raised",
        "nothing": "function_raised",
        "raises": "function_raised",
        "leaves": "function_raised",
        "hangs": "function_timeout",
        "dies": "function_worker_lost",
        "eats": "function_memory",
    }
    settings = quick.model_copy(update={"function_timeout_s": 2.0})
    group = [make_completion("a"), make_completion("b", 1)]
    rows = await scores(settings, make_prompt(), group, *(f"{rewards}:{name}" for name in (*kinds, "length")))
    for row in rows:
        assert {name: verdict.error_kind for name, verdict in row.items() if name != "length"} == kinds
        assert all(verdict.reward is None for name, verdict in row.items() if name != "length")
        assert row["length"].reward == 0.01


async def test_a_flaky_function_is_retried(
    reward_file: Callable[[str], str],
    quick: Verifiers,
    tmp_path: Path,
    make_prompt: Make,
    make_completion: MakeCompletion,
) -> None:
    file = reward_file(
        f"import pathlib\nmark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "def flaky(completions, **columns):\n"
        "    if not mark.exists():\n        mark.touch()\n        raise OSError('not yet')\n"
        "    return [1.0 for _ in completions]\n"
    )
    rows = await scores(quick.model_copy(update={"retries": 1}), make_prompt(), [make_completion("a")], f"{file}:flaky")
    assert rows[0]["flaky"].reward == 1.0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("no_such_module_of_mine:reward", "No module named 'no_such_module_of_mine'"),
        ("json:no_such_function", "has no function 'no_such_function'"),
        ("FILE:missing", "has no function 'missing'"),
        ("FILE:not_a_function", "has no function 'not_a_function'"),
        ("FILE:no_completions", "takes neither completions nor solution_str"),
        ("/nowhere/rewards.py:reward", "is not a file"),
    ],
)
def test_what_cannot_be_called_is_refused_at_launch(rewards: str, entry: str, message: str) -> None:
    with pytest.raises(RewardFunctionError, match=message) as refused:
        check(Verifiers(functions=[entry.replace("FILE", rewards)]))
    assert refused.value.exit_code == 2
    assert "package.module:function or file.py:function" in str(refused.value)


@pytest.mark.parametrize("source", ["import", "raise ValueError('broken')", "import sys; sys.exit(3)", "1 / 0"])
def test_a_file_that_breaks_at_import_is_refused(reward_file: Callable[[str], str], source: str) -> None:
    with pytest.raises(RewardFunctionError, match="does not import"):
        check(Verifiers(functions=[f"{reward_file(source)}:reward"]))


def test_good_functions_pass_the_launch_check(rewards: str) -> None:
    check(Verifiers(functions=[f"{rewards}:length", f"{rewards}:matches * 0.5"]))


@pytest.mark.parametrize(
    "entry", ["", "module", ":f", "module:", "module:f*", "module:f*x", "module:f*nan", "module:1f"]
)
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(RewardFunctionError, match=r"package\.module:function"):
        parse([entry])


def test_names_are_unique_and_weights_are_read() -> None:
    functions = parse(["a.b:reward*0.5", "c:reward", "d:math", "e:other * -2"])
    assert [(f.name, f.weight) for f in functions] == [
        ("a.b.reward", 0.5),
        ("c.reward", 1.0),
        ("d.math", 1.0),
        ("other", -2.0),
    ]


async def test_a_function_sees_the_row_as_its_file_has_it(
    reward_file: Callable[[str], str], quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    file = reward_file(
        "def seen(prompts, completions, dataset, ground_truth, **columns):\n"
        "    seen = [(d, g) for d, g in zip(dataset, ground_truth)]\n"
        "    ours = {'completion_ids', 'trainer_state', 'log_metric', 'log_extra'}\n"
        "    return [float(s == (['math', 'f1'], ['1', '2']) and set(columns) == ours) for s in seen]\n"
    )
    prompt = make_prompt(("math", "f1"), ("1", "2"))
    rows = await scores(quick, prompt, [replace(make_completion("a"), index=i) for i in range(3)], f"{file}:seen")
    assert [row["seen"].reward for row in rows] == [1.0] * 3
