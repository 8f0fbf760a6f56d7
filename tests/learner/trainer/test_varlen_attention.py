"""torch's varlen attention as the policy calls it. A CPU kernel written here takes the place of the flash kernel, which
exists for GPUs alone: everything above the kernel is torch's own code, the autograd formula included."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from olmorl.errors import ModelError
from olmorl.learner.trainer import packed_attention
from olmorl.learner.trainer.packed_attention import implementation, layout, packed_flash_4, packed_varlen
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow, refuse_leaks, refuse_sharing
from tests.learner.trainer.test_packed_policy import LENGTHS, alone, packed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def allowed(queries: int, keys: int, is_causal: bool, left: int, right: int) -> Tensor:
    """The flash kernel's windows: `left` keys before the query's own and `right` after it; -1 for all.

    Queries are counted from the end of the keys.
    """
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    right = 0 if is_causal else right
    return (distance <= left if left >= 0 else distance > -keys) & (-distance <= right if right >= 0 else True)


def attention(query: Tensor, key: Tensor, scale: float, near: Tensor) -> Tensor:
    """Weights of one sample, H x queries x keys, in fp64."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * scale
    return scores.masked_fill(~near, -torch.inf).softmax(-1)


def samples(bounds_q: Tensor, bounds_k: Tensor) -> Iterator[tuple[slice, slice]]:
    for queries, keys in zip(pairwise(bounds_q.tolist()), pairwise(bounds_k.tolist()), strict=True):
        yield slice(*queries), slice(*keys)


def forward(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, bounds_k: Tensor, max_q: int, max_k: int, *rest: Any,
    **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    for own, states, longest in ((bounds, query, max_q), (bounds_k, key, max_k), (bounds_k, value, max_k)):
        assert own.dtype == torch.int32 and own[-1] == len(states) and longest == int(own.diff().max())
    dropout, is_causal = rest[0], rest[1]
    assert dropout == 0
    output = torch.empty_like(query)
    for own, seen in samples(bounds, bounds_k):
        q, k, v = query[own], key[seen], value[seen]
        near = allowed(len(q), len(k), is_causal, options["window_size_left"], options["window_size_right"])
        weights = attention(q, k, options["scale"], near)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1).double()
        output[own] = torch.einsum("hqk,khd->qhd", weights, v).to(output.dtype)
    nothing = query.new_empty(0)
    return output, query.new_zeros(query.shape[1], len(query)), nothing, nothing, nothing


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, bounds: Tensor,
    bounds_k: Tensor, *rest: Any, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    is_causal, scale = rest[3], options["scale"]
    grads = [torch.empty_like(tensor) for tensor in (query, key, value)]
    for own, seen in samples(bounds, bounds_k):
        q, k, v, do = query[own], key[seen], value[seen], grad[own].double()
        near = allowed(len(q), len(k), is_causal, options["window_size_left"], options["window_size_right"])
        weights, groups = attention(q, k, scale, near), q.shape[1] // k.shape[1]
        dp = torch.einsum("qhd,khd->hqk", do, v.repeat_interleave(groups, 1).double())
        ds = weights * (dp - (weights * dp).sum(-1, keepdim=True)) * scale
        dq = torch.einsum("hqk,khd->qhd", ds, k.repeat_interleave(groups, 1).double())
        dk = torch.einsum("hqk,qhd->khd", ds, q.double()).unflatten(1, (-1, groups)).sum(2)
        dv = torch.einsum("hqk,qhd->khd", weights, do).unflatten(1, (-1, groups)).sum(2)
        for whole, part, made in zip(grads, (own, seen, seen), (dq, dk, dv), strict=True):
            whole[part] = made.to(whole.dtype)
    return tuple(grads)


@pytest.fixture(scope="module", autouse=True)
def cpu_kernel() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", forward)
    library.impl("_flash_attention_backward", backward)
    yield
    library._destroy()


def load(folder: str, name: str) -> PackedPolicy:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=name)
    return PackedPolicy(model, 0.7, 4)


def varlen(folder: str) -> str:
    return implementation("varlen", GPU, torch.bfloat16, AutoConfig.from_pretrained(folder))


@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_packed_equals_separate_in_values_and_gradients(tiny_models: dict[str, str], name: str) -> None:
    policy, single = load(tiny_models[name], varlen(tiny_models[name])), load(tiny_models[name], "eager")
    assert policy.model.config._attn_implementation == "olmorl_varlen"
    tokens_T, predicted_P = packed()
    got = policy(PolicyRow(tokens_T, LENGTHS, predicted_P))[0][predicted_P]
    wanted = alone(single)
    assert torch.allclose(got, wanted, atol=1e-5)
    weights = torch.linspace(-1, 1, len(got))
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    for (key, left), right in zip(policy.named_parameters(), single.parameters(), strict=True):
        assert torch.allclose(left.grad, right.grad, atol=1e-4), key


def flash_4(
    query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: tuple[int | None, int | None],
) -> tuple[Tensor, None]:  # fmt: skip
    """What flash-attn-4 computes, on the CPU. Its windows are open where they are None."""
    assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
    left, right = (-1 if side is None else side for side in window_size)
    outputs = []
    for own, seen in samples(cu_seqlens_q, cu_seqlens_k):
        near = allowed(own.stop - own.start, seen.stop - seen.start, causal, left, right)
        weights = attention(query[own], key[seen], softmax_scale, near)
        v = value[seen].repeat_interleave(query.shape[1] // value.shape[1], 1).double()
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v).to(query.dtype))
    return torch.cat(outputs), None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the package flash-attn-4."""
    for name in ("flash_attn", "flash_attn.cute"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["flash_attn.cute"], "flash_attn_varlen_func", flash_4, raising=False)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("attend", [packed_varlen, packed_flash_4], ids=["torch", "flash-attn-4"])
@pytest.mark.parametrize("prefixes", [(), (0, 3, 3, 0), (0, 0, 7, 7)])
@pytest.mark.parametrize("window", [None, 1, 2, 6, 40])
def test_windows_groups_of_heads_and_shared_prompts_are_those_of_sdpa(
    window: int | None, prefixes: tuple[int, ...], attend: Callable[..., tuple[Tensor, None]]
) -> None:
    torch.manual_seed(0)
    lengths = LENGTHS if not prefixes or prefixes[1] else (3, 12, 17, 9)
    shapes = ((1, 4, sum(lengths), 8), (1, 2, sum(lengths), 8), (1, 2, sum(lengths), 8))
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    bounds = layout(lengths, CPU, prefixes=prefixes)
    options: dict[str, Any] = {"scaling": 0.3, "sliding_window": window, **bounds}
    module = torch.nn.Identity()
    wanted, _ = packed_attention.packed_sdpa(module, *inputs, None, **options)
    got, _ = attend(module, *inputs, None, **options)
    assert torch.allclose(got, wanted, atol=1e-6)
    direction = torch.randn_like(wanted)
    for left, right in zip(
        torch.autograd.grad(got, inputs, direction), torch.autograd.grad(wanted, inputs, direction), strict=True
    ):
        assert torch.allclose(left, right, atol=1e-5)


def test_samples_of_a_row_do_not_see_each_other(tiny_models: dict[str, str]) -> None:
    policy = load(tiny_models["olmo3"], varlen(tiny_models["olmo3"]))
    refuse_leaks(policy, policy.model, CPU)
    refuse_sharing(policy, policy.model, CPU)
    with pytest.raises(ModelError, match="packed samples see each other"):
        refuse_leaks(lambda row: policy(row._replace(lengths=(16,))), policy.model, CPU)


def test_a_model_that_keeps_the_bounds_to_itself_is_refused() -> None:
    query = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ModelError, match="Identity cannot run packed rows with varlen: it does not pass"):
        packed_varlen(torch.nn.Identity(), query, query, query, None)
    with pytest.raises(ModelError, match="it uses softcap"):
        packed_varlen(torch.nn.Identity(), query, query, query, None, softcap=30.0, **layout((4,), CPU))


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "name"),
    [
        ((9, 0), torch.bfloat16, 128, "olmorl_varlen"),
        ((8, 0), torch.bfloat16, 256, "olmorl_varlen"),
        ((7, 5), torch.bfloat16, 128, "olmorl_sdpa"),
        ((9, 0), torch.float32, 128, "olmorl_sdpa"),
        ((9, 0), torch.bfloat16, 512, "olmorl_sdpa"),
    ],
)
def test_auto_takes_the_flash_kernel_where_it_runs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, head_dim: int, name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    model = AutoConfig.for_model("qwen3", head_dim=head_dim)
    assert implementation("auto", GPU, dtype, model) == name
    if name == "olmorl_sdpa" and capability >= (8, 0):
        with pytest.raises(ModelError, match=r'varlen" needs model\.dtype = "bfloat16" and heads of at most 256'):
            implementation("varlen", GPU, dtype, model)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("capability", "shape", "name"),
    [
        ((9, 0), {"head_dim": 128}, "olmorl_attention_4"),
        ((9, 0), {"head_dim": 64}, "olmorl_varlen"),
        ((9, 0), {"head_dim": 128, "use_sliding_window": True, "max_window_layers": 0}, "olmorl_varlen"),
        ((8, 0), {"head_dim": 128}, "olmorl_varlen"),
        ((10, 0), {"head_dim": 128}, "olmorl_varlen"),
    ],
)
def test_auto_takes_flash_attn_4_where_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], shape: dict[str, Any], name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    model = AutoConfig.for_model("qwen3", **shape)
    assert implementation("auto", GPU, torch.bfloat16, model) == name
    assert implementation("flash_attention_4", GPU, torch.bfloat16, model) == "olmorl_attention_4"


def test_without_its_package_flash_attn_4_is_refused() -> None:
    with pytest.raises(ModelError, match="pip install flash-attn-4"):
        implementation("flash_attention_4", GPU, torch.bfloat16, AutoConfig.for_model("qwen3"))


def test_a_model_without_heads_gets_a_name_too() -> None:
    assert implementation("auto", CPU, torch.float32, AutoConfig.for_model("mamba")) == "olmorl_sdpa"
