"""Free memory between used blocks is returned to the system."""

from __future__ import annotations

import subprocess
import sys

# In a separate process, so that the heap of the test process does not matter.
PROGRAM = """
import ctypes, psutil
from olmorl.learner.trainer import malloc

NUM, SIZE = 2000, 100_000
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(SIZE) for _ in range(NUM)]
for piece in pieces:
    ctypes.memset(piece, 1, SIZE)
for piece in pieces[::2]:
    libc.free(piece)
before = psutil.Process().memory_info().rss
malloc.give_back()
print((before - psutil.Process().memory_info().rss) / (NUM * SIZE / 2))
"""


def test_holes_in_the_heap_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # Whole pages only, of which each piece has 23.
    assert 0.8 < float(done.stdout) <= 1.05
