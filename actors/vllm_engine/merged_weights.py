"""Merges adapters into the model folder's weights while they are loaded. Only the adapters are published.

A version is W + scale * B A, each time from the W of the folder: errors do not add up, and what an engine has does not
depend on the versions that it had before. The engine then computes with plain weights, at the speed of a model without
adapters (benchmarks/adapters.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from olmorl.actors.vllm_engine.mapped_weights import MappedWeights, in_thread

_PAGE: int = 4096


class BaseWeights:
    """The tensors of a model folder, mapped: they take no memory that the system cannot have back."""

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self.tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def touch(self) -> None:
        """Bring the pages into the memory of this process."""
        for tensor in self.tensors.values():
            tensor.view(-1).view(torch.uint8)[::_PAGE].sum()


class MergedWeights(MappedWeights):
    """The weights of the model folder, with the adapters of a staged version added to them."""

    def __init__(self, adapters: MappedWeights, base: BaseWeights, scale: float, device: torch.device) -> None:
        self.manifest, self.file = adapters.manifest, adapters.file
        self._adapters, self._base, self._scale, self._device = adapters, base, scale, device
        self._touching_base = in_thread(base.touch)

    def is_ready(self) -> bool:
        return self._adapters.is_ready() and not self._touching_base.is_alive()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        adapters = dict(self._adapters.tensors())
        for name, weight in self._base.tensors.items():
            stem = name.removesuffix(".weight")
            if (a := adapters.get(f"{stem}.lora_A.weight")) is not None:
                b = adapters[f"{stem}.lora_B.weight"]
                whole, b_fp32, a_fp32 = (each.to(self._device).float() for each in (weight.to(a.dtype), b, a))
                weight = torch.addmm(whole, b_fp32, a_fp32, alpha=self._scale).to(a.dtype)
            yield name, weight

    def release(self) -> None:
        self._adapters.release()
