"""A rank's shard of the weights in host memory: its pieces of the parameters, named as the model's checkpoint does.

transformers may compute with other tensors than a checkpoint has, such as all experts of a layer in one. What it does
to them is found once, on numbered rows in place of values; then every rank knows where its pieces belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from olmorl.errors import ModelError
from olmorl.ports import NamedBuffer

_ALIGNMENT: Final = 64
_ROW_BITS: Final = 40
"""A row's number has the number of its tensor above these bits."""


class HeldPiece(NamedTuple):
    """A part of one tensor of the model that this rank holds."""

    name: str
    start: int
    """Where the piece begins in the flattened tensor."""
    values: Tensor
    """Flat, of any dtype and device."""


class ModelTensor(NamedTuple):
    """A tensor that the model computes with, whole."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Run(NamedTuple):
    """A range of a flattened tensor of the model."""

    name: str
    start: int
    numel: int


class CheckpointTensor(NamedTuple):
    """A tensor of the model's checkpoint, made of ranges of the model's tensors one after the other."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    runs: tuple[Run, ...]


class WeightSnapshot:
    """Copies the pieces of this rank into the same memory each time. The copy is valid until the next one.

    Raises:
        ModelError: the order of a weight in the checkpoint is not that of the model.
    """

    def __init__(self, model: PreTrainedModel, *, pinned: bool, published: Mapping[str, str] | None = None) -> None:
        """`published`: the weights to copy, and the names that they get. Default: all, as in the checkpoint."""
        self._model_tensors = model_tensors(model)
        if published is None:
            self._tensors = checkpoint_tensors(model, self._model_tensors)
        else:
            self._model_tensors = {name: self._model_tensors[name] for name in published}
            self._tensors = [
                CheckpointTensor(published[name], *one, (Run(name, 0, prod(one.shape)),))
                for name, one in self._model_tensors.items()
            ]
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def copy(self, held: Sequence[HeldPiece]) -> list[NamedBuffer]:
        """Copy the pieces, rounded to the dtypes of the model."""
        held = [piece for piece in held if piece.name in self._model_tensors]
        dtypes = [self._model_tensors[piece.name].dtype for piece in held]
        ends = [0]
        for piece, dtype in zip(held, dtypes, strict=True):
            size = piece.values.numel() * dtype.itemsize
            ends.append(ends[-1] + size + -size % _ALIGNMENT)
        if self._memory.numel() != ends[-1]:
            self._memory = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self._pinned)
        copies: dict[str, tuple[int, Tensor]] = {}
        for piece, dtype, (start, _) in zip(held, dtypes, pairwise(ends), strict=True):
            copy = self._memory[start : start + piece.values.numel() * dtype.itemsize].view(dtype)
            # A GPU rounds before it sends.
            copy.copy_(piece.values.to(dtype) if piece.values.is_cuda else piece.values, non_blocking=self._pinned)
            copies[piece.name] = piece.start, copy
        if self._pinned:
            torch.cuda.synchronize()
        return [buffer for tensor in self._tensors for buffer in _buffers(tensor, copies)]


def model_tensors(model: PreTrainedModel) -> dict[str, ModelTensor]:
    """The weights and saved buffers of the model, whole; tied weights under their first name."""
    found: dict[str, ModelTensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = ModelTensor(tuple(getattr(tensor, "ds_shape", tensor.shape)), tensor.dtype)
    return found


def checkpoint_tensors(model: PreTrainedModel, tensors: Mapping[str, ModelTensor]) -> list[CheckpointTensor]:
    """The tensors of the model's checkpoint, and of which ranges of the model's `tensors` they are made.

    Raises:
        ModelError: the values of a weight have another order in the checkpoint.
    """
    names = list(tensors)
    whole = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in tensors.items()}
    numbers = {name: _numbered_rows(number, tensors[name].shape) for number, name in enumerate(names)}
    rows = revert_weight_conversion(model, numbers)
    found = []
    for name, tensor in revert_weight_conversion(model, whole).items():
        runs = tuple(_runs(rows[name].flatten().numpy(), names, tensors))
        if sum(run.numel for run in runs) != tensor.numel():
            raise ModelError(
                f"a {type(model).__name__} computes with {name} in another order than its checkpoint has; the learner "
                "cannot publish such weights"
            )
        found.append(CheckpointTensor(name, tuple(tensor.shape), tensor.dtype, runs))
    return found


def _numbered_rows(number: int, shape: Sequence[int]) -> Tensor:
    """Stands for a tensor: the first two values of each row, numbered."""
    first = number << _ROW_BITS
    short = (*shape[:-1], min(2, shape[-1])) if len(shape) > 1 else tuple(shape)
    return torch.arange(first, first + prod(short)).view(short)


def _runs(numbers: np.ndarray, names: Sequence[str], tensors: Mapping[str, ModelTensor]) -> Iterator[Run]:
    """The ranges of numbers that follow each other; nothing of a range that is not whole rows."""
    edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(edges):
        if begin == end:
            continue
        name = names[int(numbers[begin]) >> _ROW_BITS]
        shape, start = tensors[name].shape, int(numbers[begin]) & ((1 << _ROW_BITS) - 1)
        short, row = (min(2, shape[-1]), shape[-1]) if len(shape) > 1 else (1, 1)
        if start % short == (end - begin) % short == 0:
            yield Run(name, start // short * row, (end - begin) // short * row)


def _buffers(tensor: CheckpointTensor, copies: Mapping[str, tuple[int, Tensor]]) -> Iterator[NamedBuffer]:
    """The pieces of a tensor of the checkpoint that were copied; an empty one if there are none."""
    width, before, found = tensor.dtype.itemsize, 0, False
    dtype, total = str(tensor.dtype).removeprefix("torch."), prod(tensor.shape) * tensor.dtype.itemsize
    for run in tensor.runs:
        first, copy = copies.get(run.name, (0, torch.empty(0)))
        low, high = max(run.start, first), min(run.start + run.numel, first + copy.numel())
        if low < high:
            found = True
            data = copy[low - first : high - first].view(torch.uint8).numpy().data
            start = (before + low - run.start) * width
            yield NamedBuffer(tensor.name, dtype, tensor.shape, data, start, total - start - data.nbytes)
        before += run.numel
    if not found:
        yield NamedBuffer(tensor.name, dtype, tensor.shape, memoryview(b""), 0, total)
