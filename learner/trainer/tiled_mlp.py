"""Computes each MLP in tiles along the sequence, so that the wide inner tensors exist for one tile at a time.

The backward pass computes a tile again. The number of tiles is the same for every row: under ZeRO-3 all ranks must
gather the weights of the MLP equally often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from olmorl.errors import ModelError

_NAME = "mlp"


def tile_mlps(model: PreTrainedModel, num_tiles: int) -> None:
    """Let every MLP of `model` run in `num_tiles` tiles. The result is the same up to rounding.

    Raises:
        ModelError: the layers of the model have no part that is called `mlp`.
    """
    mlps = [module for name, module in model.named_modules() if name.rpartition(".")[2] == _NAME]
    if not mlps:
        raise ModelError(f"{type(model).__name__} has no layers with an `{_NAME}`: set learner.mlp_tiles = 1")
    for mlp in mlps:
        mlp.forward = partial(_in_tiles, mlp.forward, num_tiles)


def _in_tiles(forward: Callable[[Tensor], Tensor], num_tiles: int, hidden_1TE: Tensor) -> Tensor:
    tiles = torch.tensor_split(hidden_1TE, num_tiles, dim=-2)
    outputs: list[Tensor] = [checkpoint(forward, tile, use_reentrant=False, preserve_rng_state=False) for tile in tiles]
    return torch.cat(outputs, dim=-2)
