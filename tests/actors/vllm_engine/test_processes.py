"""The processes of an engine end with it or with its owner. The engine is a process that sleeps on shared memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from olmorl.actors.vllm_engine import reaper
from olmorl.actors.vllm_engine.processes import EngineProcesses, check_core
from olmorl.actors.vllm_engine.start import _variables
from olmorl.errors import ConfigError
from tests.waiting import lives

ROOT = str(Path(__file__).parents[3])
ENGINE = """
import time
from multiprocessing.shared_memory import SharedMemory
from setproctitle import setproctitle
setproctitle("a title as long as an environment " * 50)
memory = SharedMemory(create=True, size=1)
print(memory.name, flush=True)
time.sleep(300)
"""
OWNER = f"""
import subprocess, sys, time
from pathlib import Path
from olmorl.actors.vllm_engine.processes import EngineProcesses
processes = EngineProcesses(Path(sys.argv[2]))
with processes.starting({{}}):
    engine = subprocess.Popen([sys.executable, "-c", {ENGINE!r}], stdout=subprocess.PIPE, text=True)
name = engine.stdout.readline().strip()
if sys.argv[1] == "adopt":
    processes.adopt([engine.pid])
print(engine.pid, name, flush=True)
time.sleep(300)
"""


def alive_or_there(pid: int, name: str) -> bool:
    return lives(pid) or Path("/dev/shm", name).exists()


async def gone(pid: int, name: str) -> bool:
    for _ in range(1000):
        if not alive_or_there(pid, name):
            return True
        await asyncio.sleep(0.01)
    return False


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def reapers(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]


@pytest.mark.parametrize("children_too", [False, True])
@pytest.mark.parametrize("when", ["adopt", "before it was adopted"])
async def test_a_killed_owner_takes_its_engine_along(when: str, children_too: bool, tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, when, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT},
    )
    try:
        assert owner.stdout is not None
        pid, name = (await asyncio.wait_for(owner.stdout.readline(), 60)).decode().split()
        mark = psutil.Process(int(pid)).environ()[reaper.VARIABLE]
        until(lambda: len(reapers(mark)) == 1)  # for a moment after the fork there are two, or none is seen
        own = reaper.own_folder(mark)
        (own / "a-socket").touch()
        if children_too:
            # Like a cluster: the owner's children die with it, so their open files cannot be read afterwards.
            await asyncio.sleep(0 if when == "adopt" else 2.5 * reaper.LOOK_S)
            for child in reversed(psutil.Process(owner.pid).children(recursive=True)):  # the reaper first
                child.kill()
    finally:
        owner.kill()
        await owner.wait()
    assert await gone(int(pid), name)
    until(lambda: not reapers(mark))
    assert not own.exists()


def test_what_dies_together_with_its_reaper_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", OWNER, "adopt", str(folder)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": ROOT})
    assert owner.stdout is not None
    pid, name = owner.stdout.readline().split()
    mark = psutil.Process(int(pid)).environ()[reaper.VARIABLE]
    note = folder / f"{reaper.VARIABLE}-{mark}"
    while not note.exists() or name not in note.read_text():
        time.sleep(0.01)
    family = [psutil.Process(owner.pid), *psutil.Process(owner.pid).children(recursive=True)]
    for process in [*reapers(mark), *reversed(family)]:  # the reaper first
        process.kill()
    owner.wait()
    assert Path("/dev/shm", name).exists()
    precious = tmp_path / "precious"
    precious.touch()
    own = reaper.own_folder(mark)
    (own / "a-socket").touch()
    (folder / f"{reaper.VARIABLE}-other").write_text(f"{precious}\n")
    (folder / f"{reaper.VARIABLE}-0").symlink_to("gone")  # what another that sweeps has just unlinked
    reaper.sweep(folder)
    assert not Path("/dev/shm", name).exists()
    assert not own.exists()
    assert [path.name for path in folder.iterdir()] == [f"{reaper.VARIABLE}-0"]
    assert precious.exists(), "only shared memory of engines is unlinked"


async def test_end_leaves_neither_processes_nor_memory_nor_the_reaper(tmp_path: Path) -> None:
    processes = EngineProcesses(tmp_path / "run")
    with processes.starting({"OLMORL_TEST": "for the engine only"}):
        assert os.environ["OLMORL_TEST"]
        mark = os.environ[reaper.VARIABLE]
        engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert not os.environ.keys() & {"OLMORL_TEST", reaper.VARIABLE}
    assert engine.stdout is not None
    name = await asyncio.to_thread(engine.stdout.readline)
    processes.adopt([engine.pid])
    processes.end()
    assert await gone(engine.pid, name.strip())
    for _ in range(200):
        if not reapers(mark):
            assert list_folder(tmp_path) == [], "its note is gone too"
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the reaper outlives the engine")


async def test_what_an_engine_made_just_before_it_was_killed_is_unlinked(tmp_path: Path) -> None:
    processes = EngineProcesses(tmp_path / "run")
    with processes.starting({}):
        mark = os.environ[reaper.VARIABLE]
        until(lambda: any(watches(process) for process in reapers(mark)))
        engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert engine.stdout is not None
    name = engine.stdout.readline().strip()
    # Like a cluster that kills all children of an actor, the reaper too.
    for process in (*psutil.Process(engine.pid).children(), engine):
        process.kill()
    engine.wait()
    assert Path("/dev/shm", name).exists()  # noqa: ASYNC240
    used = SharedMemory(create=True, size=1)
    processes.end()
    assert await gone(engine.pid, name)
    until(lambda: not reapers(mark))
    assert alive_or_there(engine.pid, used.name), "it is another's"
    used.close()
    used.unlink()


def watches(process: psutil.Process) -> bool:
    """Whether it looks at what is made."""
    with suppress(OSError):  # of a file that was closed meanwhile
        return any(str(link.readlink()) == "anon_inode:inotify" for link in Path(f"/proc/{process.pid}/fd").iterdir())
    return False


def until(ready: Callable[[], object]) -> None:
    give_up = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_what_the_operator_set_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLMORL_TEST", "the operator's")
    processes = EngineProcesses(tmp_path / "run")
    with processes.starting({"OLMORL_TEST": "ours"}):
        assert os.environ["OLMORL_TEST"] == "the operator's"
    assert os.environ["OLMORL_TEST"] == "the operator's"
    processes.end()


def test_an_engine_has_a_temporary_folder_of_its_own_which_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "caches"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    processes, make = EngineProcesses(tmp_path / "run"), "import tempfile; print(tempfile.mkstemp()[1])"
    with processes.starting({}):
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert (Path(os.environ["TMPDIR"]) / cache.name).resolve() == cache.resolve()
        made = Path(subprocess.run([sys.executable, "-c", make], capture_output=True, text=True).stdout.strip())
        own = Path(os.environ["VLLM_RPC_BASE_PATH"])
        assert made.exists() and made.parent == own and own.stat().st_mode & 0o777 == 0o700
    assert os.environ["TMPDIR"] == str(tmp_path) and "VLLM_RPC_BASE_PATH" not in os.environ
    processes.end()
    assert not own.exists() and cache.is_dir(), "what torch has compiled is kept for the next engine"
    assert list(tmp_path.iterdir()) == [cache.parent], "in vLLM's cache: nothing is left in TMPDIR"


def test_without_a_home_that_can_be_written_torch_compiles_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "file" / "caches"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    processes = EngineProcesses(tmp_path / "run")
    with processes.starting({}):
        assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
        assert list(Path(os.environ["TMPDIR"]).iterdir()) == []
    processes.end()


@pytest.mark.parametrize("core", [10_000, os.cpu_count()])
def test_a_core_that_is_not_there_is_refused_by_name(core: int) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=f"core {core}: this host has no such core.*actors.cores"):
        check_core(core)
    check_core(min(before))
    assert os.sched_getaffinity(0) == before


def test_a_failed_start_is_cleaned_up_by_its_mark(tmp_path: Path) -> None:
    processes = EngineProcesses(tmp_path / "run")
    with processes.starting({}):
        engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    name = engine.stdout.readline().strip()
    processes.end()
    engine.wait(5)
    assert not alive_or_there(engine.pid, name)


def test_a_process_that_started_after_the_engine_was_up_ends_with_it(tmp_path: Path) -> None:
    processes = EngineProcesses(tmp_path)
    with processes.starting({}):
        first = subprocess.Popen(["sleep", "300"])
        processes.adopt([first.pid])
        late = subprocess.Popen(["sleep", "300"])
    assert lives(late.pid)
    while not Path(f"/proc/{late.pid}/environ").read_bytes():
        time.sleep(0.01)  # the kernel still makes its new memory, and nobody can tell whose it is
    processes.end()
    assert not lives(first.pid) and not lives(late.pid)


def test_the_interfaces_that_an_operator_chose_are_those_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    processes = EngineProcesses(tmp_path)
    try:
        with processes.starting(_variables(None, 10.0, None)):
            seen = subprocess.check_output(["env"], text=True).splitlines()
    finally:
        processes.end()
    assert {"NCCL_SOCKET_IFNAME=eth7", "GLOO_SOCKET_IFNAME=lo"} <= set(seen)
