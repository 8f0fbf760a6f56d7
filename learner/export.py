"""A complete checkpoint as a Hugging Face folder: without a GPU, and from the files of a run alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from olmorl import config
from olmorl.errors import DataError, UserError
from olmorl.learner import checkpoint
from olmorl.learner import model as models
from olmorl.learner.recovery import RunFiles
from olmorl.learner.share import KINDS, Shares


def export(run_dir: Path, step: int | None, folder: Path) -> int:
    """Write the policy after `step`, or of the newest complete checkpoint; returns the step.

    The folder is there in full or not at all.

    Raises:
        UserError: no such checkpoint, a folder that holds something, a disk that is full.
        ModelError: the model that the run began with is not there any more.
    """
    settings = _settings(run_dir)
    checkpoints = RunFiles(run_dir).checkpoints
    chosen = checkpoint.pick(checkpoints, step)
    if chosen is None:
        raise DataError(f"{run_dir}: no checkpoint is complete yet")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: there is something already; name a folder that is empty or not there")
    disable_progress_bar()
    place = folder.resolve()
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        write(checkpoint.shares(checkpoints, chosen), settings, partial)
        partial.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return chosen


@torch.no_grad()
def write(shares_folder: Path, settings: config.Model, folder: Path) -> None:
    """Write what the shares of a checkpoint hold: the master weights, rounded to the model's dtype.

    Raises:
        ConfigError: they are of another model.
    """
    shares = Shares(shares_folder)
    model = models.load(settings, "auto", torch.device("cpu"))
    weights = dict(model.named_parameters())
    shares.refuse_other_model({name: weight.numel() for name, weight in weights.items()})
    for name, weight in weights.items():
        weight.copy_(shares.read(KINDS[0], name, 0, weight.numel()).reshape(weight.shape))
    models.export(model, weights | shares.others("buffer/"), settings, folder)


def _settings(run_dir: Path) -> config.Model:
    recipe = config.load(run_dir / "config.toml")
    if recipe.run.mode == "simulated":
        raise UserError(f"{run_dir}: a simulated run has no model to export")
    return recipe.model
