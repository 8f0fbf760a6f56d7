"""The speed of the ranks' connections, measured and as the system states it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from olmorl.learner.trainer.process_group import links
from tests.learner.conftest import _free_port

GATHER = """
import sys, torch
from olmorl.learner.trainer import process_group
rank, address = int(sys.argv[1]), sys.argv[2]
process_group._GATHERED_BYTES["cpu"] = 1 << 22
process_group.join(process_group.Ranks(rank, 2, address, timeout_s=60), torch.device("cpu"))
print(process_group.all_gather_bytes_per_s(1, torch.device("cpu")))
"""


def test_the_speed_of_an_all_gather_is_that_of_what_arrives() -> None:
    address = f"127.0.0.1:{_free_port()}"
    ranks = [
        subprocess.Popen([sys.executable, "-c", GATHER, str(rank), address], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        speeds = [float(rank.communicate(timeout=120)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(1e6 < speed < 1e12 for speed in speeds)
    assert max(speeds) < 3 * min(speeds), "they wait for each other"


def port(system: Path, device: str, state: str, rate: str) -> None:
    folder = system / "infiniband" / device / "ports" / "1"
    folder.mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "rate").write_text(f"{rate}\n")


def test_active_infiniband_ports_are_added_up(tmp_path: Path) -> None:
    for number in range(8):
        port(tmp_path, f"mlx5_{number}", "4: ACTIVE", "400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_8", "4: ACTIVE", "25 Gb/sec (1X EDR)")
    port(tmp_path, "mlx5_9", "1: DOWN", "10 Gb/sec (4X SDR)")
    found = links("eth0", tmp_path)
    assert found == ("InfiniBand 8 x 400 Gb/s + 1 x 25 Gb/s", pytest.approx(3225e9 / 8))


@pytest.mark.parametrize(("speed", "found"), [("100000", ("eth0 100 Gb/s", 12.5e9)), ("-1", None), (None, None)])
def test_without_them_the_interface_says_it(tmp_path: Path, speed: str | None, found: tuple[str, float] | None) -> None:
    (tmp_path / "net" / "eth0").mkdir(parents=True)
    if speed is not None:
        (tmp_path / "net" / "eth0" / "speed").write_text(f"{speed}\n")
    assert links("eth0", tmp_path) == found
