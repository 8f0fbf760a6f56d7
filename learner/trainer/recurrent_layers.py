"""Refuses models with layers that are no attention, from their configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from olmorl.errors import ModelError

_SIGNS = ("mamba_", "ssm_", "rwkv", "hybrid_override_pattern", "state_size", "conv_kernel", "rescale_every")
"""Beginnings of keys that only models with recurrent layers have. Those with `layer_types` name each layer instead."""


def refuse_recurrent(name: str, tree: Mapping[str, Any]) -> None:
    """Refuse a model with recurrent layers: samples that are packed into a row would see each other.

    Args:
        tree: the model's configuration; that of its language model if it has several parts.

    Raises:
        ModelError: some layers are no attention.
    """
    kinds = tree.get("layer_types") or tree.get("layers_block_type") or []
    others = [kind for kind in kinds if "attention" not in str(kind) or "linear" in str(kind)]
    signs = [] if kinds else [key for key in tree if key.startswith(_SIGNS)]
    if not others and not signs:
        return
    which = f"{len(others)} of its {len(kinds)} layers are {others[0]}" if others else f"its config.json has {signs[0]}"
    raise ModelError(
        f"model.path = {name}: a {tree.get('model_type')} has recurrent layers ({which}): samples that are packed into "
        "one row would see each other, and no setting helps; name a model whose layers are all attention"
    )
