"""Runs that were made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.report.made_runs import MadeRun

Make = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Makes a run directory; returns its path."""

    def make(name: str = "run", **settings: Any) -> Path:
        return MadeRun(tmp_path / name, **settings).folder

    return make
