"""Episodes of many turns in whole runs with real engines: the learner trains what the engine computed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM

from olmorl.deploy.demo import demo
from olmorl.deploy.demo.demo import BUILDS
from olmorl.deploy.demo.settings import ModelSize, WarmStart
from olmorl.deploy.demo.tiny_model import CHAT_TEMPLATE, build_model, build_tokenizer
from olmorl.learner.storage import rollout_log
from tests.end_to_end import recipes
from tests.end_to_end.launching import Launch
from tests.public_agents import MINI, SMOL, VERIFIERS, installed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[1]
TOLERANCE = 2e-3
"""Of log-probabilities in float32, as for single answers in `test_engine`."""
STEPS, TURNS = 6, 4
WARM_STEPS = 120
WORLD = f"""
class World:
    turns = 0

    def step(self, reply):
        self.turns += 1
        return None if self.turns == {TURNS} else "go on"
"""
RECIPE = """
[sampling]
group_size = 4
max_tokens = 96
stop = ["a", "b", "c", "d", "e", "f"]
[episodes]
max_turns = 4
max_tokens = 480
timeout_s = 120
{player}
[schedule]
steps = {steps}
prompts_per_step = 4
max_lag = 2
[learner]
zero_stage = 1
learning_rate = {rate}
[actors]
max_running = 8
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 6
"""
Record = dict[str, Any]


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy whose next token depends on the tokens before."""
    return made_policy(tmp_path_factory.mktemp("decided"), max_tokens=1024)


def made_policy(folder: Path, max_tokens: int) -> Path:
    tokenizer = build_tokenizer(256)
    sizes = ModelSize(hidden=64, intermediate=128, heads=2, sliding_window=16, max_tokens=max_tokens)
    model = build_model(sizes, tokenizer, seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def launched(tmp_path: Path, decided: Path) -> Iterator[Callable[[str, float], Launch]]:
    """Runs a recipe with this line in `[episodes]` to its end."""
    made: list[Launch] = []

    def launch(player: str, rate: float) -> Launch:
        (tmp_path / "world.py").write_text(WORLD)
        run = recipes.real(tmp_path, decided, RECIPE.format(player=player, rate=rate, steps=STEPS))
        run.recipe.write_text(run.recipe.read_text().replace("[model]\n", '[model]\ndtype = "float32"\n'))
        made.append(run)
        run.start()
        assert run.wait(700) == 0, run.output()
        return run

    yield launch
    for run in made:
        run.end()


TOOLS = "{% if tools %}<|system|>{{ tools | tojson }}{% endif %}"
"""Before the messages, in the chat template of a policy that may call tools."""


@pytest.mark.parametrize("command", [MINI, SMOL], ids=["mini", "smolagents"])
def test_agents_from_the_package_index_train_unchanged(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    """The policy is random and calls no tool. The first agent leaves such answers out of its history."""
    programs = installed(tmp_path_factory.mktemp("agents"))
    policy = made_policy(tmp_path / "policy", max_tokens=40_000)
    (tmp_path / "template.jinja").write_text(TOOLS + CHAT_TEMPLATE)
    agent = json.dumps(command.format(bin=programs, folder=tmp_path))
    text = RECIPE.format(player=f'agent = {agent}\ntool_parser = "hermes"', rate=1e-3, steps=2)
    for old, new in {
        "max_tokens = 96": "max_tokens = 16",
        "max_tokens = 480": "max_tokens = 36000",
        "max_turns = 4": "max_turns = 3",
        "group_size = 4": "group_size = 2",
        "prompts_per_step = 4": "prompts_per_step = 1",
    }.items():
        text = text.replace(old, new)
    run = recipes.real(tmp_path, policy, text)
    template = f'[model]\nchat_template = "{tmp_path}/template.jinja"\n'
    run.recipe.write_text(run.recipe.read_text().replace("[model]\n", template))
    try:
        run.start()
        assert run.wait(800) == 0, run.output()
        found = episodes(run)
        assert len(run.lines()) == 2 and len(found) >= 4
        for _, completion in found:
            parents = [turn["parent"] for turn in completion["turns"]]
            assert len(parents) == 3 and parents[:2] == ([-1, -1] if command == MINI else [-1, 0])
            assert completion["exit"] in ("done", "max_turns"), "agents give up too"
        assert run.lines()[-1]["tokens_trained_total"] == trained_tokens(found)
    finally:
        run.end()


def test_the_program_at_the_beginning_of_the_page_trains(tmp_path: Path) -> None:
    """Its policy is warmed up for less time, so groups without a gradient are trained too."""
    page = (ROOT.parent / "docs" / "episodes.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert len(program.splitlines()) <= 22
    whole = BUILDS["calculator"]
    folder = whole.folder(tmp_path / "cache")
    folder.mkdir(parents=True)
    demo._make(folder, replace(whole, num_train=400, warm_start=WarmStart(steps=WARM_STEPS)), lambda *_: None)
    overrides = {"run.directory": str(tmp_path), "learner.warmup_steps": 0, "schedule.steps": 2,
                 "schedule.filter_zero_gradient": False, "evaluation.limit": 4}  # fmt: skip
    call = "environment=Calculator)"
    assert call in program
    text = program.replace(call, f"environment=Calculator, overrides={overrides!r})")
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "agent" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[-1]["tokens_trained_total"] > 0
    assert lines[-1]["episode_turns_mean"] > 1, "the calculator was called"


def test_a_taskset_for_verifiers_trains_unchanged(
    tmp_path: Path, decided: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = installed(tmp_path_factory.mktemp("verifiers"), VERIFIERS) / "python"
    where = f"PYTHONPATH={ROOT}/tasksets"
    text = RECIPE.format(
        player=f"agent = '{where} {python} $OLMORL_VERIFIERS letters_v1 --env.taskset.size 8'", rate=1e-3, steps=3
    )
    for old, new in {"group_size = 4": "group_size = 2", "prompts_per_step = 4": "prompts_per_step = 1"}.items():
        text = text.replace(old, new)
    run = recipes.real(tmp_path, decided, text)
    recipe = run.recipe.read_text()
    run.recipe.write_text(re.sub(r"\[verifiers]\nfunctions.*\n", "", recipe))  # the taskset alone gives the reward
    command = f"{where} {Path(sys.executable).parent}/olmorl-data verifiers {python} letters_v1 --env.taskset.size 8"
    subprocess.run(f"{command} > {tmp_path}/data.jsonl", shell=True, check=True, timeout=300)
    try:
        run.start()
        assert run.wait(800) == 0, run.output()
        found = episodes(run)
        assert len(run.lines()) == 3 and len(found) >= 6
        for _, completion in found:
            assert [turn["parent"] for turn in completion["turns"]] == [-1, 0]
            assert completion["reward"] == completion["verdicts"]["environment"]["reward"]
        assert len({completion["reward"] for _, completion in found}) > 1
        last = run.lines()[-1]
        assert last["logged_replies_mean"] == 2.0
        assert last["tokens_trained_total"] == trained_tokens(found) > 0
    finally:
        run.end()


def episodes(run: Launch) -> list[tuple[Record, Record]]:
    """Each group with each of its completions."""
    paths = sorted((run.run_dir / "rollouts").glob("*.zst"))
    groups = [group for path in paths for group in rollout_log.read(path)]
    return [(group, completion) for group in groups for completion in group["completions"]]


def trained_tokens(found: list[tuple[Record, Record]]) -> int:
    return sum(len(completion["token_ids"]) for group, completion in found if group["outcome"] == "trained")


def logprobs_of(model: Any, tokens: list[int]) -> npt.NDArray[np.float32]:
    """The log-probability of each token after the first one."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits_TV = model(ids).logits[0, :-1].float()
    found: npt.NDArray[np.float32] = logits_TV.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    return found


def differences(model: Any, group: Record, completion: Record) -> Iterator[tuple[float, float]]:
    """For each turn the largest difference of log-probabilities, and the same with a changed token before the turn."""
    paths: list[list[int]] = []
    sampled = completion["token_ids"]
    for turn in completion["turns"]:
        before = paths[turn["parent"]] if turn["parent"] >= 0 else group["prompt_token_ids"]
        prompt = before[: turn["kept"]] + turn["added_token_ids"]
        answer = sampled[turn["start"] : turn["end"]]
        paths.append(prompt + answer)
        recorded = np.array(completion["logprobs"][turn["start"] : turn["end"]])
        other = [*prompt[:-1], (prompt[-1] + 1) % 200]
        yield tuple(  # type: ignore[misc]
            float(np.abs(logprobs_of(model, each + answer)[len(prompt) - 1 :] - recorded).max())
            for each in (prompt, other)
        )


@pytest.mark.parametrize(
    "player",
    [
        'environment = "{folder}/world.py:World"',
        f'agent = "{sys.executable} {ROOT}/actors/episodes/agent.py mixed"',
    ],
    ids=["environment", "agent"],
)
def test_every_sampled_token_is_trained_once_with_the_log_probability_of_the_engine(
    launched: Callable[[str, float], Launch], decided: Path, tmp_path: Path, player: str
) -> None:
    run = launched(player.format(folder=tmp_path), 0.0)
    found = episodes(run)
    model = AutoModelForCausalLM.from_pretrained(decided, dtype=torch.float32)
    worst, controls, inside, between, branches, whole = 0.0, [], 0, 0, 0, 0
    for group, completion in found:
        turns, spans = completion["turns"], completion["versions"]
        whole += completion["exit"] == "done" and len(turns) == TURNS
        assert [0, *(turn["end"] for turn in turns)] == [
            *(turn["start"] for turn in turns),
            len(completion["token_ids"]),
        ]
        assert [0, *(end for *_, end in spans)] == [*(start for _, start, _ in spans), len(completion["token_ids"])]
        borders = {turn["start"] for turn in turns}
        changes = {now[1] for then, now in pairwise(spans) if then[0] != now[0]}
        between, inside = between + len(changes & borders), inside + len(changes - borders)
        branches += sum(turn["parent"] < 0 for turn in turns[1:])
        for right, other in differences(model, group, completion):
            worst = max(worst, right)
            controls.append(other)
    print(f"{len(found)} episodes, {whole} whole, {branches} branches, updates {between} between and {inside} inside")
    print(f"largest difference {worst:.2e}, with a changed prompt {np.median(controls):.2f}")
    assert worst < TOLERANCE < np.median(controls) / 10
    assert inside and between, "updates inside of turns and between them"
    assert bool(branches) == ("agent" in player)
    assert whole > len(found) / 2, "most have all their turns"
    last = run.lines()[-1]
    assert last["tokens_trained_total"] == trained_tokens(found)
    for line in run.lines():
        assert abs(line["logprob_diff_mean"]) < TOLERANCE / 10 and line["kl_engine_learner"] < TOLERANCE / 10


def test_an_agent_with_the_client_of_openai_trains(launched: Callable[[str, float], Launch]) -> None:
    pytest.importorskip("openai")
    run = launched(f'agent = "{sys.executable} {ROOT}/end_to_end/openai_agent.py"', 1e-3)
    assert len(run.lines()) == STEPS and run.lines()[-1]["tokens_trained_total"] > 0
    found = episodes(run)
    assert {len(completion["turns"]) for _, completion in found} == {3}
    assert {turn["parent"] for _, completion in found for turn in completion["turns"]} == {-1, 0, 1}
    assert all("environment" in completion["verdicts"] for _, completion in found)
