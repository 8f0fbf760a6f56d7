"""A version is loaded by the calls that vLLM's own reload made for an earlier one."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import layerwise

from olmorl.actors.vllm_engine import weight_replay
from olmorl.actors.vllm_engine.weight_replay import WeightReplay
from olmorl.messages import Buffer

pytestmark = pytest.mark.engine

Tensors = dict[str, torch.Tensor]
SHAPES = {
    "norm.weight": (32,),
    "norm.bias": (32,),
    "packed.q": (64, 32),
    "packed.k": (64, 32),
    "packed.bias": (128,),
    "swapped.k": (64, 32),
    "swapped.q": (64, 32),
    "apart.q": (64, 32),
    "between.weight": (32,),
    "apart.k": (64, 32),
    "plain.weight": (32, 32),
    "mirrored.weight": (32, 32),
    "turned.weight": (4, 6),
}


CONFIG: Any = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.float32))
HALVES = {"q": 0, "k": 1}


class Turned(QuantizeMethodBase):
    """A method that computes the model's weight from the loaded one."""

    def create_weights(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> None:
        raise AssertionError("the layer makes its own")

    def apply(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> torch.Tensor:
        raise AssertionError("nothing is computed here")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.weight = torch.nn.Parameter(layer.weight.data.t().contiguous(), requires_grad=False)


class Layer(torch.nn.Module):
    def __init__(self, shape: tuple[int, ...], method: QuantizeMethodBase) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.quant_method = method


class Model(torch.nn.Module):
    """The CPU kernel has five weights in packed form only. Three are made of two tensors of the checkpoint each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.packed = Layer((128, 32), UnquantizedLinearMethod())
        self.packed.bias = torch.nn.Parameter(torch.zeros(128), requires_grad=False)
        self.swapped = Layer((128, 32), UnquantizedLinearMethod())
        self.apart = Layer((128, 32), UnquantizedLinearMethod())
        self.between = torch.nn.LayerNorm(32, bias=False)
        self.plain = Layer((32, 32), UnquantizedLinearMethod())
        self.mirrored = Layer((32, 32), UnquantizedLinearMethod())
        self.mirrored.weight.weight_loader = load_mirrored  # type: ignore[attr-defined]
        self.turned = Layer((4, 6), Turned())
        for layer in (self.packed, self.swapped, self.apart):
            layer.weight.weight_loader = load_half  # type: ignore[attr-defined]
        self.given: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
        self.skipped = ""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            layer, _, part = name.partition(".")
            if name == self.skipped:
                continue
            if part in HALVES:
                weight = self.get_submodule(layer).weight
                weight.weight_loader(weight, self.given(tensor), HALVES[part])  # type: ignore[operator, union-attr]
            else:
                weight = self.get_parameter(name)
                getattr(weight, "weight_loader", layerwise.default_weight_loader)(weight, self.given(tensor))
        return {name for name, _ in self.named_parameters()}


def load_half(param: torch.Tensor, loaded_weight: torch.Tensor, half: int) -> None:
    param.data[64 * half : 64 * (half + 1)].copy_(loaded_weight)


def load_mirrored(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight.t())


def built() -> Any:
    """A model whose weights were loaded once, as an engine has it after its start."""
    model = Model()
    layerwise.record_metadata_for_reloading(model)
    for layer in (model.packed, model.swapped, model.apart, model.plain, model.mirrored, model.turned):
        layer.quant_method.process_weights_after_loading(layer)
    assert model.packed.weight.numel() == 0
    return model


def staged(seed: int) -> tuple[tuple[Buffer, ...], mmap.mmap, Tensors]:
    """A weight file, and its tensors as copies."""
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    file, buffers, end = mmap.mmap(-1, 1 << 16), [], 0
    for name, tensor in tensors.items():
        buffers.append(Buffer(name, "float32", tuple(tensor.shape), end, tensor.nbytes))
        file[end : end + tensor.nbytes] = tensor.numpy().tobytes()
        end += tensor.nbytes
    return tuple(buffers), file, tensors


def recorded(model: Any, seed: int = 0) -> WeightReplay:
    """A replay that saw vLLM's reload of the version with this seed."""
    buffers, file, _ = staged(seed)
    replay = WeightReplay(model, CONFIG)
    views = {
        one.name: torch.frombuffer(file, dtype=torch.float32, count=one.num_bytes // 4, offset=one.offset).view(
            one.shape
        )
        for one in buffers
    }
    with torch.no_grad(), replay.recording(buffers, list(views.values()), ["norm.bias"]):
        layerwise.initialize_layerwise_reload(model)
        model.load_weights(views.items())
        layerwise.finalize_layerwise_reload(model, None)
    return replay


def assert_has(model: Any, tensors: Tensors) -> None:
    assert torch.equal(model.norm.weight, tensors["norm.weight"])
    assert torch.equal(model.between.weight, tensors["between.weight"])
    assert torch.equal(model.packed.bias, tensors["packed.bias"])
    assert torch.equal(model.turned.weight, tensors["turned.weight"].t())
    inputs = torch.randn(5, 32)
    for layer, weight in (
        (model.packed, torch.cat([tensors["packed.q"], tensors["packed.k"]])),
        (model.swapped, torch.cat([tensors["swapped.q"], tensors["swapped.k"]])),
        (model.apart, torch.cat([tensors["apart.q"], tensors["apart.k"]])),
        (model.plain, tensors["plain.weight"]),
        (model.mirrored, tensors["mirrored.weight"].t()),
    ):
        torch.testing.assert_close(layer.cpu_linear(inputs, None, None), inputs @ weight.t())


def test_it_loads_the_next_version_into_the_same_memory() -> None:
    model = built()
    replay = recorded(model)
    assert_has(model, staged(0)[2])
    before = {name: (weight, weight.data_ptr()) for name, weight in model.named_parameters()}
    for seed in (1, 2, 3):
        buffers, file, tensors = staged(seed)
        assert replay.knows(buffers)
        with torch.no_grad():
            replay.load(replay.prepare(file))
        assert_has(model, tensors)
        assert torch.equal(model.norm.bias, tensors["norm.bias"])
        for name, weight in model.named_parameters():
            assert weight is before[name][0]
            assert weight.data_ptr() == before[name][1]
        file.close()  # nothing refers to its bytes any more


def without_kernels(monkeypatch: pytest.MonkeyPatch, model: Any = None) -> Any:
    """A model that computes with its parameters, as in bfloat16 on a processor without instructions for it."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no kernel for this dtype")

    monkeypatch.setattr(utils, "check_cpu_sgl_kernel", lambda *_: False)
    monkeypatch.setattr(utils.ops, "create_onednn_mm", refuse)
    model = model or Model()
    layerwise.record_metadata_for_reloading(model)
    for layer in (model.packed, model.swapped, model.apart, model.plain, model.mirrored, model.turned):
        layer.quant_method.process_weights_after_loading(layer)
    return model


def load_and_check(model: Any, replay: WeightReplay, seed: int) -> None:
    _, file, tensors = staged(seed)
    with torch.no_grad():
        replay.load(replay.prepare(file))
    for name in ("packed", "swapped", "apart"):
        weight = torch.cat([tensors[f"{name}.q"], tensors[f"{name}.k"]])
        assert torch.equal(model.get_parameter(f"{name}.weight"), weight)
    assert torch.equal(model.plain.weight, tensors["plain.weight"])
    assert torch.equal(model.mirrored.weight, tensors["mirrored.weight"].t())
    assert torch.equal(model.norm.bias, tensors["norm.bias"])
    file.close()  # nothing refers to its bytes any more


def fail(*_: Any) -> None:
    raise AssertionError("a loader was called")


def test_from_the_second_time_on_copies_are_made_without_their_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    model = without_kernels(monkeypatch)
    replay = recorded(model)
    load_and_check(model, replay, 1)
    monkeypatch.setattr(weight_replay, "_run", fail)
    load_and_check(model, replay, 2)
    load_and_check(model, replay, 3)


def over_zeros(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.fill_(0)
    param.data.copy_(loaded_weight.t())


def with_a_product(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight.t())
    param.data[:1].mul_(1.0)


def with_a_number_of_the_file(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight.t())
    param.data[0, 0].fill_(loaded_weight[0, 0].item())


def beside_zeros(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param[:32].data.copy_(loaded_weight.t())
    param[32:].data.fill_(0)


def beside_a_number_of_the_file(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param[:32].data.copy_(loaded_weight.t())
    param[32:].data.fill_(loaded_weight[0, 0].item())


def in_two_parts(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data[:16].copy_(loaded_weight.t()[:16])
    param.data[16:].copy_(loaded_weight.t()[16:])


@pytest.mark.parametrize(
    ("loader", "times"),
    [(over_zeros, 3), (with_a_product, 3), (with_a_number_of_the_file, 3), (beside_zeros, 1), (in_two_parts, 1)],
)
def test_a_loader_that_does_more_than_copies_is_called_each_time(
    monkeypatch: pytest.MonkeyPatch, loader: Callable[[torch.Tensor, torch.Tensor], None], times: int
) -> None:
    def counted(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        calls.append("")
        loader(param, loaded_weight)

    calls: list[str] = []
    model = without_kernels(monkeypatch)
    model.mirrored.weight.weight_loader = counted
    replay = recorded(model)
    calls.clear()
    for number in (1, 2, 3):
        load_and_check(model, replay, number)
    assert len(calls) == times


@pytest.mark.parametrize("from_file", [False, True])
def test_zeros_beside_the_copies_stay_and_numbers_of_the_file_do_not(
    monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    """As the zeros after the rows of an embedding."""
    model: Any = Model()
    model.mirrored = Layer((40, 32), UnquantizedLinearMethod())
    model.mirrored.weight.weight_loader = beside_a_number_of_the_file if from_file else beside_zeros
    replay = recorded(without_kernels(monkeypatch, model))
    for number in (1, 2, 3):
        _, file, tensors = staged(number)
        with torch.no_grad():
            replay.load(replay.prepare(file))
        wanted = tensors["mirrored.weight"]
        assert torch.equal(model.mirrored.weight[:32], wanted.t())
        assert (model.mirrored.weight[32:] == (wanted[0, 0] if from_file else 0.0)).all()
        if not from_file:
            monkeypatch.setattr(weight_replay, "_run", fail)


def test_a_parameter_that_has_moved_is_loaded_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = without_kernels(monkeypatch)
    replay = recorded(model)
    load_and_check(model, replay, 1)
    for weight in model.parameters():
        weight.data = weight.data.clone()
    load_and_check(model, replay, 2)
    load_and_check(model, replay, 3)


def test_only_a_weight_that_its_loaders_copy_as_it_is_is_packed_from_the_file() -> None:
    """Also one of two tensors, if they follow each other in the file in the order of the weight."""
    model = built()
    replay = recorded(model)
    targets = {
        name: load.target.name for name, layer in model.named_modules() for load in replay._loads if load.layer is layer
    }
    assert targets == {
        "norm": "PARAMETERS",
        "packed": "NOWHERE",
        "swapped": "KEPT_MEMORY",
        "apart": "KEPT_MEMORY",
        "between": "PARAMETERS",
        "plain": "NOWHERE",
        "mirrored": "KEPT_MEMORY",
        "turned": "FRESH_MEMORY",
    }


def test_weights_that_no_kernel_packs_are_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = without_kernels(monkeypatch)
    plain = model.plain
    replay = recorded(model)
    tried: list[torch.nn.Module] = []
    monkeypatch.setattr(UnquantizedLinearMethod, "process_weights_after_loading", lambda _, layer: tried.append(layer))
    _, file, tensors = staged(1)
    with torch.no_grad():
        replay.load(replay.prepare(file))
    assert not tried
    inputs = torch.randn(5, 32)
    assert torch.equal(plain.cpu_linear(inputs, plain.weight, None), inputs @ tensors["plain.weight"].t())  # type: ignore[operator]
    assert torch.equal(model.apart.weight, torch.cat([tensors["apart.q"], tensors["apart.k"]]))


def test_vllm_can_reload_after_it() -> None:
    model = built()
    replay = recorded(model)
    with torch.no_grad():
        replay.load(replay.prepare(staged(1)[1]))
    recorded(model, seed=2)
    assert_has(model, staged(2)[2])


def test_a_file_of_another_layout_is_not_loaded() -> None:
    model = built()
    replay = recorded(model)
    buffers, _, _ = staged(1)
    assert not replay.knows(buffers[:-1])
    assert not replay.knows((*buffers[1:], buffers[0]))
    assert not WeightReplay(model, CONFIG).knows(())


@pytest.mark.parametrize("given", [lambda tensor: tensor + 0, lambda tensor: tensor.mul_(2)])
def test_a_reload_that_computes_with_the_values_is_not_repeated(given: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = built()
    model.given = given
    assert not recorded(model).knows(staged(1)[0])


@pytest.mark.parametrize(("name", "repeated"), [("norm.weight", False), ("norm.bias", True)])
def test_a_reload_that_leaves_out_a_tensor_is_not_repeated_unless_it_may(name: str, repeated: bool) -> None:
    model = built()
    model.skipped = name
    assert recorded(model).knows(staged(1)[0]) is repeated
