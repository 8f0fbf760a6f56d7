"""Two trained modules that have the memory of the device in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, UntypedStorage

from olmorl.learner.trainer.compat import storage_key

Tensors = Callable[[], Iterable[Tensor]]
"""Asked for each time: an optimizer makes its own at its first step."""


class Turns:
    """Outside a turn the tensors of the first module are on the device, and inside those of the second."""

    def __init__(self, first: Tensors, second: Tensors, device: torch.device) -> None:
        self._first, self._second = Sleeper(first, device), Sleeper(second, device)
        self._second.sleep()

    @contextmanager
    def of_second(self) -> Iterator[None]:
        """A turn of the second module. Turns are not within each other."""
        self._first.sleep()
        self._second.wake()
        try:
            yield
        finally:
            self._second.sleep()
            self._first.wake()


class Sleeper:
    """While it sleeps, its tensors take no memory of the device. Afterwards all views of them are valid again.

    Their storages stay the same objects, so whoever holds a part of one, as DeepSpeed does, need not know of it.
    """

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        self._tensors, self._device = tensors, device
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._asleep: list[tuple[UntypedStorage, Tensor]] = []
        """The storages, and the parts of the host memory that hold their bytes."""

    def sleep(self) -> None:
        """Copy the tensors to host memory, which is the same each time, and free them."""
        # A file that is mapped takes no memory, and what is offloaded is not on the device.
        found = [tensor.untyped_storage() for tensor in self._tensors() if tensor.device.type == self._device.type]
        storages = {storage_key(each): each for each in found if each.resizable()}.values()
        sizes = [storage.nbytes() for storage in storages]
        if self._memory.numel() != sum(sizes):
            self._memory = torch.empty(0, dtype=torch.uint8)  # the old block goes first
            self._memory = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        self._asleep = list(zip(storages, torch.split(self._memory, sizes), strict=True))
        for storage, part in self._asleep:
            part.copy_(_bytes(storage), non_blocking=True)
        self._settle()
        for storage in storages:
            storage.resize_(0)

    def wake(self) -> None:
        """Bring the tensors back."""
        for storage, part in self._asleep:
            storage.resize_(len(part))
            _bytes(storage).copy_(part, non_blocking=True)
        self._settle()
        self._asleep = []

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
