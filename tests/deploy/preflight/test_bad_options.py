"""Nonsense given to `olmorl-verify` and `olmorl-data`: exit code 2, one message that names it, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy import prepare_data
from olmorl.deploy.verify import cli

GOOD = {"prompt": "2+2?", "ground_truth": "4", "dataset": "math", "completion": "4", "question": "2+2?", "answer": "4"}
ONE_LINE = json.dumps(GOOD) + "\n"
NESTED = json.dumps(GOOD)[:-1] + ', "z": ' + "[" * 90_000 + "]" * 90_000 + "}\n"
FUNCTIONS = """
def ok(completions, **columns): return [1.0 for _ in completions]
def boom(completions, **columns): raise ValueError("no")
def short(completions, **columns): return [1.0]
def mixed(completions, **columns): return [None, *[1.0 for _ in completions[1:]]]
"""
FILES: dict[str, str | bytes] = {
    "good.jsonl": ONE_LINE,
    "bad.jsonl": "nope\n[1]\n",
    "empty.jsonl": b"",
    "blank.jsonl": "\n  \n\n",
    "binary.jsonl": bytes(range(256)) * 9,
    "noise.jsonl": bytes(range(1, 256)) * 9,
    "packed.jsonl.gz": gzip.compress(ONE_LINE.encode()),
    "packed.jsonl.zst": b"\x28\xb5\x2f\xfd rest",
    "packed.zip": b"PK\x03\x04 rest",
    "array.json": json.dumps([GOOD]),
    "tall_array.json": json.dumps([GOOD], indent=1),
    "tall.json": json.dumps(GOOD, indent=1),
    "utf16.jsonl": ONE_LINE.encode("utf-16"),
    "junk.parquet": b"junk",
    "half.parquet": b"PAR1" + b"x" * 90,
    "named.jsonl": b"PAR1" + b"x" * 90,
    "nested.jsonl": NESTED,
    "digits.jsonl": '{"prompt": "?", "ground_truth": ' + "9" * 5000 + ', "dataset": "math", "completion": "4"}\n',
    "no_completion.jsonl": json.dumps({key: GOOD[key] for key in ("prompt", "ground_truth", "dataset")}) + "\n",
    "labels.jsonl": json.dumps(GOOD | {"dataset": ["math", "format"], "ground_truth": ["4"]}) + "\n",
    "nan.jsonl": '{"prompt": "?", "ground_truth": NaN, "dataset": "math", "completion": "4", "question": "q", '
                 '"answer": NaN}',
    "rewards.py": FUNCTIONS,
    "bad.toml": "[verifiers\n",
}  # fmt: skip
LONG = "x" * 300
RUN = ["good.jsonl", "-o", "new.jsonl"]
MAKE = ["jsonl", "--input", "good.jsonl", "-o", "new.jsonl"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all those files in it."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (tmp_path / "folder").mkdir()
    return tmp_path


def refused(main: Callable[[Sequence[str]], int], options: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    before = {path.name: path.stat().st_mtime_ns for path in Path().iterdir()}
    assert main(options) == 2, options
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.startswith("olmorl-")
    assert {path.name: path.stat().st_mtime_ns for path in Path().iterdir()} == before
    return error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # files
        (["", "-o", "new.jsonl"], "the name of the input is empty"),
        (["good.jsonl", "-o", ""], "the name of the output is empty"),
        (["nowhere.jsonl", "-o", "new.jsonl"], "nowhere.jsonl: cannot be read: No such file"),
        (["folder", "-o", "new.jsonl"], "folder: cannot be read: Is a directory"),
        (["good.jsonl/x", "-o", "new.jsonl"], "cannot be read: Not a directory"),
        ([LONG, "-o", "new.jsonl"], "cannot be read: File name too long"),
        (["a\0b", "-o", "new.jsonl"], "cannot be read: embedded null byte"),
        (["good.jsonl", "-o", "folder", "--force"], "folder: cannot be written: it is a folder"),
        (["good.jsonl", "-o", "folder", "--force", "--pass-rate"], "folder: cannot be written: it is a folder"),
        (["good.jsonl", "-o", "no/new.jsonl"], "there is no folder no"),
        (["good.jsonl", "-o", "no/new.jsonl", "--pass-rate"], "there is no folder no"),
        (["good.jsonl", "-o", LONG], "cannot be written: File name too long"),
        (["good.jsonl", "-o", "bad.jsonl"], "bad.jsonl exists: --resume goes on with it, --force replaces it"),
        (["good.jsonl", "-o", "empty.jsonl"], "empty.jsonl exists"),
        (["good.jsonl", "-o", "bad.jsonl", "--pass-rate"], "bad.jsonl exists: --force replaces it"),
        (["good.jsonl", "-o", "folder/../good.jsonl", "--force"], "is the input: give another -o"),
        (["good.jsonl", "-o", "good.jsonl", "--resume"], "is the input: give another -o"),
        ([*RUN[:2], "rewards.py", "--force", "--function", "rewards.py:ok"], "rewards.py is read here"),
        ([*RUN[:2], "bad.toml", "--force", "--config", "bad.toml"], "bad.toml"),
        (["empty.jsonl", "-o", "new.jsonl"], "empty.jsonl: it is empty"),
        (["blank.jsonl", "-o", "new.jsonl"], "blank.jsonl: it holds no row"),
        (["binary.jsonl", "-o", "new.jsonl"], "binary.jsonl: it is binary"),
        (["packed.jsonl.gz", "-o", "new.jsonl"], "packed with gzip: unpack it first, as in gzip -dc packed.jsonl.gz"),
        (["packed.jsonl.zst", "-o", "new.jsonl"], "packed with zstd"),
        (["packed.zip", "-o", "new.jsonl"], "packed with zip"),
        (["array.json", "-o", "new.jsonl"], "a JSON array; write one object a line, as in jq -c '.[]' array.json"),
        (["tall_array.json", "-o", "new.jsonl"], "it is a JSON array"),
        (["tall.json", "-o", "new.jsonl"], "its JSON goes over several lines"),
        (["utf16.jsonl", "-o", "new.jsonl"], "it is UTF-16: convert it first"),
        (["junk.parquet", "-o", "new.jsonl"], "junk.parquet: it is not Parquet"),
        (["half.parquet", "-o", "new.jsonl"], "half.parquet: not readable as Parquet"),
        (["named.jsonl", "-o", "new.jsonl"], "it is Parquet: name it .parquet"),
        # values
        ([*RUN, "--verifier", "maths"], "--verifier: no verifier is named 'maths'; did you mean 'math'? known: math, "),
        ([*RUN, "--verifier", ""], "--verifier: no verifier is named ''"),
        ([*RUN, "--workers", "0"], "--workers: '0' is not a whole number of 1 or more"),
        ([*RUN, "--workers=-1"], "--workers: '-1' is not"),
        ([*RUN, "--workers", "1.5"], "--workers: '1.5' is not"),
        ([*RUN, "--workers", "many"], "--workers: 'many' is not"),
        ([*RUN, "--pass-rate", "--min-pass-rate", "1.5"], "--min-pass-rate: '1.5' is not a number from 0 to 1"),
        ([*RUN, "--pass-rate", "--max-pass-rate", "2"], "--max-pass-rate: '2' is not a number from 0 to 1"),
        ([*RUN, "--pass-rate", "--min-pass-rate", "nan"], "--min-pass-rate: 'nan' is not"),
        ([*RUN, "--pass-rate", "--min-pass-rate=-0.1"], "--min-pass-rate: '-0.1' is not"),
        ([*RUN, "--pass-rate", "--min-pass-rate", "0.9", "--max-pass-rate", "0.1"], "no prompt would be left"),
        ([*RUN, "--min-pass-rate", "0"], "go with --pass-rate"),
        ([*RUN, "--completion", " "], "--completion: the name of a column is empty"),
        ([*RUN, "--function", "rewards.py"], "'rewards.py' is not of the form"),
        ([*RUN, "--function", "rewards.py:nope"], "has no function 'nope'"),
        ([*RUN, "--function", "rewards.py:ok*much"], "'much' is not a weight"),
        ([*RUN, "--function", "folder:ok"], "folder:ok"),
        ([*RUN, "--function", ""], "'' is not of the form"),
        ([*RUN, "--config", "nowhere.toml"], "nowhere.toml: no such recipe"),
        ([*RUN, "--config", "folder"], "folder: cannot be read"),
        ([*RUN, "--config", "bad.toml"], "bad.toml: not TOML"),
        ([*RUN, "--resume", "--force"], "give one of them"),
        (["good.jsonl", "-o", "-", "--resume"], "needs an output file"),
        ([*RUN, "--verifiers.workers", "0"], "verifiers.workers: Input should be greater than or equal to 1"),
        ([*RUN, "--verifiers.weights", "{maths = 1}"], "function is named 'maths' (did you mean 'math'?)"),
        ([*RUN, "--data.default_verifier", "nope"], "data.default_verifier: no verifier is named 'nope'"),
        ([*RUN, "--section.key", "3"], "section: unknown key"),
        ([*RUN, "--pasrate"], "--pasrate: unknown argument (did you mean '--pass-rate'?)"),
        ([*RUN, "-x"], "-x: unknown argument"),
        ([*RUN, "more.jsonl"], "more.jsonl: unknown argument"),
        ([*RUN, "--workers"], "--workers: expected one argument"),
        (["good.jsonl"], "give an input and an output"),
    ],
)  # fmt: skip
def test_verify_refuses_it_before_anything_is_written(
    here: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(cli.main, options, capsys)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bad.jsonl", "bad.jsonl: no row can be used; the first: bad.jsonl:1: not JSON"),
        ("noise.jsonl", "noise.jsonl: no row can be used; the first: noise.jsonl:1: not JSON"),
        ("no_completion.jsonl", "neither a column completion nor a column completions"),
        ("labels.jsonl", "dataset names 2 verifiers, and ground_truth has 1 labels"),
        ("nan.jsonl", "the column ground_truth is missing"),
        ("nested.jsonl", "not JSON: maximum recursion depth"),
        ("digits.jsonl", "not JSON: Exceeds the limit"),
    ],
)
def test_a_file_without_a_usable_row_is_a_mistake_and_says_why(
    here: Path, source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode in ([], ["--pass-rate"]):
        assert cli.main([source, "-o", f"new{len(mode)}.jsonl", "--workers", "1", *mode]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    lines = [json.loads(line) for line in (here / "new0.jsonl").read_text().splitlines()]
    assert {line["error_kind"] for line in lines} == {"bad_row"}
    assert not [path.name for path in here.iterdir() if path.name.startswith("new1")]


@pytest.mark.parametrize("name", ["boom", "short"])
def test_a_function_that_fails_in_training_fails_here(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The function gets the whole group. With single completions a wrong length would pass."""
    row = {key: value for key, value in GOOD.items() if key != "completion"} | {"completions": ["4", "5", "6"]}
    (here / "group.jsonl").write_text(json.dumps(row) + "\n")
    options = ["group.jsonl", "-o", "new.jsonl", "--workers", "1", "--function", f"rewards.py:{name}"]
    assert cli.main(options) == 2
    kind = {"boom": "function_raised", "short": "function_length"}[name]
    assert f"no completion of group.jsonl could be scored: 3 {kind}; the first: group.jsonl:1: {name}: " in (
        capsys.readouterr().err
    )
    lines = [json.loads(line) for line in (here / "new.jsonl").read_text().splitlines()]
    assert [(line["reward"], line["solved"], line["error_kind"]) for line in lines] == [(None, None, kind)] * 3
    assert lines[0]["verdicts"]["math"]["reward"] == 1.0


def test_a_function_that_gives_none_for_some_is_left_out_for_those(here: Path) -> None:
    row = {key: value for key, value in GOOD.items() if key != "completion"} | {"completions": ["4", "5", "6"]}
    (here / "group.jsonl").write_text(json.dumps(row) + "\n")
    options = ["group.jsonl", "-o", "new.jsonl", "--workers", "1", "--function", "rewards.py:mixed"]
    assert cli.main(options) == 0
    lines = [json.loads(line) for line in (here / "new.jsonl").read_text().splitlines()]
    assert [(line["reward"], line["error_kind"]) for line in lines] == [(1.0, None)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*MAKE, "--limit", "-3"], "--limit: '-3' is not a whole number of 1 or more"),
        ([*MAKE, "--limit", "0"], "--limit: '0' is not"),
        ([*MAKE, "--limit", "1.5"], "--limit: '1.5' is not"),
        ([*MAKE, "--limit", "few"], "--limit: 'few' is not"),
        ([*MAKE, "--verifier", "nope"], "--verifier: no verifier is named 'nope'; known: math, "),
        ([*MAKE, "--verifier", "maths"], "did you mean 'math'?"),
        ([*MAKE, "--verifier", ""], "--verifier: no verifier is named ''"),
        ([*MAKE, "--keep", "zzz"], "--keep zzz: no row has such a column; columns: prompt, "),
        ([*MAKE, "--keep", "completion", "promt"], "--keep promt: no row has such a column (did you mean 'prompt'?)"),
        ([*MAKE, "--keep", "dataset"], "--keep dataset: this name has another meaning in the output"),
        ([*MAKE, "--keep", ""], "--keep: the name of a column is empty"),
        ([*MAKE, "--question", "nope"], "good.jsonl:1: the column nope is missing or empty (columns: prompt, "),
        ([*MAKE, "--question", ""], "--question: the name of a column is empty"),
        ([*MAKE, "--answer", "nope"], "the column nope is missing or empty"),
        ([*MAKE, "--split", "test"], "--split test: only hub sets and folders have splits, and good.jsonl is a file"),
        ([*MAKE, "--limt", "3"], "--limt: unknown argument (did you mean '--limit'?)"),
        ([*MAKE, "--lim", "3"], "--lim: unknown argument"),
        ([*MAKE, "more"], "more: unknown argument"),
        (["jsonl", "--input", "good.jsonl"], "required: -o/--output"),
        (["jsonl", "-o", "new.jsonl"], "required: --input"),
        (["gsm9k", "-o", "new.jsonl"], "invalid choice: 'gsm9k'"),
        (["gsm9k", "-o", "new.jsonl"], "(did you mean 'gsm8k'?)"),
        ([], "required: SET"),
        ([*MAKE[:-1], "folder", "--force"], "folder: cannot be written: it is a folder"),
        ([*MAKE[:-1], "no/new.jsonl"], "there is no folder no"),
        ([*MAKE[:-1], "good.jsonl", "--force"], "good.jsonl is the input"),
        ([*MAKE[:-1], "bad.jsonl"], "bad.jsonl exists: --force replaces it"),
        ([*MAKE[:-1], LONG], "cannot be written: File name too long"),
        ([*MAKE[:-1], "/dev/null", "--force"], "/dev/null: it is no regular file"),
        ([*MAKE[:-1], "-"], "the input and the output are files"),
        (["jsonl", "--input", "-", "-o", "new.jsonl"], "the input and the output are files"),
        (["gsm8k", "--input", "good.jsonl", "-o", "new.jsonl"], "good.jsonl:1: the answer has no ####"),
        *[
            (["jsonl", "--input", source, "-o", "new.jsonl"], message)
            for source, message in [
                ("", "--input: the name is empty"),
                ("nowhere.jsonl", "nowhere.jsonl: no such file"),
                ("folder", "the folder holds no .jsonl"),
                ("empty.jsonl", "it is empty"),
                ("blank.jsonl", "no row can be used; it is empty"),
                ("binary.jsonl", "it is binary"),
                ("noise.jsonl", "noise.jsonl:1: not JSON"),
                ("bad.jsonl", "bad.jsonl:1: not JSON"),
                ("packed.jsonl.zst", "packed.jsonl.zst: cut off, or damaged: ZSTD decompress failed"),
                ("packed.zip", "packed.zip: it is a zip archive: unpack it"),
                ("tall.json", "tall.json:1: not JSON"),
                ("junk.parquet", "junk.parquet:1: not readable as Parquet"),
                ("half.parquet", "not readable as Parquet"),
                ("nested.jsonl", "nested.jsonl:1: not JSON"),
                ("digits.jsonl", "digits.jsonl:1: not JSON"),
                ("nan.jsonl", "nan.jsonl:1: the column answer is nan"),
            ]
        ],
    ],
)  # fmt: skip
def test_data_refuses_it_and_leaves_no_file(
    here: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(prepare_data.main, options, capsys)


@pytest.mark.parametrize("name", ["packed.jsonl.gz", "array.json", "tall_array.json", "utf16.jsonl"])
def test_data_reads_what_training_reads(here: Path, name: str) -> None:
    assert prepare_data.main(["jsonl", "--input", name, "-o", "made.jsonl"]) == 0
    (made,) = (here / "made.jsonl").read_text().splitlines()
    assert json.loads(made)["ground_truth"] == "4"


def test_rows_of_every_script_are_read(here: Path) -> None:
    """Unusual but valid input: other scripts, half a surrogate pair, a byte-order mark, NaN in a free column."""
    texts = ["答え 4", "é 4", "\ud800 4"]
    lines = [json.dumps(GOOD | {"completion": text, "id": text}) for text in texts]
    odd = "\ufeff" + "\n".join([*lines, json.dumps(GOOD | {"x": float("nan")})]) + "\n"
    (here / "odd é.jsonl").write_text(odd, encoding="utf-8")
    assert cli.main(["odd é.jsonl", "-o", "new é.jsonl", "--workers", "1"]) == 0
    rewards = [json.loads(line)["reward"] for line in (here / "new é.jsonl").read_bytes().splitlines()]
    assert rewards == [1.0] * 4
    assert prepare_data.main(["jsonl", "--input", "odd é.jsonl", "-o", "made é.jsonl", "--keep", "id"]) == 0
    made = [json.loads(line) for line in (here / "made é.jsonl").read_bytes().splitlines()]
    assert [row.get("id") for row in made] == [texts[0]]  # the questions are all the same


def in_shell(command: str, **given: Any) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m olmorl.deploy"
    script = command.replace("VERIFY", f"{program}.verify.cli").replace("DATA", f"{program}.prepare_data")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False, **given
    )


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("VERIFY - -o new.jsonl <&-", 2, "standard input is closed"),
        ("VERIFY good.jsonl -o - >&-", 2, "standard output is closed"),
        ("VERIFY - -o new.jsonl < packed.jsonl.gz", 2, "packed with gzip"),
        ("cat array.json | VERIFY - -o new.jsonl", 2, "it is a JSON array"),
        ("printf '' | VERIFY - -o new.jsonl", 2, "it holds no row"),
        ("VERIFY - -o good.jsonl --force < good.jsonl", 2, "is the input"),
        ("VERIFY good.jsonl -o - >> good.jsonl", 2, "is the input"),
        ("VERIFY good.jsonl -o /dev/full", 2, "No space left on device"),
        ("VERIFY good.jsonl -o - > /dev/full", 2, "No space left on device"),
        ("VERIFY good.jsonl -o /dev/null", 0, ""),
        ("VERIFY good.jsonl -o new.jsonl >&-; code=$?; test -s new.jsonl && rm new.jsonl && exit $code", 0, ""),
        ("VERIFY good.jsonl -o new.jsonl | true; code=${PIPESTATUS[0]}; test -s new.jsonl && rm new.jsonl; exit $code",
         0, ""),
        ("yes \"$(cat good.jsonl)\" | head -5000 | VERIFY - -o - | head -1 >/dev/null; exit ${PIPESTATUS[2]}", 0, ""),
        ("VERIFY <(cat good.jsonl) -o new.jsonl; code=$?; rm new.jsonl; exit $code", 0, ""),
        ("VERIFY --help | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("DATA jsonl --input good.jsonl -o new.jsonl | true; code=${PIPESTATUS[0]}; rm new.jsonl; exit $code", 0, ""),
        ("DATA jsonl --input good.jsonl -o new.jsonl >&-; code=$?; rm new.jsonl; exit $code", 0, ""),
    ],
)  # fmt: skip
def test_pipes_that_are_closed_full_or_odd(here: Path, command: str, code: int, message: str) -> None:
    done = in_shell(command, cwd=here)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stderr
    assert sorted(path.name for path in here.iterdir()) == sorted([*FILES, "folder"])
    assert (here / "good.jsonl").read_text() == ONE_LINE
