from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from olmorl.deploy.demo.arithmetic import Sum, sums
from olmorl.deploy.demo.problem import write
from olmorl.deploy.demo.settings import DemoSettings

TERMS = DemoSettings().terms


def boxed(solution: str) -> str:
    return solution.rpartition("\\boxed{")[2].rstrip("}")


def test_a_worked_sum_by_hand() -> None:
    assert Sum((27, 85, 4)).work_out(careful=True).splitlines() == [
        "27+85+4",
        "7+5=12",
        "2+8+1=11",
        "112+4",
        "2+4=6",
        "1=1",
        "1=1",
        "116",
        "\\boxed{116}",
    ]
    assert Sum((27, 85, 4)).work_out(careful=False).endswith("\n116\nabout \\boxed{110}")


def test_careful_work_is_always_right_and_hasty_work_only_by_luck() -> None:
    some = list(islice(sums(0, TERMS), 2000))
    assert all(boxed(problem.work_out(careful=True)) == problem.ground_truth for problem in some)
    lucky = [problem for problem in some if boxed(problem.work_out(careful=False)) == problem.ground_truth]
    assert 100 < len(lucky) < 300
    assert all(problem.ground_truth.endswith("0") for problem in lucky)


@pytest.mark.parametrize("careful", [True, False])
def test_answers_are_long_and_long_tailed(careful: bool) -> None:
    lengths = sorted(len(problem.work_out(careful)) for problem in islice(sums(0, TERMS), 2000))
    assert median(lengths) >= 65
    assert lengths[-20] >= 1.6 * median(lengths)
    assert lengths[-1] < 300


def test_problems_never_repeat_and_depend_on_the_seed() -> None:
    some = list(islice(sums(1, TERMS), 3000))
    assert len(set(some)) == 3000
    assert list(islice(sums(1, TERMS), 3000)) == some
    assert list(islice(sums(2, TERMS), 3000)) != some


def test_sums_have_only_the_numbers_of_terms_that_are_asked_for() -> None:
    assert {len(one.numbers) for one in islice(sums(3, {2: 3, 7: 1}), 100)} == {2, 7}


def test_rows_have_the_data_format(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [Sum((1, 2))])
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    turns = [{"role": "user", "content": "What is 1+2?"}]
    assert json.loads(line) == {"messages": turns, "ground_truth": "3", "dataset": "math"}
