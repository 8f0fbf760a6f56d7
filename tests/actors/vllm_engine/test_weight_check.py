"""Weights that do not fit are refused from headers alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from olmorl.actors.vllm_engine.weight_check import check_fit, checkpoint_shapes
from olmorl.errors import ModelError, WeightError
from olmorl.messages import Buffer, Version, WeightsReady
from olmorl.ports import StagedWeights

SHAPES = {"model.embed_tokens.weight": (4, 2), "model.norm.weight": (2,)}


def staged_as(folder: Path, shapes: dict[str, tuple[int, ...]], size: int | None = None) -> StagedWeights:
    buffers, end = [], 0
    for name, shape in shapes.items():
        num_bytes = 4 * int(torch.Size(shape).numel())
        buffers.append(Buffer(name, "float32", shape, end, num_bytes))
        end += num_bytes
    path = folder / "weights"
    path.write_bytes(bytes(end if size is None else size))
    manifest = WeightsReady(version=Version(1, 7), buffers=tuple(buffers), num_bytes=end, chunk_bytes=16, shards=())
    return StagedWeights(manifest, path)


def test_shapes_are_read_from_the_headers_of_all_files(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.zeros(4, 2)}, tmp_path / "model-1-of-2.safetensors", {"format": "pt"})
    save_file({"model.norm.weight": torch.zeros(2)}, tmp_path / "model-2-of-2.safetensors")
    assert checkpoint_shapes(tmp_path) == SHAPES


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path}.*save_pretrained"):
        checkpoint_shapes(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16060\n",
        (100).to_bytes(8, "little") + b'{"model.norm.weight":{"dtype":"F32","sha',
        (2).to_bytes(8, "little") + b"[]",
        (14).to_bytes(8, "little") + b'{"norm": "F32"}',
        b"",
    ],
    ids=["git-lfs", "cut short", "no mapping", "no shape", "empty"],
)
def test_a_file_that_is_damaged_is_named_with_the_fix(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"{path}: not a safetensors file.*git lfs pull"):
        checkpoint_shapes(tmp_path)


def test_the_models_own_weights_fit(tmp_path: Path) -> None:
    check_fit(staged_as(tmp_path, SHAPES), SHAPES, tied=False)


def test_a_tied_head_may_be_given_or_left_out(tmp_path: Path) -> None:
    with_head = SHAPES | {"lm_head.weight": (4, 2)}
    check_fit(staged_as(tmp_path, with_head), SHAPES, tied=True)
    check_fit(staged_as(tmp_path, SHAPES), with_head, tied=True)
    with pytest.raises(WeightError, match=r"lm_head\.weight is unknown"):
        check_fit(staged_as(tmp_path, with_head), SHAPES, tied=False)


@pytest.mark.parametrize(
    ("shapes", "size", "message"),
    [
        ({"model.norm.weight": (2,)}, None, r"model\.embed_tokens\.weight is missing"),
        (SHAPES | {"extra": (1,)}, None, "extra is unknown"),
        (SHAPES | {"model.norm.weight": (3,)}, None, r"model\.norm\.weight has shape \(3,\), not \(2,\)"),
        (SHAPES, 39, "39 bytes of 40"),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], size: int | None, message: str
) -> None:
    with pytest.raises(WeightError, match=message):
        check_fit(staged_as(tmp_path, shapes, size), SHAPES, tied=False)


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    staged = staged_as(tmp_path, SHAPES)
    staged.path.unlink()
    with pytest.raises(WeightError, match="0 bytes of 40"):
        check_fit(staged, SHAPES, tied=False)
