"""A model folder that cannot be loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.trainer import model as models


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_weights_that_are_cut_off_are_named(tiny_models: dict[str, str], tmp_path: Path, share: float) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(tiny_models["olmo3"], folder)
    [weights] = folder.glob("*.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=f"model.path = {folder}: cannot be loaded"):
        models.load(config.Model(path=str(folder), dtype="float32"), "sdpa", torch.device("cpu"))
