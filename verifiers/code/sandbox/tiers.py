"""The tiers of the sandbox, best first, and the command that starts a sandbox process in each."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from olmorl.config import Verifiers
from olmorl.verifiers.code.inside.isolation.restrictions import SandboxSetup
from olmorl.verifiers.code.inside.pipes import STDIN

_INSIDE = "olmorl.verifiers.code.inside"
"""The package whose modules run in the sandbox."""
_FOLDER = Path(__file__).parent.parent / "inside"
SENT = (
    "isolation.syscalls", "isolation.landlock", "isolation.seccomp", "isolation.restrictions",
    "bridge.standard_library", "bridge.copied_values", "bridge.codec", "bridge.coroutines", "bridge.function_stubs",
    "bridge.peer", "bridge.self_comparison", "bridge.program_handles", "bridge.remote", "bridge.expected_objects",
    "bridge.operators", "bridge.tester_handles", "bridge.streams", "testing.name_uses", "testing.coverage",
    "testing.name_lookup", "testing.pytest_stand_in", "testing.fixtures", "testing.collection", "testing.runner",
    "program", "pipes", "trial", "output", "interpreter", "session", "fork_server",
)  # fmt: skip
"""The modules that a sandbox is sent, each after the modules that it imports."""
NOBODY = 65534
_THROWAWAY_UIDS = range(61184, 65520)
"""User ids without files, for use when the actor runs as root. systemd reserves the same range."""
DISK_MIB = 32
"""Bytes that a program may write to /tmp under bubblewrap. Under Landlock it can write no file."""
OUTPUT_KIB = 1024
"""Longest output of a program."""
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


class Tier(NamedTuple):
    """One way to start a sandbox process."""

    name: str
    command: list[str]
    """The caller replaces `{control}` with the number of the control socket."""
    given: bytes
    """The standard input of the command."""
    environment: dict[str, str]
    """The whole environment of the command. The sandbox process clears it after its start."""


def names(settings: Verifiers) -> tuple[str, ...]:
    """The tiers that the settings allow, best first."""
    return ("bubblewrap", "landlock") if settings.code_tier == "auto" else (settings.code_tier,)


def tier(name: str, settings: Verifiers, number: int) -> Tier:
    """How to start sandbox process `number`. Raises FileNotFoundError when a program for it is missing."""
    uid = unprivileged_uid(number)
    python = Python(("numpy",) if settings.code_allow_numpy else ())
    setup = SandboxSetup(
        tier=name,
        cpu_s=settings.code_test_timeout_s,
        memory_mib=settings.memory_mib,
        disk_mib=DISK_MIB,
        output_kib=OUTPUT_KIB,
        uid=None if name == "bubblewrap" else uid,
        readable=[*python.files(), os.devnull, "/dev/urandom"] if name == "landlock" else [],
        packages=list(python.packages),
        packages_at=str(python.packages_at),
    )
    command = [*python.boot(), "{control}"]
    if name == "bubblewrap":
        command = [*_bubblewrap(python), *command]
        if uid is not None:
            command = descending(python.executable, python.folders(), uid, command)
    # Each further malloc arena would use 64 MiB of the address space, which is limited.
    environment = {"MALLOC_ARENA_MAX": "1", "LD_LIBRARY_PATH": python.search_path()}
    return Tier(name, command, parcel(sources(SENT), f"{_INSIDE}.fork_server", setup._asdict()).encode(), environment)


def unprivileged_uid(number: int) -> int | None:
    """The user of sandbox `number` of this process; None to stay the same user, where it is not root."""
    return _THROWAWAY_UIDS[(os.getpid() * 31 + number) % len(_THROWAWAY_UIDS)] if os.getuid() == 0 else None


class Python:
    """The real paths of the interpreter's files that a sandbox needs, and of no others."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        self.stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})).resolve()
        self.packages = tuple(name for name in packages if find_spec(name) is not None)
        spec = find_spec(self.packages[0]) if self.packages else None
        self.packages_at = Path(spec.origin).resolve().parent.parent if spec and spec.origin else Path("/nowhere")

    def libraries(self) -> list[Path]:
        """Folders with shared libraries, including the interpreter's own."""
        own = self.stdlib.parent
        return [*([] if own.is_relative_to("/usr/lib") else [own]), *map(Path, _LIBRARIES)]

    def search_path(self) -> str:
        """The search path of shared libraries. The sandbox has no ld.so.cache, so the interpreter needs it."""
        given = os.environ.get("LD_LIBRARY_PATH")
        return os.pathsep.join((str(self.stdlib.parent), *([given] if given else [])))

    def boot(self) -> list[str]:
        """The command that runs `boot`, without its arguments."""
        return [str(self.executable), "-I", "-S", "-B", "-X", "utf8", "-c", source("boot")]

    def folders(self) -> tuple[Path, ...]:
        """What the interpreter needs in a file system of its own."""
        return (self.executable, *self.libraries(), *self.package_folders())

    def hidden(self) -> list[Path]:
        """Folders with installed packages inside the interpreter's folders. Programs must not see them."""
        folders = (self.stdlib / "site-packages", self.stdlib / "dist-packages", Path("/usr/lib/python3/dist-packages"))
        return [folder for folder in folders if folder.is_dir()]

    def package_folders(self) -> list[Path]:
        """Folders of the packages that programs may import, and of the libraries that these packages bring."""
        found = (self.packages_at / f"{name}{suffix}" for name in self.packages for suffix in ("", ".libs"))
        return [folder for folder in found if folder.is_dir()]

    def files(self) -> Iterator[str]:
        """All files and folders above, without the hidden ones."""
        hidden = {*self.hidden(), self.stdlib, self.stdlib.parent / "python3"}
        for folder in (*self.libraries(), self.stdlib):
            yield from (str(path) for path in (folder.iterdir() if folder.is_dir() else ()) if path not in hidden)
        yield from map(str, self.package_folders())


def source(module: str) -> str:
    """The source of a module of `inside`. `module` is its name relative to that package."""
    return _FOLDER.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def sources(modules: Iterable[str]) -> list[tuple[str, str]]:
    """The full names and the sources of modules of `inside`."""
    return [(f"{_INSIDE}.{name}", source(name)) for name in modules]


def parcel(sent: Sequence[tuple[str, str]], entry: str, settings: dict[str, Any]) -> str:
    """The JSON input of `boot`: the modules with their sources, the module to start, and its settings."""
    return json.dumps((sent, entry, settings))


def new_namespaces() -> list[str]:
    """The command of bubblewrap without a file system. Raises FileNotFoundError when it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not on PATH; install the package bubblewrap")
    command = [program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--hostname", "sandbox", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    # The capability is valid only in the new user namespace. Each test needs it to mount its own /tmp.
    return [*command, "--cap-add", "CAP_SYS_ADMIN"]


def _bubblewrap(python: Python) -> list[str]:
    """The command prefix: all namespaces, and a file system with only an interpreter and an empty /tmp."""
    command = new_namespaces()
    for path in python.folders():
        command += at_its_place(path)
    for path in python.hidden():
        command += ["--tmpfs", str(path), "--remount-ro", str(path)]
    for device in (os.devnull, "/dev/urandom"):
        command += ["--dev-bind", device, device]
    command += ["--symlink", STDIN, "/dev/stdin"]
    return [*command, "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/", "--"]


def at_its_place(path: Path) -> list[str]:
    """The arguments of bubblewrap that show a file or folder, for reading."""
    if path.is_symlink() and path.parent == Path("/"):
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind-try", str(path), str(path)]


def descending(executable: Path, paths: Iterable[Path], uid: int, command: list[str]) -> list[str]:
    """The command that changes from root to user `uid`, who can read `paths`, and then runs `command`."""
    blocked: dict[str, list[str]] = {}
    for path in paths:
        barred = [str(folder) for folder in path.resolve().parents if not folder.stat().st_mode & stat.S_IXOTH]
        if barred:
            blocked.setdefault(barred[-1], []).append(str(path))
    settings = {"uid": uid, "blocked": blocked, "command": command}
    sent = parcel(sources(("isolation.syscalls", "isolation.drop_root")), f"{_INSIDE}.isolation.drop_root", settings)
    return [str(executable), "-I", "-S", "-B", "-c", source("boot"), "{control}", sent]
