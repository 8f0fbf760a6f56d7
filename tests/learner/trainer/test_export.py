"""Shares of a checkpoint, written and read by hand; and the model that they are exported as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl import config
from olmorl.deploy.control import cli
from olmorl.errors import ConfigError, DataError, ResourceError, UserError
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.checkpoint_shards import KINDS, ParameterPiece, Share, Shares, file_of
from olmorl.learner.trainer.export import export

Weights = dict[str, torch.Tensor]


def pieces(weights: Weights, rank: int, world: int) -> list[ParameterPiece]:
    """Every rank has its part of each; the moments are the weights plus 1 and plus 2."""
    whole = [ParameterPiece(name, 0, {k: w.flatten() + i for i, k in enumerate(KINDS)}) for name, w in weights.items()]
    return [piece.part(rank, world) for piece in whole]


def write(folder: Path, weights: Weights, world: int, **others: torch.Tensor) -> None:
    for rank in range(world):
        share = Share(rank, world, pinned=False)
        share.copy(pieces(weights, rank, world), others if rank == 0 else {}, steps=7)
        share.write(folder)


def test_any_piece_is_read_from_the_shares_that_hold_it(tmp_path: Path) -> None:
    weights = {"a": torch.arange(10.0), "b": torch.arange(100.0, 101.0)}
    write(tmp_path, weights, world=3, random=torch.tensor([3, 1], dtype=torch.uint8))
    shares = Shares(tmp_path)
    assert (shares.steps, shares.numels) == (7, {"a": 10, "b": 1})
    assert shares.read("master", "a", 3, 9).tolist() == [3, 4, 5, 6, 7, 8]
    assert shares.read("exp_avg", "a", 0, 10).tolist() == list(range(1, 11))
    assert shares.read("exp_avg_sq", "b", 0, 1).tolist() == [102]
    assert shares.others("random")[""].tolist() == [3, 1]
    assert shares.others("random", rank=1) == shares.others("random", rank=9) == {}


def test_a_share_is_a_safetensors_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=2, buffer=torch.ones(3, 2, dtype=torch.bfloat16))
    tensors = load_file(file_of(tmp_path, 0))
    assert tensors["master/a"].tolist() == [0, 1]
    assert torch.equal(tensors["buffer"], torch.ones(3, 2, dtype=torch.bfloat16))
    assert load_file(file_of(tmp_path, 1))["exp_avg/a"].tolist() == [3, 4]


def test_a_copy_does_not_change_with_what_it_was_copied_from(tmp_path: Path) -> None:
    weights = {"a": torch.arange(4.0)}
    share = Share(0, 1, pinned=False)
    for steps in (1, 2):
        (piece,) = pieces(weights, 0, 1)
        share.copy([piece], {}, steps)
        piece.tensors["master"].fill_(-1.0)
        share.write(tmp_path)
        assert (Shares(tmp_path).steps, Shares(tmp_path).read("master", "a", 0, 4).tolist()) == (steps, [0, 1, 2, 3])


def test_a_share_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoint of a learner"):
        Shares(tmp_path)
    write(tmp_path, {"a": torch.arange(4.0)}, world=2)
    second = file_of(tmp_path, 1)
    data = second.read_bytes()
    second.write_bytes(data[:-3])
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged .*--from-step"):
        Shares(tmp_path)
    second.unlink()
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: missing"):
        Shares(tmp_path)


@pytest.mark.parametrize("after", [b'"steps": "', b""], ids=["header", "data"])
def test_a_bit_that_flipped_is_found_by_one_of_all_readers(tmp_path: Path, after: bytes) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=3)
    share = file_of(tmp_path, 1)
    data = bytearray(share.read_bytes())
    data[data.index(after) + len(after) if after else -1] ^= 1
    share.write_bytes(data)
    Shares(tmp_path, reader=0, readers=2)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged \(its bytes .*--from-step"):
        Shares(tmp_path, reader=1, readers=2)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged"):
        Shares(tmp_path)


def test_a_share_without_a_digest_is_of_an_earlier_version(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=1)
    share = file_of(tmp_path, 0)
    share.write_bytes(share.read_bytes().replace(b'"digest"', b'"tsegid"', 1))
    with pytest.raises(ResourceError, match=r"share_0\.safetensors: an earlier version .*--from-step"):
        Shares(tmp_path)


def test_a_share_that_is_removed_while_others_are_looked_through_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=2)
    look_through = Shares._refuse_damage

    def refuse_damage(shares: Shares, rank: int) -> None:
        look_through(shares, rank)
        file_of(tmp_path, 1).unlink()

    monkeypatch.setattr(Shares, "_refuse_damage", refuse_damage)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: missing; .*--from-step"):
        Shares(tmp_path)


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., tuple[Path, Weights]]:
    """A run directory with a complete checkpoint of step 4, written on two ranks, of a model trained a little."""

    def make(path: str, **more: Any) -> tuple[Path, Weights]:
        tree = {"run": {"directory": tmp_path, **more}, "model": {"path": path, "dtype": "bfloat16"}}
        settings = config.build(tree)
        settings.run_dir.mkdir()
        (settings.run_dir / "config.toml").write_text(config.to_toml(settings))
        loaded = models.load(config.Model(path=path, dtype="float32"), "auto", torch.device("cpu"))
        weights = {name: weight.detach() * 1.001 for name, weight in loaded.named_parameters()}
        checkpoints = settings.run_dir / "checkpoints"
        write(checkpoint_dir.shares_of(checkpoints, 4, 1), weights, world=2)
        part = Part(step=4, incarnation=1, ledger_incarnation=1, ledger_bytes=0)
        checkpoint_dir.complete(checkpoints, part, LedgerState())
        return settings.run_dir, weights

    return make


@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_a_checkpoint_is_exported_as_its_master_weights_rounded(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path, name: str
) -> None:
    run_dir, weights = run_of(tiny_models[name])
    assert export(run_dir, None, tmp_path / "out") == 4
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    loaded = dict(model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[key], weight.to(torch.bfloat16)) for key, weight in weights.items())
    vocabulary = AutoTokenizer.from_pretrained(tiny_models[name]).get_vocab()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == vocabulary


def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no complete checkpoint of step 5; there are: 4"):
        export(run_dir, 5, out)
    with pytest.raises(DataError, match="exists and is not empty"):
        export(run_dir, 4, run_dir)
    recipe = (run_dir / "config.toml").read_text()
    (run_dir / "config.toml").write_text(recipe.replace(tiny_models["llama"], tiny_models["qwen2"]))
    with pytest.raises(ConfigError, match=r"the checkpoint is of another model: .*q_proj\.bias"):
        export(run_dir, 4, out)
    (run_dir / "config.toml").write_text(recipe.replace('mode = "real"', 'mode = "simulated"'))
    with pytest.raises(UserError, match="a simulated run has no model"):
        export(run_dir, 4, out)
    assert not list(tmp_path.glob("out*"))
    checkpoint_dir.remove_incomplete(run_dir / "checkpoints")
    (run_dir / "checkpoints" / "step_4" / "complete").unlink()
    (run_dir / "config.toml").write_text(recipe)
    with pytest.raises(DataError, match="no checkpoint is complete yet"):
        export(run_dir, None, out)


def test_the_command_exports_and_refuses_in_one_line(
    run_of: Callable[..., tuple[Path, Weights]],
    tiny_models: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    out = tmp_path / "out"
    assert cli.main([str(run_dir), "export", str(out), "--step", "9"]) == 2
    assert "no complete checkpoint of step 9; there are: 4" in capsys.readouterr().err
    assert cli.main([str(run_dir), "export", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: the policy after step 4\n"
    assert (out / "model.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_named(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        ResourceError, match=r"\.out\.\d+\.partial: the model cannot be written \(.*Not a directory.*export FOLDER"
    ):
        export(run_dir, 4, tmp_path / "file" / "out")
