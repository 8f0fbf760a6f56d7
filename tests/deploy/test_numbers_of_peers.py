"""The reward examples of TRL's guide and the GSM8K example of verl: rewards, advantages and losses of one batch.

The functions have the signatures of the guides. The references are TRL's and verl's formulas, written out in float64.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from olmorl import config
from olmorl.deploy import verl_script
from olmorl.learner.algorithm.objective import LossInputs, policy_loss
from olmorl.learner.algorithm.presets import Switches, resolve
from olmorl.learner.batching import samples
from olmorl.learner.batching.packing import RowArrays, pack, row_arrays
from olmorl.learner.storage.ledger_state import Start
from olmorl.learner.trainer.critic import value_loss
from olmorl.learner.trainer.token_credit import credit
from olmorl.messages import Completion, Group, Prompt, Span, Version
from olmorl.trl import GRPOConfig, GRPOTrainer
from olmorl.verifiers.scorer import VerifierScorer

START = Version(1, 0)
PROMPT_TOKENS = 2
REWARDS = """
import asyncio
import re

def by_tokens(completions_ids, **kwargs):
    return [float(len(one)) for one in completions_ids]

def by_form(completions, **kwargs):
    texts = [turns[0]["content"] for turns in completions]
    return [float(bool(re.match(r"^<think>.*?</think><answer>.*?</answer>$", text))) for text in texts]

def by_label(completions, ground_truth, **kwargs):
    found = [re.search(r"\\\\boxed\\{(.*?)\\}", text) for text in completions]
    return [float(one is not None and one[1] == label) for one, label in zip(found, ground_truth)]

def of_math(prompts, completions, task, log_metric, **kwargs):
    log_metric("math", sum(one == "math" for one in task))
    return [(1.0 if "4" in text else -1.0) if one == "math" else None for text, one in zip(completions, task)]

async def of_code(prompts, completions, task, **kwargs):
    await asyncio.sleep(0)
    return [(1.0 if "def" in text else -1.0) if one == "coding" else None for text, one in zip(completions, task)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    found = re.search(r"#### (-?[0-9.,]+)", solution_str)
    return 0.0 if found is None else float(found[1].replace(",", "") == ground_truth)
"""
BOXES = ["It is \\boxed{2}.", "\\boxed{3}", "2", "\\boxed{2}"]
FORMS = ["<think>a</think><answer>b</answer>", "<answer>b</answer>", "no", "<think>a</think><answer></answer>"]


class Case(NamedTuple):
    functions: list[str]
    rows: list[dict[str, Any]]
    texts: list[list[str]]
    rewards: list[list[float]]
    arguments: dict[str, Any]


CASES = {
    "longer answers": Case(["by_tokens"], [{"prompt": "The sky is"}], [["a", "b", "c", "d"]], [[3, 5, 2, 4]], {}),
    "a form": Case(
        ["by_form"], [{"prompt": [{"role": "user", "content": "(1 + 2) * 4?"}]}], [FORMS], [[1, 0, 0, 1]],
        {"loss_type": "grpo", "scale_rewards": "none"},
    ),
    "a reference": Case(
        ["by_label"], [{"prompt": "2x + 3 = 7?", "ground_truth": "2"}], [BOXES], [[1, 0, 0, 1]],
        {"loss_type": "dr_grpo", "beta": 0.04},
    ),
    "two tasks": Case(
        ["of_math", "of_code"],
        [{"prompt": "2 + 2?", "task": "math"}, {"prompt": "Write a sum.", "task": "coding"}],
        [["4", "4!", "5", "6"], ["def f(): pass", "4", "no", "none"]],
        [[2, 2, -2, -2], [0.5, -0.5, -0.5, -0.5]],
        {"reward_weights": [2.0, 0.5], "epsilon_high": 0.28},
    ),
}  # fmt: skip


class Batch(NamedTuple):
    """Answers, and log-probabilities and values of their tokens by token id: no two tokens of a batch are the same."""

    groups: list[Group]
    pi: Tensor
    old: Tensor
    engine: Tensor
    start: Tensor
    values: Tensor

    def answers(self) -> list[list[int]]:
        return [one.token_ids.tolist() for group in self.groups for one in group.completions]


def batch(rows: Sequence[dict[str, Any]], texts: Sequence[Sequence[str]], seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    pi = -random.uniform(0.1, 3.0, 200)
    old = pi + random.normal(size=200) * 0.25
    engine = (old + random.normal(size=200) * 0.3).astype(np.float32)
    groups, token = [], 0
    for number, (row, answers) in enumerate(zip(rows, texts, strict=True)):
        columns = {name: value for name, value in row.items() if name != "prompt"}
        prompt = Prompt(
            draw_id=number, row=f"a:{number + 1}", messages=row["prompt"], token_ids=np.zeros(PROMPT_TOKENS, np.int32),
            datasets=(), ground_truths=(), columns=columns, group_size=len(answers), min_version=START,
        )  # fmt: skip
        completions = []
        for index, text in enumerate(answers):
            ids = np.arange(token, token + (3, 5, 2, 4)[index % 4], dtype=np.int32)
            token += len(ids)
            completions.append(
                Completion(
                    index=index, token_ids=ids, logprobs=engine[ids], spans=(Span(START, 0, len(ids)),),
                    finish_reason="stop", text=text,
                )
            )  # fmt: skip
        groups.append(Group(prompt=prompt, completions=tuple(completions), actor="a", started_at=0, finished_at=1))
    start, values = pi + random.normal(size=200) * 0.1, random.normal(size=200)
    tensors = [torch.tensor(one, dtype=torch.float64) for one in (pi, old, engine, start, values)]
    return Batch(groups, *tensors)


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)
    return path


def scored(recipe: config.Config, one: Batch) -> Batch:
    """The batch with the rewards that the recipe's functions give, in processes of their own."""

    async def score() -> list[Group]:
        scorer = VerifierScorer(recipe.verifiers)
        await scorer.start()
        try:
            found = [await scorer.combine(group.prompt, group.completions) for group in one.groups]
        finally:
            await scorer.stop()
        return [
            Group(prompt=group.prompt, completions=completions, actor="a", started_at=0, finished_at=1)
            for group, completions in zip(one.groups, found, strict=True)
        ]

    return one._replace(groups=asyncio.run(score()))


def packed(one: Batch, switches: Switches) -> RowArrays:
    """The batch as one row of the learner."""
    made = [
        samples.samples(group, 0, max_lag=0, max_tokens=8, starts=[Start(1, 0, 0)], switches=switches)
        for group in one.groups
    ]
    shards = pack(samples.with_batch_part(made, switches), step=1, num_ranks=1, num_minibatches=1, row_tokens=200)
    ((row,),) = shards[0].minibatches
    return row_arrays(row)


def loss_of(one: Batch, row: RowArrays, switches: Switches) -> tuple[float, Tensor]:
    """The learner's loss, and its gradient by the log-probability of each token."""
    ids = torch.as_tensor(row.token_ids_T).long()
    pi = one.pi.clone().requires_grad_()

    def batched(values: Any) -> Tensor:
        return torch.as_tensor(values)[None]

    inputs = LossInputs(
        logprobs_BT=batched(pi[ids]),
        old_logprobs_BT=batched(one.old[ids]),
        behaviour_logprobs_BT=batched(row.behaviour_logprobs_T),
        advantages_BT=batched(row.advantages_T),
        loss_mask_BT=batched(row.loss_mask_T),
        sequence_ids_BT=batched(row.sequence_ids_T),
        lags_BT=batched(row.lags_T),
        loss_tokens=float(row.loss_mask_T.sum()),
        num_sequences=len(one.answers()),
        ref_logprobs_BT=batched(one.start[ids]) if switches.needs_reference else None,
    )
    loss, _ = policy_loss(inputs, switches)
    loss.backward()
    assert pi.grad is not None
    return loss.item(), pi.grad


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("rewards_of_trl", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loss_of_trl(one: Batch, rewards_of_groups: Sequence[Sequence[float]], args: dict[str, Any]) -> tuple[float, Tensor]:
    """GRPOTrainer's loss: rewards normalized with the deviation of a sample, clipped, weighed by the whole answer."""
    pi, answers = one.pi.clone().requires_grad_(), iter(one.answers())
    low, high = args.get("epsilon", 0.2), args.get("epsilon_high", args.get("epsilon", 0.2))
    sums, lengths = [], []
    for rewards_G in rewards_of_groups:
        mean = sum(rewards_G) / len(rewards_G)
        deviation = (sum((reward - mean) ** 2 for reward in rewards_G) / (len(rewards_G) - 1)) ** 0.5
        for reward in rewards_G:
            ids = next(answers)
            advantage = reward - mean
            if args.get("scale_rewards", "group") == "group":
                advantage /= deviation + 1e-4
            weight = torch.exp((one.old[ids] - one.engine[ids]).sum())
            weight = torch.zeros(()) if weight > 3.0 else weight
            ratio = torch.exp(pi[ids] - one.old[ids])
            tokens = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage) * weight
            apart = one.start[ids] - pi[ids]
            sums.append((tokens + args.get("beta", 0.0) * (apart.exp() - apart - 1)).sum())
            lengths.append(len(ids))
    kind, stacked = args.get("loss_type", "dapo"), torch.stack(sums)
    per_answer = {
        "dapo": stacked / sum(lengths),
        "grpo": stacked / torch.tensor(lengths) / len(lengths),
        "dr_grpo": stacked / (len(lengths) * 8),
    }
    loss = per_answer[kind].sum()
    loss.backward()
    assert pi.grad is not None
    return loss.item(), pi.grad


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_reward_examples_of_trl(name: str, seed: int, rewards: Path, tmp_path: Path) -> None:
    case = CASES[name]
    module = load(rewards)
    args = GRPOConfig(str(tmp_path / "out"), max_steps=1, num_generations=4, max_completion_length=8, **case.arguments)
    trainer = GRPOTrainer("org/model", [getattr(module, one) for one in case.functions], args, case.rows)
    recipe = config.with_key(trainer.recipe, "verifiers.functions", [f"{rewards}:{one}" for one in case.functions])
    one = scored(recipe, batch(case.rows, case.texts, seed))
    assert [group.rewards for group in one.groups] == case.rewards
    switches = resolve(recipe.objective, recipe.longest_answer)
    loss, gradient = loss_of(one, packed(one, switches), switches)
    expected, expected_gradient = loss_of_trl(one, case.rewards, case.arguments)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)
    weights = [(one.old[ids] - one.engine[ids]).sum().exp().item() for ids in one.answers()]
    assert (max(weights) > 3.0) == (seed == 4), "an answer is left out"


SCRIPT = """
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator={estimator} \\
    data.train_batch_size=8 \\
    data.max_response_length=8 \\
    actor_rollout_ref.model.path=org/model \\
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
    actor_rollout_ref.rollout.n={answers} \\
    critic.cliprange_value=0.3 \\
    custom_reward_function.path={rewards} \\
    trainer.total_training_steps=1 {more}
"""
SUMS = [{"prompt": [{"role": "user", "content": "1 + 1?"}], "data_source": "openai/gsm8k", "ground_truth": "2"}] * 3
ANSWERS = ["1 + 1 = 2\n#### 2", "#### 3", "2"]


def recipe_of_verl(folder: Path, rewards: Path, estimator: str, answers: int, more: str = "") -> config.Config:
    path = folder / "run.sh"
    path.write_text(SCRIPT.format(estimator=estimator, answers=answers, rewards=rewards, more=more))
    return config.load(path, keys=verl_script.keys_of(path))


def loss_of_verl(one: Batch, advantages: dict[int, float]) -> tuple[float, Tensor]:
    """The clipped loss of verl's actor with its second bound of 3, as a mean over the tokens."""
    pi = one.pi.clone().requires_grad_()
    losses = []
    for token, advantage in advantages.items():
        ratio = torch.exp(pi[token] - one.old[token])
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        losses.append(torch.minimum(torch.tensor(-advantage * 3.0), loss) if advantage < 0 else loss)
    total = torch.stack(losses).mean()
    total.backward()
    assert pi.grad is not None
    return total.item(), pi.grad


def test_the_ppo_example_of_verl(rewards: Path, tmp_path: Path) -> None:
    recipe = recipe_of_verl(tmp_path, rewards, "gae", 1, "algorithm.gamma=0.9 algorithm.lam=0.8")
    one = scored(recipe, batch(SUMS, [[text] for text in ANSWERS], seed=3))
    assert [group.rewards for group in one.groups] == [[1.0], [0.0], [0.0]]
    switches = resolve(recipe.objective, recipe.longest_answer)
    row = packed(one, switches)
    (found,), (returns_T,), _ = credit(
        [row], [], [one.values.numpy()[row.token_ids_T]], 0.0, switches, lambda numbers: list(numbers)
    )

    advantages, returns = {}, {}
    for ids, reward in zip(one.answers(), (1.0, 0.0, 0.0), strict=True):
        last, next_value = 0.0, 0.0
        for place, token in reversed(list(enumerate(ids))):
            value = float(one.values[token])
            delta = (reward if place == len(ids) - 1 else 0.0) + 0.9 * next_value - value
            last, next_value = delta + 0.9 * 0.8 * last, value
            advantages[token], returns[token] = last, last + value
    mean = sum(advantages.values()) / len(advantages)
    variance = sum((each - mean) ** 2 for each in advantages.values()) / (len(advantages) - 1)
    whitened = {token: (each - mean) / (variance + 1e-8) ** 0.5 for token, each in advantages.items()}

    ids = row.token_ids_T[row.loss_mask_T].tolist()
    assert found.advantages_T[row.loss_mask_T].tolist() == pytest.approx([whitened[token] for token in ids], abs=1e-6)
    assert returns_T[row.loss_mask_T].tolist() == pytest.approx([returns[token] for token in ids])
    loss, gradient = loss_of(one, found, switches)
    expected, expected_gradient = loss_of_verl(one, whitened)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)

    new, old = one.pi[ids], one.values[ids]
    errors = [
        max((p - returns[token]) ** 2, (min(max(p, v - 0.3), v + 0.3) - returns[token]) ** 2)
        for token, p, v in zip(ids, new.tolist(), old.tolist(), strict=True)
    ]
    learned = value_loss(new, old, torch.tensor(returns_T[row.loss_mask_T]), torch.ones(len(ids), dtype=torch.bool),
                         recipe.critic.value_clip) / len(ids)  # fmt: skip
    assert float(learned) == pytest.approx(0.5 * sum(errors) / len(errors))


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_other_estimators_of_verl(rewards: Path, tmp_path: Path, estimator: str) -> None:
    recipe = recipe_of_verl(tmp_path, rewards, estimator, 3)
    one = scored(recipe, batch(SUMS[:2], [ANSWERS, ["#### 2", "#### 2", "no"]]))
    switches = resolve(recipe.objective, recipe.longest_answer)
    scores = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    assert [group.rewards for group in one.groups] == scores

    whole = []
    for rewards_G in scores:
        mean, size = sum(rewards_G) / len(rewards_G), len(rewards_G)
        deviation = (sum((reward - mean) ** 2 for reward in rewards_G) / (size - 1)) ** 0.5
        factor = {"grpo": 1 / (deviation + 1e-6), "rloo": size / (size - 1)}.get(estimator, 1.0)
        whole += [(reward - mean) * factor for reward in rewards_G]
    advantages = {token: a for ids, a in zip(one.answers(), whole, strict=True) for token in ids}
    if estimator == "reinforce_plus_plus_baseline":
        mean = sum(advantages.values()) / len(advantages)
        variance = sum((each - mean) ** 2 for each in advantages.values()) / (len(advantages) - 1)
        advantages = {token: (each - mean) / (variance + 1e-8) ** 0.5 for token, each in advantages.items()}
    row = packed(one, switches)
    loss, gradient = loss_of(one, row, switches)
    expected, expected_gradient = loss_of_verl(one, advantages)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)
