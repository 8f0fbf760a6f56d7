"""`olmorl-eval` as a whole, with an engine that answers with texts; the numbers against a script of its own."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from olmorl.deploy import wiring
from olmorl.deploy.evaluation import protocol as protocols
from olmorl.deploy.evaluation.answer_file import COLUMNS
from olmorl.deploy.evaluation.cli import main
from olmorl.ports import Sampling
from tests.deploy.evaluation.text_engine import Reply, TextEngine, answers_after_kills, model_folder, sum_or_near

PROGRAM = Path(__file__).with_name("text_engine.py")
Use = Callable[[Reply], list[TextEngine]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    """Have engines answer with these texts. Returns the engines that were started; works in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "one")
    model_folder(tmp_path / "two")

    def to(reply: Reply) -> list[TextEngine]:
        engines: list[TextEngine] = []

        def make(settings: Any, core: None, name: str = "") -> TextEngine:
            engines.append(TextEngine(settings.model.path, reply))
            return engines[-1]

        monkeypatch.setattr(wiring, "engine", make)
        return engines

    return to


def save(name: str, *rows: dict[str, Any]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def sums(number: int) -> str:
    rng = random.Random(number)
    rows = [{"prompt": f"What is {rng.randrange(100)}+{n}?", "dataset": "math"} for n in range(number)]
    for row in rows:
        row["ground_truth"] = str(sum(map(int, row["prompt"].removeprefix("What is ").strip("?").split("+"))))
    return save("sums.jsonl", *rows)


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def numbers(found: dict[str, Any], model: int = 0) -> dict[str, float]:
    return {name: value["mean"] for name, value in found["models"][model]["numbers"].items()}


def reckoned(rows: list[dict[str, Any]], k: int) -> dict[str, float]:
    """The same numbers from the completions alone: a sum is right if it is the label, and the same if it reads so."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        said = row["completion"].removeprefix("It is ").rstrip(".")
        groups.setdefault(row["row"], []).append((said, row["ground_truth"][0]))
    average, passed, majority = [], [], []
    for group in groups.values():
        right = [said == label for said, label in group]
        average.append(fmean(right))
        passed.append(fmean(any(subset) for subset in combinations(right, k)))
        blocks = [group[start : start + k] for start in range(0, len(group) - k + 1, k)]
        elected = []
        for block in blocks:
            votes = Counter(said for said, _ in block)
            tied = [said for said, number in votes.items() if number == max(votes.values())]
            elected.append(tied.count(block[0][1]) / len(tied))
        majority.append(fmean(elected))
    return {f"avg@{len(right)}": fmean(average), f"pass@{k}": fmean(passed), f"maj@{k}": fmean(majority)}


def test_the_numbers_of_two_models_are_those_of_a_script(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(model: str, asked: str, sampling: Sampling) -> str:
        return sum_or_near(model, asked, replace(sampling, seed=(sampling.seed or 0) // (1 if model == "one" else 7)))

    use(reply)
    found = evaluated(capsys, "one", "two", sums(12), "--samples", "6", "--temperature", "1", "--k", "2", "3", "6")
    rows = load("sums-answers.jsonl")
    assert len(rows) == 2 * 12 * 6 and all(set(row) == set(COLUMNS) for row in rows)
    for place, model in enumerate(("one", "two")):
        own = [row for row in rows if row["model"] == model]
        for k in (2, 3, 6):
            assert {name: numbers(found, place)[name] for name in reckoned(own, k)} == pytest.approx(reckoned(own, k))
        assert found["models"][place]["completion_tokens_mean"] == fmean(len(row["completion"]) for row in own)
        average = found["models"][place]["numbers"]["avg@6"]
        shares: dict[str, float] = defaultdict(float)
        for row in own:
            shares[row["row"]] += (row["completion"] == f"It is {row['ground_truth'][0]}.") / 6
        # Wilson's bounds, for as many single answers as have the variance of this mean.
        mean, alike = fmean(shares.values()), pvariance(shares.values()) / 11
        for bound in (average["low"], average["high"]):
            variance = bound * (1 - bound) * alike / (mean * (1 - mean))
            assert (bound - mean) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-5)
    gap = found["differences"][0]["numbers"]["avg@6"]
    assert gap["mean"] == pytest.approx(numbers(found, 1)["avg@6"] - numbers(found)["avg@6"])
    assert gap["low"] < gap["mean"] < gap["high"] and gap["prompts"] == 12
    assert main(["one", "two", "sums.jsonl", "--samples", "6", "--temperature", "1", "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "two - one" in shown and f"{numbers(found)['avg@6'] * 100:.1f} (" in shown


def test_a_second_command_adds_a_model_and_samples_nothing_twice(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    engines = use(sum_or_near)
    words = [sums(5), "-o", "answers.parquet", "--temperature", "1", "--samples"]
    first = evaluated(capsys, "one", *words, "2")
    assert evaluated(capsys, "one", *words, "2", "--resume")["models"] == first["models"]
    assert [engine.answered for engine in engines] == [10], "no engine starts when all answers are there"
    evaluated(capsys, "one", "two", *words, "3", "--resume")
    assert [engine.answered for engine in engines] == [10, 5, 15]
    table = pq.read_table("answers.parquet")
    assert table.column_names == list(COLUMNS) and table.num_rows == 30
    keys = list(zip(*(table[name].to_pylist() for name in ("model", "row", "sample")), strict=True))
    assert len(set(keys)) == 30 and keys == sorted(
        keys, key=lambda key: (key[0], int(key[1].rpartition(":")[2]), key[2])
    )
    assert main(["one", *words, "2"]) == 2
    assert "answers.parquet exists: --resume goes on with it" in capsys.readouterr().err
    assert main(["one", *words, "2", "--resume", "--max-tokens", "9"]) == 2
    assert "was made with another prompt, label, sampling or verifier" in capsys.readouterr().err


def test_cut_off_answers_and_outages_are_counted(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use(lambda model, asked, sampling: "It is " + "9" * (500 if "+0?" in asked else 1))
    found = evaluated(capsys, "one", sums(4), "--max-tokens", "20")["models"][0]
    assert (found["truncated_fraction"], found["unscored"]) == (0.25, 0)
    Path("raises.py").write_text("def raises(completions, **kwargs):\n    raise OSError('down')\n")
    functions = ["--verifiers.functions", '["raises.py:raises"]']
    assert main(["one", "sums.jsonl", "-o", "none.jsonl", *functions]) == 1
    assert "no answer could be scored: the columns error_kind and detail" in capsys.readouterr().err
    assert {row["error_kind"] for row in load("none.jsonl")} == {"function_raised"}
    # The outage is over: answers are scored again, not sampled again.
    Path("raises.py").write_text("def raises(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    engines = use(sum_or_near)
    again = evaluated(capsys, "one", "sums.jsonl", "-o", "none.jsonl", *functions, "--resume")["models"][0]
    assert again["unscored"] == 0 and not engines


LAYOUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "aime24": ({"id": 60, "problem": "How many?", "solution": "...", "answer": "204"}, r"\boxed{204}", "203"),
    "aime25": ({"id": "0", "problem": "How many?", "answer": 70}, "So it is 70.", "71"),
    "math500": (
        {"problem": "Where?", "solution": "...", "answer": r"\left( 3, \frac{\pi}{2} \right)", "level": 2},
        r"\boxed{(3, \pi/2)}",
        r"\boxed{3}",
    ),
    "gsm8k": ({"question": "How many?", "answer": "6 * 200 = <<6*200=1200>>1200\n#### 1,200"}, r"\boxed{1200}", "12"),
    "ifeval": (
        {"key": 1000, "prompt": "Write a song. Use no comma.", "instruction_id_list": ["punctuation:no_comma"],
         "kwargs": [{"num_words": None, "relation": None}]},
        "A song of the sea",
        "A song, of the sea",
    ),
    "ifbench": (
        {"key": "1", "prompt": "Tell me.", "instruction_id_list": ["count:word_count_range"],
         "kwargs": [{"N": None, "min_words": 2, "max_words": 4}]},
        "One two three",
        "One",
    ),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": 'def inc(x: int) -> int:\n    """Add one."""\n', "entry_point": "inc",
         "canonical_solution": "    return x + 1\n",
         "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1) == 2\n"},
        "```python\ndef inc(x):\n    return x + 1\n```",
        "```python\ndef inc(x):\n    return x\n```",
    ),
}  # fmt: skip


def test_every_protocol_is_tried_here() -> None:
    assert sorted(LAYOUTS) == protocols.names()


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_protocol_reads_the_published_layout(name: str, use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    row, right, wrong = LAYOUTS[name]
    asked: list[tuple[str, Sampling]] = []

    def reply(model: str, prompt: str, sampling: Sampling) -> str:
        asked.append((prompt, sampling))
        return right if len(asked) % 2 else wrong

    use(reply)
    source = save("rows.jsonl", {"unusable": 1}, row)
    found = evaluated(capsys, "one", name, "--input", source, "--samples", "4", "--temperature", "0.5")
    assert numbers(found)["avg@4"] == 0.5 and found["models"][0]["unscored"] == 0
    assert {answer["row"] for answer in load(f"{name}-answers.jsonl")} == {"rows.jsonl:2"}
    published = protocols.load(protocols.find(name), {})
    assert asked[0][1].top_p == published.top_p and asked[0][1].max_tokens == published.max_tokens
    question = next(str(row[column]) for column in ("problem", "question", "prompt") if column in row)
    assert question.strip() in asked[0][0]
    if published.template != "{question}":
        assert r"within \boxed{}" in asked[0][0]


def test_a_protocol_of_ones_own_names_its_columns(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use(lambda model, asked, sampling: "Paris" if "|system|>Be brief.<|user|>Q: Capital?" in asked else "?")
    save("rows.jsonl", {"q": "Capital?", "a": "paris"})
    Path("mine.toml").write_text(
        'source = "rows.jsonl"\nquestion = "q"\nanswer = "a"\nverifier = "string_match"\ntemplate = "Q: {question}"\n'
        'system_prompt = "Be brief."\n'
    )
    assert numbers(evaluated(capsys, "one", "mine.toml")) == {"avg@1": 1.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sums.jsonl"], "give at least one model and then the data"),
        (["one", "aime42.toml"], "aime42.toml: no such protocol (did you mean 'aime25'?)"),
        (["one", "wrong.toml"], "wrong.toml: sample: Extra inputs are not permitted (did you mean 'samples'?)"),
        (["one", "half.toml"], "half.toml: question and answer name two columns: give both"),
        (["one", "sums.jsonl", "--samples", "4"], "samples = 4 with temperature = 0 would be one answer 4 times"),
        (["one", "sums.jsonl", "--k", "4"], "k = 4 is not from 1 to samples = 1"),
        (["one", "sums.jsonl", "--input", "x.jsonl"], "--input gives a protocol its rows"),
        (["one", "one", "sums.jsonl"], "one: this model is given twice"),
        (["empty", "sums.jsonl"], "empty: neither a model folder (config.json) nor a run directory"),
        (["run", "sums.jsonl"], "run: no checkpoint is complete yet"),
        (["run@7", "sums.jsonl"], "no complete checkpoint of step 7; there are: none"),
        (["agent@3", "sums.jsonl"], "agent@3: episodes.environment = 'a:B' plays several turns, and here each prompt"),
        (["one", "sums.jsonl", "--config", "agent/config.toml"], "episodes.environment = 'a:B': a does not import: "),
        (["one", "nothing.jsonl"], "nothing.jsonl: no such file or folder"),
        (["one", "gsm8k", "--input", "sums.jsonl"], "sums.jsonl: no row can be used; sums.jsonl:1: the column answer"),
        (["one", "sums.jsonl", "-o", "a.csv"], "a.csv: answers are JSON lines or Parquet"),
        (["one", "sums.jsonl", "-o", "no/a.jsonl"], "no/a.jsonl: cannot be written: there is no folder no"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(
    words: list[str], message: str, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = use(sum_or_near)
    sums(2)
    Path("empty").mkdir()
    Path("run", "checkpoints").mkdir(parents=True)
    Path("run", "config.toml").write_text("")
    Path("agent", "checkpoints", "step_3").mkdir(parents=True)
    Path("agent", "checkpoints", "step_3", "complete").touch()
    Path("agent", "config.toml").write_text('[episodes]\nenvironment = "a:B"\n')
    Path("wrong.toml").write_text("sample = 3\n")
    Path("half.toml").write_text('question = "q"\n')
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said and said.splitlines()[-1].startswith("olmorl-eval: ")
    assert not engines and not list(Path().glob("*answers*"))


WORLD = """
class World:
    last = ""

    def step(self, reply):
        first, self.last = not self.last, reply["content"]
        return "Are you sure?" if first else None

    def reward(self):
        return float(self.last == "It is 3.")
"""
REWARDS = """
def sure(completions, **columns):
    return [float(any(turn["content"] == "Are you sure?" for turn in one)) for one in completions]
"""
AGENT = Path(__file__).parents[2] / "actors" / "episodes" / "agent.py"


@pytest.mark.parametrize(
    ("player", "functions", "rewards"),
    [
        ('environment = "world.py:World"', "", {1.0, 0.0}),
        ('environment = "world.py:World"', '[verifiers]\nfunctions = ["rewards.py:sure"]\n', {2.0, 1.0}),
        (f'agent = "{sys.executable} {AGENT} reward"', "", {0.75}),
    ],
    ids=["environment", "function", "agent"],
)
def test_episodes_are_played_as_in_a_run(
    player: str, functions: str, rewards: set[float], use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = use(lambda model, asked, sampling: f"It is {2 + ('1+2' in asked)}.")
    Path("world.py").write_text(WORLD)
    Path("rewards.py").write_text(REWARDS)
    Path("recipe.toml").write_text(f"[sampling]\nmax_tokens = 64\n[episodes]\nmax_tokens = 400\n{player}\n{functions}")
    save("asked.jsonl", {"messages": [{"role": "user", "content": "What is 1+2?"}]}, {"prompt": "What is 1+3?"})
    words = ["one", "asked.jsonl", "--config", "recipe.toml", "--samples", "2", "--temperature", "1"]
    found = evaluated(capsys, *words)
    rows = load("asked-answers.jsonl")
    assert {row["reward"] for row in rows} == rewards
    assert {(len(row["episode"]["turns"]), row["episode"]["exit"]) for row in rows} == {(2, "done")}
    assert numbers(found)["avg@2"] == fmean(row["solved"] for row in rows)
    assert evaluated(capsys, *words, "--resume")["models"] == found["models"]
    assert [engine.answered for engine in engines] == [8], "an episode is not played again"
    assert main([*words, "--resume", "--episodes.max_turns", "9"]) == 2
    assert "with another prompt, label, sampling or verifier, or other episodes" in capsys.readouterr().err


def test_without_any_episode_there_is_no_number_and_no_file(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use(sum_or_near)
    Path("recipe.toml").write_text(f'[episodes]\nagent = "{sys.executable} {AGENT} crash"\n')
    assert main(["one", save("asked.jsonl", {"prompt": "What is 1+2?"}), "--config", "recipe.toml"]) == 1
    said = capsys.readouterr().err
    assert "asked.jsonl:1: the episode 0 of one failed and counts in no number: agent: failed 3 times" in said
    assert "every episode failed; --resume goes on" in said
    assert not list(Path().glob("*answers*"))


FRAGILE = """
from pathlib import Path

class World:
    def step(self, reply):
        if "4" in reply["content"] and Path("down").exists():
            raise OSError("no connection")

    def reward(self):
        return 1.0
"""


def test_a_row_that_always_fails_is_named_and_never_scored(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    engines = use(lambda model, asked, sampling: f"It is {3 + ('1+3' in asked)}.")
    Path("world.py").write_text(FRAGILE)
    Path("recipe.toml").write_text(
        '[sampling]\nmax_tokens = 64\n[episodes]\nmax_tokens = 400\nenvironment = "world.py:World"\n'
    )
    Path("down").touch()
    save("asked.jsonl", {"prompt": "What is 1+2?"}, {"prompt": "What is 1+3?"})
    words = ["one", "asked.jsonl", "--config", "recipe.toml", "--samples", "2", "--temperature", "1"]
    found = evaluated(capsys, *words)["models"][0]
    assert (found["numbers"]["avg@2"]["mean"], found["numbers"]["avg@2"]["prompts"]) == (1.0, 1)
    assert found["answers"] == 2 and [(one["row"], one["sample"]) for one in found["failed"]] == [
        ("asked.jsonl:2", 0),
        ("asked.jsonl:2", 1),
    ]
    assert "environment: failed 3 times, at last: step: OSError: no connection" in found["failed"][0]["cause"]
    assert {row["row"] for row in load("asked-answers.jsonl")} == {"asked.jsonl:1"}
    assert engines[0].answered == 2 + 2 * 3
    assert main([*words, "--resume"]) == 0, "it fails again"
    shown = capsys.readouterr()
    assert re.search(r"failed episodes +│? *2", shown.out), shown.out
    assert "asked.jsonl:2: the episode 1 of one failed and counts in no number: environment: failed" in shown.err
    Path("down").unlink()
    again = evaluated(capsys, *words, "--resume")["models"][0]
    assert (again["answers"], again["failed"]) == (4, []), "only the failed episodes are played again"
    assert engines[-1].answered == 2


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_of_an_earlier_version_without_episodes_goes_on(
    use: Use, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    engines = use(sum_or_near)
    file = Path(f"answers{suffix}")
    assert main(["one", sums(3), "-o", str(file)]) == 0
    if suffix == ".parquet":
        pq.write_table(pq.read_table(file).drop_columns(["episode"]), file)
    else:
        save(str(file), *({name: value for name, value in row.items() if name != "episode"} for row in load(str(file))))
    assert main(["one", "sums.jsonl", "-o", str(file), "--resume"]) == 0
    assert [engine.answered for engine in engines] == [3]


def test_kills_lose_no_answer_and_none_is_sampled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "one")
    words = [
        "EVALUATE",
        "one",
        sums(60),
        "--samples",
        "4",
        "--temperature",
        "1",
        "--resume",
        "--actors.max_running",
        "2",
    ]
    made = answers_after_kills(words, tmp_path / "log", tmp_path / "sums-answers.jsonl.part", 50)
    assert len(made) == 240 and set(made.values()) == {1}
    assert len(load("sums-answers.jsonl")) == 240
    assert not list(tmp_path.glob("*.part"))


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*COLUMNS, *protocols.names(), "Wilson", "a tie counts", "exit codes"))
    with pytest.raises(SystemExit):
        main(["--help-protocol"])
    assert "template" in capsys.readouterr().out


def program(log: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """The command with the engine of texts, as a process."""
    log.touch()
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(log), "EVALUATE", *words],
        env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[3])} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_model_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cached = tmp_path / "home" / "hub" / "models--org--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    model_folder(cached / "snapshots" / ("0" * 40))
    with program(tmp_path / "log", "org/tiny", sums(3), HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1") as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "org/tiny" in out and {row["model"] for row in load("sums-answers.jsonl")} == {"org/tiny"}


def test_ctrl_c_ends_it_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "one")
    log = tmp_path / "log"
    with program(log, "one", sums(500)) as process:
        until = time.monotonic() + 120
        while not log.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    kept = [json.loads(line) for line in Path("sums-answers.jsonl.part").read_text().splitlines()]
    assert len({row["row"] for row in kept}) == log.read_text().count("\n") > 0
