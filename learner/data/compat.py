"""What transformers has no documented door for: its tokenizers without torch, in less than half the time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from olmorl.config import Model
from olmorl.environment import variables_set


def import_tokenizers(model: Model) -> None:
    """Import transformers for the tokenizer of `model` alone: in this process it has no models then, for good.

    transformers imports torch as soon as it finds it, and a tokenizer that is a `tokenizer.json` does not need it. For
    others nothing changes, nor in a process that has imported one of the two. torch can be imported afterwards.
    """
    is_plain = (Path(model.tokenizer or model.path) / "tokenizer.json").is_file() and not model.trust_remote_code
    if not is_plain or "transformers" in sys.modules or "torch" in sys.modules:
        return
    sys.modules["torch"] = cast(Any, None)  # Python's mark for a module that cannot be imported
    try:
        with variables_set({"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}):  # it would say that PyTorch is missing
            from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]
