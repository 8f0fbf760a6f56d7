"""Compares what a run writes to disk with the room that is there."""

from __future__ import annotations

import shutil
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.preflight import memory
from olmorl.deploy.preflight.memory_places import size
from olmorl.errors import ResourceError
from olmorl.model_cost import VALUE_BYTES
from olmorl.run_dir import RunFiles


def trained(settings: Config, parameters: int) -> int:
    """How many of a model's parameters are trained, published and saved: all of them, or those of its adapters."""
    if not settings.model.lora.rank:
        return parameters
    from olmorl.learner.trainer.memory import parameter_sizes

    return sum(parameter_sizes(settings.model).trained)


def published_bytes(settings: Config, parameters: int) -> int:
    """Bytes of a version of a model with so many parameters."""
    return trained(settings, parameters) * VALUE_BYTES[settings.model.dtype]


def disk_room(settings: Config, parameters: int) -> str:
    """The checkpoints that are kept, one being written, the export and versions in files have room; says how much.

    Raises:
        ResourceError: they have none.
    """
    weights = parameters * VALUE_BYTES[settings.model.dtype]
    kept, one = memory.kept_checkpoints(settings) + 1, memory.MASTER_AND_MOMENTS_BYTES * trained(settings, parameters)
    there = sum(file.stat().st_size for file in RunFiles(settings.run_dir).checkpoints.rglob("*") if file.is_file())
    needed = max(one, kept * one - there) + weights
    published = memory.published_files(settings, published_bytes(settings, parameters))
    folder = settings.weights.directory
    what, fix = f"{kept} checkpoints", "free some, lower checkpoint.keep, or set run.directory"
    if folder is None or not published:
        return room(settings.run_dir, needed + published, what + (" and versions" if published else ""), fix)
    said = room(settings.run_dir, needed, what, fix)
    return f"{said}\n{room(folder, published, 'versions of the weights', 'free some, or set weights.directory')}"


def room(folder: Path, needed: int, what: str, fix: str) -> str:
    """Says how much room a folder has, which may not exist yet. Raises ResourceError when it is too little."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ResourceError(f"{folder}: {size(free)} free, and {what} need {size(needed)}: {fix}")
    return f"{size(free)} free in {folder}, {size(needed)} needed for {what}"
