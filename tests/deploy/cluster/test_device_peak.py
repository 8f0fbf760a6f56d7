"""The peak of a device: measured once for a machine, known, or given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.cluster import device_peak
from olmorl.model_cost import DevicePeak
from tests.waiting import seconds


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_cpu_is_measured_in_less_than_a_second_and_once(cache: Path) -> None:
    settings = config.build({"model": {"dtype": "float32"}})
    since = seconds()
    first = device_peak.device_peak(settings, on_gpu=False)
    assert seconds() - since < 1.0
    assert first.flops_per_s is not None and first.bytes_per_s is not None
    assert 1e8 < first.flops_per_s < 1e13 and 1e8 < first.bytes_per_s < 1e12
    (kept,) = (cache / "olmorl").glob("peak-*.json")
    assert json.loads(kept.read_text()) == list(first)
    kept.write_text("[1.0, 2.0]")
    assert device_peak.device_peak(settings, on_gpu=False) == (1.0, 2.0)
    kept.write_text("damaged")
    assert device_peak.device_peak(settings, on_gpu=False).flops_per_s != 1.0


def test_the_recipe_has_the_last_word() -> None:
    settings = config.build({"cluster": {"peak": [0.25, 20.0]}})
    assert device_peak.device_peak(settings, on_gpu=False) == (0.25e12, 20e9)


@pytest.mark.parametrize(
    ("name", "flops_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 9.89e14),
        ("NVIDIA H100 PCIe", 7.56e14),
        ("NVIDIA H200", 9.89e14),
        ("NVIDIA L4", 1.21e14),
        ("NVIDIA L40", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-PCIE-40GB", None),
    ],
)
def test_only_gpus_that_are_known_have_figures(
    monkeypatch: pytest.MonkeyPatch, name: str, flops_per_s: float | None
) -> None:
    monkeypatch.setattr(device_peak.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_peak.torch.cuda, "get_device_name", lambda: name)
    assert device_peak.device_peak(config.build({}), on_gpu=True).flops_per_s == flops_per_s
    half = config.build({"model": {"dtype": "float32"}})
    assert device_peak.device_peak(half, on_gpu=True).flops_per_s is None, "the figures are those of bfloat16"


def test_a_peak_that_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_peak.torch.cuda, "is_available", lambda: False)
    assert device_peak.device_peak(config.build({}), on_gpu=True) == DevicePeak()
