"""The sizes of pinned blocks, and torch's settings for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from olmorl.learner.trainer.pinned_memory import ALLOCATOR_SETTINGS, MIB, pinned_bytes


@pytest.mark.parametrize(
    ("asked", "taken"),
    [(0, 0), (1, 1), (3, 4), (340 * MIB, 512 * MIB), (2048 * MIB, 2048 * MIB), (2048 * MIB + 1, 2048 * MIB + 1)],
)
def test_blocks_up_to_the_largest_kept_one_are_powers_of_two(asked: int, taken: int) -> None:
    assert pinned_bytes(asked) == taken


def test_torch_takes_the_settings_and_rounds_every_block_that_it_keeps() -> None:
    """Torch warns when the two sizes differ in the one way, and writes past a block when they do in the other."""
    options = dict(option.split(":") for option in ALLOCATOR_SETTINGS.split(","))
    assert options["pinned_max_round_threshold_mb"] == options["pinned_max_cached_size_mb"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import torch; print(torch._C._accelerator_getAllocatorSettings())"],
        env=os.environ | {"PYTORCH_ALLOC_CONF": ALLOCATOR_SETTINGS},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == ALLOCATOR_SETTINGS and "Warning" not in done.stderr
