"""Another hub, cache and token for the hub's library. It reads the environment only when it is imported."""

from __future__ import annotations

from pathlib import Path

import datasets.config
import pytest
from huggingface_hub import constants


def use_hub(monkeypatch: pytest.MonkeyPatch, home: Path, endpoint: str = "", offline: bool = False) -> None:
    """Set what HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE would set, and no token."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
