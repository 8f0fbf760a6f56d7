"""The critic of PPO (J. Schulman et al., arXiv 1707.06347): it estimates the reward that is still to come.

Shape letters: T tokens of a packed row, P those that are predicted, E hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from olmorl import config
from olmorl.errors import Diverged
from olmorl.learner.batching.packing import RowArrays
from olmorl.learner.trainer.optimizer_state import TrainingState
from olmorl.learner.trainer.policy import LogprobHead, PackedPolicy, policy_row
from olmorl.learner.trainer.token_credit import Floats, ScoredRow, SumOfRanks
from olmorl.learner.trainer.trained_module import TrainedModule
from olmorl.learner.trainer.turns import Turns

FOLDER: Final = "critic"
"""Its shares of a checkpoint, in the folder of those of the policy."""
EQUAL: Final = 1e-12
"""Returns whose variance is a smaller share of their mean square are equal."""


class ValueHead(LogprobHead):
    """The value of the state before each predicted token, in place of its log-probability."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__(head, chunk=1, fp32_logits=False)

    def forward(self, hidden_PE: Tensor, *_: Any) -> tuple[Tensor, None]:
        return nn.functional.linear(hidden_PE.to(self.weight.dtype), self.weight)[:, 0].float(), None


def replace_head(model: PreTrainedModel) -> None:
    """Give the model one output of value 0 in place of its vocabulary."""
    text = model.config.get_text_config()
    head = nn.Linear(text.hidden_size, 1, bias=False, dtype=model.dtype, device=model.device)
    nn.init.zeros_(head.weight)
    model.set_output_embeddings(head)
    text.tie_word_embeddings = model.config.tie_word_embeddings = False


def value_loss(values_T: Tensor, old_T: Tensor, returns_T: Tensor, mask_T: Tensor, clip: float) -> Tensor:
    """The sum over loss tokens of half the squared error, the larger of the plain and of the clipped value's."""
    clipped_T = old_T + (values_T - old_T).clamp(-clip, clip)
    error_T = torch.maximum((values_T - returns_T).square(), (clipped_T - returns_T).square())
    return torch.where(mask_T, error_T, 0.0).sum() / 2


class Critic:
    """Learns the returns of the same rows as the policy. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        trained: TrainedModule,
        state: TrainingState,
        settings: config.Critic,
        device: torch.device,
        world: int,
        turns: Turns | None = None,
    ) -> None:
        """With `turns` it is on the device in those of the second module only."""
        self._trained, self._state, self._settings = trained, state, settings
        self._device, self._world = device, world
        self._turn: Callable[[], AbstractContextManager[None]] = turns.of_second if turns else nullcontext
        self._loss = 0.0
        self._grad_norms: list[float] = []

    def values(self, rows: Sequence[RowArrays]) -> list[Floats]:
        """values_T of each row; 0 at tokens that are not predicted."""
        with self._turn(), torch.no_grad():
            return [self._trained.engine(policy_row(row, self._device))[0].double().cpu().numpy() for row in rows]

    def train(self, minibatches: Sequence[tuple[Sequence[ScoredRow], float]]) -> tuple[float, float]:
        """Take an optimizer step for the rows of each minibatch, which come with its loss tokens.

        Returns:
            Seconds of all passes, and of all optimizer steps.

        Raises:
            Diverged: a gradient is not finite.
        """
        passes_s = steps_s = 0.0
        with self._turn():
            for rows, loss_tokens in minibatches:
                began_at = time.perf_counter()
                for row in rows:
                    self._backward(row, loss_tokens)
                passed_at = time.perf_counter()
                self._update()
                passes_s += passed_at - began_at
                steps_s += time.perf_counter() - passed_at
        return passes_s, steps_s

    def _backward(self, scored: ScoredRow, loss_tokens: float) -> None:
        values_T, _ = self._trained.engine(policy_row(scored.row, self._device))
        old_T, returns_T, mask_T = (
            torch.as_tensor(each, device=self._device)
            for each in (scored.values_T, scored.returns_T, scored.row.loss_mask_T)
        )
        loss = value_loss(values_T, old_T.to(values_T), returns_T.to(values_T), mask_T, self._settings.value_clip)
        loss = loss / max(loss_tokens, 1.0)
        # DeepSpeed takes the mean over ranks, but the loss is a sum.
        self._trained.engine.backward(loss * self._world)
        self._loss += float(loss.detach())

    def _update(self) -> None:
        norm = self._trained.update(self._settings.learning_rate)
        if not isfinite(norm):
            raise Diverged(
                f"the norm of the critic's gradient is {norm}; nothing of the step was published. Go back to an "
                "earlier checkpoint (--resume --from-step N) with a lower critic.learning_rate"
            )
        self._grad_norms.append(norm)

    def step_metrics(self, rows: Sequence[ScoredRow], sum_of_ranks: SumOfRanks) -> dict[str, float]:
        """The metrics of a step, over all ranks: the loss of an update, its norm, and what the values explained."""
        norms, loss = self._grad_norms, sum_of_ranks([self._loss])[0]
        self._grad_norms, self._loss = [], 0.0
        kept = [row.row.loss_mask_T for row in rows]
        values, returns = (
            np.concatenate([np.asarray(row[column])[mask] for row, mask in zip(rows, kept, strict=True)])
            for column in (3, 4)
        )
        return {
            "critic_loss": loss / len(norms),
            "critic_grad_norm": sum(norms) / len(norms),
            "value_explained_fraction": explained(values, returns, sum_of_ranks),
        }

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy the state; returns a function that writes the copy to disk."""
        with self._turn():
            return self._state.save(folder / FOLDER)

    def restore(self, folder: Path) -> None:
        """Load the state of a checkpoint. Raises as `TrainingState.restore` does."""
        with self._turn():
            self._state.restore(folder / FOLDER)

    def close(self) -> None:
        """End the thread that writes, and leave DeepSpeed."""
        self._state.close()
        self._trained.engine.destroy()


def explained(values: Floats, returns: Floats, sum_of_ranks: SumOfRanks) -> float:
    """The share of the returns' variance that the values explain, over the tokens of all ranks; 0 without any."""
    errors = returns - values
    sums = [returns.size, returns.sum(), returns @ returns, errors.sum(), errors @ errors]
    number, total, squares, error, square_errors = sum_of_ranks([float(each) for each in sums])
    variance, left = squares - total**2 / max(number, 1), square_errors - error**2 / max(number, 1)
    return 1 - left / variance if variance > EQUAL * squares else 0.0


def value_policy(policy: PackedPolicy) -> PackedPolicy:
    """The policy whose model has had its head replaced, with values in place of log-probabilities."""
    policy.head = ValueHead(policy.model.get_output_embeddings())
    return policy
