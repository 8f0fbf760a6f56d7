"""What the learner needs of DeepSpeed, torch and transformers that has no documented door.

`test_compat.py` fails by name where one of them changed. Each entry says why it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

# torch documents these classes, but only in modules with a leading underscore.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SHARED_MEMORY_REDUCE: Final = "deepspeed_shm_comm"
__all__ = [
    "SHARED_MEMORY_REDUCE",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensorMode",
    "Held",
    "TorchDispatchMode",
    "UnsupportedFakeTensorException",
    "all_to_all",
    "attention_kernel",
    "compile_in_pieces",
    "held",
    "read_names",
    "set_up_deepspeed",
    "storage_key",
    "tree_leaves",
    "write_back",
]


# --- torch and transformers -------------------------------------------------------------------------


def storage_key(storage: torch.UntypedStorage) -> int:
    """Returns a number that only this storage has. A tensor without bytes has no address of its own."""
    key: int = storage._cdata
    return key


def attention_kernel(model: Any) -> str:
    """Returns the attention that transformers chose. It has a documented function to set it, and none to read it."""
    return str(model.config._attn_implementation)


def compile_in_pieces(function: Callable[..., Any], backend: str = "") -> Callable[..., Any]:
    """Returns the function compiled for any number of tokens: a piece before a call that stays outside, and one after.

    `backend` is that of torch.compile. Without the setting, each function on the way to that call has its own pieces.
    """
    torch._dynamo.config.nested_graph_breaks = True
    return torch.compile(function, dynamic=True, backend=backend) if backend else torch.compile(function, dynamic=True)


# --- DeepSpeed --------------------------------------------------------------------------------------


def set_up_deepspeed(deepspeed: ModuleType) -> None:
    """Join DeepSpeed to the process group of torch, with two settings that it has no option for."""
    # Only inference needs this operation, and it compiles C++ at run time and leaves files in /dev/shm.
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_REDUCE] = False
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)
    # DeepSpeed would make a second group of all ranks: memory of each GPU, and torch's own limit of ten minutes.
    deepspeed.utils.groups._WORLD_GROUP = dist.group.WORLD


def read_names(wanted: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """Returns the settings for `DeepSpeedConfig`, and a set that gets the dotted name of each setting that it reads.

    DeepSpeed ignores a setting that it does not know, and has no list of those that it knows.
    """
    read: set[str] = set()
    return _Read(wanted, "", read), read


class _Read(dict[str, Any]):
    """A table that notes which of its values were read."""

    def __init__(self, tree: Mapping[str, Any], prefix: str, read: set[str]) -> None:
        super().__init__({k: _Read(v, f"{prefix}{k}.", read) if isinstance(v, dict) else v for k, v in tree.items()})
        self._prefix, self._read = prefix, read

    def __copy__(self) -> _Read:
        return self

    def __getitem__(self, name: str) -> Any:
        self._read.add(f"{self._prefix}{name}")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if super().__contains__(name) else default

    def keys(self) -> Any:
        """A table that is read as a whole goes to a model of pydantic, which refuses unknown names itself."""
        if self._prefix:
            self._note_all()
        return super().keys()

    def _note_all(self) -> None:
        for name, value in self.items():
            if isinstance(value, _Read) and value:
                value._note_all()
            else:
                self._read.add(f"{self._prefix}{name}")

    def __iter__(self) -> Iterator[str]:
        """Python calls `keys` for `**table` only where this is defined."""
        return super().__iter__()


def all_to_all(group: dist.ProcessGroup | None, states: Tensor, split: int, joined: int) -> Tensor:
    """Returns the exchange of `SequenceGroup.exchange`, with its gradient.

    torch's own with a gradient is deprecated, and DeepSpeed documents only a whole attention layer.
    """
    from deepspeed.sequence.layer import _SeqAllToAll

    exchanged: Tensor = _SeqAllToAll.apply(group, states, split, joined, 0)
    return exchanged


class Held(NamedTuple):
    """A part of a weight that this rank trains."""

    start: int
    """Its first value within the weight."""
    holder: Tensor
    """The tensor that AdamW updates, and in which the part is."""
    offset: int
    numel: int


def held(optimizer: Any, weight: Tensor, stage: int, rank: int) -> Held | None:
    """Returns the part of a weight that this rank holds in fp32 under ZeRO-1 to 3; None if it holds none.

    DeepSpeed's documented functions give the state of ZeRO-1 and 2 only whole, which needs a gather. `masters` and
    checkpoints need views of the shares, at each stage.
    """
    if stage == 3:
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(weight)]
        whole: int = weight.ds_numel  # type: ignore[attr-defined]
        start = min(rank * size, whole)
        return Held(start, optimizer.fp32_partitioned_groups_flat[group], offset, min(size, whole - start))
    if (mapping := weight._hp_mapping) is None:  # type: ignore[attr-defined]
        return None
    flat = optimizer.optimizer.param_groups[mapping.param_group_index]["params"][0]
    place = mapping.get_hp_fragment_address()
    return Held(mapping.lp_fragment_address.start, flat, place.start, place.numel)


def write_back(optimizer: Any, stage: int) -> None:
    """Copy the fp32 weights of ZeRO-1 to 3 to the weights that the model computes with, after a checkpoint was read."""
    if stage == 3:
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.checkpoint_event_epilogue()
    else:
        optimizer.update_lp_params()
