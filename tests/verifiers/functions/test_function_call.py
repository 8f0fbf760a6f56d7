"""What a user function may ask for as TRL's users do, None for one completion, and what comes of what it logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.errors import Unscorable
from olmorl.messages import Completion, Prompt, Span, Verdict, Version
from olmorl.verifiers.functions.function_call import LONGEST_NAME, MOST_NAMES, FunctionLog
from olmorl.verifiers.functions.function_scorer import FunctionScorer
from olmorl.verifiers.scorer import VerifierScorer

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]
RewardFile = Callable[[str], str]

SOURCE = """
def ids_by_name(completions, completion_ids): return [float(sum(ids)) for ids in completion_ids]
def ids_by_kwargs(completions, **kwargs): return [float(sum(ids)) for ids in kwargs["completion_ids"]]
async def ids_awaited(completion_ids, completions): return [float(sum(ids)) for ids in completion_ids]
def ids_are_lists(completion_ids, completions):
    return [float(type(ids) is list and type(ids[0]) is int) for ids in completion_ids]
def ids_if_there(completions, completion_ids=None):
    return [-1.0 if completion_ids is None else 1.0 for _ in completions]
def step(completions, trainer_state): return [float(trainer_state.global_step) for _ in completions]
def last_step(completions, **kwargs): return [float(kwargs["trainer_state"].max_steps) for _ in completions]
def epoch(completions, trainer_state): return [trainer_state.epoch for _ in completions]
def plain(completions): return [1.0 for _ in completions]
def own_prompts(prompts, completions):
    return [float(p == "How much?" and c in "abc") for p, c in zip(prompts, completions)]
def own_step(completions, trainer_state): return [float(trainer_state.global_step) for _ in completions]
def four(solution_str, **kwargs): return float(set(kwargs) == {"data_source", "ground_truth", "extra_info"})

def logs(completions, log_metric, log_extra=None):
    log_metric("share", 0.25)
    log_metric("share", 0.75)
    log_metric("none", float("nan"))
    log_extra("first", [c[0] for c in completions])
    log_extra("size", [len(c) for c in completions])
    log_extra("long", ["x" * 9999 for c in completions])
    return [1.0 for _ in completions]

async def logs_late(completions, **kwargs):
    kwargs["log_metric"]("late", 2)
    return [1.0 for _ in completions]

count = 0
def many(completions, log_metric):
    global count
    count += 1
    for n in range(20 * count):
        log_metric(f"name {n}", n)
    return [1.0 for _ in completions]

def columns_short(completions, log_extra):
    log_extra("one", [1])
    return [1.0 for _ in completions]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    known = {"score": 0.5, "acc": solution_str == ground_truth, "length": len(solution_str), "pred": solution_str}
    return known if solution_str == "a" else {"score": 1, "acc": False}
async def verl_batch(data_sources, solution_strs, ground_truths, extra_infos):
    rows = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
    return [{"score": float(s == g and d == "own" and e["k"] == 1), "hit": s == g} for d, s, g, e in rows]
def verl_plain_batch(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    return [0.25 * len(kwargs) for _ in solution_strs]
def no_score(data_source, solution_str, ground_truth): return {"acc": 1.0}
def too_many(solution_str): return {"score": 1.0} | {f"key {n}": n for n in range(99)}

def starts_with_a(completions): return [1.0 if c[0] == "a" else None for c in completions]
def length(completions): return [None if c == "c" else len(c) / 10 for c in completions]
def never(completions): return [None for _ in completions]
"""


@pytest.fixture
def group(make_completion: MakeCompletion) -> list[Completion]:
    """Three answers; a part of one was written by version 5."""
    first, second, third = (make_completion(text, index) for index, text in enumerate("abc"))
    ids = [np.array([1, 2, 300_000], np.int32), np.array([4], np.int32), np.array([5, 6], np.int32)]
    late = (Span(Version(1, 4), 0, 2), Span(Version(1, 5), 2, 3))
    return [
        replace(first, token_ids=ids[0], spans=late),
        replace(second, token_ids=ids[1]),
        replace(third, token_ids=ids[2]),
    ]


async def verdicts(
    settings: Verifiers, file: str, prompt: Prompt, group: list[Completion], *names: str, calls: int = 1
) -> dict[str, list[Verdict]]:
    """The verdicts of the last of several calls, by function."""
    entries = [f"{file}:{name}" for name in names]
    scorer = FunctionScorer(settings.model_copy(update={"functions": entries}), max_steps=40)
    await scorer.start()
    try:
        for _ in range(calls):
            rows = await scorer.score(prompt, group)
    finally:
        await scorer.stop()
    return {name: [row[name] for row in rows] for name in names}


async def test_a_function_gets_what_its_signature_asks_for(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    wanted = {
        "ids_by_name": [300_003.0, 4.0, 11.0],
        "ids_by_kwargs": [300_003.0, 4.0, 11.0],
        "ids_awaited": [300_003.0, 4.0, 11.0],
        "ids_are_lists": [1.0] * 3,
        "ids_if_there": [1.0] * 3,
        "step": [5.0] * 3,
        "last_step": [40.0] * 3,
        "plain": [1.0] * 3,
        "own_prompts": [1.0] * 3,
        "four": [1.0] * 3,
        "logs": [1.0] * 3,
        "logs_late": [1.0] * 3,
    }
    found = await verdicts(quick, reward_file(SOURCE), make_prompt(), group, *wanted)
    assert {name: [verdict.reward for verdict in row] for name, row in found.items()} == wanted


async def test_a_column_never_takes_the_place_of_an_argument(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    names = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
    prompt = make_prompt(columns=dict.fromkeys(names, "of the row"))
    found = await verdicts(quick, reward_file(SOURCE), prompt, group, "own_prompts", "own_step", "ids_by_name", "logs")
    assert [row[1].reward for row in found.values()] == [1.0, 5.0, 4.0, 1.0]


async def test_completions_that_are_text_alone_have_no_ids(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    texts = [replace(one, token_ids=np.zeros(0, np.int32)) for one in group]
    prompt = make_prompt(columns={"completion_ids": [7]})
    found = await verdicts(quick, reward_file(SOURCE), prompt, texts, "ids_by_name", "ids_if_there")
    assert found["ids_by_name"][0].error_kind == "function_raised"
    assert "the function takes completion_ids" in found["ids_by_name"][0].detail
    assert [verdict.reward for verdict in found["ids_if_there"]] == [-1.0] * 3


async def test_a_state_that_is_not_known_is_named(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    (row,) = (await verdicts(quick, reward_file(SOURCE), make_prompt(), group, "epoch")).values()
    assert "trainer_state has no epoch" in row[0].detail


async def test_what_is_logged_comes_back(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    found = await verdicts(quick, reward_file(SOURCE), make_prompt(), group, "logs", "logs_late")
    assert [verdict.logged for verdict in found["logs"]] == [{"share": 0.5}, {}, {}]
    assert [verdict.logged for verdict in found["logs_late"]] == [{"late": 2.0}, {}, {}]
    assert [(v.extra["first"], v.extra["size"]) for v in found["logs"]] == [("a", 1), ("b", 1), ("c", 1)]
    assert len(found["logs"][2].extra["long"]) == 1000


async def test_names_are_bounded_over_all_calls_of_a_worker(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    file = reward_file(SOURCE)
    (row,) = (await verdicts(quick, file, make_prompt(), group, "many")).values()
    assert (row[0].error_kind, len(row[0].logged)) == (None, 20)
    (row,) = (await verdicts(quick, file, make_prompt(), group, "many", calls=2)).values()
    assert row[0].error_kind == "function_raised"
    assert f"'name {MOST_NAMES}' exceeds the {MOST_NAMES}" in row[0].detail
    (row,) = (await verdicts(quick, file, make_prompt(), group, "columns_short")).values()
    assert "one has 1 values for 3 completions" in row[0].detail


@pytest.mark.parametrize("name", ["", "x" * (LONGEST_NAME + 1), "two\nlines", "\ud800", 3, None])
def test_a_name_that_is_none(name: Any) -> None:
    log = FunctionLog(2, set())
    with pytest.raises(ValueError, match="log_metric: a name has 1 to 64 printable characters"):
        log.metric(name, 1.0)
    with pytest.raises(ValueError, match="log_extra: a name has 1 to 64"):
        log.extra(name, [1, 2])


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1, 1), (True, True), (None, None), (2.5, 2.5), ("text", "text"), (2**70, str(2**70)), ([1, 2], "[1, 2]"),
        (np.float32(0.5), 0.5), (np.int64(3), 3), ("a\ud800", "a?"),
    ],
)  # fmt: skip
def test_a_logged_value_is_plain(value: Any, kept: Any) -> None:
    log = FunctionLog(1, set())
    log.extra("column", [value])
    assert log.columns == {"column": [kept]}
    assert type(log.columns["column"][0]) is type(kept)


# --- None ---------------------------------------------------------------------------------------


async def combined(
    settings: Verifiers, file: str, prompt: Prompt, group: list[Completion], *entries: str, how: str = "sum"
) -> list[float | None]:
    functions = [f"{file}:{entry}" for entry in entries]
    scorer = VerifierScorer(settings.model_copy(update={"functions": functions, "combine": how}))
    await scorer.start()
    try:
        verified = [replace(one, verdicts=await scorer.verify(prompt, one)) for one in group]
        return [one.reward for one in await scorer.combine(prompt, verified)]
    finally:
        await scorer.stop()


@pytest.mark.parametrize(
    ("entries", "how", "expected"),
    [
        # a, b, c: starts_with_a gives 1, None, None; length gives 0.1, 0.1, None; plain gives 1 to all.
        (["starts_with_a"], "sum", [1.0, None, None]),
        (["length"], "sum", [0.1, 0.1, None]),
        (["starts_with_a*2", "length*10"], "sum", [3.0, 1.0, None]),
        (["starts_with_a*2", "length*10"], "mean", [3 / 12, 0.1, None]),
        (["starts_with_a*2", "length*10"], "product", [2.0, 1.0, None]),
        (["starts_with_a", "plain*3"], "sum", [4.0, 3.0, 3.0]),
        (["never", "plain"], "sum", [1.0, 1.0, 1.0]),
    ],
)
async def test_none_leaves_a_function_out_for_one_completion(
    entries: list[str],
    how: str,
    expected: list[float | None],
    reward_file: RewardFile,
    quick: Verifiers,
    make_prompt: Make,
    group: list[Completion],
) -> None:
    found = await combined(quick, reward_file(SOURCE), make_prompt(), group, *entries, how=how)
    assert found == pytest.approx(expected)


async def test_none_beside_a_built_in_verifier(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    group = [make_completion("a 42"), make_completion("b: 42", 1), make_completion("c: 41", 2)]
    prompt = make_prompt(("math",), ("42",))
    assert await combined(quick, reward_file(SOURCE), prompt, group, "starts_with_a*0.5") == [1.5, 1.0, 0.0]


async def test_none_for_a_whole_group_is_no_reward_and_no_zero(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    with pytest.raises(Unscorable, match="no verifier applies"):
        await combined(quick, reward_file(SOURCE), make_prompt(), group, "never")


async def test_none_hides_no_missing_verdict(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    file = reward_file(SOURCE)
    scorer = VerifierScorer(quick.model_copy(update={"functions": [f"{file}:starts_with_a"]}))
    await scorer.start()
    try:
        with pytest.raises(Unscorable, match="missing_verdict"):
            first = replace(group[0], verdicts={"math": Verdict(reward=1.0)})
            await scorer.combine(make_prompt(("math",), ("42",)), [first, *group[1:]])
    finally:
        await scorer.stop()


async def test_keys_beside_the_score_of_verl_become_metrics(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    columns = {"ground_truth": "a", "data_source": "own", "extra_info": {"k": 1}}
    prompt, path = make_prompt(columns=columns), reward_file(SOURCE)
    names = ["verl", "verl_batch", "verl_plain_batch", "no_score", "too_many"]
    scorer = FunctionScorer(quick.model_copy(update={"functions": [f"{path}:{name}" for name in names]}))
    await scorer.start()
    rows = await scorer.score(prompt, group)
    await scorer.stop()
    assert [row["verl"].reward for row in rows] == [0.5, 1.0, 1.0]
    assert [row["verl"].logged for row in rows] == [{"acc": pytest.approx(1 / 3), "length": 1.0}, {}, {}]
    assert [row["verl"].extra for row in rows] == [{"pred": "a"}, {"pred": None}, {"pred": None}]
    assert [row["verl_batch"].reward for row in rows] == [1.0, 0.0, 0.0]
    assert rows[0]["verl_batch"].logged == {"hit": pytest.approx(1 / 3)}
    assert [row["verl_plain_batch"].reward for row in rows] == [0.0] * 3
    assert {row["no_score"].error_kind for row in rows} == {"function_raised"}
    assert "has its reward under score, and has only acc" in rows[0]["no_score"].detail
    assert f"exceeds the {MOST_NAMES} names" in rows[0]["too_many"].detail


async def test_a_function_named_twice_counts_twice(
    reward_file: RewardFile, quick: Verifiers, make_prompt: Make, group: list[Completion]
) -> None:
    path = reward_file(SOURCE)
    entries = [f"{path}:plain*0.5", f"{path}:plain*0.25", f"{path}:plain"]
    weights = {"plain#3": 2.0}
    scorer = VerifierScorer(quick.model_copy(update={"functions": entries, "weights": weights}))
    await scorer.start()
    scored = await scorer.combine(make_prompt(), group)
    await scorer.stop()
    assert [set(one.verdicts) for one in scored] == [{"plain", "plain#2", "plain#3"}] * 3
    assert [one.reward for one in scored] == [2.75] * 3
