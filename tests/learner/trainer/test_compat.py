"""Each undocumented part of DeepSpeed, torch and transformers that the learner uses is still there.

A test that fails here names what changed. What is computed with them is in `test_deepspeed_trainer.py`.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Olmo3Config

from olmorl.environment import variables_set
from olmorl.learner.trainer import compat

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def deepspeed() -> Any:
    with variables_set({"DS_ACCELERATOR": "cpu"}):
        return import_module("deepspeed")


def test_deepspeed_lists_its_operation_for_shared_memory(deepspeed: Any) -> None:
    assert compat.SHARED_MEMORY_REDUCE in deepspeed.ops.__compatible_ops__


def test_deepspeed_takes_the_group_that_is_there(deepspeed: Any) -> None:
    assert "if _WORLD_GROUP is None" in inspect.getsource(deepspeed.utils.groups._clone_world_group)


@pytest.mark.parametrize(
    ("module", "optimizer", "names"),
    [
        ("stage3", "DeepSpeedZeroOptimizer_Stage3", ("grad_position", "fp32_partitioned_groups_flat", "fp16_groups")),
        ("stage_1_and_2", "DeepSpeedZeroOptimizer", ("_hp_mapping",)),
    ],
)
def test_deepspeed_keeps_its_shares_where_they_are_read(
    deepspeed: Any, module: str, optimizer: str, names: tuple[str, ...]
) -> None:
    source = inspect.getsource(import_module(f"deepspeed.runtime.zero.{module}"))
    for name in names:
        assert name in source


def test_the_calls_that_write_a_checkpoint_back_take_these_arguments(deepspeed: Any) -> None:
    sharded = import_module("deepspeed.runtime.zero.stage3").DeepSpeedZeroOptimizer_Stage3
    flat = import_module("deepspeed.runtime.zero.stage_1_and_2").DeepSpeedZeroOptimizer
    source = inspect.getsource(sharded)  # a decorator hides the signature
    assert "def _reassign_or_swap_out_partitioned_parameters(self, sub_group_id)" in source
    for method in (
        sharded.checkpoint_event_prologue,
        sharded.checkpoint_event_epilogue,
        flat.update_lp_params,
    ):
        assert list(inspect.signature(method).parameters) == ["self"]
    mapping = import_module("deepspeed.utils.tensor_fragment").tensor_fragment
    assert {"lp_fragment_address", "param_group_index"} <= set(mapping.__dataclass_fields__)
    assert callable(mapping.get_hp_fragment_address)


def test_the_exchange_takes_a_group_a_tensor_and_three_dimensions(deepspeed: Any) -> None:
    exchange = import_module("deepspeed.sequence.layer")._SeqAllToAll
    assert list(inspect.signature(exchange.forward).parameters)[:6] == [
        "ctx",
        "group",
        "input",
        "scatter_idx",
        "gather_idx",
        "batch_dim_idx",
    ]


def test_deepspeed_reads_its_settings_one_by_one(deepspeed: Any) -> None:
    """Or else it would be said of each setting that DeepSpeed does not know it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    table, read = compat.read_names(
        {"train_batch_size": 1, "zero_optimization": {"stage": 1}, "nonsense": 1, "fp16": {"enabled": False}}
    )
    DeepSpeedConfig(table)
    assert {"train_batch_size", "zero_optimization.stage", "fp16.enabled"} <= read
    assert "nonsense" not in read


def test_transformers_says_which_attention_it_chose() -> None:
    chosen = Olmo3Config(attn_implementation="eager")
    assert compat.attention_kernel(SimpleNamespace(config=chosen)) == "eager"


def test_a_storage_without_bytes_has_a_key() -> None:
    with compat.FakeTensorMode():
        storages = [torch.empty(3).untyped_storage() for _ in range(3)]
    assert len({compat.storage_key(storage) for storage in storages}) == 3
    view = torch.zeros(4)
    assert compat.storage_key(view.untyped_storage()) == compat.storage_key(view[1:].untyped_storage())


def test_torch_passes_each_operation_and_its_tensors_on() -> None:
    class Heard(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            done = func(*args, **(kwargs or {}))
            heard.append((func, compat.tree_leaves({"made": [done]})))
            return done

    heard: list[Any] = []
    ones = torch.ones(2)
    with Heard():
        made = ones.add(1)
    [(operation, tensors)] = heard
    assert operation is torch.ops.aten.add.Tensor
    assert len(tensors) == 1 and torch.equal(tensors[0], made)
