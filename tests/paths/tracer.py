"""Records the files of the product whose functions are called, in this process and in all processes that it starts.

Python calls `sys.setprofile` functions with every call. A file counts once. What runs at an import does not count.
`inherited/sitecustomize.py` begins the recording in processes that are started with `Trace.environment`.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("olmorl", "learner", "actors", "queues", "verifiers", "deploy")
VARIABLE = "TRACE_CALLED_FILES"


class Profile:
    """Appends the name of a file at its first call while the switch of the trace is on."""

    def __init__(self, folder: Path) -> None:
        with (folder / "switch").open("r+b") as file:
            self._switch = mmap.mmap(file.fileno(), 1)
        self._names = os.open(folder / "names", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._files: dict[CodeType, str] = {}
        self._written: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._switch[0]:
            return
        code = frame.f_code
        if (name := self._files.get(code)) is None:
            name = self._files[code] = product_file(code)
        if name and name not in self._written and not importing(frame):
            self._written.add(name)
            os.write(self._names, f"{name}\n".encode())

    def install(self) -> None:
        """Record this thread and those that start later."""
        threading.setprofile(self)
        sys.setprofile(self)


def importing(frame: FrameType | None) -> bool:
    """Whether a call is part of an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def product_file(code: CodeType) -> str:
    """The file of a function of the product, relative to the root; empty for other code."""
    path = Path(code.co_filename)
    if code.co_name == "<module>" or not path.is_absolute():
        return ""
    path = path.resolve()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
    return str(name) if name.parts[:1] and name.parts[0] in FOLDERS else ""


class Trace:
    """The files that are called while `on` holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "switch").write_bytes(b"\0")
        (folder / "names").touch()
        self.environment = {VARIABLE: str(folder), "PYTHONPATH": f"{Path(__file__).parent / 'inherited'}:{ROOT}"}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record this thread, those that start meanwhile, and processes with `environment`."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        Profile(self._folder).install()
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count the calls of this block."""
        switch = self._folder / "switch"
        with switch.open("r+b") as file, mmap.mmap(file.fileno(), 1) as flag:
            flag[0] = 1
            try:
                yield
            finally:
                flag[0] = 0

    @property
    def files(self) -> list[str]:
        return sorted(set((self._folder / "names").read_text().split()))
