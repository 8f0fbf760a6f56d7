"""KL rewards and critics: by hand, and in the trainer against plain PyTorch on several layouts of rows and ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from olmorl.config import Objective
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import RowArrays
from olmorl.learner.trainer.critic import explained, value_loss
from olmorl.learner.trainer.token_credit import credit, gae, next_beta, to_go
from tests.learner.trainer.test_deepspeed_trainer import TEMPERATURE, sample_logprobs

Results = dict[str, list[dict[str, Any]]]
BETA, TARGET = 200.0, 1e-6
LEARNER = {"zero_stage": 2, "learning_rate": 1e-4, "max_grad_norm": 0.5, "minibatches": 2}
PPO = {"preset": "ppo", "gamma": 0.9, "lam": 0.8}
CRITIC = {"learning_rate": 1e-4, "value_clip": 0.01}
OBJECTIVE = {"preset": "reinforce_pp", "kl_beta": BETA, "kl_in": "reward", "kl_target": TARGET}


def row(ids: list[int], mask: list[int], advantages: list[float]) -> RowArrays:
    size = len(ids)
    return RowArrays(
        token_ids_T=np.zeros(size, np.int32),
        position_ids_T=np.zeros(size, np.int32),
        sequence_ids_T=np.array(ids, np.int32),
        loss_mask_T=np.array(mask, bool),
        behaviour_logprobs_T=np.zeros(size, np.float32),
        advantages_T=np.array(advantages, np.float32),
        lags_T=np.zeros(size, np.int32),
        reference_logprobs_T=np.zeros(size, np.float32),
    )


def summed(values: Any) -> list[float]:
    return [float(value) for value in values]


def test_a_token_answers_for_its_divergence_and_that_of_the_later_tokens_of_its_answer() -> None:
    kl_T = np.array([0.0, 1.0, 2.0, 0.0, 4.0, 8.0, 0.0])
    assert to_go(kl_T, np.array([0, 0, 0, 1, 1, 1, -1])).tolist() == [3, 3, 2, 12, 12, 8, 0]
    assert to_go(kl_T, np.zeros(7, np.int32)).tolist() == [15, 15, 14, 12, 12, 8, 0]


@pytest.mark.parametrize(("kl", "expected"), [(0.1, 0.5), (0.11, 0.5 * 1.01), (9.0, 0.5 * 1.02), (0.0, 0.5 * 0.98)])
def test_the_weight_rises_with_the_divergence_by_at_most_a_fifth_of_the_horizon(kl: float, expected: float) -> None:
    assert next_beta(0.5, kl, target=0.1, answers=1000) == pytest.approx(expected)


def test_advantages_and_weight_by_hand() -> None:
    # Answers of two tokens and of one. Of the first, beta 0.5 times (3, 2); of the second 0.5 times 4.
    rows = [row([0, 0, 0, 1, 1], [0, 1, 1, 0, 1], [0, 1, 1, 0, -1])]
    kl = [np.array([0.0, 1.0, 2.0, 0.0, 4.0])]
    plain = resolve(Objective(kl_beta=0.5, kl_in="reward"), max_tokens=9)
    (made,), returns, beta = credit(rows, kl, [], 0.5, plain, summed)
    assert returns == []
    assert made.advantages_T[made.loss_mask_T].tolist() == [-0.5, 0.0, -3.0]
    assert beta == 0.5
    adaptive = resolve(Objective(kl_beta=0.5, kl_in="reward", kl_target=2.5, advantage="whiten"), max_tokens=9)
    (made,), _, beta = credit(rows, kl, [], 0.5, adaptive, summed)
    # The mean is -7/6 and the variance (4^2 + 7^2 + 11^2) / 36 / 2. The answers' means are 1.5 and 4: 10% above 2.5.
    spread = (186 / 72) ** 0.5
    assert made.advantages_T[made.loss_mask_T].tolist() == pytest.approx([each / 6 / spread for each in (4, 7, -11)])
    assert beta == pytest.approx(0.5 * (1 + 0.1 * 2 / 10_000))


def test_gae_by_hand() -> None:
    # Two answers, of three and of one loss token; a masked token is between the first two. gamma 1/2, lambda 1/2.
    #   t3: 2 - 1 = 1;  t2: 0 + 1/2 * 1 - 3 = -2.5, plus 1/4 of 1 = -2.25;  t0: -0.5 + 1/2 * 3 - 0 = 1, plus 1/4 of t2
    one = row([0, 0, 0, 0, 1], [1, 0, 1, 1, 1], [2, 9, 2, 2, -1])
    cost_T, values_T = np.array([0.5, 9, 0, 0, 0]), np.array([0.0, 9, 3, 1, 4])
    advantages_T, returns_T = gae(one, cost_T, values_T, 0.5, 0.5)
    assert advantages_T.tolist() == [1 - 0.25 * 2.25, 0, -2.25, 1, -5]
    assert returns_T.tolist() == [1 - 0.25 * 2.25, 0, 0.75, 2, -1]


def test_rewards_that_come_with_tokens_enter_the_estimate_there() -> None:
    # Rewards of 1, of 2 with a masked token, and of 4: the sums to come are 7, 6, 4. The masked one goes to the token
    # before it. gamma 1/2, lambda 1:   t2: 4 - 1 = 3;   t0: 1 + 2 + 1/2 * 1 - 0 = 3.5, plus 1/2 of t2
    one = row([0, 0, 0], [1, 0, 1], [7, 6, 4])
    advantages_T, returns_T = gae(one, np.zeros(3), np.array([0.0, 9, 1]), 0.5, 1.0)
    assert advantages_T.tolist() == [5.0, 0, 3.0]
    assert returns_T.tolist() == [5.0, 0, 4.0]


def test_with_lambda_1_and_values_of_0_an_advantage_is_the_reward_to_come() -> None:
    one = row([0, 0, 1, 1], [1, 1, 1, 1], [3, 3, -1, -1])
    advantages_T, returns_T = gae(one, np.array([0.25, 0.5, 0, 0]), np.zeros(4), 1.0, 1.0)
    assert advantages_T.tolist() == returns_T.tolist() == [2.25, 2.5, -1, -1]


def test_the_advantages_of_a_critic_are_whitened_and_its_returns_are_not() -> None:
    rows = [row([0, 0, 1, 1], [1, 1, 1, 1], [3, 3, -1, -1])]
    switches = resolve(Objective(preset="ppo"), max_tokens=9)
    (made,), (returns_T,), _ = credit(rows, [], [np.zeros(4)], 0.0, switches, summed)
    assert made.advantages_T.tolist() == pytest.approx([2 / (16 / 3) ** 0.5] * 2 + [-2 / (16 / 3) ** 0.5] * 2)
    assert returns_T.tolist() == [3, 3, -1, -1]


def test_the_value_loss_takes_the_larger_of_both_errors() -> None:
    # Clipped at 0.5 from the old values of 0: errors (1 - 2)^2 < (0.5 - 2)^2; (1 - 0.2)^2 > 0.3^2; the last is masked.
    values_T = torch.tensor([1.0, 1.0, 9.0], requires_grad=True)
    mask_T = torch.tensor([True, True, False])
    loss = value_loss(values_T, torch.zeros(3), torch.tensor([2.0, 0.2, 0.0]), mask_T, 0.5)
    loss.backward()
    assert loss.item() == pytest.approx((2.25 + 0.64) / 2)
    assert values_T.grad is not None and values_T.grad.tolist() == pytest.approx([0, 0.8, 0])


def test_the_share_of_the_variance_that_values_explain() -> None:
    returns = np.array([1.0, 3.0, 5.0])
    assert explained(returns + 7, returns, summed) == pytest.approx(1), "an offset is no variance"
    assert explained(np.zeros(3), returns, summed) == pytest.approx(0)
    assert explained(np.array([1.0, 2.0, 3.0]), returns, summed) == pytest.approx(0.75)
    assert explained(np.zeros(2), np.array([0.1, 0.1]), summed) == 0.0


@pytest.fixture(scope="module")
def results(run_ranks: Callable[[int, Any], Results], tiny_models: dict[str, str]) -> Results:
    base = {
        "kind": "steps",
        "model": {"path": tiny_models["olmo3"], "dtype": "float32"},
        "temperature": TEMPERATURE,
        "objective": OBJECTIVE,
    }
    alone = {
        "alone": base | {"learner": LEARNER},
        "fixed": base | {"learner": LEARNER, "objective": OBJECTIVE | {"kl_target": None}},
        "resumed": base | {"learner": LEARNER, "kind": "resume"},
    }
    ppo = base | {"learner": LEARNER | {"epochs": 2}, "objective": PPO, "critic": CRITIC}
    alone |= {
        "critic": ppo,
        "critic resumed": ppo | {"kind": "resume"},
        "warm-up": ppo | {"critic": CRITIC | {"warmup_steps": 3}},
    }
    alone["critic diverged"] = ppo | {"kind": "diverged"}
    turns = ppo | {"learner": ppo["learner"] | {"offload_critic": True}}
    alone |= {
        "critic in turns": turns,
        "critic in turns, zero-0": turns | {"learner": turns["learner"] | {"zero_stage": 0}},
        "critic in turns, resumed": turns | {"kind": "resume"},
    }
    pair = {
        "critic, zero-3": ppo | {"learner": ppo["learner"] | {"zero_stage": 3}},
        "critic in turns, zero-3": turns | {"learner": turns["learner"] | {"zero_stage": 3}},
        "critic, shared rows": ppo | {"learner": ppo["learner"] | {"sequence_parallel": 2}},
        "zero-3": base | {"learner": LEARNER | {"zero_stage": 3}},
        "shared rows": base | {"learner": LEARNER | {"sequence_parallel": 2}},
    }
    return run_ranks(1, alone) | run_ranks(2, pair)


def plain_loop(
    folder: str, groups: dict[int, list[list[Any]]], beta: float
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The steps of REINFORCE++ with a KL reward, sample by sample; returns the weights and the weight of each step."""
    model, reference = (AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager") for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    betas = []
    for step in (1, 2, 3):
        betas.append(beta)
        batches = [[*chain.from_iterable(groups[step][m::2])] for m in range(2)]
        olds, of_tokens, kls = {}, {}, []
        for one in chain.from_iterable(batches):
            with torch.no_grad():
                old, ref = (sample_logprobs(each, one, TEMPERATURE) for each in (model, reference))
            kl = [float(a - b) if kept else 0.0 for a, b, kept in zip(old, ref, one.loss_mask, strict=True)]
            olds[id(one)] = old
            of_tokens[id(one)] = [one.advantage - beta * sum(kl[t:]) for t in range(len(kl))]
            if one.loss_mask.any():
                kls.append(sum(kl) / int(one.loss_mask.sum()))
        every = [
            credit
            for one in chain.from_iterable(batches)
            for credit, kept in zip(of_tokens[id(one)], one.loss_mask, strict=True)
            if kept
        ]
        spread = (variance(every) + 1e-8) ** 0.5
        error = min(max(fmean(kls) / TARGET - 1, -0.2), 0.2)
        beta *= 1 + error * len(kls) / 10_000
        for batch in batches:
            optimizer.zero_grad()
            num_tokens = sum(int(one.loss_mask.sum()) for one in batch)
            for one in batch:
                ratio = (sample_logprobs(model, one, TEMPERATURE) - olds[id(one)]).exp()
                advantage = torch.tensor([(credit - fmean(every)) / spread for credit in of_tokens[id(one)]])
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                (-gain[torch.tensor(one.loss_mask)].sum() / num_tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return dict(model.named_parameters()), betas


def largest_difference(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return max((some[key] - weight).abs().max().item() for key, weight in others.items())


@pytest.mark.parametrize("name", ["alone", "zero-3", "shared rows"])
def test_steps_equal_a_plain_loop(results: Results, tiny_models: dict[str, str], name: str) -> None:
    expected, betas = plain_loop(tiny_models["olmo3"], results["alone"][0]["groups"], BETA)
    assert betas[0] == BETA and betas[2] != betas[1]
    for rank in results[name]:
        assert [values["kl_beta"] for values in rank["values"]] == pytest.approx(betas, rel=1e-9)
    without, _ = plain_loop(tiny_models["olmo3"], results["alone"][0]["groups"], 0.0)
    assert largest_difference(results[name][0]["weights"], expected) <= 3e-6
    assert largest_difference(results[name][0]["weights"], without) > 3e-5
    fixed = results["fixed"][0]
    assert [values["kl_beta"] for values in fixed["values"]] == [BETA] * 3


def test_a_checkpoint_keeps_the_weight(results: Results) -> None:
    straight, resumed = results["resumed"][0]["values"]
    assert straight[0]["kl_beta"] != BETA
    assert [values["kl_beta"] for values in resumed] == [values["kl_beta"] for values in straight]


class ValueModel(torch.nn.Module):
    """The layers of a model, and a head of zeros."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.layers = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").base_model
        self.head = torch.nn.Linear(self.layers.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.head.weight)

    def forward(self, one: Any) -> torch.Tensor:
        """The value before each token of the completion."""
        tokens = torch.tensor([*one.prompt_ids, *one.completion_ids]).long()
        states = self.layers(tokens[None]).last_hidden_state[0, len(one.prompt_ids) - 1 : -1]
        return self.head(states)[:, 0]


def ppo_loop(folder: str, groups: dict[int, list[list[Any]]]) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Three steps of PPO with a critic, sample by sample; returns the policy and the critic's losses."""
    policy = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    critic = ValueModel(folder)
    optimizers = [
        torch.optim.AdamW(each.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
        for each in (policy, critic)
    ]
    losses = []
    for step in (1, 2, 3):
        batches = [[*chain.from_iterable(groups[step][m::2])] for m in range(2)]
        known: dict[int, tuple[torch.Tensor, torch.Tensor, list[float], list[float]]] = {}
        for one in chain.from_iterable(batches):
            with torch.no_grad():
                old, old_values = sample_logprobs(policy, one, TEMPERATURE), critic(one)
            kept = np.flatnonzero(one.loss_mask).tolist()
            after, next_value, advantages, returns = 0.0, 0.0, [0.0] * len(old), [0.0] * len(old)
            for t in reversed(kept):
                value = float(old_values[t])
                after = (one.advantage if t == kept[-1] else 0.0) + 0.9 * next_value - value + 0.9 * 0.8 * after
                next_value, advantages[t], returns[t] = value, after, after + value
            known[id(one)] = old, old_values, advantages, returns
        every = [
            advantage
            for one in chain.from_iterable(batches)
            for advantage, kept in zip(known[id(one)][2], one.loss_mask, strict=True)
            if kept
        ]
        mean, spread = fmean(every), (variance(every) + 1e-8) ** 0.5
        of_step = []
        for batch in [*batches, *batches]:
            for optimizer in optimizers:
                optimizer.zero_grad()
            num_tokens, loss = sum(int(one.loss_mask.sum()) for one in batch), torch.zeros(())
            for one in batch:
                old, old_values, advantages, returns = known[id(one)]
                mask = torch.tensor(one.loss_mask)
                ratio = (sample_logprobs(policy, one, TEMPERATURE) - old).exp()
                advantage = (torch.tensor(advantages) - mean) / spread
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                (-gain[mask].sum() / num_tokens).backward()
                values, target = critic(one), torch.tensor(returns)
                clipped = old_values + (values - old_values).clamp(-0.01, 0.01)
                error = torch.maximum((values - target) ** 2, (clipped - target) ** 2)
                loss = loss + error[mask].sum() / 2 / num_tokens
            loss.backward()
            of_step.append(loss.item())
            for model, optimizer in zip((policy, critic), optimizers, strict=True):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        losses.append(fmean(of_step))
    return dict(policy.named_parameters()), losses


IN_TURNS = ["critic in turns", "critic in turns, zero-0", "critic in turns, zero-3"]


@pytest.mark.parametrize("name", ["critic", "critic, zero-3", "critic, shared rows", *IN_TURNS])
def test_ppo_with_a_critic_equals_a_plain_loop(results: Results, tiny_models: dict[str, str], name: str) -> None:
    expected, losses = ppo_loop(tiny_models["olmo3"], results["critic"][0]["groups"])
    for rank in results[name]:
        assert [values["critic_loss"] for values in rank["values"]] == pytest.approx(losses, rel=1e-3)
        assert all(values["critic_grad_norm"] > 0 for values in rank["values"])
        assert [values["value_explained_fraction"] for values in rank["values"]] == pytest.approx(
            [values["value_explained_fraction"] for values in results["critic"][0]["values"]], abs=1e-4
        )
    assert largest_difference(results[name][0]["weights"], expected) <= 3e-6


def test_the_policy_stays_while_the_critic_warms_up(results: Results, tiny_models: dict[str, str]) -> None:
    start = dict(AutoModelForCausalLM.from_pretrained(tiny_models["olmo3"]).named_parameters())
    first, *_, last = results["warm-up"][0]["values"]
    assert largest_difference(results["warm-up"][0]["weights"], start) == 0
    assert first["lr"] == last["lr"] == 0 and last["critic_loss"] != first["critic_loss"]
    assert largest_difference(results["critic"][0]["weights"], start) > 0


@pytest.mark.parametrize("name", ["critic resumed", "critic in turns, resumed"])
def test_a_checkpoint_keeps_the_critic(results: Results, name: str) -> None:
    straight, resumed = results[name][0]["values"]
    for before, after in zip(straight, resumed, strict=True):
        assert after == pytest.approx(before, rel=1e-6)
    assert straight[0]["critic_loss"] != straight[1]["critic_loss"]


def test_critic_and_policy_in_turns_compute_the_same_bits(results: Results) -> None:
    beside, in_turns = results["critic"][0], results["critic in turns"][0]
    assert beside["values"] == in_turns["values"]
    assert all(torch.equal(in_turns["weights"][key], weight) for key, weight in beside["weights"].items())


def test_a_critic_that_diverges_is_named(results: Results) -> None:
    assert "the norm of the critic's gradient is" in results["critic diverged"][0]["error"]
