"""Finds the training state of the policy on this rank, at every ZeRO stage. Imports no deepspeed.

stage    fp32 master weights and moments of AdamW
0        the weights themselves and their moments, whole on every rank
1, 2     flat partitions of all weights; `_hp_mapping` says which part of a weight this rank's partition holds
3        flat partitions of sub-groups, in which every weight is sharded evenly
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from olmorl.learner.algorithm.objective import NO_OUTLIERS
from olmorl.learner.trainer import compat
from olmorl.learner.trainer.checkpoint_shards import KINDS, REFERENCE, ParameterPiece, Share, Shares, share_of
from olmorl.learner.trainer.process_group import Ranks
from olmorl.learner.trainer.weight_snapshot import HeldPiece


class TrainingState:
    """A checkpoint holds all that training continues from: weights, moments, buffers, threshold, random state."""

    def __init__(self, engine: Any, model: PreTrainedModel, stage: int, ranks: Ranks, device: torch.device) -> None:
        self._device = device
        self._stage = stage
        self._ranks = ranks
        self._model = model
        self._zero = engine.optimizer
        self._adam: torch.optim.Optimizer = engine.optimizer if stage == 0 else engine.optimizer.optimizer

        self.outlier_threshold = NO_OUTLIERS
        """`LossInputs.outlier_threshold` of the next step, the same on all ranks."""
        self.kl_beta = 0.0
        """Weight of the KL term of the next step, the same on all ranks."""
        self.reference: list[Tensor] | None = None
        """This rank's part of a reference policy that checkpoints hold, in host memory; None: they hold none."""
        self._share = Share(ranks.rank, ranks.world, pinned=device.type == "cuda")
        # A separate thread, so that a disk that hangs delays nothing else.
        self._disk = ThreadPoolExecutor(1, "save")

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy the state of this rank; returns a function that writes the copy to disk."""
        others: dict[str, Tensor] = {}
        if self._ranks.rank == 0:
            others = {f"buffer/{name}": buffer for name, buffer in self._buffers().items()}
            others["objective/outlier_threshold"] = torch.tensor(self.outlier_threshold, dtype=torch.float64)
            others["objective/kl_beta"] = torch.tensor(self.kl_beta, dtype=torch.float64)
        others |= {f"random/{name}": state for name, state in self._random_state().items()}
        self._share.copy(self._pieces_to_write(), others, self._steps)
        return lambda: asyncio.get_running_loop().run_in_executor(self._disk, self._share.write, folder)

    def restore(self, folder: Path) -> None:
        """Load the state of a checkpoint. A rank without a share in it keeps its random state.

        Raises:
            ConfigError: there is no checkpoint, or it is of another model.
            ResourceError: it is damaged.
        """
        shares = Shares(folder, self._ranks.rank, self._ranks.world)
        self._load(shares)
        objective = shares.others("objective/")
        self.outlier_threshold = objective["outlier_threshold"].item()
        if "kl_beta" in objective:
            self.kl_beta = objective["kl_beta"].item()
        random = shares.others("random/", self._ranks.rank)
        if "cpu" in random:
            torch.set_rng_state(random["cpu"])
        if "cuda" in random and self._device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self._device)

    def close(self) -> None:
        """End the thread that writes."""
        self._disk.shutdown(wait=False)

    def masters(self) -> list[HeldPiece]:
        """The master weights that this rank publishes, and on rank 0 the buffers: all ranks have each value once.

        They are views: the next step changes them.
        """
        found = []
        for name, start, holder, offset, numel in self._holders():
            own = slice(0, numel) if self._stage else share_of(numel, self._ranks.rank, self._ranks.world)
            values = holder.detach().view(-1)[offset:][own]
            found.append(HeldPiece(name, start + own.start, values))
        buffers = self._buffers() if self._ranks.rank == 0 else {}
        return found + [HeldPiece(name, 0, buffer.reshape(-1)) for name, buffer in buffers.items()]

    def weights(self) -> list[Tensor]:
        """Copies this rank's part of the weights that the model computes with to host memory, in the model's dtype."""
        return [part.to("cpu", self._model.dtype, copy=True) for part in self._parts()]

    def tensors(self) -> Iterator[Tensor]:
        """The weights of the model as it computes with them, and the master weights and moments of this rank."""
        for weight in self._model.parameters():
            yield weight.data
            yield getattr(weight, "ds_tensor", weight)
        for _, _, holder, *_ in self._holders():
            yield holder.data
            state = self._adam.state.get(holder, {})
            yield from (state[kind] for kind in KINDS[1:] if kind in state)

    @contextmanager
    def with_weights(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the model computes with a copy that `weights` made; training goes on from the present ones.

        All ranks call this together.
        """
        present = [part.to("cpu", copy=True) for part in self._parts()]
        self._compute_with(weights)
        try:
            yield
        finally:
            self._compute_with(present)

    @torch.no_grad()
    def _compute_with(self, weights: Sequence[Tensor]) -> None:
        if self._stage == 3:
            self._zero.checkpoint_event_prologue()
        for part, values in zip(self._parts(), weights, strict=True):
            part.copy_(values)
        self._write_back()

    def _parts(self) -> list[Tensor]:
        """Views of the master weights that this rank holds."""
        return [holder.detach().view(-1)[offset : offset + numel] for _, _, holder, offset, numel in self._holders()]

    def _random_state(self) -> dict[str, Tensor]:
        cuda = {"cuda": torch.cuda.get_rng_state(self._device)} if self._device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state(), **cuda}

    def _pieces_to_write(self) -> list[ParameterPiece]:
        """The pieces that this rank writes. All ranks together write each parameter once."""
        if self._stage:
            return list(self._pieces())
        return [piece.part(self._ranks.rank, self._ranks.world) for piece in self._pieces()]

    def _buffers(self) -> dict[str, Tensor]:
        """The model's saved tensors that are not parameters. They are the same on every rank."""
        saved = self._model.state_dict().keys()
        return {name: buffer for name, buffer in self._model.named_buffers() if name in saved}

    @property
    def _steps(self) -> float:
        """Optimizer steps taken."""
        return max((float(state["step"]) for state in self._adam.state.values()), default=0.0)

    @torch.no_grad()
    def _load(self, shares: Shares) -> None:
        """Load the state of a checkpoint with any layout. All ranks call this together.

        Raises:
            ConfigError: the checkpoint is of another model.
        """
        named = self._trained()
        shares.refuse_other_model({name: getattr(weight, "ds_numel", weight.numel()) for name, weight in named})
        if self._stage == 3:
            self._zero.checkpoint_event_prologue()
        has_reference = shares.has(REFERENCE)  # an earlier start may have refreshed none
        for piece in self._pieces():
            for kind, tensor in piece.tensors.items():
                if kind != REFERENCE or has_reference:
                    tensor.copy_(shares.read(kind, piece.name, piece.start, piece.start + piece.numel))
        for state in self._adam.state.values():
            state["step"].fill_(shares.steps)
        saved = shares.others("buffer/")
        for name, buffer in self._buffers().items():
            buffer.copy_(saved[name])
        self._write_back()

    def _trained(self) -> list[tuple[str, Tensor]]:
        """The weights that the optimizer changes."""
        return [(name, weight) for name, weight in self._model.named_parameters() if weight.requires_grad]

    def _pieces(self) -> Iterator[ParameterPiece]:
        for number, held in enumerate(self._holders()):
            piece = self._piece(*held)
            if self.reference is not None:
                piece = piece._replace(tensors={**piece.tensors, REFERENCE: self.reference[number]})
            yield piece

    def _holders(self) -> Iterator[tuple[str, int, Tensor, int, int]]:
        """Yields the name, start, tensor that AdamW updates, offset there and number of values of each piece."""
        for name, weight in self._trained():
            if self._stage == 0:
                yield name, 0, weight, 0, weight.numel()
            elif part := compat.held(self._zero, weight, self._stage, self._ranks.rank):
                yield name, *part

    def _piece(self, name: str, start: int, holder: Tensor, offset: int, numel: int) -> ParameterPiece:
        state = self._adam.state[holder]
        if not state:
            # AdamW makes the same tensors at its first step.
            state["step"] = torch.zeros((), device=holder.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(holder), torch.zeros_like(holder)
        tensors = (holder, state["exp_avg"], state["exp_avg_sq"])
        flats = [tensor.detach().view(-1)[offset : offset + numel] for tensor in tensors]
        return ParameterPiece(name, start, dict(zip(KINDS, flats, strict=True)))

    def _write_back(self) -> None:
        """Copy the master weights to the weights that the model computes with."""
        if self._stage:
            compat.write_back(self._zero, self._stage)
