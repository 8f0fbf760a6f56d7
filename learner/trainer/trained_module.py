"""A module that DeepSpeed trains: one optimizer step for all gradients since the last, at every ZeRO stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from olmorl import config


class TrainedModule:
    """Owns the DeepSpeed engine of a module, and its AdamW."""

    def __init__(self, deepspeed: Any, module: nn.Module, settings: dict[str, Any], learner: config.Learner) -> None:
        """`settings` are those of DeepSpeed."""
        self._stage: int = settings["zero_optimization"]["stage"]
        self._max_grad_norm = learner.max_grad_norm
        self._grad_norm = 0.0
        optimizer = torch.optim.AdamW(
            [weight for weight in module.parameters() if weight.requires_grad],
            lr=learner.learning_rate,
            betas=learner.betas,
            eps=learner.eps,
            weight_decay=learner.weight_decay,
            fused=True,
        )
        if self._stage == 0:
            optimizer.register_step_pre_hook(self._clip)
        self.engine: Any = deepspeed.initialize(
            model=module, optimizer=optimizer, config=settings, dist_init_required=False
        )[0]

    def update(self, rate: float) -> float:
        """Take an optimizer step with the summed gradients; returns their norm before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()
        if self._stage > 0:
            self._grad_norm = float(self.engine.get_global_grad_norm())
        return self._grad_norm

    def _clip(self, *_: Any) -> None:
        """Clip without DeepSpeed: at stage 0 it would not return the norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.engine.module.parameters(), self._max_grad_norm)
        self._grad_norm = float(norm)
