"""The sandbox keeps its word to the event loop: limits hold, failures are no rewards, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.inside.isolation.restrictions import PROCESSES
from olmorl.verifiers.code.sandbox import tiers
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport
from olmorl.verifiers.code.sandbox.sandbox import PROBE, Sandbox
from olmorl.verifiers.code.sandbox.tiers import DISK_MIB
from tests.verifiers.code.conftest import SETTINGS, TIERS
from tests.waiting import lives, seconds

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUICK = SETTINGS.model_copy(update={"code_test_timeout_s": 0.25})
ECHO = ProgramTest("import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])\n", stdin="abc\ndef\n")
SLEEP = ProgramTest("import time\ntime.sleep(600)\n", stdin="")


async def test_a_script_gets_its_input_and_its_output_comes_back(sandbox: Sandbox) -> None:
    assert await sandbox.run(ECHO) == RunReport("printed", output=b"cba\nfed\n")


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(open(0).read())", b"1\n2\n\n"),
        ("print(input() + input())", b"12\n"),
        ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))", b"3\n"),
        ("import os\nos.write(1, os.read(0, 100))", b"1\n2\n"),
        ("import io, os\nread = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(int(read()))", b"1\n"),
        ("print(open('/dev/stdin').read())", b"1\n2\n\n"),
        ("import sys\nsys.stdin.read()\nsys.stdin.seek(0)\nprint(input())", b"1\n"),
        ("print('a', flush=True)\nexit()\nprint('b')", b"a\n"),
        ("if __name__ == '__main__':\n    print('main')", b"main\n"),
        ("import threading\nthreading.stack_size(1 << 27)\nthreading.Thread(target=lambda: print(7)).start()", b"7\n"),
        ("import atexit\natexit.register(print, 'end')\nprint('start')", b"start\nend\n"),
        ("import sys\nsys.stdout.write('no newline')\nsys.stderr.write('x' * 100000)", b"no newline"),
        ("print('é' * 3)", "ééé\n".encode()),
    ],
)
async def test_scripts_run_as_they_would_alone(any_sandbox: Sandbox, program: str, output: bytes) -> None:
    assert await any_sandbox.run(ProgramTest(program, stdin="1\n2\n")) == RunReport("printed", output=output)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print(1)\nraise ValueError('no')", "ValueError: no"),
        ("print(1)\nimport sys\nsys.exit(3)", "status 3"),
        ("import sys\nsys.exit('message')", "status 1"),
        ("print(input())\nprint(input())", "EOFError"),
        ("print(1", "SyntaxError"),
        ("import os\nos.abort()", "signal"),
    ],
)
async def test_a_script_that_fails_says_why(any_sandbox: Sandbox, program: str, why: str) -> None:
    report = await any_sandbox.run(ProgramTest(program, stdin="1\n"))
    assert isinstance(report, RunReport) and report.outcome == "failed" and why in report.detail


async def test_each_limit_of_a_script_holds() -> None:
    programs = {
        "while True: pass": "time",
        "x = bytearray(1 << 30)": "memory",
        "while True: print('x' * 1000)": "output",
        "import time\ntime.sleep(600)": "timeout",
        "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(600)": "timeout",
    }
    quick = Sandbox(QUICK.model_copy(update={"workers": 5}))
    try:
        outcomes = await asyncio.gather(*(quick.run(ProgramTest(program, stdin="")) for program in programs))
        for outcome, kind in zip(outcomes, programs.values(), strict=True):
            # On a busy machine the clock may be first.
            assert outcome in (Limit(kind), Limit("timeout"))
        assert await quick.run(PROBE) == RunReport("passed")
        assert quick.counters.kills >= 4 and quick.counters.outcomes == {"limit": 5, "done": 1}
    finally:
        await quick.close()


async def test_much_input_and_much_output(any_sandbox: Sandbox) -> None:
    text = "x" * 79 + "\n"
    outcome = await any_sandbox.run(ProgramTest("import sys\nprint(len(sys.stdin.read()))", stdin=text * 50_000))
    assert outcome == RunReport("printed", output=b"4000000\n")
    outcome = await any_sandbox.run(ProgramTest("print('y' * 200_000)", stdin=text * 10_000))
    assert outcome == RunReport("printed", output=b"y" * 200_000 + b"\n")


async def test_an_input_that_no_file_may_hold_is_a_fault_of_the_label(any_sandbox: Sandbox) -> None:
    text = "x" * ((DISK_MIB << 20) + 1)
    outcome = await any_sandbox.run(ProgramTest("print(1)", stdin=text))
    assert outcome == RunReport("label", f"the input is larger than {DISK_MIB} MiB")


async def test_a_test_leaves_nothing_for_the_next(sandbox: Sandbox) -> None:
    write = "import builtins, sys\nbuiltins.seen = sys.seen = 1\ntry: open('/tmp/seen', 'w').close()\n"
    write += "except OSError: pass"
    look = "import os, sys\nprint(os.path.exists('/tmp/seen'), hasattr(sys, 'seen'), 'seen' in dir(__builtins__))"
    for _ in range(3):
        await sandbox.run(ProgramTest(write, stdin=""))
        assert await sandbox.run(ProgramTest(look, stdin="")) == RunReport("printed", output=b"False False False\n")


@pytest.mark.parametrize("tier", TIERS)
async def test_nothing_runs_on_after_a_test_and_nothing_after_a_close(tier: str) -> None:
    sandbox = Sandbox(QUICK.model_copy(update={"code_tier": tier, "workers": 1}))
    before = descendants()
    assert await sandbox.run(PROBE) == RunReport("passed")
    idle = descendants() - before
    spawn = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    spawn += "try:\n    os.fork() or os.setsid() or os.fork() or time.sleep(600)\nexcept OSError: pass\n"
    await sandbox.run(ProgramTest(spawn + "def f(): return 1", test="assert f() == 1"))
    assert descendants() - before == idle
    waiting = asyncio.create_task(sandbox.run(SLEEP))
    running = await grown(before, len(idle) + 2)
    await sandbox.close()
    assert isinstance(await waiting, Failed)
    assert gone(running)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has to become somebody else")
@pytest.mark.parametrize("tier", TIERS)
async def test_nothing_of_a_program_runs_as_root(tier: str) -> None:
    sandbox = Sandbox(QUICK.model_copy(update={"code_tier": tier, "workers": 1}))
    before = descendants()
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        waiting = asyncio.create_task(sandbox.run(SLEEP))
        running = await grown(before, len(descendants() - before) + 2)
        assert all(0 not in process.uids() + process.gids() for process in running)
    finally:
        await sandbox.close()
    assert isinstance(await waiting, Failed)


async def test_a_killed_sandbox_process_costs_a_retry_and_no_reward() -> None:
    sandbox = Sandbox(QUICK.model_copy(update={"workers": 1}))
    before = set(psutil.Process().children(recursive=True))
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        killed = set(psutil.Process().children(recursive=True)) - before
        for process in killed:
            with suppress(psutil.NoSuchProcess):  # it ended with its parent
                process.kill()
        psutil.wait_procs(killed, timeout=10)
        assert await sandbox.run(PROBE) == RunReport("passed")
        assert sandbox.counters.starts == 2
    finally:
        await sandbox.close()


async def test_a_sandbox_process_killed_at_every_try_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olmorl.verifiers.code.sandbox.sandbox.RETRIES", 0)
    sandbox = Sandbox(QUICK.model_copy(update={"workers": 1, "code_test_timeout_s": 30.0}))
    before = set(psutil.Process().children())
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        waiting = asyncio.create_task(sandbox.run(SLEEP))
        await asyncio.sleep(0.1)
        for process in set(psutil.Process().children()) - before:
            process.kill()
        outcome = await waiting
        assert isinstance(outcome, Failed) and outcome.error_kind == "sandbox_lost"
        assert sandbox.counters.outcomes["sandbox_lost"] == 1
    finally:
        await sandbox.close()


async def test_where_bubblewrap_is_missing_the_next_tier_is_used_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox = Sandbox(QUICK)
    try:
        assert await sandbox.run(PROBE) == RunReport("passed")
        assert sandbox.tier == "landlock"
        assert "install the package bubblewrap" in sandbox.refused["bubblewrap"]
    finally:
        await sandbox.close()


_BOMBS = """
import ctypes, threading, time
def by_python():
    threading.stack_size(32768)
    for number in range(3000):
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            break
    return number + 1
def by_the_kernel():
    library, stacks = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 24)
    code, base = ctypes.cast(library.pause, ctypes.c_void_p), ctypes.addressof(stacks)
    flags = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000
    return 1 + sum(library.clone(code, ctypes.c_void_p(base + 8192 * n), flags, None) > 0 for n in range(1, 2000))
"""


@pytest.mark.parametrize("bomb", ["by_python", "by_the_kernel"])
async def test_under_landlock_a_user_who_is_not_root_has_a_limit_of_threads_too(
    bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers.os, "getuid", lambda: 1000)  # so the sandbox has no user of its own to count for
    sandbox = Sandbox(SETTINGS.model_copy(update={"code_tier": "landlock"}), vet=False)
    try:
        assert await sandbox.run(ProgramTest(_BOMBS, f"assert {bomb}() <= {PROCESSES}")) == RunReport("passed")
        threads = (Path(__file__).parent / "honest" / "threads.txt").read_text(encoding="utf-8").split("=== test\n")
        for test in threads[1:]:
            assert await sandbox.run(ProgramTest(threads[0], test)) == RunReport("passed"), test
    finally:
        await sandbox.close()


async def test_where_no_tier_works_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox = Sandbox(QUICK.model_copy(update={"code_tier": "bubblewrap"}))
    outcome = await sandbox.run(PROBE)
    assert isinstance(outcome, Failed) and outcome.error_kind == "no_sandbox"
    assert "verifiers.code_tier" in outcome.detail
    await sandbox.close()


async def test_a_cancelled_caller_does_not_disturb_the_others() -> None:
    sandbox = Sandbox(QUICK)
    try:
        sleeping = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(2)]
        waiting = [asyncio.create_task(sandbox.run(PROBE)) for _ in range(4)]
        await asyncio.sleep(0.8)
        for task in sleeping:
            task.cancel()
        assert await asyncio.gather(*waiting) == [RunReport("passed")] * 4
    finally:
        await sandbox.close()


async def test_hostile_programs_never_hold_up_the_event_loop() -> None:
    sandbox = Sandbox(QUICK)
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            started = seconds()
            await asyncio.sleep(0.01)
            longest = max(longest, seconds() - started)

    try:
        await sandbox.run(PROBE)
        watching = asyncio.create_task(watch())
        flood = ProgramTest("while True: print('x' * 65536)", stdin="y" * (1 << 20))
        bomb = ProgramTest("def f(): return [[] for _ in range(10**6)]", test="assert f() == 1")
        await asyncio.gather(*(sandbox.run(job) for job in (flood, bomb, flood, bomb)))
        watching.cancel()
        assert longest < 1.0
    finally:
        await sandbox.close()


async def test_sandbox_processes_die_with_their_owner(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        "import asyncio, psutil\n"
        "from olmorl.config import Verifiers\n"
        "from olmorl.verifiers.code.sandbox.sandbox import PROBE, ProgramTest, Sandbox\n"
        "async def main():\n"
        "    sandbox = Sandbox(Verifiers(code_test_timeout_s=300))\n"
        "    await sandbox.run(PROBE)\n"
        "    waiting = asyncio.create_task(sandbox.run(ProgramTest('import time\\ntime.sleep(600)', stdin='')))\n"
        "    await asyncio.sleep(0.5)\n"
        "    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)\n"
        "    await waiting\n"
        "asyncio.run(main())\n",
        encoding="utf-8",
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    processes = {psutil.Process(int(pid)) for pid in (await owner.stdout.readline()).split()}
    assert len(processes) >= 3
    owner.kill()
    await owner.wait()
    assert gone(processes)


async def test_the_sandbox_runs_on_the_event_loop_that_ray_gives_its_actors() -> None:
    import uvloop

    async def check() -> object:
        sandbox = Sandbox(QUICK)
        try:
            return await sandbox.run(PROBE)
        finally:
            await sandbox.close()

    assert await asyncio.to_thread(uvloop.run, check()) == RunReport("passed")


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


async def grown(before: set[psutil.Process], count: int) -> set[psutil.Process]:
    """This process's descendants, as soon as there are `count` new ones."""
    running: set[psutil.Process] = set()
    for _ in range(500):
        running = descendants() - before
        if len(running) >= count:
            break
        await asyncio.sleep(0.02)
    assert len(running) == count
    return running


def gone(processes: set[psutil.Process]) -> bool:
    """Whether the processes end within five seconds."""
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not any(map(lives, alive))
