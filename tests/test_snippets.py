"""Every snippet of the documentation runs, as a reader would run it, or is listed here with the reason why it cannot.

Blocks are extracted from the Markdown files, so a new one runs without being named here. They run in one folder, with
what the README has a reader make there: a recipe, a reward function and data, all from its own blocks, and a run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from olmorl import config
from olmorl.deploy import arguments
from olmorl.deploy.control import cli
from olmorl.learner.data.readers import layout
from olmorl.verifiers.functions.function_scorer import FunctionScorer
from olmorl.verifiers.label_check import LabelChecker
from tests.verifiers.builders import make_completion, make_prompt

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = {
    "olmorl-launch": "olmorl.deploy.launch",
    "olmorl-ctl": "olmorl.deploy.control.cli",
    "olmorl-data": "olmorl.deploy.prepare_data",
    "olmorl-eval": "olmorl.deploy.evaluation.cli",
    "olmorl-plan": "olmorl.deploy.plan.cli",
    "olmorl-verify": "olmorl.deploy.verify.cli",
    "olmorl-report": "olmorl.deploy.report.cli",
}
CANNOT_RUN = {
    "olmorl-data difficulty": "starts an engine; its own tests run it",
    "olmorl-data verifiers": "asks a Python with another package; the slow tests of tasksets run it",
    "uv venv": "fetches packages; the slow tests of tasksets run it",
    "olmorl-eval": "starts an engine; its own tests run it",
    "ray start": "starts a cluster that outlives the test, on ports of its own",
    ".venv/bin/python -m pytest": "runs these tests inside of themselves",
    "python benchmarks/": "fetches packages of other projects, or measures for minutes; its options are tested below",
}
ONLY_PLANNED = {
    "olmorl-launch": "a whole run of a model: --dry-run reads the same recipe and options, and shows the plan",
    "olmorl-plan": "simulates for minutes: --dry-run reads the same recipe and options, and shows what would be tried",
    "make": "sets up an environment, or tests for minutes: make -n finds the target and reads its commands",
}
"""Commands that run with an option that ends them early."""


class Block(NamedTuple):
    """Some lines of a page that stand apart from its prose."""

    place: str
    text: str
    language: str = ""
    """The language of the fence, if it names one."""

    @property
    def kind(self) -> str:
        first = self.text.lstrip().partition("\n")[0]
        if self.language:
            return {"bash": "shell", "sh": "shell", "console": "shell"}.get(self.language, self.language)
        if first.startswith("runs/<name>/"):
            return "listing"
        if re.match(r"\[[a-z_.]+\]$", first):
            return "toml"
        if first.startswith("{"):
            return "json"
        return "python" if re.search(r"^(def|import|from|class|async def) ", self.text, re.MULTILINE) else "shell"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks, and indented ones that follow an empty line."""
    found: list[str] = []
    language: str | None = None
    before = ""
    for number, line in enumerate([*page.read_text(encoding="utf-8").split("\n"), "the end"], 1):
        fence = line.strip().startswith("```")
        indented = language is None and not fence and line.startswith("    ") and (found or not before)
        if found and (fence if language is not None else line and not indented):
            text = textwrap.dedent("\n".join(found)).strip("\n")
            yield Block(f"{page.name}:{number - len(found)}", text, language or "")
            found = []
        if fence:
            language = line.strip().removeprefix("```").strip() if language is None else None
        elif indented or language is not None or (not line and found):
            found.append(line)
        before = line.strip()


def spans(page: Path) -> Iterator[Block]:
    """Commands inside of sentences."""
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        for text in re.findall(r"`([^`]+)`", line):
            if re.match(r"(\.venv/bin/)?(olmorl-[a-z]+|make|python -m olmorl[a-z.]*) \S", text):
                yield Block(f"{page.name}:{number}", text)


BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [
    Block(block.place, line)
    for block in BLOCKS
    if block.kind == "shell"
    for line in re.sub(r" +#.*$", "", block.text, flags=re.MULTILINE).split("\n")
    if line
]
SPANS = [span for page in PAGES for span in spans(page)]


def only(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def of_readme(kind: str) -> Block:
    """The block of the README that the others build on."""
    return next(block for block in only(kind) if block.place.startswith("README.md"))


def row() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(of_readme("json").text)
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who did what the README and the tutorial say."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / ".venv" / "bin").mkdir(parents=True)
    for command, module in MODULES.items():
        script = folder / ".venv" / "bin" / command
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        script.chmod(0o755)
    for name in ("deploy", "Makefile", "requirements", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "my-run.toml").write_text(of_readme("toml").text)
    (folder / "my_reward.py").write_text(of_readme("python").text)
    tried = next(each for each in COMMANDS if each.text.startswith("echo ") and each.text.endswith("> tried.jsonl"))
    assert shell(folder, tried.text).returncode == 0
    (folder / "math.jsonl").write_text(json.dumps(row()) + "\n")
    problem = {"problem": row()["messages"][0]["content"], "solution": row()["ground_truth"]}
    (folder / "mine.jsonl").write_text(json.dumps(problem) + "\n")
    answers = [{**row(), "completions": [row()["ground_truth"], "41"]}]
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return folder


@pytest.fixture(scope="module")
def run_dir(reader: Path) -> Path:
    """A run that is over, without a model."""
    launch = "olmorl-launch deploy/recipes/simulated.toml --name demo --steps 3 --simulation.save_s 0"
    done = shell(reader, f".venv/bin/{launch}")
    assert done.returncode == 0, done.stdout + done.stderr
    (reader / "runs" / "my-run").symlink_to("demo")
    return reader / "runs" / "demo"


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / '.venv' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    run = ["bash", "-o", "pipefail", "-c", command]
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_every_page_has_its_blocks_found() -> None:
    kinds = {kind: len(only(kind)) for kind in ("toml", "json", "python", "shell", "listing")}
    assert kinds["shell"] >= 8 and min(kinds.values()) >= 1, kinds
    assert any("my-run.toml --dry-run" in command.text for command in COMMANDS)
    assert any("dead-letters" in command.text for command in COMMANDS)
    assert len(SPANS) >= 15


def runs_itself(command: str) -> bool:
    synopsis = " RUN " in command
    return not synopsis and not any(command.startswith(prefix) for prefix in CANNOT_RUN)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "block", [each for each in COMMANDS if runs_itself(each.text)], ids=lambda each: each.text[:60]
)
def test_a_command_runs(block: Block, reader: Path, run_dir: Path) -> None:
    command = block.text
    words = shlex.split(command)
    if Path(words[0]).name in ONLY_PLANNED and not set(words) & {"--dry-run", "--help-keys", "--help"}:
        command = f"{command} {'-n' if words[0] == 'make' else '--dry-run'}"
    done = shell(reader, command)
    # `head` ends before what it reads from.
    wanted = (0, 141) if "| head" in command else (0,)
    assert done.returncode in wanted, f"{block.place}: {command}\n{done.stdout}{done.stderr}"
    if "olmorl" in command or "zstdcat" in command:
        assert done.stdout + done.stderr, "it says something"


@pytest.mark.parametrize("prefix", CANNOT_RUN)
def test_what_cannot_run_is_still_in_the_documentation(prefix: str) -> None:
    found = [command.text for command in COMMANDS if command.text.startswith(prefix)]
    assert found, f"{prefix!r} is listed as what cannot run, and no page has it"


def test_marks_of_tests_that_pages_name_are_there() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    names = {mark.partition(":")[0] for mark in known}
    for command in COMMANDS:
        for expression in re.findall(r'pytest -m "?([a-z ]+)"?', command.text):
            assert set(expression.split()) - {"not", "and", "or"} <= names, command


def alternatives() -> Iterator[Block]:
    """`olmorl-ctl RUN a | b --c 1` is several commands, and so is `a [--b N]`."""
    for block in [*(each for each in COMMANDS if " RUN " in each.text), *SPANS]:
        start, _, rest = block.text.partition(" RUN ")
        parts = rest.split(" | ") if rest else [""]
        for part in parts:
            whole = f"{start} runs/demo {part}" if rest else start
            yield Block(block.place, re.sub(r" \[[^]]*\]", "", whole))
            if "[" in whole:
                yield Block(block.place, whole.replace("[", "").replace("]", ""))


STANDS_FOR = {
    "RECIPE.toml": "deploy/recipes/demo.toml",
    "SCRIPT.sh": "deploy/recipes/demo.toml",
    "...": "auto",
    "N": "3",
    "S": "3",
    "ACTOR": "actor-0",
    "PROMPT_ID": "17",
    "FOLDER": "export",
    "HEAD:6379": "10.0.0.1:6379",
}


@pytest.mark.parametrize("block", list(alternatives()), ids=lambda each: each.text[:60])
def test_a_command_in_a_sentence_is_understood(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    command, *words = [STANDS_FOR.get(word, word) for word in shlex.split(block.text)]
    match command:
        case "olmorl-ctl":
            assert callable(cli._parser().parse_args(words).do)
        case "olmorl-launch" if "--help-keys" not in words:
            asked = arguments.parse(words)
            assert config.load(asked.recipe, asked.overrides)
        case "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case "python":
            done = subprocess.run([sys.executable, *words[:2], "--help"], capture_output=True, text=True, check=False)
            assert done.returncode == 0 and all(word in done.stdout for word in words if word.startswith("--"))
        case _:
            done = subprocess.run(
                [sys.executable, "-m", MODULES[command], "--help"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0
            assert all(word in done.stdout for word in words if word.startswith("--")), block


@pytest.mark.parametrize("block", only("toml"), ids=lambda each: each.place)
def test_a_recipe_of_the_documentation_is_one(block: Block) -> None:
    assert config.build(tomllib.loads(block.text), block.place) != config.Config()


@pytest.mark.parametrize("block", only("json"), ids=lambda each: each.place)
def test_a_row_of_the_documentation_can_be_used(block: Block) -> None:
    rows = [layout(json.loads(line), None, optional=False).labelled() for line in block.text.split("\n")]
    with LabelChecker(config.Verifiers()) as check:
        for found in rows:
            pairs = list(zip(found.datasets, found.ground_truths, strict=True))
            assert check.check_many(pairs) == [None] * len(pairs) and pairs, found


def test_a_row_of_the_documentation_is_scored(reader: Path) -> None:
    done = shell(reader, "olmorl-verify answers.jsonl -o -")
    rewards = [json.loads(line)["reward"] for line in done.stdout.splitlines()]
    assert rewards == [1.0, 0.0], done.stderr


@pytest.mark.parametrize(
    "block",
    [each for each in only("python") if not each.place.startswith("episodes.md")],
    ids=lambda each: each.place,
)
def test_a_program_of_the_documentation_runs(block: Block, reader: Path) -> None:
    """Those of episodes.md are run by end_to_end/test_episodes.py, which trains, and by test_agents.py."""
    done = shell(reader, f"{shlex.quote(sys.executable)} -c {shlex.quote(block.text)}")
    assert done.returncode == 0, done.stderr


def functions() -> Iterator[tuple[Block, str]]:
    """All but those of docs/data.md, which tests/verifiers/test_rewards_docs.py runs, each with its name."""
    for block in only("python"):
        if block.place.startswith("data.md"):
            continue
        for name, parameters in re.findall(r"^(?:async )?def (\w+)\((.*)\)", block.text, re.MULTILINE):
            if "completions" in parameters or "solution_str" in parameters:
                yield block, name


ANSWERS = ("42", "41", "The answer is \\boxed{42}", "42 " * 1000, "<think>6 x 7</think><answer>42</answer>")


@pytest.mark.parametrize("form", ["messages", "plain"])
@pytest.mark.parametrize(("block", "name"), list(functions()), ids=str)
async def test_a_reward_function_of_the_documentation_tells_answers_apart(
    block: Block, name: str, form: str, tmp_path: Path
) -> None:
    """On both forms of a row, as the actors call it, and the same: a constant is no reward."""
    rewards = await rewards_of(block, name, form, tmp_path)
    assert None not in rewards and len(set(rewards)) > 1, rewards
    assert rewards == await rewards_of(block, name, "plain", tmp_path)
    if name == "concise":
        assert rewards == [1.0, 1.0, 1.0, 0.0, 1.0]


async def rewards_of(block: Block, name: str, form: str, folder: Path) -> list[float | None]:
    path = folder / "my_reward.py"
    path.write_text(block.text)
    question = row()["messages"]
    assert isinstance(question, list), "the row of the documentation has messages"
    scorer = FunctionScorer(config.Verifiers(functions=[f"{path}:{name}*0.2"]))
    await scorer.start()
    try:
        prompt = make_prompt(("math",), ("42",), messages=question if form == "messages" else question[0]["content"])
        verdicts = await scorer.score(prompt, [make_completion(text, i) for i, text in enumerate(ANSWERS)])
    finally:
        await scorer.stop()
    return [verdict[name].reward for verdict in verdicts]


@pytest.mark.cluster
def test_a_run_leaves_behind_what_is_listed(run_dir: Path) -> None:
    (listing,) = only("listing")
    names = [word for line in listing.text.split("\n")[1:] for word in re.findall(r"^  (\S+)( \S+/)?", line) if word]
    flat = {name.strip() for pair in names for name in pair if name.strip()}
    assert {"config.toml", "metrics.jsonl", "journal/", "export/"} <= flat
    assert [name for name in flat if not (run_dir / name).exists()] == []
