"""A run directory of an older version, with its Redis, is resumed.

`older_run.tar.xz` holds `recipe.toml` and `runs/test`: a run without a model whose processes were all killed after 18
of 40 steps. The last checkpoint is that of step 15. The version had other names for folders, processes and messages.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from tests.chaos.history import violations
from tests.end_to_end.launching import Launch

ARCHIVE = Path(__file__).parent / "older_run.tar.xz"
STEPS, DONE, CHECKPOINT = 40, 18, 15
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_it_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    run = Launch(tmp_path, tmp_path / "recipe.toml")
    before = run.lines()
    assert len(before) == DONE
    try:
        # It had another queue.lease_s, a key that no longer exists.
        run.start("--run.directory", str(tmp_path / "runs"), "--resume", "--change")
        assert run.wait() == 0, run.output()
    finally:
        run.end()
    shown = [int(step) for step in re.findall(r"^step +(\d+)/40", (tmp_path / "output.txt").read_text(), re.MULTILINE)]
    assert shown == list(range(CHECKPOINT + 1, STEPS + 1)), "the steps in the journal are trained again, then new ones"
    lines = run.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["reward_mean"] for line in lines[:DONE]] == [line["reward_mean"] for line in before]
    assert violations(run.run_dir, prompts_per_step=4, max_lag=2) == []
