from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows to a fresh file; None is an empty line."""

    def write(*rows: dict[str, Any] | None) -> Path:
        folder = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "rows.jsonl"
        path.write_text("".join(("" if row is None else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
