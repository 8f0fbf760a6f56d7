from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from olmorl.deploy.arithmetic import Problem, problems, work_out, write


def boxed(solution: str) -> str:
    return solution.rpartition("\\boxed{")[2].rstrip("}")


def test_a_worked_sum_by_hand() -> None:
    assert work_out(Problem((27, 85, 4)), careful=True).splitlines() == [
        "27+85",
        "7+5=12",
        "2+8+1=11",
        "112+4",
        "2+4=6",
        "1=1",
        "1=1",
        "116",
        "\\boxed{116}",
    ]
    assert boxed(work_out(Problem((27, 85, 4)), careful=False)) == "106"


def test_careful_work_is_always_right_and_careless_work_only_where_nothing_is_carried() -> None:
    some = list(islice(problems(0), 2000))
    assert all(boxed(work_out(problem, careful=True)) == problem.answer for problem in some)
    lucky = [p for p in some if boxed(work_out(p, careful=False)) == p.answer]
    assert 0 < len(lucky) < 200
    assert all(work_out(p, careful=True) == work_out(p, careful=False) for p in lucky)


@pytest.mark.parametrize("careful", [True, False])
def test_answers_are_long_and_long_tailed(careful: bool) -> None:
    lengths = sorted(len(work_out(problem, careful)) for problem in islice(problems(0), 2000))
    assert median(lengths) >= 75
    assert lengths[-20] >= 2 * median(lengths)
    assert lengths[-1] < 300


def test_problems_never_repeat_and_depend_on_the_seed() -> None:
    some = list(islice(problems(1), 3000))
    assert len(set(some)) == 3000
    assert list(islice(problems(1), 3000)) == some
    assert list(islice(problems(2), 3000)) != some


def test_rows_have_the_data_format(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [Problem((1, 2))])
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    turns = [{"role": "user", "content": "What is 1+2?"}]
    assert json.loads(line) == {"messages": turns, "ground_truth": "3", "dataset": "math"}
