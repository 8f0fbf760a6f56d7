"""A fake tracker that is installed for one test, and a receiver of traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.tracking.otlp_receiver import OtlpReceiver


@pytest.fixture
def fake_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a module `trackio` with this body for `log` on the path of all child processes."""

    def install(log: str) -> None:
        folder = tmp_path / "fake"
        folder.mkdir()
        (folder / "trackio.py").write_text(
            "import os, pathlib, time\n"
            "def init(**settings): pass\n"
            "def finish(): pass\n"
            "class Table:\n    def __init__(self, columns, data): self.data = data\n"
            f"def log(metrics, step):\n    {log}\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A collector of traces on the loopback address."""
    with OtlpReceiver() as made:
        yield made
