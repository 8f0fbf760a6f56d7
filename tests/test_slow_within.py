"""The limit of time for slow tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.mark.slow
def test_slow() -> None:
    pass

def test_fast() -> None:
    pass
"""


@pytest.mark.parametrize(
    ("minutes", "outcome"), [("0", "1 passed, 1 skipped"), ("5", "2 passed")], ids=["too late", "in time"]
)
def test_slow_tests_that_would_start_late_are_skipped_and_listed(minutes: str, outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text(TESTS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-rs"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--slow-within", minutes, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcome in ended.stdout
    assert ("slow tests start within 0 minutes" in ended.stdout) == (minutes == "0")
