"""Checks that a staged version fits the model, from headers alone, before the engine is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from olmorl import config
from olmorl.errors import ModelError, WeightError
from olmorl.ports import StagedWeights

Shapes = Mapping[str, tuple[int, ...]]
HEADER_LENGTH_BYTES = 8


def model_folder(path: str) -> Path:
    """The model folder, or the local copy of a hub model that vLLM has resolved."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, allow_patterns=["*.safetensors", "*.json"]))


def published_shapes(shapes: Shapes, lora: config.Lora) -> Shapes:
    """Names and shapes of what a version consists of: all tensors of the model, or its adapters."""
    if not lora.rank:
        return shapes
    adapters: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        stem = name.removesuffix(".weight")
        if stem != name and len(shape) == 2 and stem.rpartition(".")[2] in lora.target_modules:
            outputs, inputs = shape
            adapters |= {f"{stem}.lora_A.weight": (lora.rank, inputs), f"{stem}.lora_B.weight": (outputs, lora.rank)}
    return adapters


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor of a model folder, from the headers of its safetensors files.

    Raises:
        ModelError: the folder holds none, or one of them is damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        shapes |= _file_shapes(path)
    if not shapes:
        raise ModelError(f"{folder}: no *.safetensors there; save the model with save_pretrained()")
    return shapes


def _file_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        header = file.read(min(length, path.stat().st_size))
    try:
        return {name: tuple(entry["shape"]) for name, entry in json.loads(header).items() if name != "__metadata__"}
    except (ValueError, AttributeError, TypeError, KeyError):
        raise ModelError(
            f"{path}: not a safetensors file, or a part of one: download it again (a pointer of git-lfs: git lfs pull)"
        ) from None


def file_signature(file: Path | int) -> str:
    """Identifies a file, and changes when the file is written again. `file` may be a descriptor."""
    status = os.stat(file)  # noqa: PTH116  # a Path has no descriptor
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def check_fit(staged: StagedWeights, shapes: Shapes, *, tied: bool) -> None:
    """Refuse weights that are not exactly the model's own: a missing tensor would stay at its old version unnoticed.

    A model with tied embeddings may name its head or leave it out.

    Raises:
        WeightError: a missing, unknown or misshapen tensor, or a file shorter than its manifest says.
    """
    manifest = staged.manifest
    given = {buffer.name: buffer.shape for buffer in manifest.buffers}
    optional = {name for name in (*given, *shapes) if tied and name.endswith("lm_head.weight")}
    problems = [f"{name} is missing" for name in shapes.keys() - given.keys() - optional]
    problems += [f"{name} is unknown" for name in given.keys() - shapes.keys() - optional]
    problems += [
        f"{name} has shape {given[name]}, not {shapes[name]}"
        for name in given.keys() & shapes.keys()
        if given[name] != shapes[name]
    ]
    end = max((buffer.offset + buffer.num_bytes for buffer in manifest.buffers), default=0)
    size = staged.path.stat().st_size if staged.path.is_file() else 0
    if size < end:
        problems.append(f"{staged.path} has {size} bytes of {end}")
    if problems:
        shown = "; ".join(sorted(problems)[:5])
        raise WeightError(f"weights {manifest.version} do not fit the model: {shown} ({len(problems)} in all)")
