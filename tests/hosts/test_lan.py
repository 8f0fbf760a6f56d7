"""Each host has its own files, memory and processes; links break and heal on command; they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.hosts.lan import CODE, Host, Lan, missing, program

PORT = "7777"
CHAT = Path(__file__).with_name("chat.py")
DEADLINE_S = 10.0
pytestmark = pytest.mark.cluster


class Chat:
    """A program on one host that asks a program on another over one connection, line by line, as it is told."""

    def __init__(self, asker: Host, answerer: Host) -> None:
        self.answering = answerer.start([sys.executable, str(CHAT), "answer", answerer.address, PORT], subprocess.PIPE)
        assert self.answering.stdout is not None and self.answering.stdout.readline() == "ready\n"
        self._asker, self._to = asker, answerer.address

    def ask(self, timeout_s: float = 0.5) -> str:
        """A new connection: "answered", or how it failed."""
        return self._asker.run([sys.executable, str(CHAT), "ask", self._to, PORT, str(timeout_s)]).strip()

    def hold(self, timeout_s: float) -> subprocess.Popen[str]:
        """One connection that asks every 0.1 s, until there is no answer for `timeout_s` or an error."""
        command = [sys.executable, str(CHAT), "hold", self._to, PORT, str(timeout_s)]
        holding = self._asker.start(command, subprocess.PIPE)
        assert holding.stdout is not None and holding.stdout.readline() == "answered\n"
        return holding


@pytest.fixture
def chat(lan: Lan) -> Chat:
    return Chat(lan.add("one"), lan.add("two"))


def test_hosts_share_only_what_they_are_told_to(lan: Lan, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "unseen").mkdir()
    one, two = lan.add("one", [tmp_path / "seen"]), lan.add("two", [tmp_path / "seen"])
    one.run(["touch", "/tmp/file", "/dev/shm/file", str(tmp_path / "seen" / "file")])
    assert (tmp_path / "seen" / "file").exists()
    assert two.run(["ls", str(tmp_path / "seen")]).split() == ["file"]
    assert two.run(["ls", "/dev/shm"]) == ""
    there = {folder.relative_to("/tmp").parts[0] for folder in (tmp_path, *CODE)}
    assert set(two.run(["ls", "/tmp"]).split()) == there
    assert one.run(["sh", "-c", f"ls {tmp_path}"]).split() == ["seen"]
    assert [host.run(["hostname"]).strip() for host in (one, two)] == ["one", "two"]
    assert not Path("/dev/shm/file").exists()


def test_a_cut_link_heals(lan: Lan, chat: Chat) -> None:
    assert chat.ask() == "answered"
    lan.hosts["two"].cut()
    assert chat.ask() != "answered"
    lan.hosts["two"].heal()
    assert chat.ask(timeout_s=5) == "answered"


def test_a_muted_link_leaves_connections_half_open(lan: Lan, chat: Chat) -> None:
    holding = chat.hold(timeout_s=1.0)
    lan.hosts["two"].mute()
    last = holding.communicate(timeout=DEADLINE_S)[0].splitlines()[-1]
    assert last == "silence", "neither end was told"
    lan.hosts["two"].heal()
    assert chat.ask(timeout_s=5) == "answered"


def test_a_delayed_link_is_late_by_the_delay_each_way(lan: Lan, chat: Chat) -> None:
    lan.hosts["two"].delay(0.5)
    assert chat.ask(timeout_s=0.9) == "silence", "the handshake alone goes there and back"
    assert chat.ask(timeout_s=5) == "answered"
    lan.hosts["two"].heal()
    assert chat.ask(timeout_s=0.9) == "answered"


def test_a_killed_host_is_gone_with_all_that_ran_on_it(lan: Lan, chat: Chat) -> None:
    host = lan.hosts["two"]
    assert [process.pid for process in host.processes()] == [program(chat.answering).pid]
    (answering,) = host.processes()
    host.kill()
    assert psutil.wait_procs([answering], DEADLINE_S)[1] == []
    assert chat.ask() != "answered"


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has made a host with a program on it, and says which one."""
    if reason := missing():
        pytest.skip(reason)
    code = (
        "import pathlib, sys; from tests.hosts.lan import Lan, program; lan = Lan(pathlib.Path(sys.argv[1]));"
        "lan.__enter__(); print(program(lan.add('one').start(['sleep', '600'])).pid, flush=True); sys.stdin.read()"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield maker
    maker.kill()
    maker.communicate()


def test_a_crash_of_the_test_leaves_nothing(abandoned: subprocess.Popen[str]) -> None:
    assert abandoned.stdout is not None
    assert int(abandoned.stdout.readline())
    everything = psutil.Process(abandoned.pid).children(recursive=True)
    assert len(everything) > 6, "the switch and the host, each with what holds it, and the program"
    os.kill(abandoned.pid, signal.SIGKILL)
    assert psutil.wait_procs(everything, DEADLINE_S)[1] == []
