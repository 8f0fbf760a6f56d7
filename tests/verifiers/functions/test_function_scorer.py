"""User reward functions: found or refused at launch, called as TRL and verl do, and never a silent 0."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.errors import RewardFunctionError
from olmorl.messages import Completion, EpisodeStart, Prompt, Verdict
from olmorl.ports import Row
from olmorl.verifiers.functions.function_scorer import FunctionScorer, check, parse
from olmorl.verifiers.pool.pool import Pool

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
def tokens(completions, completion_ids, **columns):
    return [[None] * (len(ids) - 1) + [0.5] if n else [0.25] * len(ids) for n, ids in enumerate(completion_ids)]
def as_array(completions, completion_ids, **columns):
    import numpy as np
    return [np.arange(len(ids)) for ids in completion_ids]
def unpaid(completions, completion_ids, **columns): return [[None] * len(ids) for ids in completion_ids]
def one_more(completions, completion_ids, **columns): return [[0.0] * (len(ids) + 1) for ids in completion_ids]
def not_a_number(completions, completion_ids, **columns): return [[float("nan")] * len(ids) for ids in completion_ids]
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


async def test_tokens_have_rewards_of_their_own_and_the_reward_is_their_sum(
    rewards: str, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    group = [
        replace(make_completion("a", index), token_ids=np.arange(length, dtype=np.int32))
        for index, length in enumerate((3, 2))
    ]
    names = ("tokens", "as_array", "unpaid", "one_more", "not_a_number")
    rows = await scores(quick, make_prompt(), group, *(f"{rewards}:{name}" for name in names))
    assert [(row["tokens"].reward, row["as_array"].reward, row["unpaid"].reward) for row in rows] == [
        (0.75, 3.0, None),
        (0.5, 1.0, None),
    ]
    assert np.array_equal(rows[1]["tokens"].token_rewards, [np.nan, 0.5], equal_nan=True)
    assert rows[0]["as_array"].token_rewards.tolist() == [0.0, 1.0, 2.0]
    for row in rows:
        assert (row["one_more"].reward, row["one_more"].error_kind) == (None, "function_length")
        assert row["one_more"].detail == "returned 4 rewards for the 3 tokens of completion 0"
        assert (row["not_a_number"].reward, row["not_a_number"].error_kind) == (None, "function_not_finite")


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
    rows = await scores(quick, make_prompt(), [make_completion("a")], f"{file}:flaky")
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


def test_a_function_that_takes_environments_needs_episodes(reward_file: Callable[[str], str]) -> None:
    verifiers = Verifiers(functions=[f"{reward_file('def seen(environments): return [1.0]')}:seen"])
    row = Row("rows.jsonl:1", "?", np.zeros(1, np.int32), (), (), {}, False)
    with pytest.raises(RewardFunctionError, match="seen: the function takes environments: set "):
        check(verifiers, [row])
    check(verifiers, [row._replace(episode=EpisodeStart(environment="a.py:World"))])


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


TRICKS = """
import ctypes, os, signal, subprocess, sys, time

def links():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            pass
    return found

def fork_twice():
    if os.fork() == 0:
        time.sleep(0.02)

def fork_below_python():
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(0.02)

def fork_and_leave_the_child():
    if os.fork():
        time.sleep(0.02)
        os._exit(0)

def write_into_every_socket():
    for link in links():
        os.write(link, b"\\x20\\0\\0\\0" + bytes(40))

def write_a_little_later():
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(0.02)
        write_into_every_socket()
        os._exit(0)

def close_the_output():
    sys.stdout.close()
    sys.stderr.close()

def close_the_descriptors():
    os.close(1)
    os.close(2)

def close_every_socket():
    for link in links():
        os.close(link)

def leave_an_alarm():
    def ring(*_):
        global late
        late = 1.0
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)

def leave_a_child():
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    os.system("sleep 300 &")

late = 0.0

def score(completions, trick, **columns):
    time.sleep(0.02)
    print("before", trick)
    print("before", trick, file=sys.stderr)
    if trick[0]:
        globals()[trick[0]]()
    print("after", trick, file=open(os.devnull, "w"))
    return [float(text) + late for text in completions]
"""
HARMFUL = {
    "fork_and_leave_the_child",
    "write_into_every_socket",
    "write_a_little_later",
    "close_every_socket",
    "fork_below_python",
}
"""Tricks that may cost their own rewards, or a retry of another row."""


@pytest.mark.parametrize("trick", re.findall(r"^def (?!links)(\w+)\(\):", TRICKS, re.MULTILINE))
async def test_a_function_cannot_change_the_rewards_of_another_row(
    reward_file: Callable[[str], str],
    make_prompt: Make,
    make_completion: MakeCompletion,
    trick: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("olmorl.verifiers.functions.function_scorer.Pool", partial(Pool, retries=4))
    function = f"{reward_file(TRICKS)}:score"
    scorer = FunctionScorer(Verifiers(workers=2, functions=[function], function_timeout_s=5))
    await scorer.start()
    try:
        rows = [(float(number), trick if number % 8 == 0 else "") for number in range(24)]
        groups = [
            scorer.score(make_prompt(columns={"trick": trick}), [make_completion(str(row)), make_completion("0", 1)])
            for row, trick in rows
        ]
        found = [[member["score"] for member in group] for group in await asyncio.gather(*groups)]
    finally:
        await scorer.stop()
    for (row, done), (first, second) in zip(rows, found, strict=True):
        expected = [(row, 0.0), (None, None)] if done in HARMFUL else [(row, 0.0)]
        assert (first.reward, second.reward) in expected, (first, second)


async def test_what_a_function_leaves_behind_ends_with_its_worker_or_the_pool(
    reward_file: Callable[[str], str], make_prompt: Make, make_completion: MakeCompletion
) -> None:
    source = (
        TRICKS
        + """
def left(completions, **columns):
    one, two = os.pipe()
    if os.fork() == 0:
        os.setsid()
        child = os.fork()
        if child:
            os.write(two, str(child).encode())
            os._exit(0)
        os.close(two)
        time.sleep(300)
    os.wait()
    child = subprocess.Popen(["sleep", "300"], start_new_session=True).pid
    return [float(os.read(one, 99)), float(child)]

"""
    )
    function = f"{reward_file(source)}:left"
    for ends in ("pool", "worker"):
        scorer = FunctionScorer(Verifiers(workers=1, functions=[function]))
        await scorer.start()
        found = await scorer.score(make_prompt(), [make_completion("a"), make_completion("b", 1)])
        pids = [int(member["left"].reward or 0) for member in found]
        assert all(psutil.pid_exists(pid) for pid in pids), found
        if ends == "worker":
            left = [*map(psutil.Process, pids)]
            left[1].parents()[0].kill()
            assert not psutil.wait_procs(left, 5)[1]
        await scorer.stop()
        assert not any(psutil.pid_exists(pid) for pid in pids)
