"""The peak of one device: known for GPUs by their names, measured on a CPU, or given in the recipe."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from olmorl.config import Config
from olmorl.model_cost import DevicePeak

log = logging.getLogger(__name__)
GPUS: Final = {
    "NVIDIA B200": DevicePeak(2.25e15, 8.0e12),
    "NVIDIA H200": DevicePeak(9.89e14, 4.8e12),
    "NVIDIA H100 80GB HBM3": DevicePeak(9.89e14, 3.35e12),
    "NVIDIA H100 PCIe": DevicePeak(7.56e14, 2.0e12),
    "NVIDIA A100-SXM4-80GB": DevicePeak(3.12e14, 2.039e12),
    "NVIDIA A100-SXM4-40GB": DevicePeak(3.12e14, 1.555e12),
    "NVIDIA L40S": DevicePeak(3.62e14, 8.64e11),
    "NVIDIA L4": DevicePeak(1.21e14, 3.0e11),
}
"""By the name that the driver gives: dense bfloat16 without sparsity, and memory, of the makers' data sheets.

A GPU that is not here has no peak: `cluster.peak` gives it one.
"""
MATRIX: Final = 512
"""Rows and columns of the measured product: its three matrices fit the cache."""
COPY_BYTES: Final = 64 << 20
"""Size of the measured copy: far more than a core's share of the cache."""
REPEATS: Final = 8


def device_peak(settings: Config, *, on_gpu: bool) -> DevicePeak:
    """The peak of this process' device with `model.dtype`: one GPU, or one thread of this CPU.

    Blocks for a third of a second where a CPU is measured. The result is kept for the machine.
    """
    known = _gpu() if on_gpu else _cpu(settings.model.dtype)
    if on_gpu and settings.model.dtype != "bfloat16":
        known = known._replace(flops_per_s=None)
    if settings.cluster.peak is None:
        return known
    tflops, gb_per_s = settings.cluster.peak
    return DevicePeak(tflops * 1e12, gb_per_s * 1e9)


def _gpu() -> DevicePeak:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return GPUS.get(name, DevicePeak())


def _cpu(dtype: str) -> DevicePeak:
    file = _folder() / f"peak-{_key(dtype)}.json"
    with suppress(OSError, ValueError, TypeError):
        return DevicePeak(*json.loads(file.read_text(encoding="utf-8")))
    peak = measure(dtype)
    with suppress(OSError):  # measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        partial.write_text(json.dumps(peak), encoding="utf-8")
        partial.replace(file)
    return peak


def measure(dtype: str) -> DevicePeak:
    """The fastest of a few products and of a few copies on one thread. A copy reads and writes each byte."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            one = torch.ones(MATRIX, MATRIX, dtype=getattr(torch, dtype))
            product = torch.empty_like(one)
            product_s = _fastest(lambda: torch.mm(one, one, out=product))
            source = torch.ones(COPY_BYTES // 4)
            copy = torch.empty_like(source)
            copy_s = _fastest(lambda: copy.copy_(source))
    finally:
        torch.set_num_threads(threads)
    return DevicePeak(2 * MATRIX**3 / product_s, 2 * COPY_BYTES / copy_s)


def _fastest(call: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS + 1):
        since = time.perf_counter()
        call()
        took.append(time.perf_counter() - since)
    return max(min(took[1:]), 1e-9)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "olmorl"


def _key(dtype: str) -> str:
    """A name for the machine, its CPU, its torch and the dtype: the measurement depends on them."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    parts = (platform.node(), model, torch.__version__, dtype)
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
