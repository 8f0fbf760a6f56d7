"""Pinned host memory of a rank: how torch is asked to allocate it, and the bytes that a block takes.

By default torch rounds every pinned block up to a power of two, and keeps a freed block for the next request of that
power. A size up to which it does so can be set. Larger blocks then take their own size and return to the system.

Rounding and keeping must end at the same size. Torch 2.13 gives a kept block to any request of the same power of two:
with blocks that are kept and not rounded, that block may be too small (pull request 192722 of pytorch).
"""

from __future__ import annotations

from typing import Final

MIB: Final = 2**20
LARGEST_KEPT_MIB: Final = 2048
"""Layer inputs of a row, which come and go, stay below it. Copies of weights and of optimizer states, which last, do
not."""
ALLOCATOR_SETTINGS: Final = (
    "expandable_segments:True,"
    f"pinned_max_round_threshold_mb:{LARGEST_KEPT_MIB},pinned_max_cached_size_mb:{LARGEST_KEPT_MIB}"
)
"""Torch's allocators for a rank on a GPU. Rows differ in length: each leaves holes without expandable segments."""


def pinned_bytes(num_bytes: int) -> int:
    """Host memory that a pinned block of this size takes with `ALLOCATOR_SETTINGS`."""
    if num_bytes > LARGEST_KEPT_MIB * MIB:
        return num_bytes
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0
