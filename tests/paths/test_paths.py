"""No event of `walks.py` takes more files than when they were last counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from olmorl.toml import literal
from tests import shape
from tests.paths.tracer import Trace
from tests.paths.walks import KEY, KEY_RECORDED, WALKS


@pytest.fixture(scope="module")
def called() -> dict[str, list[str]]:
    """The files of each walk, counted in a process of their own."""
    done = subprocess.run([sys.executable, "-m", "tests.paths"], capture_output=True, text=True, cwd=shape.ROOT)
    assert done.returncode == 0, done.stderr
    files: dict[str, list[str]] = json.loads(done.stdout)
    return files


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_calls_no_more_files_than_before(called: dict[str, list[str]], title: str) -> None:
    files = called[title]
    assert len(files) <= WALKS[title].recorded, f"{title}: look for the new ones among {files}"


def test_each_walk_passes_the_files_that_its_event_needs(called: dict[str, list[str]]) -> None:
    batch, rank, version, number = called.values()
    assert {"learner/orchestrator/draws.py", "learner/storage/journal.py", "learner/batching/packing.py"} <= set(batch)
    assert {"deploy/supervision/learner_supervisor.py", "learner/orchestrator/recovery.py"} <= set(rank)
    assert {"learner/publisher.py", "queues/weights/host_cache.py", "actors/weight_follower.py"} <= set(version)
    assert {"verifiers/scorer.py", "verifiers/math/math_verifier.py"} <= set(number)


def test_the_key_is_named_in_no_more_files_than_before() -> None:
    assert 4 < len(files := shape.naming(KEY)) <= KEY_RECORDED, files


def test_a_trace_counts_what_is_called_while_it_is_on_also_in_a_child(tmp_path: Path) -> None:
    trace, ask = Trace(tmp_path / "trace"), "from olmorl.clock import SystemClock; SystemClock().now()"
    with trace.installed():
        literal(1)
        with trace.on():
            subprocess.run([sys.executable, "-c", ask], check=True, cwd=tmp_path)
    assert trace.files == ["olmorl/clock.py"]
