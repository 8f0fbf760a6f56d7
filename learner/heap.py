"""The heap of the C library. Tensors of ever new lengths leave holes in it, more of them for hundreds of steps.

Without this a rank on a CPU holds twice the memory that it uses, and looks as if it leaked.
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return what is free to the system. Does nothing where the C library is not that of GNU."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
