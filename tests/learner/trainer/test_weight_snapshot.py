"""The shards of all ranks are the tensors of the model's checkpoint, however transformers converts them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Transpose,
    WeightConverter,
    revert_weight_conversion,
)

from olmorl.errors import ModelError
from olmorl.learner.trainer.weight_snapshot import HeldPiece, WeightSnapshot, model_tensors
from olmorl.messages import Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.store import store_in_files
from tests.models.families import FAMILIES, build


def held(weights: Mapping[str, Tensor], rank: int, ranks: int) -> list[HeldPiece]:
    """Pieces that begin anywhere, also in the middle of an expert; of some weights a rank holds nothing."""
    found = []
    for name, weight in weights.items():
        draw = random.Random(name)
        edges = [0, *sorted(draw.choices(range(weight.numel() + 1), k=ranks - 1)), weight.numel()]
        found.append(HeldPiece(name, edges[rank], weight.detach().float().flatten()[edges[rank] : edges[rank + 1]]))
    return found


def published(shards: list[list[NamedBuffer]], folder: Path) -> dict[str, Tensor]:
    """What a reader gets."""
    stores = [store_in_files("r", folder / "published", 1000, folder / "host") for _ in shards]
    for rank in reversed(range(len(shards))):
        stores[rank].publish(Version(1, 0), shards[rank], None, rank, len(shards))
    staged = stores[0].fetch(Version(1, 0))
    data = bytearray(staged.path.read_bytes())
    return {
        one.name: torch.frombuffer(
            data, dtype=getattr(torch, one.dtype), count=one.num_bytes // 2, offset=one.offset
        ).view(one.shape)
        for one in staged.manifest.buffers
    }


def own_weights(model: Any) -> dict[str, Tensor]:
    state = model.state_dict(keep_vars=True)
    return {name: state[name] for name in model_tensors(model)}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", ["Olmo 3", "Qwen 3", "Gemma 3", "Phi 3", "OLMoE", "Qwen 3 MoE"])
def test_a_reader_gets_the_checkpoint_of_the_model(name: str, ranks: int, tmp_path: Path) -> None:
    build(FAMILIES[name], tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    weights = own_weights(model)
    shards = [WeightSnapshot(model, pinned=False).copy(held(weights, rank, ranks)) for rank in range(ranks)]
    found = published(shards, tmp_path)
    wanted = revert_weight_conversion(model, weights)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


class Network(torch.nn.Module):
    """Two weights that a checkpoint has in another form."""

    def __init__(self, converter: WeightConverter) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 4, bias=False, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(6, 4, bias=False, dtype=torch.bfloat16)
        self.config = None
        self._weight_conversions = [converter]


def test_weights_that_a_checkpoint_has_in_one_tensor_are_joined(tmp_path: Path) -> None:
    model: Any = Network(WeightConverter("fused.weight", ["up.weight", "down.weight"], [Chunk(dim=0)]))
    weights = own_weights(model)
    shards = [WeightSnapshot(model, pinned=False).copy(held(weights, rank, 2)) for rank in range(2)]
    [(name, found)] = published(shards, tmp_path).items()
    assert name == "fused.weight"
    assert torch.equal(found, torch.cat([model.up.weight, model.down.weight]))


@pytest.mark.parametrize(
    ("source", "operation"),
    [("up.kernel", Transpose(0, 1)), (["up.left", "up.right"], Concatenate(dim=1))],
)
def test_values_in_another_order_are_refused(source: Any, operation: Any) -> None:
    model: Any = Network(WeightConverter(source, "up.weight", [operation]))
    with pytest.raises(ModelError, match=r"a Network computes with up\.\w+ in another order than its checkpoint has"):
        WeightSnapshot(model, pinned=False)
