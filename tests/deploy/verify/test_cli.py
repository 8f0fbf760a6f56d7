"""`olmorl-verify`: every row has its line, in order; interrupted and resumed it is the same; memory does not grow."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.verify.cli import main

COMMAND = [sys.executable, "-m", "olmorl.deploy.verify.cli"]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows, or lines as they are, to the input file."""

    def to(*rows: dict[str, Any] | str) -> Path:
        path = tmp_path / "in.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return to


def row(completion: Any = r"\boxed{4}", **more: Any) -> dict[str, Any]:
    base = {"messages": [{"role": "user", "content": "2+2?"}], "ground_truth": "4", "dataset": "math"}
    return base | {"completion": completion} | more


def verify(source: Path, *options: str, name: str = "out.jsonl") -> list[dict[str, Any]]:
    """Run the command with one worker and read its output."""
    output = source.with_name(name)
    assert main([str(source), "-o", str(output), "--workers", "1", *options]) == 0
    return load(output)


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def timeless(path: Path) -> list[str]:
    """The lines without the times that they took."""
    lines = load(path)
    for line in lines:
        line.pop("seconds")
        for verdict in line.get("verdicts", {}).values():
            verdict.pop("seconds")
    return [json.dumps(line) for line in lines]


def test_a_line_for_every_completion_in_order(write: Write) -> None:
    source = write(
        row(id="a"), row(r"\boxed{5}", id="b"), row(r"\boxed{2\sqrt{4}}"), row("no idea"), row(r"\boxed{\frac{8}{2}}")
    )
    lines = verify(source)
    assert [line["row"] for line in lines] == [f"{source}:{number}" for number in range(1, 6)]
    assert [line["reward"] for line in lines] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [line["method"] for line in lines] == ["identical", "number", "algebra", "no_answer", "number"]
    assert [line.get("id") for line in lines] == ["a", "b", None, None, None]
    assert (lines[1]["extracted"], lines[1]["error_kind"], lines[1]["verifier"]) == ("5", None, "math")
    assert all(line["seconds"] >= 0 for line in lines)


def test_all_layouts_of_labels(write: Write) -> None:
    turns = [{"role": "user", "content": "2+2?"}]
    verl = {"data_source": "openai/gsm8k", "prompt": turns, "reward_model": {"style": "rule", "ground_truth": "4"}}
    rows = [
        row("#### 4"),
        {"prompt": "2+2?", "ground_truth": ["4"], "dataset": ["MATH"], "completion": "4"},
        verl | {"extra_info": {"index": 7}, "completion": [{"role": "assistant", "content": "#### 4"}]},
        {"ground_truth": 4, "completion": "it is 4"},
        {"ground_truth": "4", "dataset": "multiple_choice", "completion": "4"},
    ]
    lines = verify(write(*rows), "--verifier", "math")
    assert [line["reward"] for line in lines] == [1.0, 1.0, 1.0, 1.0, None]
    assert "one letter" in lines[-1]["detail"]


def test_several_verifiers_have_a_verdict_each(write: Write) -> None:
    strict = "<think>2 and 2</think><answer>4</answer>"
    both = row(dataset=["math", "format"], ground_truth=["4", ""], completion=strict)
    (line,) = verify(write(both), "--verifiers.weights", "{format = 0.5}")
    assert line["reward"] == 1.5
    assert {name: verdict["reward"] for name, verdict in line["verdicts"].items()} == {"math": 1.0, "format": 1.0}
    assert (line["extracted"], line["method"], line["verifier"]) == ("4", "combined", None)


@pytest.mark.parametrize("dataset", ["format", "tag_count", ["reasoning_steps"], ["format", "tag_count"]])
@pytest.mark.parametrize("truth", [{}, {"ground_truth": None}, {"ground_truth": ""}, {"ground_truth": []}])
def test_verifiers_without_a_label_need_none(write: Write, dataset: Any, truth: dict[str, Any]) -> None:
    given = {"prompt": "2+2?", "dataset": dataset, "completion": "<think>\n1. a\n2. b\n3. c</think><answer>4</answer>"}
    (line,) = verify(write(given | truth))
    assert line["reward"] == float(len(dataset) if isinstance(dataset, list) else 1)


def test_rows_of_no_use_are_reported_and_have_their_line(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(
        row(), "not json", "[1]", "", row(None), row(dataset="maths"), row(ground_truth=r"\frac{1}{"), row(7),
        row() | {"ground_truth": None}, "\ufeff{}", row(),
    )  # fmt: skip
    lines = verify(source)
    assert [line["row"].rpartition(":")[2] for line in lines] == ["1", "2", "3", "5", "6", "7", "8", "9", "10", "11"]
    assert [line["reward"] for line in lines] == [1.0, *[None] * 8, 1.0]
    assert {line["error_kind"] for line in lines[1:-1]} == {"bad_row"}
    reported = capsys.readouterr().out
    assert f"{source}:2: not JSON" in reported
    assert f"{source}:6: no usable label: no verifier is named 'maths'; did you mean 'math'?" in reported
    assert "8 bad_row" in reported


def test_a_failure_is_an_error_and_not_a_zero(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "def picky(prompts, completions, level, **columns):\n"
        "    if 'bad' in completions:\n        raise RuntimeError('never')\n"
        "    return [None if level == [0] else len(c) / 10 for c in completions]\n"
    )
    rows = [{"prompt": "?", "completion": text, "level": level} for text, level in (("abc", 1), ("bad", 1), ("abc", 0))]
    source = write(*rows, {"prompt": "?", "completions": ["a", "bad", "abc"], "level": 1})
    lines = verify(source, "--function", f"{tmp_path / 'rewards.py'}:picky*2")
    assert [line["reward"] for line in lines] == [0.6, *[None] * 5]
    kinds = [line["error_kind"] for line in lines]
    # A function is given the whole group, as in training, where the group would fail.
    assert kinds == [None, "function_raised", "nothing_applies", *["function_raised"] * 3]
    assert "never" in lines[1]["detail"]
    assert [line.get("completion") for line in lines[3:]] == [0, 1, 2]


TRL_STYLE = """
def counted(completions, completion_ids, trainer_state, log_metric, log_extra):
    log_metric("share", 0.5)
    log_extra("step", [trainer_state.global_step] * len(completions))
    log_extra("steps", [trainer_state.max_steps] * len(completions))
    return [float(sum(ids)) if len(ids) < 3 else None for ids in completion_ids]
"""


def test_a_function_in_trls_style_gets_what_it_asks_for(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(TRL_STYLE)
    one = {"prompt": "?", "completion": "a", "completion_ids": [3, 4]}
    several = {"prompt": "?", "completions": ["a", "b"], "completion_ids": [[1], [1, 2, 3]]}
    without = {"prompt": "?", "completion": "a"}
    wrong = [several | {"completion_ids": [[1]]}, one | {"completion_ids": [[3]]}, one | {"completion_ids": [-1]}]
    source = write(one, several, without, *wrong)
    lines = verify(source, "--function", f"{tmp_path}/rewards.py:counted", "--schedule.steps", "7")
    assert [line["reward"] for line in lines] == [7.0, 1.0, *[None] * 6]
    kinds = [line["error_kind"] for line in lines]
    assert kinds == [None, None, "nothing_applies", "function_raised", *["bad_row"] * 4]
    assert [line["extra"] for line in lines[:3]] == [{"step": 0, "steps": 7}] * 3
    assert "olmorl-verify takes their tokens from a column completion_ids" in lines[3]["detail"]
    assert "completion_ids has 1 entries for 2 completions" in lines[4]["detail"]


def test_lengths_in_tokens(write: Write) -> None:
    row = {"prompt": "?", "completion": "a", "dataset": "up_to_max_length", "ground_truth": "2"}
    lines = verify(write(row | {"completion_ids": [1, 2]}, row))
    assert [line["reward"] for line in lines] == [1.0, None]
    assert "olmorl-verify takes them from a column completion_ids" in lines[1]["detail"]


def test_parquet_and_a_config_of_a_recipe(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist([row(r"\boxed{50\%}", ground_truth="50"), row()]), source)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[verifiers]\nmath_strict = ["percent"]\n')
    assert [line["reward"] for line in verify(source, name="lenient.jsonl")] == [1.0, 1.0]
    lines = verify(source, "--config", str(recipe), name="strict.jsonl")
    assert [line["reward"] for line in lines] == [0.0, 1.0]
    assert lines[1]["row"] == f"{source}:2"


@pytest.mark.parametrize("through_a_pipe", [True, False])
def test_standard_input_and_output(write: Write, through_a_pipe: bool) -> None:
    source = write(*[row() for _ in range(300)], "broken")
    given = {"input": source.read_bytes()} if through_a_pipe else {"stdin": source.open("rb")}
    done = subprocess.run([*COMMAND, "-", "-o", "-", "--workers", "1"], capture_output=True, timeout=60, **given)  # type: ignore[call-overload]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(lines), lines[299]["row"], lines[300]["error_kind"]) == (0, 301, "-:300", "bad_row")
    assert b"301 rows" in done.stderr


def test_a_slow_pipe_has_its_verdicts_at_once() -> None:
    process = subprocess.Popen(
        [*COMMAND, "-", "-o", "-", "--workers", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(row()).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["reward"] == 1.0
    process.stdin.write(json.dumps(row("5")).encode() + b"\n")
    process.stdin.close()
    assert json.loads(process.stdout.readline())["reward"] == 0.0
    assert process.wait(30) == 0


def test_pass_rates_wherever_the_rows_of_a_prompt_stand(write: Write) -> None:
    def asked(question: str, **more: Any) -> dict[str, Any]:
        return {"prompt": question, "ground_truth": "4", "dataset": "math", "level": 1} | more

    rows = [
        asked("easy", completions=["4", "4", "4", "5"]), asked("hard", completion="5"), "broken",
        asked("easy", completion="4"), asked("never", completions=["5", "5"]), asked("hard", completion="4"),
    ]  # fmt: skip
    source = write(*rows)
    easy, hard, never = verify(source, "--pass-rate")
    assert easy == asked("easy", num_samples=5, num_errors=0, pass_rate=0.8, reward_mean=0.8)
    assert (hard["pass_rate"], hard["num_samples"]) == (0.5, 2)
    assert never["pass_rate"] == 0.0
    kept = verify(source, "--pass-rate", "--min-pass-rate", "0.1", "--max-pass-rate", "0.625", name="kept.jsonl")
    assert [one["prompt"] for one in kept] == ["hard"]
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.jsonl", "kept.jsonl", "out.jsonl"]


def test_mistakes_are_one_line_and_exit_2(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = str(write(row()))
    (tmp_path / "there.jsonl").write_text("mine")
    out, there = str(tmp_path / "out.jsonl"), str(tmp_path / "there.jsonl")
    for options, message in [
        ([], "give an input and an output"),
        ([source], "give an input and an output"),
        (["nowhere.jsonl", "-o", out], "nowhere.jsonl: cannot be read: No such file"),
        ([str(tmp_path), "-o", out], "cannot be read: Is a directory"),
        ([source, "-o", there], "--force"),
        ([source, "-o", source, "--force"], "is the input"),
        ([source, "-o", "-", "--resume"], "needs an output file"),
        ([source, "-o", str(tmp_path / "no" / "out")], "cannot be written"),
        ([source, "-o", out, "--frobnicate"], "unknown argument"),
        ([source, "-o", out, "--verifiers.timeout", "3"], "did you mean 'timeout_s'"),
        ([source, "-o", out, "--config", "nowhere.toml"], "no such recipe"),
        ([source, "-o", out, "--function", "nowhere.py:f"], "nowhere.py"),
        ([source, "-o", out, "--max-pass-rate", "0.5"], "go with --pass-rate"),
    ]:
        assert main(options) == 2, options
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert load(Path(source)) == [row()]
    assert main([source, "-o", there, "--force", "--workers", "1"]) == 0
    assert load(tmp_path / "there.jsonl")[0]["reward"] == 1.0


def test_the_help_teaches_within_a_second() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert busy_s < 5  # a second on an idle machine
    assert done.returncode == 0
    for word in ("--resume", "--pass-rate", "--self-test", "exit codes", "reward", "bad_row", "olmorl-verify answers"):
        assert word in done.stdout


def test_the_help_loads_no_heavy_library() -> None:
    heavy = {"torch", "vllm", "ray", "transformers", "deepspeed", "sympy", "numpy"}
    code = f"""
import atexit, runpy, sys
atexit.register(lambda: print(sorted({heavy} & sys.modules.keys())))
sys.argv = ["olmorl-verify", "--help"]
runpy.run_module({COMMAND[-1]!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]")


def test_the_self_test_says_what_locks_programs_in(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--self-test"])
    printed = capsys.readouterr().out
    if code:
        assert "no sandbox works on this machine" in printed
    else:
        assert "programs run under: " in printed
        assert "attacks stopped; a good program still passes" in printed


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A reward function that takes its time, as much as SLOW_S says, and writes down each call."""
    path = tmp_path / "slow.py"
    path.write_text(
        "import os, pathlib, time\n"
        "CALLS = pathlib.Path(__file__).with_name('calls')\n"
        "def slow(prompts, completions, **columns):\n"
        "    time.sleep(float(os.environ.get('SLOW_S', '0.01')))\n"
        "    with CALLS.open('a') as file:\n        file.write(completions[0] + '\\n')\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    return path


LONG = {"SLOW_S": "0.3"}
"""With it a job takes a minute, so that no machine ends it before it is interrupted."""


def test_interrupted_and_resumed_the_output_is_the_same(write: Write, slow: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "?", "completion": f"text {number}"} if number % 9 else "broken" for number in range(260)]
    source, whole, parts = write(*rows), tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    options = ["--function", f"{slow}:slow", "--workers", "1"]
    command = [*COMMAND, str(source), "-o", str(parts), *options]
    assert main([str(source), "-o", str(whole), *options]) == 0
    (tmp_path / "calls").unlink()

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | LONG
    )
    deadline = time.monotonic() + 60
    while not (parts.exists() and parts.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted after" in printed
    written = timeless(parts)
    assert 0 < len(written) < 260
    assert written == timeless(whole)[: len(written)]

    # A crash of the machine may leave half a line.
    with parts.open("ab") as file:
        file.write(b'{"row": "in.js')
    (tmp_path / "calls").unlink()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60)
    assert resumed.returncode == 0
    assert f"{len(written)} of them before" in resumed.stdout
    assert timeless(parts) == timeless(whole)
    missing = [
        line["completion"] for line in map(json_or_none, source.read_text().splitlines()[len(written) :]) if line
    ]
    assert sorted((tmp_path / "calls").read_text().splitlines()) == sorted(missing)


def json_or_none(line: str) -> Any:
    return None if line == "broken" else json.loads(line)


def test_only_the_output_of_the_same_input_and_settings_is_resumed(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(row(), row("5"), row("6")), tmp_path / "out.jsonl"
    again = [str(source), "-o", str(out), "--workers", "1", "--resume"]
    assert main(again) == 0
    before = out.read_bytes()
    assert main(again) == 0
    assert main([*again, "--verifiers.timeout_s", "9"]) == 0
    assert out.read_bytes() == before
    assert main([*again, "--verifiers.math_strict", '["percent"]']) == 2
    write(row(), row("7"), row("6"))
    assert main(again) == 2
    assert "out.jsonl is not of this input and these settings" in capsys.readouterr().err
    write(row())
    assert main(again) == 2
    assert out.read_bytes() == before


def test_a_job_of_pass_rates_is_resumed_too(write: Write, slow: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{number % 50}?", "completion": "x" * (number % 3)} for number in range(200)]
    source, out = write(*rows), tmp_path / "out.jsonl"
    command = [*COMMAND, str(source), "-o", str(out), "--pass-rate", "--function", f"{slow}:slow", "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | LONG)
    scores = tmp_path / "out.jsonl.scores"
    deadline = time.monotonic() + 60
    while not (scores.exists() and scores.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert not out.exists()
    assert subprocess.run([*command, "--resume"], capture_output=True, timeout=60).returncode == 0
    prompts = load(out)
    assert [(prompt["prompt"], prompt["num_samples"]) for prompt in prompts] == [(f"{n}?", 4) for n in range(50)]
    assert prompts[0]["pass_rate"] == 2 / 4
    assert not scores.exists()


def test_ten_thousand_rows_in_bounded_memory(tmp_path: Path) -> None:
    chance, source, out = random.Random(0), tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    right = 0
    with source.open("w") as file:
        for number in range(10_000):
            correct = chance.random() < 0.7
            right += correct
            text = "thinking " * 1100 + rf"\boxed{{{number if correct else number + 1}}}"
            file.write(json.dumps(row(text, ground_truth=str(number))) + "\n")
    size_mib = source.stat().st_size >> 20
    assert size_mib > 90
    program = (
        "import pathlib, re, sys\nfrom olmorl.deploy.verify.cli import main\ncode = main(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\nsys.exit(code)\n"
    )
    command = [sys.executable, "-c", program, str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *printed, peak_kib = done.stdout.splitlines()
    assert "done: 10,000 rows" in printed[-1]
    lines = load(out)
    assert len(lines) == 10_000
    assert sum(line["reward"] for line in lines) == right
    assert int(peak_kib) >> 10 < 180  # MiB; it is 120 for small rows too


def test_prompts_with_ids_of_their_own_are_kept_apart_and_that_is_said(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"prompt": "2+2?", "ground_truth": "4", "dataset": "math"}
    rows = [asked | {"id": "a", "completion": "4"}, asked | {"id": "b", "completion": "5"},
            asked | {"id": "a", "completion": "4"}, asked | {"completion": "4"}]  # fmt: skip
    source = write(*rows)
    made = verify(source, "--pass-rate")
    assert [(one.get("id"), one["num_samples"], one["pass_rate"]) for one in made] == [
        ("a", 2, 1.0), ("b", 1, 0.0), (None, 1, 1.0),
    ]  # fmt: skip
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 rows are of 3 prompts; 3 of these are written" in printed
    assert "2 of these prompts differ from another in their id alone" in printed
    write(*[{key: value for key, value in one.items() if key != "id"} for one in rows])
    (merged,) = verify(source, "--pass-rate", name="merged.jsonl")
    assert (merged["num_samples"], merged["pass_rate"]) == (4, 0.75)
    assert "4 rows are of 1 prompts" in capsys.readouterr().out


def test_a_pass_rate_is_of_what_is_solved_and_not_of_the_reward(write: Write, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def kind(completions, **columns): return [2.0 for _ in completions]\n")
    source = write(row(None, completions=["4", "5", "6", "7"]) | {"completion": None})
    options = ["--function", f"{tmp_path / 'rewards.py'}:kind"]
    (made,) = verify(source, "--pass-rate", *options)
    assert (made["pass_rate"], made["reward_mean"]) == (0.25, 2.25)
    assert [line["solved"] for line in verify(source, *options, name="lines.jsonl")] == [True, False, False, False]


def test_a_command_with_a_function_ends_quietly(write: Write, tmp_path: Path) -> None:
    """The fork server may still have unread messages when the pool closes."""
    (tmp_path / "rewards.py").write_text("def kind(completions, **columns): return [2.0 for _ in completions]\n")
    command = [*COMMAND, str(write(row())), "-o", "-", "--workers", "1", "--function", f"{tmp_path}/rewards.py:kind"]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
