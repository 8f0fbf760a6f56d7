"""The shares of a checkpoint: each rank writes the pieces of parameters that it holds, and any rank can read any piece.

    share_0.safetensors   `master/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`: fp32 pieces of the flattened parameter NAME
                          `reference/NAME`: of the reference policy, in the model's dtype, if training refreshes it
                          `buffer/NAME`, `objective/NAME` (rank 0), `random/cpu`, `random/cuda`
                          metadata: `ranks`, `steps` of the optimizer, `starts` of the pieces, `digest` of all other
                          bytes of the file

Together they hold every parameter once, so a checkpoint does not depend on the number of ranks or the ZeRO stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from olmorl.errors import ConfigError, ResourceError
from olmorl.learner.storage import durable_files

KINDS = ("master", "exp_avg", "exp_avg_sq")
"""The tensors of a parameter's training state."""
REFERENCE = "reference"
"""The weights of a reference policy that training refreshes."""
_ALIGNMENT = 8
_LENGTH_BYTES = 8
"""Bytes before the header, which hold its length."""
_NO_DIGEST = b"0" * 32
_WHAT_TO_DO = "go back to an earlier checkpoint with --resume --from-step N"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class ParameterPiece(NamedTuple):
    """A part of one parameter's training state, as views: writing into its tensors changes the state."""

    name: str
    start: int
    """Where the piece begins in the flattened parameter."""
    tensors: Mapping[str, Tensor]
    """A flat view for each of `KINDS`, and for `REFERENCE` if training refreshes it."""

    @property
    def numel(self) -> int:
        return self.tensors[KINDS[0]].numel()

    def part(self, rank: int, world: int) -> ParameterPiece:
        """The part that `rank` writes of a piece that all ranks hold."""
        part = share_of(self.numel, rank, world)
        return ParameterPiece(
            self.name, self.start + part.start, {kind: tensor[part] for kind, tensor in self.tensors.items()}
        )


def share_of(numel: int, rank: int, world: int) -> slice:
    """The values that `rank` writes of those that all ranks hold."""
    size = -(-numel // world)
    return slice(min(rank * size, numel), min((rank + 1) * size, numel))


def file_of(folder: Path, rank: int) -> Path:
    """The file of one rank's share."""
    return folder / f"share_{rank}.safetensors"


class Share:
    """A copy of this rank's state in host memory, so that training continues while it is written. Reuses its memory."""

    def __init__(self, rank: int, world: int, *, pinned: bool) -> None:
        self._rank = rank
        self._world = world
        self._pinned = pinned
        self._header = b""
        self._memory = torch.empty(0, dtype=torch.uint8)

    def copy(self, pieces: Sequence[ParameterPiece], others: Mapping[str, Tensor], steps: float) -> None:
        """Copy the current state. Do not call while the previous copy is being written."""
        tensors = {f"{kind}/{piece.name}": piece.tensors[kind] for kind in KINDS for piece in pieces} | dict(others)
        tensors |= {f"{REFERENCE}/{each.name}": each.tensors[REFERENCE] for each in pieces if REFERENCE in each.tensors}
        starts = {piece.name: piece.start for piece in pieces}
        metadata = {"ranks": str(self._world), "steps": str(steps), "starts": json.dumps(starts)}
        self._header, offsets = _header(tensors, {"digest": _NO_DIGEST.decode(), **metadata})
        if self._memory.numel() != offsets[-1]:
            self._memory = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=self._pinned)
        for tensor, (start, end) in zip(tensors.values(), pairwise(offsets), strict=True):
            flat = tensor.detach().reshape(-1).view(torch.uint8)
            self._memory[start:end].copy_(flat, non_blocking=self._pinned)
        if self._pinned:
            torch.cuda.synchronize()

    def write(self, folder: Path) -> None:
        """Write the copy to disk, complete or not at all. Blocks. Raises ResourceError when the disk refuses it."""
        data = self._memory.numpy().data
        header = self._header.replace(_NO_DIGEST, _digest(self._header, data), 1)
        durable_files.write_whole(file_of(folder, self._rank), [header, data])


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, list[int]]:
    """The header of a safetensors file, and the offsets of the tensors in its data, with the end of the last one."""
    offsets, entries = [0], {}
    for name, tensor in tensors.items():
        offsets.append(offsets[-1] + tensor.numel() * tensor.element_size())
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets[-2:],
        }
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, offsets


def _digest(header: bytes, data: memoryview) -> bytes:
    """The digest of a share, computed with zeros in the place of the digest."""
    digest = xxhash.xxh3_128(header)
    digest.update(data)
    return digest.hexdigest().encode()


class _Part(NamedTuple):
    """A range of a parameter, and the rank whose share holds it."""

    start: int
    end: int
    rank: int


class Shares:
    """All shares of one checkpoint, written by any number of ranks."""

    def __init__(self, folder: Path, reader: int = 0, readers: int = 1) -> None:
        """Open them.

        Args:
            reader: this one of `readers` that open them at the same time. Each checks a part of the files for damage.

        Raises:
            ConfigError: there is no checkpoint of a learner.
            ResourceError: a share is missing or damaged.
        """
        self._folder = folder
        self._files = [self._open(0)]
        if reader == 0:
            self._refuse_damage(0)  # before its header is used
        self._parts: dict[str, list[_Part]] = {}
        try:
            metadata = self._files[0].metadata() or {}
            self.steps = float(metadata["steps"])
            self._files += map(self._open, range(1, int(metadata["ranks"])))
            for rank in range(reader or readers, len(self._files), readers):
                self._refuse_damage(rank)
            for rank in range(len(self._files)):
                self._find_parts(rank)
            self._refuse_gaps()
        except (LookupError, TypeError, ValueError, SafetensorError) as error:
            if isinstance(error, ResourceError):
                raise
            raise ResourceError(f"{folder}: the header of a share is damaged ({error!r}); {_WHAT_TO_DO}") from None

    def _find_parts(self, rank: int) -> None:
        file = self._files[rank]
        for name, start in json.loads(file.metadata()["starts"]).items():
            count = file.get_slice(f"{KINDS[0]}/{name}").get_shape()[0]
            self._parts.setdefault(name, []).append(_Part(start, start + count, rank))

    def _refuse_gaps(self) -> None:
        for name, parts in self._parts.items():
            parts.sort()
            if [part.start for part in parts] != [0, *(part.end for part in parts[:-1])]:
                raise ResourceError(
                    f"{self._folder}: the shares are not of one checkpoint: together they do not hold {name} once; "
                    f"{_WHAT_TO_DO}"
                )

    @property
    def numels(self) -> dict[str, int]:
        """The size of every parameter."""
        return {name: sum(part.end - part.start for part in parts) for name, parts in self._parts.items()}

    def refuse_other_model(self, numels: Mapping[str, int]) -> None:
        """Raises ConfigError unless a model has the parameters of the checkpoint, with the same sizes."""
        saved = self.numels
        for name in {**numels, **saved}:
            there, here = (f"{sizes[name]} values" if name in sizes else "nothing" for sizes in (saved, numels))
            if there != here:
                raise ConfigError(
                    f"{self._folder}: the checkpoint is of another model: it has {there} for {name}, and model.path "
                    f"with model.lora has {here}; set both to what was trained"
                )

    def has(self, kind: str) -> bool:
        """Whether the checkpoint has tensors of this kind."""
        return any(name.startswith(f"{kind}/") for name in self._files[0].keys())  # noqa: SIM118

    def read(self, kind: str, name: str, start: int, end: int) -> Tensor:
        """A piece of a parameter's state, put together from the shares that hold it."""
        piece = torch.empty(end - start)
        for part in self._parts[name]:
            low, high = max(start, part.start), min(end, part.end)
            if low < high:
                saved = self._files[part.rank].get_slice(f"{kind}/{name}")
                piece[low - start : high - start] = saved[low - part.start : high - part.start]
        return piece

    def others(self, prefix: str, rank: int = 0) -> dict[str, Tensor]:
        """Other tensors of one rank, by their names after `prefix`; empty if the checkpoint has no such rank."""
        if rank >= len(self._files):
            return {}
        file = self._files[rank]
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}

    def _open(self, rank: int) -> Any:
        path = file_of(self._folder, rank)
        try:
            return safe_open(path, framework="pt")
        except FileNotFoundError:
            if rank == 0:
                raise ConfigError(
                    f"{self._folder}: this folder holds no checkpoint of a learner (no {path.name})"
                ) from None
            raise ResourceError(f"{path}: missing; {_WHAT_TO_DO}") from None
        except SafetensorError as error:
            raise ResourceError(f"{path}: damaged ({error}); {_WHAT_TO_DO}") from None

    def _refuse_damage(self, rank: int) -> None:
        path, digest = file_of(self._folder, rank), (self._files[rank].metadata() or {}).get("digest", "").encode()
        with self._there(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data, memoryview(data) as view:
            start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
            with view[start:] as tensors:
                if _digest(data[:start].replace(digest, _NO_DIGEST, 1), tensors) != digest:
                    raise ResourceError(f"{path}: damaged (its bytes are not those that were written); {_WHAT_TO_DO}")

    @staticmethod
    def _there(path: Path) -> BinaryIO:
        """The opened file. Raises ResourceError if it was removed meanwhile."""
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise ResourceError(f"{path}: missing; {_WHAT_TO_DO}") from None
