"""The tool `bash`: runs commands in a sandbox with a tree of files, one sandbox for each episode.

It needs bubblewrap. Landlock, the other tier of the code verifier, could bound neither the disk that programs fill nor,
for an ordinary user, the number of processes that they start.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from olmorl.config import Verifiers
from olmorl.file_tree import row_files
from olmorl.verifiers.box.inside import shell_server
from olmorl.verifiers.box.inside.shell_server import TREE, ShellSetup
from olmorl.verifiers.box.tool import AnswerTime, ReportedError, ToolSettings
from olmorl.verifiers.code.sandbox import tiers

START_S = 60.0
LONGEST_S = 120.0
"""The longest time of a command in seconds, where `episodes.timeout_s` leaves as much."""
DISK_MIB = 64
"""The size of the tree, and of /tmp. They are in memory."""
GRACE_S = 10.0
"""Seconds beyond the limit of a command before its sandbox counts as lost."""
_MOST_COMMAND = 100_000
"""Bytes of a command. The kernel takes 128 KiB."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""What programs see of the machine, for reading."""
_PYTHON = "/python"
"""A folder on the PATH, for machines without a python3 of their own."""
_MODULES = ("isolation.syscalls", "isolation.landlock", "isolation.seccomp", "isolation.restrictions", "output")
_SERVER = "olmorl.verifiers.box.inside.shell_server"
_ADVICE = "the tool bash needs bubblewrap: install the package bubblewrap and allow user namespaces"
_ALIVE = "aliveprocess\n42\n[exit code 0]"


class Bash:
    """Commands of one episode share a tree of files, and those of two episodes nothing.

    A command starts in the folder and with the exported variables that the one before ended with. Other state of the
    shell, and processes in the background, end with their command.
    """

    def __init__(self, argument: str, settings: ToolSettings) -> None:
        """The tool has no argument."""
        self._time = settings.time
        self._setup = ShellSetup(settings.verifiers.memory_mib, DISK_MIB)
        self._shell: Shell | None = None
        self._environment: dict[str, str] = {}

    def start(self, row: Mapping[str, Any]) -> None:
        """Begin an episode with the files of the row.

        Raises:
            ValueError: they are no texts by path, or do not fit into the tree.
            ConnectionError: the sandbox cannot be started.
        """
        files = row_files(row.get("files"))
        self.close()
        self._shell = Shell(self._setup)
        path = f"/usr/local/bin:/usr/bin:/bin:{_PYTHON}"
        self._environment = {"PATH": path, "HOME": TREE, "PWD": TREE, "LANG": "C.UTF-8"}
        if error := self._shell.ask({"write": files}, START_S).get("error"):
            raise ValueError(f"its column files: {error} (the tree has {DISK_MIB} MiB)")

    def bash(self, command: str) -> str:
        """
        Run a command in a bash shell and read its output and exit code. Files, the current folder and exported
        variables are there in the next call. There is no network.

        Args:
            command: The command. It may have several lines.
        """
        if not isinstance(command, str):
            raise TypeError("command is a text")
        return self._run(command, self._time.limit_s(LONGEST_S))

    def _run(self, command: str, timeout_s: float) -> str:
        assert self._shell is not None
        if "\0" in command:
            raise ValueError("a command cannot contain the character NUL")
        if len(command.encode("utf-8", "surrogatepass")) > _MOST_COMMAND:
            raise ValueError(f"a command has at most {_MOST_COMMAND:,} bytes; write long texts to files in parts")
        request = {"command": command, "environment": self._environment, "timeout_s": timeout_s}
        reply = self._shell.ask(request, timeout_s + GRACE_S)
        ends = {
            "": f"[exit code {reply['code']}]",
            "time": f"[ended, because it ran longer than {timeout_s:.3g} s]",
            "memory": f"[ended, because its processes used more than {self._setup.memory_mib} MiB of memory]",
        }
        notes = [ends[reply["limit"]]]
        if reply["environment"]:
            self._environment = reply["environment"]
        else:
            notes.append("[the current folder and variables are those before this command]")
        output = reply["output"]
        result = output + "\n" * (output[-1:] not in ("", "\n")) + "\n".join(notes)
        return ReportedError(result) if reply["limit"] else result

    def files(self) -> dict[str, str]:
        """The text files of the tree by their relative paths: the final state, for reward functions.

        Files that are not UTF-8, links, and what goes beyond 16 MiB in all are left out.
        """
        if self._shell is None:  # the row does not have the tool
            return {}
        found: dict[str, str] = self._shell.ask({"read": True}, START_S)["files"]
        return found

    def close(self) -> None:
        """End the episode: its processes and its tree are gone."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()


def refusal(verifiers: Verifiers) -> str:
    """The reason why commands cannot run on this machine; empty if they can."""
    if verifiers.code_tier not in ("auto", "bubblewrap"):
        return f'the tool bash runs only with verifiers.code_tier = "bubblewrap", and not with "{verifiers.code_tier}"'
    tool = Bash("", ToolSettings(verifiers, AnswerTime(START_S)))
    try:
        tool.start({"files": {"probe": "alive"}})
        found = tool.bash("cat probe && cat <(echo process) && python3 -c 'print(6 * 7)'")
    except OSError as error:
        return f"{_ADVICE}. Here: {error}"
    finally:
        tool.close()
    return "" if found == _ALIVE else f"the sandbox of the tool bash does not work here; a simple command gave {found}"


class Shell:
    """The sandbox of one episode. It ends with this process."""

    _number = 0

    def __init__(self, setup: ShellSetup) -> None:
        """Raises ConnectionError if it cannot be started."""
        Shell._number += 1
        ours, theirs = socket.socketpair()
        self._link, self._lines = ours, ours.makefile("rb")
        with theirs:
            command = [part.replace("{control}", str(theirs.fileno())) for part in _command(Shell._number)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={"MALLOC_ARENA_MAX": "1", "LD_LIBRARY_PATH": tiers.Python(()).search_path()},
                cwd="/",
            )
        sent = [*tiers.sources(_MODULES), (_SERVER, Path(shell_server.__file__).read_text(encoding="utf-8"))]
        assert self._process.stdin is not None and self._process.stderr is not None
        with contextlib.suppress(OSError), self._process.stdin as stdin:  # if it ended early, its errors say why
            stdin.write(tiers.parcel(sent, _SERVER, setup._asdict()).encode())
        try:
            reply = self._receive(START_S)
        except ConnectionError:
            self._process.kill()
            said = self._process.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            self.close()
            raise ConnectionError(said[:500] or "the sandbox of bash ended at once, without a message") from None
        if "refused" in reply:
            self.close()
            raise ConnectionError(reply["refused"])

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return its reply. Raises ConnectionError if the sandbox has ended or fails."""
        try:
            self._link.settimeout(timeout_s)
            self._link.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ConnectionError(f"the sandbox of bash is lost: {error}") from None
        reply = self._receive(timeout_s)
        if "failed" in reply:
            raise ConnectionError(f"the sandbox of bash failed: {reply['failed']}")
        return reply

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        self._link.settimeout(timeout_s)
        try:
            line = self._lines.readline()
        except OSError as error:
            raise ConnectionError(f"the sandbox of bash is lost: {error}") from None
        if not line:
            raise ConnectionError("the sandbox of bash ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """Kill all processes of the sandbox."""
        self._process.kill()
        self._process.wait()
        for stream in (self._link, self._lines, self._process.stderr):
            if stream is not None:
                stream.close()


def _command(number: int) -> list[str]:
    """The command that starts the server in namespaces. Raises FileNotFoundError without bubblewrap."""
    python, uid = tiers.Python(()), tiers.unprivileged_uid(number)
    command = tiers.new_namespaces()
    own = [path for path in python.folders() if not path.is_relative_to("/usr")]
    folders = [*map(Path, _SYSTEM), *(path for path in own if str(path) not in _SYSTEM)]
    for path in folders:
        command += tiers.at_its_place(path)
    for path in python.hidden():
        command += ["--tmpfs", str(path), "--remount-ro", str(path)]
    for device in ("null", "random", "urandom"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    command += ["--proc", "/proc", "--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/tmp", "/dev/shm"]
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        command += ["--symlink", f"/proc/self/fd/{descriptor}", f"/dev/{name}"]
    command += ["--symlink", str(python.executable), f"{_PYTHON}/python3", "--dir", "/tmp", "--dir", TREE]
    command += ["--remount-ro", "/", "--chdir", "/", "--", *python.boot(), "{control}"]
    return command if uid is None else tiers.descending(python.executable, folders, uid, command)
