"""Exports a complete checkpoint as a Hugging Face folder. Needs no GPU, and only the files of the run."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from olmorl import config
from olmorl.errors import DataError, UserError
from olmorl.learner.storage import checkpoint_dir, durable_files
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.adapters import attach
from olmorl.learner.trainer.checkpoint_shards import KINDS, Shares
from olmorl.run_dir import RunFiles


def export(run_dir: Path, step: int | None, folder: Path) -> int:
    """Write the policy after `step`, or of the newest complete checkpoint; returns the step.

    The folder is complete or absent.

    Raises:
        UserError: no such checkpoint, a folder that is not empty, a full disk.
        ModelError: the model that the run began with no longer exists.
    """
    settings = _settings(run_dir)
    checkpoints = RunFiles(run_dir).checkpoints
    chosen = checkpoint_dir.pick(checkpoints, step)
    if chosen is None:
        raise DataError(f"{run_dir}: no checkpoint is complete yet")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not empty; name an empty folder or a new one")
    disable_progress_bar()
    place = folder.resolve()
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with redirect_stdout(sys.stderr):  # DeepSpeed says there what it finds, before the JSON of a command
            write(checkpoint_dir.shares(checkpoints, chosen), settings, partial)
        durable_files.sync_tree(partial)  # a folder that a power cut leaves is whole
        partial.replace(place)
        durable_files.sync_folder(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return chosen


@torch.no_grad()
def write(shares_folder: Path, settings: config.Config, folder: Path) -> None:
    """Write the master weights of a checkpoint, rounded to the model's dtype.

    Raises:
        ConfigError: the checkpoint is of another model.
    """
    shares = Shares(shares_folder)
    model = models.load(settings.model, "auto", torch.device("cpu"))
    adapters, weights = attach(model, settings.model.lora), dict(model.named_parameters())
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    shares.refuse_other_model({name: weight.numel() for name, weight in trained.items()})
    for name, weight in trained.items():
        weight.copy_(shares.read(KINDS[0], name, 0, weight.numel()).reshape(weight.shape))
    state = weights | shares.others("buffer/")
    models.export(model, state, settings.model, settings.sampling, folder, adapters)


def _settings(run_dir: Path) -> config.Config:
    recipe = config.load(RunFiles(run_dir).config, of_run=True)
    if recipe.run.mode == "simulated":
        raise UserError(f"{run_dir}: a simulated run has no model to export")
    return recipe
