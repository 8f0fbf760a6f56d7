"""The pool of processes: deadlines, memory, crashes, replacement, order and bounds."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from olmorl.verifiers.check_outcomes import Done, Failed, Limit, WorkerProbe
from olmorl.verifiers.pool.fork_server import ForkServer, WorkerStartFailed
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.pool.worker import WorkerSettings
from tests.waiting import HANG_S, seconds, until

NEGATE = "operator:neg"
HEALTHY = WorkerProbe(NEGATE, 1, -1)
UNHEALTHY = WorkerProbe(NEGATE, 1, 1)


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """A pool in which no check passes its deadline, also where the machine is busy."""
    async for pool in _started(HANG_S):
        yield pool


@pytest.fixture
async def hasty() -> AsyncIterator[Pool]:
    """A pool that soon kills a check that hangs."""
    async for pool in _started(0.6):
        yield pool


async def _started(timeout_s: float) -> AsyncIterator[Pool]:
    pool = Pool(2, timeout_s=timeout_s, memory_mib=128, recycle_after=1000, retries=1)
    await pool.start()
    yield pool
    await pool.stop()


async def seconds_of(work: Awaitable[object]) -> float:
    """The seconds that this thread takes or sleeps; it may wait longer for a core."""
    started = seconds()
    await work
    return seconds() - started


async def test_values_come_back_in_order_of_their_callers(pool: Pool) -> None:
    outcomes = await asyncio.gather(*(pool.run(NEGATE, number) for number in range(500)))
    assert outcomes == [Done(-number) for number in range(500)]
    assert pool.counters.outcomes["done"] == pool.counters.checks == 500
    assert pool.queue_depth == 0


async def test_a_hang_is_killed_at_its_deadline_and_the_worker_replaced() -> None:
    pool = Pool(1, timeout_s=0.3, retries=0)
    await pool.start()
    try:
        began = time.monotonic()
        overrun = min([await seconds_of(pool.run("time:sleep", 60)) - 0.3 for _ in range(3)])
        assert overrun < 0.1 and time.monotonic() - began >= 3 * 0.3
        assert await pool.run(NEGATE, 4) == Done(-4)
        assert pool.counters.kills == 3
    finally:
        await pool.stop()


async def test_a_hang_that_holds_the_interpreter_is_killed_too(hasty: Pool) -> None:
    assert await hasty.run("builtins:eval", "9**9**9", HEALTHY) == Limit("timeout")
    assert await hasty.run(NEGATE, 4) == Done(-4)


@pytest.mark.parametrize(
    ("task", "args", "kind"),
    [
        ("time:sleep", 60, "timeout"),
        ("builtins:bytearray", 1 << 30, "memory"),
        ("faulthandler:_sigsegv", True, "crash"),
    ],
)
async def test_an_input_that_passes_a_limit_twice_on_healthy_workers_is_a_limit(
    hasty: Pool, task: str, args: object, kind: str
) -> None:
    assert await hasty.run(task, args, HEALTHY) == Limit(kind)
    assert await hasty.run(NEGATE, 4) == Done(-4)


async def test_a_limit_needs_a_healthy_worker(hasty: Pool) -> None:
    outcome = await hasty.run("time:sleep", 60, UNHEALTHY)
    assert isinstance(outcome, Failed)
    assert outcome.error_kind == "unhealthy_worker"


async def test_without_a_probe_a_timeout_is_a_failure(hasty: Pool) -> None:
    outcome = await hasty.run("time:sleep", 60)
    assert isinstance(outcome, Failed)
    assert outcome.error_kind == "timeout"
    assert hasty.counters.kills == 2


async def test_an_exception_is_a_failure_with_its_text(pool: Pool) -> None:
    outcome = await pool.run("builtins:int", "seven")
    assert isinstance(outcome, Failed)
    assert outcome.error_kind == "raised"
    assert "seven" in outcome.detail


async def test_a_worker_that_leaves_by_itself_is_a_failure(pool: Pool) -> None:
    outcome = await pool.run("os:_exit", 3, HEALTHY)
    assert isinstance(outcome, Failed)
    assert outcome.error_kind == "worker_lost"
    assert await pool.run(NEGATE, 4) == Done(-4)


async def test_a_worker_killed_from_outside_is_retried(tmp_path: Path) -> None:
    pool = Pool(1, timeout_s=HANG_S, retries=1)
    await pool.start()
    try:
        victim = await pool.run("builtins:eval", "__import__('os').getpid()")
        assert isinstance(victim, Done)
        began = tmp_path / "began"
        first_hangs = f"(lambda p: 'again' if p.exists() else (p.touch(), __import__('time').sleep(60)))({began!r})"
        check = first_hangs.replace("PosixPath", "__import__('pathlib').Path")
        retried = asyncio.create_task(pool.run("builtins:eval", check))
        await asyncio.to_thread(until, began.exists)
        os.kill(victim.value, signal.SIGKILL)
        assert await retried == Done("again")
        assert pool.counters.starts == 2
    finally:
        await pool.stop()


async def test_a_killed_fork_server_is_started_again(pool: Pool) -> None:
    parent = await pool.run("builtins:eval", "__import__('os').getppid()")
    child = await pool.run("builtins:eval", "__import__('subprocess').Popen(['sleep', '300']).pid")
    assert isinstance(parent, Done) and isinstance(child, Done)
    os.kill(parent.value, signal.SIGKILL)
    assert await pool.run(NEGATE, 4) == Done(-4)
    assert await asyncio.to_thread(gone, child.value)


async def test_more_workers_start_at_the_same_time_than_the_fork_server_can_queue() -> None:
    server = ForkServer(WorkerSettings(), 60.0)
    try:
        await server.start_worker()
        assert server._process is not None and server._control is not None
        server._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # room for a few requests, not hundreds
        os.kill(server._process.pid, signal.SIGSTOP)
        starting = [asyncio.create_task(server.start_worker()) for _ in range(20)]
        await asyncio.sleep(0.2)
        os.kill(server._process.pid, signal.SIGCONT)
        workers = await asyncio.gather(*starting)
        assert len({worker.pid for worker in workers}) == 20
    finally:
        server.close()


async def test_workers_are_recycled() -> None:
    pool = Pool(1, timeout_s=20.0, recycle_after=10)
    await pool.start()
    try:
        for number in range(25):
            assert await pool.run(NEGATE, number) == Done(-number)
        assert pool.counters.starts == 3
    finally:
        await pool.stop()


async def test_what_a_check_prints_does_not_reach_the_protocol(pool: Pool) -> None:
    for _ in range(3):
        assert await pool.run("builtins:print", "x" * 100_000) == Done(None)
    assert await pool.run("os:system", "echo hello; echo hello >&2") == Done(0)


async def test_what_cannot_be_sent_is_a_failure(pool: Pool) -> None:
    outcome = await pool.run(NEGATE, object())
    assert isinstance(outcome, Failed)
    assert outcome.error_kind == "unsendable"


async def test_the_event_loop_goes_on_while_checks_hang(hasty: Pool) -> None:
    hanging = [asyncio.create_task(hasty.run("time:sleep", 60)) for _ in range(2)]
    longest = 0.0
    while not all(task.done() for task in hanging):
        longest = max(longest, await seconds_of(asyncio.sleep(0.01)))
    assert longest < 0.3


async def test_a_full_queue_makes_callers_wait_and_loses_nothing() -> None:
    pool = Pool(1, timeout_s=20.0, max_queued=2)
    await pool.start()
    try:
        outcomes = await asyncio.gather(*(pool.run(NEGATE, number) for number in range(50)))
        assert outcomes == [Done(-number) for number in range(50)]
    finally:
        await pool.stop()


async def test_a_cancelled_caller_does_not_disturb_the_others(pool: Pool) -> None:
    waiting = [asyncio.create_task(pool.run("time:sleep", 0.05)) for _ in range(10)]
    await asyncio.sleep(0.01)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.result() for task in waiting[1::2]] == [Done(None)] * 5
    assert await pool.run(NEGATE, 4) == Done(-4)


async def test_stopping_ends_every_process_and_whoever_waits() -> None:
    pool = Pool(2, timeout_s=20.0)
    await pool.start()
    identify = "__import__('os').getpid(), __import__('os').getppid()"
    first = await pool.run("builtins:eval", identify)
    assert isinstance(first, Done)
    waiting = [asyncio.create_task(pool.run("time:sleep", 60)) for _ in range(5)]
    await asyncio.sleep(0.05)
    await pool.stop()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*waiting, return_exceptions=True))
    assert gone(*first.value)


async def test_a_set_up_that_fails_says_why() -> None:
    pool = Pool(1, timeout_s=1.0, setup=("builtins:int", "seven"))
    with pytest.raises(WorkerStartFailed, match="seven"):
        await pool.start()


async def test_a_preload_that_fails_is_noticed_at_once() -> None:
    pool = Pool(1, timeout_s=1.0, preload=("builtins:nothing_of_this_name",), start_timeout_s=60.0)
    with pytest.raises(WorkerStartFailed, match="ended during its start"):
        await pool.start()


async def test_what_the_fork_server_made_is_shared_and_its_failure_is_told_by_the_set_up() -> None:
    def server(task: str, args: str, setup: str) -> ForkServer:
        return ForkServer(WorkerSettings(setup=("builtins:exec", setup), shared=(task, args)), 60.0)

    made = server("builtins:exec", "import os, sys; sys.made_by = os.getpid()", "assert sys.made_by == os.getppid()")
    try:
        assert (await made.start_worker()).alive
    finally:
        made.close()
    failing = server("builtins:open", "/nowhere/docs.jsonl", "open('/nowhere/docs.jsonl')")
    try:
        with pytest.raises(WorkerStartFailed, match=r"No such file or directory: '/nowhere/docs\.jsonl'"):
            await failing.start_worker()
    finally:
        failing.close()


async def test_a_set_up_that_hangs_is_given_up() -> None:
    pool = Pool(1, timeout_s=1.0, setup=("time:sleep", 60), start_timeout_s=1.5)
    with pytest.raises(WorkerStartFailed, match="not ready after"):
        await pool.start()


def test_workers_die_with_their_owner(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        "import asyncio\n"
        "from olmorl.verifiers.pool.pool import Pool\n"
        "async def main():\n"
        "    pool = Pool(1, timeout_s=60.0)\n"
        "    await pool.start()\n"
        "    found = await pool.run('builtins:eval', \"__import__('os').getpid(), __import__('os').getppid()\")\n"
        "    left = \"__import__('subprocess').Popen(['sleep', '300'], start_new_session=True).pid\"\n"
        "    child = await pool.run('builtins:eval', left)\n"
        "    print(*found.value, child.value, flush=True)\n"
        "    await pool.run('builtins:eval', '9**9**9')\n"
        "asyncio.run(main())\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        owner.kill()
    assert gone(*pids)


def gone(*pids: int) -> bool:
    """Whether the processes end within five seconds."""
    deadline = time.monotonic() + 5
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(running, pids))


def running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_eight_groups_at_once_each_get_their_own_answers(hasty: Pool) -> None:
    async def group(number: int, check: Callable[[int], int] = lambda n: -n) -> bool:
        members = [number * 100 + index for index in range(16)]
        outcomes = await asyncio.gather(*(hasty.run(NEGATE, member) for member in members))
        return outcomes == [Done(check(member)) for member in members]

    hostile = asyncio.create_task(hasty.run("time:sleep", 60, HEALTHY))
    assert all(await asyncio.gather(*(group(number) for number in range(8))))
    assert await hostile == Limit("timeout")


def test_the_pool_runs_on_the_event_loop_that_ray_gives_its_actors() -> None:
    import uvloop

    async def check() -> object:
        pool = Pool(1, timeout_s=5.0, memory_mib=128, recycle_after=10, retries=0)
        await pool.start()
        try:
            return await pool.run(NEGATE, 3)
        finally:
            await pool.stop()

    assert uvloop.run(check()) == Done(-3)


def test_a_fork_server_prints_nothing_when_its_pool_closes_with_unread_messages() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "olmorl.verifiers.pool.worker", str(theirs.fileno()), str(os.getpid()), "{}"]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    theirs.close()
    select.select([ours], [], [], 30)  # it says that it is up, which nobody reads
    ours.close()
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, b"")
