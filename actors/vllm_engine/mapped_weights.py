"""Maps a staged weight file. A thread touches its pages before the engine pauses; another gives them back later."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.messages import Buffer, WeightsReady

_PIECE = 16 << 20
"""So much takes a millisecond, in which no other thread can get memory from the system."""
_MADV_POPULATE_READ = 22
"""A constant of Linux 5.14. An older kernel refuses it, and the pages are touched by the copies."""


class MappedWeights:
    """The bytes of the file with this signature. Private: nobody else sees what is written to them.

    Raises:
        OSError: the file is gone.
        ValueError: it is not the file that was checked.
    """

    def __init__(self, path: Path, signature: str, manifest: WeightsReady) -> None:
        with path.open("rb") as file:
            if (found := file_signature(file.fileno())) != signature:
                raise ValueError(f"{path} is not the file that was checked ({found}, not {signature})")
            self.file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.manifest = manifest
        self._touching: threading.Thread | None = None

    def is_ready(self) -> bool:
        """Whether all pages are in the memory of this process. The first call starts to touch them, in a thread."""
        if self._touching is None:
            self._touching = in_thread(_advise, self.file, _MADV_POPULATE_READ)
        return not self._touching.is_alive()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's weights by their names in its checkpoint, to be loaded at once."""
        return tensors_of(self.manifest.buffers, self.file)

    def release(self) -> None:
        """Give the memory back, in a thread. No tensor of the file is used after this."""
        in_thread(_advise, self.file, mmap.MADV_DONTNEED)


def tensors_of(buffers: Sequence[Buffer], file: mmap.mmap) -> Iterator[tuple[str, torch.Tensor]]:
    """Views into the mapping, without a copy."""
    for buffer in buffers:
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        flat = torch.frombuffer(file, dtype=dtype, count=buffer.num_bytes // dtype.itemsize, offset=buffer.offset)
        yield buffer.name, flat.view(buffer.shape)


def in_thread(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, name="olmorl-weight-pages", daemon=True)
    thread.start()
    return thread


def _advise(file: mmap.mmap, advice: int) -> None:
    """`file.madvise(advice)` in pieces, and other threads go on meanwhile. A refusal of the kernel does no harm."""
    madvise, address = ctypes.CDLL(None).madvise, torch.frombuffer(file, dtype=torch.uint8).data_ptr()
    for start in range(0, len(file), _PIECE):
        size = min(_PIECE, len(file) - start)
        madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(size), ctypes.c_int(advice))
