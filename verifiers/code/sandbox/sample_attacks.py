"""Sample programs that cheat or try to escape. Each passes its test only if the sandbox fails to stop it."""

from __future__ import annotations

from typing import NamedTuple

from olmorl.verifiers.check_outcomes import Failed, Limit
from olmorl.verifiers.code.sandbox.messages import ProgramTest, RunReport

_EXPECTED = "assert solve(6) == 42"
_ESCAPED = "assert escaped() is True"
_SWALLOWED = "try:\n    solve(-1)\nexcept Exception:\n    pass"
_AGREES = (
    "class Solve:\n    def __init__(self, *given): pass\n    def __sub__(self, other): return 0\n"
    "    __rsub__ = __abs__ = __round__ = __mod__ = __float__ = __sub__\n"
    "    def __lt__(self, other): return True\n"
    "    __le__ = __gt__ = __ge__ = __eq__ = __contains__ = __lt__\n    __hash__ = None\n"
    "    def __getattr__(self, name): return lambda *given: True\n"
    "def solve(x): return Solve()\n"
)
"""A class whose objects answer every comparison with true."""


class Attack(NamedTuple):
    """One program, with a test that it passes if the sandbox fails to stop it."""

    kind: str
    job: ProgramTest
    breaks_out: bool = False
    """Whether the program does harm if it is not stopped."""
    slow: bool = False
    """Whether a limit stops the program, which takes time."""

    def stopped_by(self, outcome: RunReport | Limit | Failed | None) -> bool:
        """Whether the attack failed. A failure of the sandbox does not count, because it would drop the whole group.

        Args:
            outcome: None for a test whose process ended without a report.
        """
        if isinstance(outcome, Failed):
            return False
        return not isinstance(outcome, RunReport) or outcome.outcome not in ("passed", "printed", "label")


def _cheat(kind: str, program: str, test: str = _EXPECTED, slow: bool = False) -> Attack:
    return Attack(kind, ProgramTest(program, test=test), slow=slow)


def _escape(kind: str, body: str) -> Attack:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return Attack(
        kind,
        ProgramTest(f"import ctypes, os, signal, socket, sys\ndef escaped():\n{lines}", test=_ESCAPED),
        breaks_out=True,
    )


ATTACKS = (
    _cheat(
        "equality that is always true",
        "class Same:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef solve(x): return Same()\n",
    ),
    _cheat(
        "number with its own equality",
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def solve(x): return Same()\n",
    ),
    _cheat("leaving before the test", "import os\nos._exit(0)\n"),
    _cheat("leaving in the test", "import os\ndef solve(x): os._exit(0)\n"),
    _cheat("raising the way out", "import sys\ndef solve(x): sys.exit(0)\n"),
    _cheat(
        "walking stack frames",
        "import sys\ndef solve(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_locals.values()):\n"
        "            if isinstance(value, str) and 'solve' + '(6) == ' in value:\n"
        "                return 42\n        frame = frame.f_back\n",
    ),
    _cheat(
        "walking all objects",
        "import gc\ndef solve(x):\n    for value in gc.get_objects():\n"
        "        if isinstance(value, dict) and 'assert ' + 'solve(6) == 42' in map(str, value.values()):\n"
        "            return 42\n",
    ),
    _cheat(
        "patching builtins",
        "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.abs = lambda x: 0\ndef abs(x): return 0\n"
        "def solve(x): return 0\n",
        "assert abs(solve(6) - 42) < 1e-6",
    ),
    _cheat(
        "its own helpers",
        "def isclose(a, b, **options): return True\ndef solve(x): return 0\n",
        "from math import isclose\nassert isclose(solve(6), 42.0)",
    ),
    _cheat(
        "forging the verdict",
        "import os\nfor number in range(256):\n"
        "    for text in (b'passed', b'{\"outcome\": \"passed\"}'):\n        try:\n"
        "            os.write(number, len(text).to_bytes(4, 'little') + text)\n        except OSError:\n"
        "            pass\nos._exit(0)\n",
    ),
    _cheat(
        "its own arithmetic",
        "class Zero:\n    def __sub__(self, other): return 0\ndef solve(x): return Zero()\n",
        "assert abs(solve(6) - 42) < 1e-6",
    ),
    _cheat("doing nothing, for a function of Python's", "x = 1\n", "assert add(1, 2) == 3"),
    _cheat("leaving, for a function of Python's", "import sys\nsys.exit(0)\n", "assert median([1, 2, 3]) == 2"),
    _cheat("doing nothing, for a builtin", "def other(): pass\n", "assert sum(10, 15) == 25"),
    _cheat("doing nothing, for an import of the test", "x = 1\n", "from solution import mode\nassert mode([1]) == 1"),
    _cheat("doing nothing, for a test that expects an error", "x = 1\n", _SWALLOWED),
    _cheat("nothing that can be called", "solve = None\n", _SWALLOWED),
    _cheat("number that agrees", _AGREES, "assert abs(Solve(6) - 42) < 1e-6"),
    _cheat("order that agrees", _AGREES, "assert 41 < Solve(6) < 43"),
    _cheat("objects that agree", _AGREES, "assert solve(6) == Solve(4, 2)"),
    _cheat("objects that are all in order", _AGREES, "assert Solve(5) < Solve(7)"),
    _cheat("object that holds everything", _AGREES, "assert 42 in Solve(6)"),
    _cheat("object that answers everything", _AGREES, "assert solve(6).startswith('right')"),
    _cheat(
        "objects of one class",
        "class Solve:\n    def __init__(self, *given): self.given = 0\n"
        "    def __eq__(self, other): return self.given == other.given\ndef solve(x): return Solve()\n",
        "assert solve(6) == Solve(4, 2)",
    ),
    _cheat(
        "its own isclose without an import",
        "def isclose(a, b, **options): return True\ndef solve(x): return 0\n",
        "assert isclose(solve(6), 42.0)",
    ),
    _cheat(
        "class that everything belongs to",
        "class Meta(type):\n    def __instancecheck__(self, value): return True\n"
        "class Right(metaclass=Meta): pass\nclass Wrong: pass\ndef solve(x): return Wrong()\n",
        "assert isinstance(solve(6), Right)",
    ),
    _cheat(
        "its own streams",
        "import sys\nclass Out:\n    def write(self, text): pass\n    def flush(self): pass\nsys.stdout = Out()\n"
        "def solve(x): print('wrong')\n",
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    solve(6)\n"
        "assert out.getvalue() == 'right\\n'",
    ),
    _cheat(
        "skipping the test",
        "import unittest\ndef solve(x): raise unittest.SkipTest\n",
        "import unittest\nclass TestSolve(unittest.TestCase):\n    def test_it(self): self.assertEqual(solve(6), 42)",
    ),
    _cheat("endless loop", "def solve(x):\n    while True: pass\n", slow=True),
    _cheat("endless sleep", "import time\ndef solve(x): time.sleep(1e6)\n", slow=True),
    _cheat("memory bomb", "def solve(x):\n    held = []\n    while True: held.append(bytearray(1 << 24))\n", slow=True),
    _escape("fork", "return os.fork() >= 0"),
    _escape("daemon", "if os.fork() == 0:\n    os.setsid()\n    os.fork()\nreturn True"),
    _escape("running programs", "return os.system('true') == 0"),
    _escape("network", "socket.create_connection(('127.0.0.1', 22), 1)\nreturn True"),
    _escape("sockets of the host", "return socket.socket(socket.AF_UNIX).fileno() > 0"),
    _escape(
        "messages to sockets of the host",
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "for address in ('/run/olmorl', '\\0olmorl'):\n    try:\n        ours.sendto(b'x', address)\n"
        "    except PermissionError:\n        raise\n    except OSError:\n        pass  # it may ask for sockets\n"
        "return True",
    ),
    _escape(
        "many threads",
        "import threading, time\nthreading.stack_size(32768)\nfor n in range(400):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nreturn True",
    ),
    _escape("files of the host", "return bool(open('/etc/passwd').read())"),
    _escape("writing files", "open('/usr/escaped', 'w').close()\nreturn True"),
    _escape("environment of the host", "return bool(os.environ) or bool(open('/proc/self/environ').read())"),
    _escape("other processes", "return any(name.isdigit() for name in os.listdir('/proc'))"),
    _escape("killing all", "os.kill(-1, signal.SIGKILL)\nreturn True"),
    _escape("killing the parent", "os.kill(os.getppid(), signal.SIGKILL)\nreturn os.getppid() > 0"),
    _escape("tracing", "return ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0"),
    _escape("namespaces", "return ctypes.CDLL(None).unshare(0x10000000) == 0"),
    _escape("being root", "return os.getuid() == 0 or ctypes.CDLL(None).setuid(0) == 0"),
    _escape(
        "filling the disk",
        "for n in range(100):\n    with open(f'/tmp/{n}', 'wb') as file:\n"
        "        file.write(bytes(1 << 20))\nreturn True",
    ),
    Attack("flooding the output", ProgramTest("while True: print('x' * 65536)", stdin=""), slow=True),
)
