"""The tool `python`: state within an episode, what the policy reads, and programs that try to get out of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from olmorl.verifiers.box.python_tool import Python
from olmorl.verifiers.box.tool import AnswerTime, ReportedError, ToolSettings
from olmorl.verifiers.code.sandbox.interpreter import CallReport, Interpreter
from olmorl.verifiers.code.sandbox.sample_attacks import ATTACKS, Attack
from olmorl.verifiers.code.sandbox.sandbox_process import SandboxLost, SandboxStartFailed
from olmorl.verifiers.code.sandbox.tiers import DISK_MIB
from tests.verifiers.code.conftest import SETTINGS, TIERS
from tests.waiting import lives, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).resolve().parents[3]
CPU_S, ANSWER_S = 0.5, 8.0


class Played:
    """The tool as an environment calls it: each call is in an answer of its own."""

    def __init__(self, tool: Python) -> None:
        self._tool = tool

    async def python(self, code: str) -> str:
        self._tool._time.begin()
        return await self._tool.python(code)

    async def next_episode(self) -> None:
        await self._tool.close()
        await self._tool.start({})


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TIERS)
async def warm(request: pytest.FixtureRequest) -> AsyncIterator[Python]:
    """The tool of one worker process, in each tier."""
    settings = SETTINGS.model_copy(update={"code_tier": request.param, "code_test_timeout_s": CPU_S})
    made = Python("", ToolSettings(settings, AnswerTime(ANSWER_S / 0.8)))
    yield made
    await made._interpreter.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def tool(warm: Python) -> AsyncIterator[Played]:
    """The tool in an episode of its own."""
    await warm.start({})
    yield Played(warm)
    await warm.close()


async def test_state_stays_and_the_last_value_is_shown_as_in_a_notebook(tool: Played) -> None:
    assert await tool.python("import math\nx = 4\ndef f(): return x + 1") == "(no output)"
    assert await tool.python("print('f:')\nf()") == "f:\n5\n"
    assert await tool.python("x = 7\nf(), math.pi > 3") == "(8, True)\n"
    assert await tool.python("None") == "(no output)"
    assert await tool.python("class A: ...\nimport pickle; type(pickle.loads(pickle.dumps(A()))).__name__") == "'A'\n"
    assert await tool.python("import sys; print('to stderr', file=sys.stderr); print('é')") == "to stderr\né\n"


async def test_a_traceback_shows_the_code_of_the_policy_alone(tool: Played) -> None:
    await tool.python("import json\ndef read(text):\n    return json.loads(text)")
    found = await tool.python("y = 3\nread('{')")
    assert isinstance(found, ReportedError)
    lines = found.splitlines()
    assert [line for line in lines if "File" in line] == [
        '  File "<call 2>", line 2, in <module>',
        '  File "<call 1>", line 3, in read',
    ]
    assert "    return json.loads(text)" in lines and lines[-1].startswith("json.decoder.JSONDecodeError: Expecting")
    assert await tool.python("y") == "3\n", "what came before the error stays"
    chained = await tool.python("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e")
    assert chained.count("<call 4>") == 2 and "direct cause" in chained
    assert 'File "<call 5>", line 1\n    1 +\n' in await tool.python("1 +")


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("print('begun', flush=True)\nwhile True: pass", "begun\nError: it used more than 0.5 s of processor time"),
        ("while True: print('x' * 1000)", "it used more than 0.5 s of processor time"),
        ("import time\ntime.sleep(600)", "it ran longer than 8 s"),
        ("import os\nos._exit(3)", "Error: the interpreter ended (status 3)"),
        ("print('bye')\nexit('for good')", "bye\nfor good\nError: the interpreter ended (status 1)"),
        ("import ctypes\nctypes.string_at(0)", "Error: the interpreter ended (signal 11)"),
        ("import os\nos.closerange(0, 9)", "Error: the interpreter ended"),
        ("import os, time\nos.closerange(0, 9)\ntime.sleep(600)", "Error: the interpreter ended"),
    ],
)
async def test_a_program_that_ends_or_hangs_costs_its_state_and_the_policy_reads_so(
    tool: Played, code: str, reads: str
) -> None:
    await tool.python("kept = 1")
    found = await tool.python(code)
    assert isinstance(found, ReportedError) and reads in found and found.endswith(". All variables are lost.")
    assert len(found) < 11_000
    assert "NameError" in await tool.python("kept")
    assert await tool.python("6 * 7") == "42\n"


async def test_threads_that_go_on_have_the_limits_of_their_call(tool: Played) -> None:
    spin = "def spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()"
    await tool.python(f"import threading\n{spin}")
    running = len(psutil.Process().children(recursive=True))
    until(lambda: len(psutil.Process().children(recursive=True)) < running)
    assert "All variables are lost" in await tool.python("1")
    assert await tool.python("1") == "1\n"


async def test_a_large_value_is_an_error_of_memory_and_the_state_stays(tool: Played) -> None:
    await tool.python("x = 5")
    assert (await tool.python("y = bytearray(1 << 30)")).endswith("MemoryError\n")
    assert await tool.python("x") == "5\n"


async def test_a_program_that_writes_on_the_socket_of_its_answers_disturbs_only_itself(tool: Played) -> None:
    await tool.python("import os\nos.write(3, b'd' * 100)")
    await tool.python("print('late')")
    await tool.next_episode()
    assert await tool.python("print('next')") == "next\n"


@pytest.mark.parametrize("attack", [one for one in ATTACKS if one.breaks_out], ids=lambda one: one.kind)
async def test_no_program_gets_out_of_the_sandbox(tool: Played, attack: Attack) -> None:
    await tool.python(attack.job.program)
    assert not (await tool.python("escaped()")).endswith("True\n")
    await tool.next_episode()
    assert await tool.python("1") == "1\n", "the next episode is not disturbed"


async def test_a_fork_bomb_a_full_disk_and_a_flood_of_threads_are_errors_that_it_reads(tool: Played) -> None:
    assert "PermissionError" in await tool.python("import os\nwhile True: os.fork()")
    fill = f"for n in range(10):\n    with open(f'/tmp/{{n}}', 'wb') as file: file.write(bytes({DISK_MIB} << 20))"
    found = await tool.python(fill)
    assert "No space left on device" in found or "Permission denied" in found
    threads = "import threading, time\nfor n in range(400): threading.Thread(target=time.sleep, args=(60,)).start()"
    assert "can't start new thread" in await tool.python(threads)
    assert await tool.python("7") == "7\n"


LEAVE = """
import builtins, random, sys, threading, time
secret = builtins.secret = sys.secret = 'the secret' + ' of the first'
random.seed(7)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
try:
    open('/tmp/left', 'w').write(secret)
except OSError:
    pass
"""
LOOK = """
import builtins, gc, os, sys, threading
def texts():
    for found in gc.get_objects():
        if isinstance(found, dict):
            yield from (one for one in list(found.values()) if isinstance(one, str))
found = [text for text in texts() if 'the secret' + ' of' in text]
found, hasattr(builtins, 'secret'), hasattr(sys, 'secret'), os.path.exists('/tmp/left'), threading.active_count()
"""


async def test_nothing_of_an_episode_is_left_to_the_next(tool: Played) -> None:
    before = set(psutil.Process().children(recursive=True))
    for _ in range(2):
        await tool.python(LEAVE)
        running = set(psutil.Process().children(recursive=True)) - before
        assert len(running) == 2, "session and interpreter"
        await tool.next_episode()
        assert not list(filter(lives, running))
        assert await tool.python(LOOK) == "([], False, False, False, 1)\n"
        await tool.next_episode()


async def test_a_sandbox_that_is_killed_or_cannot_start_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))
    interpreter = Interpreter(SETTINGS.model_copy(update={"code_tier": "landlock"}))
    assert await interpreter.run("1", 1.0, 9.0) == CallReport("1\n", raised=False, ended="")
    (server,) = set(psutil.Process().children()) - before
    waiting = asyncio.create_task(interpreter.run("import time; time.sleep(60)", 9.0, 60.0))
    await asyncio.sleep(0.2)
    running = set(psutil.Process().children(recursive=True)) - before
    server.kill()
    with pytest.raises(SandboxLost):
        await waiting
    until(lambda: not list(filter(lives, running)))
    assert (await interpreter.run("2", 1.0, 9.0)).output == "2\n", "the next episode starts another"
    await interpreter.stop()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxStartFailed, match="install the package bubblewrap"):
        await Interpreter(SETTINGS.model_copy(update={"code_tier": "bubblewrap"})).run("1", 1.0, 9.0)


ACTOR = """
import asyncio
from olmorl.config import Episodes, Verifiers
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments
from tests.verifiers.environments.test_forked_environments import calls, prompt

THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"

async def main():
    made = ForkedEnvironments(Episodes(environment="box:python"), Verifiers(code_tier="landlock"))
    await made.start()
    world = made.open()
    await world.reset(prompt(), 0)
    await world.step(calls(("python", {"code": THREAD})))
    print("ready", flush=True)
    await world.step(calls(("python", {"code": "time.sleep(600)"})))

asyncio.run(main())
"""


async def test_an_actor_that_is_killed_leaves_no_interpreter() -> None:
    actor = subprocess.Popen([sys.executable, "-c", ACTOR], stdout=subprocess.PIPE, cwd=ROOT)  # noqa: ASYNC220
    assert actor.stdout is not None and actor.stdout.readline() == b"ready\n"
    running = psutil.Process(actor.pid).children(recursive=True)
    assert len(running) == 5, "fork server, worker, sandbox, session, interpreter"
    actor.send_signal(signal.SIGKILL)
    actor.wait()
    actor.stdout.close()
    until(lambda: not list(filter(lives, running)))
