"""Repeats the loading of an earlier version: the same calls of vLLM's weight loaders, on the bytes of a new version.

vLLM's reload maps the name of each tensor, counts and defers each call, loads each layer into fresh memory and copies
it into the model. The calls are the same for all versions of one layout, so they are recorded once. Repeated, they
write into the parameters themselves, or into one kept buffer where a kernel multiplies by its own packed copy.
Most loaders only copy a part of the file into a part of a parameter. From the second repetition on, these copies are
made without the loaders, which take longer than the copies of a small tensor.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from inspect import BoundArguments
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta
from vllm.model_executor.model_loader.reload.utils import get_layer_params_buffers, get_layer_tensors
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionImplBase

from olmorl.messages import Buffer

_PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""Methods that use weights as a checkpoint has them, or a packed copy of them."""


Flat = Mapping[torch.dtype, torch.Tensor]
"""All bytes of a weight file as one tensor, for each dtype of its tensors."""


class _View(NamedTuple):
    """A tensor within a weight file."""

    offset: int
    """In elements."""
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        return torch.empty_strided(self.shape, self.stride, device="meta").is_contiguous()

    def of(self, file: Flat) -> torch.Tensor:
        """The same tensor of another file."""
        return file[self.dtype].as_strided(self.shape, self.stride, self.offset)


class _Copy(NamedTuple):
    """A copy from a weight file into the memory of a parameter."""

    target: torch.Tensor
    source: _View


class Prepared(NamedTuple):
    """What `WeightReplay.load` needs of one file. It can be made while the engine computes."""

    file: Flat
    targets: list[torch.Tensor]
    sources: list[torch.Tensor]
    """Of the copies that the loaders of most layers would make."""
    rest: Sequence[tuple[int, bool]]
    """The layers that need more, by their index, and whether their loaders only copy."""


class _CopyWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the copies that are made inside."""

    def __init__(self, file: Flat) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._file = file
        self._zeroed: list[torch.Tensor] = []
        self._computed = False
        self.copies: list[_Copy] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        done = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and (source := self._view(args[1])) is not None:
            self.copies.append(_Copy(args[0], source))
        elif func is torch.ops.aten.fill_.Scalar and args[1] == 0:
            self._zeroed.append(args[0])
        elif func._schema.is_mutable or func is torch.ops.aten._local_scalar_dense.default:
            self._computed = True  # the second reads a number of a tensor, which may be of the file
        return done

    def saw_all(self) -> bool:
        """Whether the copies alone do the same again. Zeros beside them, as after the rows of an embedding, stay."""
        if self._computed or not self.copies:
            return False
        return not any(_overlap(copy.target, zeroed) for copy in self.copies for zeroed in self._zeroed)

    def _view(self, tensor: torch.Tensor) -> _View | None:
        """The tensor as a part of the file; None if it is elsewhere, such as a computed one."""
        whole = self._file.get(tensor.dtype)
        if whole is None or tensor.device != whole.device:
            return None
        offset = tensor.data_ptr() - whole.data_ptr()
        if not 0 <= offset < whole.nbytes:
            return None
        return _View(offset // tensor.dtype.itemsize, tensor.dtype, tensor.shape, tensor.stride())


class _Call(NamedTuple):
    """A call of a weight loader, without its tensors."""

    tensor: str
    """The parameter or buffer of the layer that it loads."""
    arguments: BoundArguments
    views: Mapping[str, _View]

    def bind(self, file: Flat) -> BoundArguments:
        """The arguments for another file; `param` is not among them."""
        views = {name: view.of(file) for name, view in self.views.items()}
        return BoundArguments(self.arguments.signature, self.arguments.arguments | views)


class _Target(Enum):
    """Where the loaders of a layer write."""

    PARAMETERS = auto()
    """Into the tensors that the model computes with."""
    KEPT_MEMORY = auto()
    """The model has the weight in packed form only: into memory from which the kernel packs it."""
    NOWHERE = auto()
    """The same, and the kernel packs the weight from the file itself: loaders would only copy a part of the file."""
    FRESH_MEMORY = auto()
    """The layer may compute its tensors from the loaded ones: as in vLLM's own reload."""


class _LayerLoad(NamedTuple):
    """How one layer is loaded."""

    layer: torch.nn.Module
    calls: Sequence[_Call]
    target: _Target
    method: QuantizeMethodBase | None
    weight: _View | None = None
    """The part of the file that is the weight, with the target `NOWHERE`. Then `calls` load other tensors."""

    def addresses(self) -> list[int]:
        """Of the tensors that `calls` load."""
        return [getattr(self.layer, call.tensor).data_ptr() for call in self.calls]

    def call(self, file: Flat) -> None:
        """Call the weight loaders."""
        for call in self.calls:
            _run(call.bind(file), getattr(self.layer, call.tensor))

    def process(self) -> None:
        """Have vLLM's method use the loaded weights."""
        if self.method is not None:
            self.method.process_weights_after_loading(self.layer)


class WeightReplay:
    """Loads a version exactly as vLLM's reload loaded an earlier one of the same layout.

    Only a reload is repeated in which every byte of the file went through weight loaders, and no value was changed.
    """

    def __init__(self, model: torch.nn.Module, vllm_config: VllmConfig) -> None:
        """`vllm_config` is the one that the model was made with."""
        attention: list[Any] = [layer for layer in model.modules() if is_deferred_attention_layer(layer)]
        self._attention = [layer for layer in attention if not _has_constants_only(layer)]
        self._vllm_config = vllm_config
        self._buffers: Sequence[Buffer] = ()
        self._dtypes: Collection[torch.dtype] = ()
        self._loads: Sequence[_LayerLoad] = ()
        self._kept: Mapping[torch.nn.Module, torch.nn.Parameter] = {}
        """The same memory as the weight of each layer that has its own in packed form only."""
        self._copied: dict[int, tuple[list[int], list[_Copy]]] = {}
        """For each index of `_loads` whose loaders only copy: the addresses of its tensors, and the copies."""

    def knows(self, buffers: Sequence[Buffer]) -> bool:
        """Whether `load` can load a file of this layout."""
        return bool(self._loads) and buffers == self._buffers

    @contextmanager
    def recording(
        self, buffers: Sequence[Buffer], tensors: Sequence[torch.Tensor], optional: Collection[str]
    ) -> Iterator[None]:
        """Record the reload inside this block.

        Args:
            tensors: for each of the buffers the view into the file that the model is given.
            optional: names of buffers that the model may leave out.
        """
        self._loads, self._kept, self._copied = (), {}, {}
        found: list[tuple[torch.nn.Module, list[tuple[str, BoundArguments]]]] = []
        process = layerwise._layerwise_process

        def noting(layer: torch.nn.Module, info: Any) -> None:
            found.append((layer, list(info.loaded_weights)))
            process(layer, info)

        layerwise._layerwise_process = noting
        try:
            yield
        finally:
            layerwise._layerwise_process = process
        file = _File(buffers, tensors)
        calls = [(layer, [file.call(name, arguments) for name, arguments in loaded]) for layer, loaded in found]
        if file.was_passed_on(optional):
            self._buffers = buffers
            self._dtypes = {view.dtype for _, made in calls for call in made for view in call.views.values()}
            self._loads = [_layer_load(layer, made) for layer, made in calls]
            self._kept = _one_memory([load.layer for load in self._loads if load.target is _Target.KEPT_MEMORY])

    def prepare(self, file: mmap.mmap) -> Prepared:
        """Make the tensors of a file of the recorded layout."""
        flat = {dtype: torch.frombuffer(file, dtype=dtype, count=len(file) // dtype.itemsize) for dtype in self._dtypes}
        known = self._copied.items()
        copied = {index for index, (addresses, _) in known if addresses == self._loads[index].addresses()}
        copies = [copy for index in copied for copy in self._copied[index][1]]
        rest = [
            (index, index in copied)
            for index, load in enumerate(self._loads)
            if index not in copied or load.method is not None
        ]
        return Prepared(flat, [copy.target for copy in copies], [copy.source.of(flat) for copy in copies], rest)

    def load(self, prepared: Prepared) -> None:
        """Load a file of the recorded layout."""
        if prepared.targets:
            torch._foreach_copy_(prepared.targets, prepared.sources)
        if not prepared.rest and not self._attention:
            return
        with set_current_vllm_config(self._vllm_config):
            for index, is_copied in prepared.rest:
                self._load_layer(index, is_copied, prepared.file)
            for layer in self._attention:
                layer.process_weights_after_loading(self._vllm_config.model_config.dtype)

    def _load_layer(self, index: int, is_copied: bool, file: Flat) -> None:
        load = self._loads[index]
        if is_copied:
            load.process()
        elif load.target is _Target.FRESH_MEMORY:
            _load_by_vllm(load, file)
        elif load.target is _Target.PARAMETERS:
            self._load_and_watch(index, load, file)
        else:
            self._load_in_other_memory(load, file)

    def _load_and_watch(self, index: int, load: _LayerLoad, file: Flat) -> None:
        before = load.addresses()
        with _CopyWatch(file) as watch:
            load.call(file)
        load.process()
        if watch.saw_all() and before == load.addresses():
            self._copied[index] = before, watch.copies

    def _load_in_other_memory(self, load: _LayerLoad, file: Flat) -> None:
        layer = load.layer
        placeholder = layer._parameters.get("weight")
        if load.target is _Target.KEPT_MEMORY:
            layer._parameters["weight"] = self._kept[layer]
        if load.weight is not None:
            layer._parameters["weight"] = _taken_for(_packed_weight(layer), load.weight.of(file))
        load.call(file)
        load.process()
        layer._parameters["weight"] = placeholder


class _File:
    """The recorded file: which tensors are parts of it, and which of its bytes the loaders got."""

    def __init__(self, buffers: Sequence[Buffer], tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._buffers = sorted(buffers, key=lambda buffer: buffer.offset)
        self._starts = [buffer.offset for buffer in self._buffers]
        self._address = tensors[0].data_ptr() - buffers[0].offset if buffers else 0
        self._passed_on: Counter[str] = Counter()
        self._strange = False

    def call(self, tensor: str, bound: BoundArguments) -> _Call:
        """A call of a loader, noted."""
        given = {name: value for name, value in bound.arguments.items() if name != "param"}
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        kept = {name: value for name, value in given.items() if name not in tensors}
        views = {name: self._view(value) for name, value in tensors.items()}
        return _Call(tensor, BoundArguments(bound.signature, kept), views)

    def was_passed_on(self, optional: Collection[str]) -> bool:
        """Whether the loaders got every byte, apart from `optional` buffers, and nothing else."""
        if self._strange or any(tensor._version for tensor in self._tensors):
            return False
        return all(
            self._passed_on[buffer.name] >= buffer.num_bytes or buffer.name in optional for buffer in self._buffers
        )

    def _view(self, tensor: torch.Tensor) -> _View:
        offset = tensor.data_ptr() - self._address if tensor.device.type == "cpu" else -1
        buffer = self._buffers[bisect_right(self._starts, offset) - 1]
        if buffer.offset <= offset and offset + tensor.nbytes <= buffer.offset + buffer.num_bytes:
            self._passed_on[buffer.name] += tensor.nbytes
        else:
            self._strange = True  # computed from the file's values
        return _View(offset // tensor.dtype.itemsize, tensor.dtype, tensor.shape, tensor.stride())


def _layer_load(layer: torch.nn.Module, calls: Sequence[_Call]) -> _LayerLoad:
    """The fastest way that certainly gives what vLLM's reload gave."""
    method = getattr(layer, "quant_method", None)
    method = method if isinstance(method, QuantizeMethodBase) else None
    target = _target(layer, calls, method)
    if target is _Target.KEPT_MEMORY:
        of_weight = [call for call in calls if call.tensor == "weight"]
        if (found := _part_of_file(of_weight, _packed_weight(layer))) is not None:
            others = [call for call in calls if call.tensor != "weight"]
            return _LayerLoad(layer, others, _Target.NOWHERE, method, found)
    if target is _Target.PARAMETERS and _multiplies_by_the_weight(layer):
        method = None  # it would try to pack the weight again, which takes a millisecond and fails
    return _LayerLoad(layer, calls, target, method)


def _multiplies_by_the_weight(layer: torch.nn.Module) -> bool:
    """Whether the CPU back end has no packed copy, because it has no kernel for this dtype on this processor.

    The function that multiplies then refers to no tensor of its own.
    """
    kernel = getattr(layer, "cpu_linear", None)
    return kernel is not None and getattr(kernel, "__closure__", None) is None


def _target(layer: torch.nn.Module, calls: Sequence[_Call], method: QuantizeMethodBase | None) -> _Target:
    if method is not None and type(method) not in _PLAIN:
        return _Target.FRESH_MEMORY
    params, buffers = get_layerwise_info(layer).restore_metadata
    present, wanted = get_layer_tensors(layer), params | buffers
    names = {call.tensor for call in calls} & wanted.keys()
    other = {name for name in names if not _alike(present[name], wanted[name])}
    if not other:
        return _Target.PARAMETERS
    # Kernels of the Zen back end may go on using the memory from which they were made.
    packs = current_platform.is_cpu() and not current_platform.is_zen_cpu() and type(method) in _PLAIN
    if not packs or other != {"weight"} or present["weight"].numel():
        return _Target.FRESH_MEMORY
    return _Target.KEPT_MEMORY


def _part_of_file(calls: Sequence[_Call], weight: torch.Tensor) -> _View | None:
    """The part of the file that these loaders only copy: numbers come out of them in their order. None: they do more.

    Tensors that follow each other in the file may be one weight: query, key and value of an attention layer.
    """
    views = [view for call in calls for view in call.views.values()]
    if {view.dtype for view in views} != {weight.dtype} or any(len(call.views) != 1 for call in calls):
        return None
    if not all(view.is_contiguous for view in views):
        return None
    start = min(view.offset for view in views)
    end = max(view.offset + view.shape.numel() for view in views)
    if end - start != weight.numel() or not weight.is_contiguous():
        return None
    numbers = torch.arange(weight.numel(), dtype=torch.int32)
    target = torch.full_like(numbers, -1).view(weight.shape)
    param = _taken_for(weight, target.view_as(target))
    for call in calls:
        [(name, view)] = call.views.items()
        given = {name: numbers.as_strided(view.shape, view.stride, view.offset - start)}
        _run(BoundArguments(call.arguments.signature, call.arguments.arguments | given), param)
    if not torch.equal(target.flatten(), numbers):
        return None
    return _View(start, weight.dtype, weight.shape, weight.stride())


def _run(call: BoundArguments, param: Any) -> None:
    """Call the weight loader of `param`."""
    call.arguments["param"] = param
    layerwise._get_original_loader(param)(*call.args, **call.kwargs)


def _taken_for(weight: torch.Tensor, tensor: torch.Tensor) -> Any:
    """The tensor, as a parameter that vLLM takes for this weight."""
    tensor.__class__ = weight.__class__
    tensor.__dict__ = weight.__dict__.copy()
    return tensor


def _alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (tensor.shape, tensor.stride(), tensor.dtype) == (other.shape, other.stride(), other.dtype)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory from the first to the last number of one has bytes of the other."""
    if not one.numel() or not other.numel():
        return False
    (start, end), (other_start, other_end) = _memory(one), _memory(other)
    return start < other_end and other_start < end


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte, and of the first one after the tensor."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.dtype.itemsize


def _has_constants_only(layer: Any) -> bool:
    """Whether vLLM's step after a load would only set this attention layer's scales to 1 again."""
    return (
        type(layer).process_weights_after_loading is Attention.process_weights_after_loading
        and type(layer.impl).process_weights_after_loading is AttentionImplBase.process_weights_after_loading
        and not layer.quant_config
        and not getattr(layer, "calculate_kv_scales", False)
    )


def _packed_weight(layer: torch.nn.Module) -> torch.Tensor:
    """The weight as loaders want it, without data."""
    weight: torch.Tensor = get_layerwise_info(layer).restore_metadata[0]["weight"]
    return weight


def _one_memory(layers: Sequence[torch.nn.Module]) -> dict[torch.nn.Module, torch.nn.Parameter]:
    """For each layer its weight as vLLM's loaders want it, all of them in the same memory."""
    wanted = {layer: _packed_weight(layer) for layer in layers}
    size = max((weight.nbytes for weight in wanted.values()), default=0)
    memory = torch.empty(size, dtype=torch.uint8).fill_(0)  # touches its pages
    views = {layer: memory[: weight.nbytes].view(weight.dtype) for layer, weight in wanted.items()}
    return {
        layer: _taken_for(weight, views[layer].as_strided(weight.size(), weight.stride()))
        for layer, weight in wanted.items()
    }


def _load_by_vllm(load: _LayerLoad, file: Flat) -> None:
    """vLLM's steps for one layer, from its removal to the copy into the model."""
    layer, info = load.layer, get_layerwise_info(load.layer)
    info.kernel_tensors = get_layer_params_buffers(layer)
    info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
    restore_layer_on_meta(layer, info)
    info.loaded_weights = [(call.tensor, call.bind(file)) for call in load.calls]
    layerwise._layerwise_process(layer, info)
