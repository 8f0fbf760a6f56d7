"""Low-rank adapters (LoRA, E. Hu et al., arXiv 2106.09685), which are trained in place of the model's weights.

W x + scale * B (A x)    A: rank x inputs, random at the start;  B: outputs x rank, 0 at the start
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.trainer.weight_snapshot import Run, checkpoint_tensors, model_tensors
from olmorl.seeds import derive

_NAME: Final = "default"
"""PEFT's name of a model's only set of adapters."""
_BASE: Final = ".base_layer."
_PARTS: Final = ("lora_A", "lora_B")


class Adapters:
    """The model computes with its adapters, and these are its only trained weights.

    Raises:
        ModelError: the model has experts, or no such linear layers.
    """

    def __init__(self, model: PreTrainedModel, settings: config.Lora, seed: int) -> None:
        checkpoint = _names_in_checkpoint(model, _targets(model, settings.target_modules))
        self._scale = settings.scale
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # the same adapters on every rank
            self._config = inject(model, settings)
        self._layers: list[Any] = [module for module in model.modules() if hasattr(module, "unscale_layer")]
        self.published = {
            f"{module}.{part}.{_NAME}.weight": f"{stem}.{part}.weight"
            for module, stem in checkpoint.items()
            for part in _PARTS
        }
        """The adapters' names in the model, and their names when they are published."""

    def without(self, policy: Callable[..., Any], *arguments: Any) -> Any:
        """The result of the policy that training began with."""
        try:
            for layer in self._layers:
                layer.scale_layer(0.0)
            return policy(*arguments)
        finally:
            for layer in self._layers:
                layer.unscale_layer()

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of the model without adapters: W + scale * B A under the name of W."""
        merged = {}
        for name, weight in tensors.items():
            module, is_base, leaf = name.partition(_BASE)
            if is_base and leaf == "weight":
                a, b = (tensors[f"{module}.{part}.{_NAME}.weight"].float() for part in _PARTS)
                weight = torch.addmm(weight.float(), b, a, alpha=self._scale).to(weight.dtype)
            if not any(f".{part}." in name for part in _PARTS):
                merged[f"{module}.{leaf}" if is_base else name] = weight
        return merged

    def write(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Write the adapters among the tensors of the model as PEFT's own folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._config.save_pretrained(folder)
        state = {
            f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensors[name].contiguous() for name in self.published
        }
        save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def attach(model: PreTrainedModel, settings: config.Lora, seed: int = 0) -> Adapters | None:
    """Give the model adapters if the recipe says so. The adapters of one seed are equal. Raises as `Adapters` does."""
    return Adapters(model, settings, derive(seed, "adapters")) if settings.rank else None


def inject(model: PreTrainedModel, settings: config.Lora) -> Any:
    """Put adapters into the model, and freeze its own weights; returns PEFT's configuration.

    Raises:
        ModelError: the model has experts, or no such linear layers.
    """
    # Only here: the import takes seconds, and most runs have no adapters.
    from peft import LoraConfig, inject_adapter_in_model

    made = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=_targets(model, settings.target_modules),
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.config.name_or_path,
    )
    inject_adapter_in_model(made, model, _NAME)
    return made


def _targets(model: PreTrainedModel, wanted: tuple[str, ...]) -> list[str]:
    """The names of the layers that get an adapter.

    Raises:
        ModelError: the model has experts, or no such linear layers.
    """
    kind = type(model).__name__
    if experts := [name for name, weight in model.named_parameters() if ".experts." in f".{name}."]:
        raise ModelError(
            f"{kind} has experts ({experts[0]}), which get no adapters: set model.lora.rank = 0 to train all weights"
        )
    head = model.get_output_embeddings()
    linear = [name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head]
    there = {name.rpartition(".")[2] for name in linear}
    if missing := sorted(set(wanted) - there):
        raise ModelError(
            f"model.lora.target_modules: a {kind} has no linear layers called {missing[0]}; it has "
            f"{', '.join(sorted(there))}"
        )
    return [name for name in linear if name.rpartition(".")[2] in wanted]


def _names_in_checkpoint(model: PreTrainedModel, targets: list[str]) -> dict[str, str]:
    """The name of each target in the model's checkpoint.

    Raises:
        ModelError: the checkpoint has its weight in another form.
    """
    tensors = model_tensors(model)
    stored = {tensor.runs: tensor for tensor in checkpoint_tensors(model, tensors)}
    names = {}
    for target in targets:
        name = f"{target}.weight"
        shape = tensors[name].shape
        found = stored.get((Run(name, 0, shape[0] * shape[1]),))
        if found is None or found.shape != shape or not found.name.endswith(".weight"):
            raise ModelError(
                f"a {type(model).__name__} computes with {name} in another form than its checkpoint has; take it out "
                "of model.lora.target_modules"
            )
        names[target] = found.name.removesuffix(".weight")
    return names
