"""The pages of a weight file are in the process before the file is loaded, and not longer than needed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from olmorl.actors.vllm_engine.mapped_weights import MappedWeights
from olmorl.actors.vllm_engine.weight_check import file_signature
from olmorl.messages import Version, WeightsReady

SIZE = 40 << 20
MANIFEST = WeightsReady(version=Version(1, 2), buffers=(), num_bytes=SIZE, chunk_bytes=SIZE, shards=())


def resident(path: Path) -> int:
    """Bytes of the file that this process has mapped and touched."""
    entries = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    found = [int(re.search(r"Rss: +(\d+) kB", entry)[1]) for entry in entries if str(path) in entry.splitlines()[0]]  # type: ignore[index]
    return 1024 * sum(found)


def within_seconds(condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_pages_are_touched_in_the_background_and_given_back_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * SIZE)
    staged = MappedWeights(path, file_signature(path), MANIFEST)
    assert resident(path) == 0
    assert within_seconds(staged.is_ready)
    assert resident(path) == SIZE
    staged.release()
    assert within_seconds(lambda: resident(path) == 0)


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * SIZE)
    checked = file_signature(path)
    path.rename(tmp_path / "old")
    path.write_bytes(b"w" * SIZE)
    with pytest.raises(ValueError, match="is not the file that was checked"):
        MappedWeights(path, checked, MANIFEST)
