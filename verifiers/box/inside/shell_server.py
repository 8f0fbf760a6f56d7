"""The process in the sandbox that runs the commands of one episode. It holds the namespaces and the tree of files.

    bash_tool.py ──a request a line──> server ──fork──> supervisor ──fork──> first process of the call ──fork──> bash
                 <───────────────a reply a line──────────────┘

The first process of a call has a process namespace of its own: when it ends, the kernel kills whatever the command
left behind. The supervisor is outside of it, and ends it at a limit.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from olmorl.verifiers.code.inside.isolation import seccomp, syscalls
from olmorl.verifiers.code.inside.isolation.restrictions import COUNTS_PER_SANDBOX, PROCESSES, limit, release
from olmorl.verifiers.code.inside.output import Output

TREE = "/tree"
STATE = 200
"""The descriptor on which the shell writes its environment when it ends."""
_AT_THE_END = f"trap '/usr/bin/env -0 >&{STATE}' EXIT; eval \"$1\""
_OPEN_FILES = 256
_FILES = 16384
"""The most files and folders of the tree, and of /tmp."""
_LOOK_S = 0.05
_MOST_STATE = 1 << 16
_MOST_TEXT = 16 << 20
_CHUNK = 1 << 16
_SOCKET_MIB = 4.0
"""What the buffers of a socket may hold. The kernel counts it for no process."""
_PAGE_MIB = resource.getpagesize() / (1 << 20)


class ShellSetup(NamedTuple):
    """The limits of one episode."""

    memory_mib: int
    """Of each process, and of all processes of a command together."""
    disk_mib: int
    """Of the tree, and of /tmp."""


def main(control: int, settings: dict[str, Any]) -> None:
    """Answer requests until the socket closes. Each is handled by a process of its own."""
    link = socket.socket(fileno=control)
    setup = ShellSetup(**settings)
    try:
        _prepare(setup)
    except Exception as error:  # any error is reported: the sandbox does not work on this machine
        _send(link, {"refused": f"{type(error).__name__}: {error}"[:1000]})
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    _send(link, {"ready": True})
    for line in link.makefile("rb"):
        process = os.fork()
        if process == 0:
            try:
                syscalls.die_with_parent()
                _send(link, _reply(json.loads(line), link, setup))
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(process, 0)[1]:
            return  # it has sent no reply, and the caller must not wait for one


def _prepare(setup: ShellSetup) -> None:
    if release() < COUNTS_PER_SANDBOX:
        raise OSError(f"processes can be limited from Linux {'.'.join(map(str, COUNTS_PER_SANDBOX))} on")
    if not seccomp.supported():
        raise OSError(f"system calls cannot be filtered on {os.uname().machine}")
    syscalls.hide_memory()
    size = f"size={setup.disk_mib}m,nr_inodes={_FILES},mode=755"
    for folder in (TREE, "/tmp"):
        syscalls.mount("tmpfs", folder, "tmpfs", syscalls.MS_NOSUID_NODEV_NOEXEC & ~8, size)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    limit(resource.RLIMIT_FSIZE, setup.disk_mib << 20)
    limit(resource.RLIMIT_NPROC, PROCESSES)
    syscalls.gain_nothing_more()


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def _reply(request: dict[str, Any], link: socket.socket, setup: ShellSetup) -> dict[str, Any]:
    try:
        return _answer(request, link, setup)
    except OSError as error:
        return {"failed": str(error)}


def _answer(request: dict[str, Any], link: socket.socket, setup: ShellSetup) -> dict[str, Any]:
    if "write" in request:
        return _write(request["write"])
    if "command" in request:
        return Call(link, setup).run(request["command"], request["environment"], request["timeout_s"])
    return {"files": dict(_texts())}


def _write(files: dict[str, str]) -> dict[str, Any]:
    """Write the files of the row, before the first command. A text that begins as a script does can be run."""
    try:
        for name, text in files.items():
            path = f"{TREE}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is slow to import
            with open(path, "x", encoding="utf-8", errors="surrogatepass", newline="") as file:  # noqa: PTH123
                file.write(text)
            os.chmod(path, 0o755 if text.startswith("#!") else 0o644)  # noqa: PTH101
    except OSError as error:
        return {"error": f"{name}: {error.strerror}"}
    return {}


def _texts() -> Iterator[tuple[str, str]]:
    """The regular files of the tree that are UTF-8 text, by their paths. Links are not followed. No command runs.

    A file that would make them larger than `_MOST_TEXT` together is left out: files may have holes and several names.
    """
    folders, left = [""], _MOST_TEXT
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(f"{TREE}/{folder}"), key=lambda entry: entry.name)
        except OSError:  # the policy may forbid itself to read a folder, or nest them too deeply
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{folder}{entry.name}/")
            elif (text := _text(entry.path, left)) is not None:
                left -= len(text.encode())
                yield folder + entry.name, text


def _text(path: str, most: int) -> str | None:
    try:
        path.encode()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, UnicodeError):
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            return None
        try:
            return file.read().decode()
        except UnicodeError:
            return None


class Call:
    """Runs one command. No process of it is alive when `run` returns."""

    def __init__(self, link: socket.socket, setup: ShellSetup) -> None:
        self._link = link
        self._setup = setup
        self._output = Output()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = bytearray()
        self._failure = bytearray()

    def run(self, command: str, environment: dict[str, str], timeout_s: float) -> dict[str, Any]:
        """Returns the output, the limit that ended the command, its exit code, and the variables at its end if known.

        Raises OSError if bash cannot be started.
        """
        keepers: list[Callable[[bytes], None]] = [self._keep_output, self._keep_state, self._failure.extend]
        pipes = [os.pipe() for _ in keepers]
        theirs = [end for _, end in pipes]
        sinks = {ours: keep for (ours, _), keep in zip(pipes, keepers, strict=True)}
        syscalls.unshare(syscalls.CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            _become_first(command, environment, theirs, self._setup)
        for end in theirs:
            os.close(end)
        ended = self._wait(first, dict(sinks), timeout_s)
        os.kill(first, signal.SIGKILL)
        _, status = os.waitpid(first, 0)  # the kernel has killed every process of the namespace before
        for pipe, sink in sinks.items():
            while part := os.read(pipe, _CHUNK):
                sink(part)
        self._output.add(self._decoder.decode(b"", final=True))
        if self._failure:
            raise OSError(self._failure.decode())
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        known = _environment(bytes(self._state)) if not ended and len(self._state) <= _MOST_STATE else {}
        return {"output": self._output.text(), "limit": ended, "code": code, "environment": known}

    def _wait(self, first: int, sinks: dict[int, Callable[[bytes], None]], timeout_s: float) -> str:
        """Wait for the end of the first process. Returns the limit that was reached before; empty if none was."""
        poll, watched, looked = select.poll(), os.pidfd_open(first), 0.0
        for descriptor in (watched, self._link.fileno(), *sinks):
            poll.register(descriptor, select.POLLIN)
        until = time.monotonic() + timeout_s
        while True:
            events = dict(poll.poll(_LOOK_S * 1000))
            if self._link.fileno() in events:  # the caller is gone
                os._exit(1)
            for pipe in sinks.keys() & events.keys():
                if part := os.read(pipe, _CHUNK):
                    sinks[pipe](part)
                else:
                    poll.unregister(pipe)
                    del sinks[pipe]
            if watched in events:
                return ""
            if (now := time.monotonic()) > until:
                return "time"
            if now > looked + _LOOK_S:
                looked = now
                if _memory_mib() > self._setup.memory_mib:
                    return "memory"

    def _keep_output(self, part: bytes) -> None:
        self._output.add(self._decoder.decode(part))

    def _keep_state(self, part: bytes) -> None:
        self._state += part[: _MOST_STATE + 1 - len(self._state)]


def _memory_mib() -> float:
    """The memory of the processes of the command, with that of sockets. Pages that two of them share count twice."""
    own, pages = {1, os.getpid(), os.getppid()}, 0
    with open("/proc/net/sockstat", "rb") as file:  # noqa: PTH123
        num_sockets = int(file.readline().split()[-1])
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is slow to import
        if name.isdigit() and int(name) not in own:
            try:
                with open(f"/proc/{name}/statm", "rb") as file:  # noqa: PTH123
                    _, resident, of_files, *_ = file.read().split()
            except OSError:  # it has ended
                continue
            pages += int(resident) - int(of_files)
    return pages * _PAGE_MIB + num_sockets * _SOCKET_MIB


def _environment(state: bytes) -> dict[str, str]:
    entries = (entry.partition("=") for entry in os.fsdecode(state).split("\0"))
    return {name: value for name, found, value in entries if name and found}


def _become_first(command: str, environment: dict[str, str], pipes: list[int], setup: ShellSetup) -> NoReturn:
    """Be the first process of a call: run bash, and exit with its code.

    Args:
        pipes: for the output, for the environment at the end, and for the reason why bash cannot be started.
    """
    output, state, failure = pipes
    try:
        syscalls.die_with_parent()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID_NODEV_NOEXEC)
        for descriptor, number in ((output, 1), (output, 2), (state, STATE)):
            os.dup2(descriptor, number)
        os.dup2(failure, failure := STATE + 1, inheritable=False)
        os.closerange(3, STATE)
        os.closerange(failure + 1, _OPEN_FILES)
        syscalls.hear_signals()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(environment.get("PWD", TREE))
        except OSError:  # it is deleted
            os.chdir(TREE)
        limit(resource.RLIMIT_AS, setup.memory_mib << 20)
        syscalls.hide_memory()
        syscalls.drop_capabilities()
        seccomp.restrict(seccomp.for_programs())
        shell = os.fork()
        if shell == 0:
            words = [b"bash", b"--noprofile", b"--norc", b"-c", _AT_THE_END.encode(), b"bash"]
            os.execve("/bin/bash", [*words, command.encode("utf-8", "surrogatepass")], environment)
        os.close(failure)
        while True:
            process, status = os.wait()
            if process == shell:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
    except BaseException as error:  # any error is the sandbox's, and must not look like an exit of bash
        os.write(failure, f"{type(error).__name__}: {error}"[:1000].encode())
    finally:
        os._exit(1)
