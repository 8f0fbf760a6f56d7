"""The restrictions of a sandboxed process. It applies them to itself before it runs a program or a test."""

from __future__ import annotations

import os
import resource
from typing import Any, NamedTuple

from olmorl.verifiers.code.inside.isolation import landlock, seccomp, syscalls

OPEN_FILES = 64
PROCESSES = 64
"""The most processes and threads of one sandbox; without namespaces, the most threads of one program."""
STACK_BYTES = 64 << 20
COUNTS_PER_SANDBOX = (5, 14)
"""The first kernel version that counts the processes of each user namespace separately."""


def longest_s(cpu_s: float) -> float:
    """The wall-clock limit in seconds of a test with a limit of `cpu_s` CPU seconds."""
    return 2 * cpu_s + 1


class SandboxSetup(NamedTuple):
    """How one sandbox process restricts itself, and the limits of each test."""

    tier: str
    cpu_s: float
    memory_mib: int
    disk_mib: int
    output_kib: int
    uid: int | None
    """The user to change to; None to stay the same user."""
    readable: list[str]
    """With Landlock: the readable files, and folders with everything in them."""
    packages: list[str]
    """Packages to import besides the standard library. They are in the folder `packages_at`."""
    packages_at: str

    @property
    def namespaces(self) -> bool:
        return self.tier == "bubblewrap"


class Restrictions:
    """Restrictions are only ever added: first to the fork server, then to the processes of each test."""

    def __init__(self, setup: SandboxSetup) -> None:
        self._setup = setup
        self._filter = seccomp.compiled() if seccomp.supported() else b""
        if not self._filter and setup.tier != "unsafe":
            raise OSError(f"system calls cannot be filtered on {os.uname().machine}")

    def restrict_fork_server(self) -> None:
        """Apply the restrictions that the processes of every test inherit."""
        setup = self._setup
        # The rules open files, which needs the original user.
        ruleset = landlock.rules(setup.readable, [os.devnull]) if setup.tier == "landlock" else None
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_NOFILE, OPEN_FILES)
        limit(resource.RLIMIT_FSIZE, setup.disk_mib << 20)
        resource.setrlimit(resource.RLIMIT_STACK, (_below(resource.RLIMIT_STACK, STACK_BYTES),) * 2)
        if setup.uid is not None:
            syscalls.become(setup.uid)
        if setup.uid is not None or (setup.namespaces and release() >= COUNTS_PER_SANDBOX):
            limit(resource.RLIMIT_NPROC, PROCESSES)
        syscalls.gain_nothing_more()
        if ruleset is not None:
            landlock.restrict(ruleset)

    def enter_namespaces(self) -> None:
        """Enter a mount namespace with an empty /tmp for one test."""
        if self._setup.namespaces:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            size = f"size={self._setup.disk_mib}m,nr_inodes=1024,mode=777"
            syscalls.mount("tmpfs", "/tmp", "tmpfs", syscalls.MS_NOSUID_NODEV_NOEXEC, size)

    def ask_for_threads(self) -> int | None:
        """Let the fork server count the threads of this process where nothing else does. Returns its descriptor."""
        return seccomp.ask_for_threads() if self._setup.tier == "landlock" else None

    def isolate_next_child(self) -> None:
        """Put the next child in its own process namespace. It sees no other process, and its children end with it."""
        if self._setup.namespaces:
            syscalls.unshare(syscalls.CLONE_NEWPID)

    def restrict(self) -> None:
        """Apply the remaining restrictions, before untrusted code runs. The process must have one thread."""
        limit(resource.RLIMIT_AS, self._setup.memory_mib << 20)
        limit(resource.RLIMIT_CPU, max(1, round(self._setup.cpu_s)))
        syscalls.hide_memory()
        if self._setup.namespaces:
            syscalls.drop_capabilities()
        if self._filter:
            seccomp.restrict(seccomp.for_process(self._filter, os.getpid()))


def limit(what: int, value: int) -> None:
    """Lower a limit of this process and its children, permanently."""
    resource.setrlimit(what, (_below(what, value),) * 2)


def _below(what: int, value: int) -> int:
    """The value, or the present limit if that is lower."""
    hard = resource.getrlimit(what)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def release() -> tuple[Any, ...]:
    """The kernel's version, such as (5, 14)."""
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
