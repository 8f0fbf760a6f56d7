"""Ranks connect across hosts whose names are loopback addresses, as on Debian, and listen on no other address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.lan import Lan

MEET = Path(__file__).with_name("meet.py")


@pytest.mark.cluster
def test_ranks_on_two_hosts_meet(lan: Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    one, two = lan.add("one"), lan.add("two")
    assert one.run(["getent", "hosts", "one"]).split() == ["127.0.1.1", "one"]
    address = f"{one.address}:7777"
    ranks = [
        host.start([sys.executable, str(MEET), str(rank), "2", address], subprocess.PIPE)
        for rank, host in enumerate((one, two))
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert f"sum 3 on {one.address}\n" in outputs[0] and f"sum 3 on {two.address}\n" in outputs[1], outputs
