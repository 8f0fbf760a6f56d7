"""Compiles the policy for its device: each decoder layer in two pieces, before and after its attention, and the head.

torch traces the layer's own forward, so the pieces compute what the model's code says. Attention runs between them as
it is, and gets the layout of the row past them: one compilation serves all rows and all layers. Each compiled layer is
compared with the plain one before training; if any differs, the policy stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from olmorl.learner.trainer.compat import compile_in_pieces
from olmorl.learner.trainer.logprobs import PLAIN, compiled_passes
from olmorl.learner.trainer.packed_attention import keep_apart
from olmorl.learner.trainer.policy import PROBE_TOKENS, TOKEN_STRIDE, LogprobHead, PackedPolicy, PolicyRow

NEAR: Final = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 5e-2}
"""Largest distance of an output or a gradient, relative to its length: that of rounding. In fp64 models norms are
fp32."""
Difference = tuple[float, str]


class _Call(NamedTuple):
    """What a layer is called with."""

    layer: nn.Module
    hidden: Tensor
    options: Mapping[str, Any]


def compile_policy(policy: PackedPolicy, device: torch.device) -> str | None:
    """Compile the layers and the head of a policy whose weights are whole and on the device.

    Returns why it stays plain, or None: it is compiled.
    """
    layers = dense_layers(policy.model)
    if not layers:
        return f"the layers of a {type(policy.model).__name__} are not an attention and an MLP each"
    keep_apart(policy.model)
    compiled = [compile_in_pieces(layer.forward) for layer in layers]
    try:
        away, name = max(
            [*_of_layers(policy, layers, compiled, device), _of_head(policy.head, policy.temperature, device)]
        )
    except (RuntimeError, ImportError, OSError) as error:
        return f"torch cannot compile it here: {str(error).strip().partition(chr(10))[0]}"
    if not away <= NEAR[policy.model.dtype]:
        return f"{name} is {away:.1e} away from the plain computation"
    for layer, forward in zip(layers, compiled, strict=True):
        layer.forward = forward
    policy.head.passes = compiled_passes()
    return None


def dense_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the decoder layers that can be compiled: all, or none if a layer is not one attention and one dense MLP.

    The shapes of experts depend on the data.
    """
    layers = [each for each in model.base_model.modules() if hasattr(each, "self_attn") and hasattr(each, "mlp")]
    dense = all(weight.ndim <= 2 for layer in layers for weight in layer.parameters())
    lists = any(isinstance(module, nn.ModuleList) for layer in layers for module in layer.modules())
    whole = len(layers) == model.config.get_text_config().num_hidden_layers
    return layers if whole and dense and not lists else []


def _of_layers(
    policy: PackedPolicy, layers: Sequence[nn.Module], compiled: Sequence[Callable[..., Any]], device: torch.device
) -> list[Difference]:
    """How far each compiled layer is from the plain one, in what a row with a shared prompt gives it."""
    length, vocabulary = PROBE_TOKENS, policy.model.config.get_text_config().vocab_size
    tokens_T = torch.arange(3 * length, device=device) * TOKEN_STRIDE % vocabulary
    row = PolicyRow(tokens_T, (2 * length, length), torch.arange(2, 3 * length, device=device), (0, length))
    calls: list[_Call] = []

    def note(layer: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        calls.append(_Call(layer, given[0], options))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    with torch.no_grad():
        policy(row, shared=False)
    for hook in hooks:
        hook.remove()
    found = []
    for number, (call, forward) in enumerate(zip(calls, compiled, strict=True)):
        weights = [weight for weight in call.layer.parameters() if weight.requires_grad]
        away = _away(*(_outcome(each, call.hidden, weights, call.options) for each in (call.layer.forward, forward)))
        found.append((away, f"layer {number}"))
    return found


def _outcome(
    forward: Callable[..., Any], hidden: Tensor, weights: Sequence[Tensor], options: Mapping[str, Any]
) -> list[Tensor]:
    """The output and the gradients of the input and of the weights."""
    hidden = hidden.detach().requires_grad_()
    with torch.enable_grad():
        output: Tensor = forward(hidden, **options)
        along = torch.linspace(-1, 1, output.numel(), device=output.device, dtype=output.dtype).view_as(output)
        return [output.detach(), *torch.autograd.grad(output, [hidden, *weights], along)]


def _of_head(head: LogprobHead, temperature: float, device: torch.device) -> Difference:
    """How far the compiled head is from the plain one."""
    weight_VH = head.weight
    numbers = torch.arange(PROBE_TOKENS * weight_VH.shape[1], device=device).view(PROBE_TOKENS, -1)
    targets_T = torch.arange(PROBE_TOKENS, device=device) * TOKEN_STRIDE % len(weight_VH)
    hidden = numbers.sin().to(weight_VH.dtype)

    def logprobs(hidden: Tensor) -> Tensor:
        found: Tensor = head(hidden, targets_T, True, temperature)[0]
        return found

    outcomes = []
    for head.passes in (PLAIN, compiled_passes()):
        outcomes.append(_outcome(logprobs, hidden, [weight_VH] if weight_VH.requires_grad else [], {}))
    head.passes = PLAIN
    return _away(*outcomes), "the head"


def _away(plain: Sequence[Tensor], compiled: Sequence[Tensor]) -> float:
    """The largest difference of two tensors, relative to the length of the plain one."""
    return max(
        float((b - a).double().norm() / a.double().norm().clamp(min=1e-30))
        for a, b in zip(plain, compiled, strict=True)
    )
