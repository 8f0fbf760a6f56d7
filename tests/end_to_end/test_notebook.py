"""The notebook of the docs runs, and a notebook ends a run as a shell does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

import olmorl
from olmorl.learner.storage import checkpoint_dir
from olmorl.run_dir import RunFiles
from tests.waiting import until

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "from-python.ipynb"
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
RUN = """
import olmorl
tables = olmorl.run({
    "run": {"name": "test", "mode": "simulated"},
    "schedule": {"steps": 1000, "prompts_per_step": 4, "max_lag": 2},
    "simulation": {"tokens_per_s": 500},
})
"""
TIME_LIMIT = """
import signal

def on_alarm(number, frame):
    raise TimeoutError("the cell took too long")

signal.signal(signal.SIGUSR1, on_alarm)
"""


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_notebook_of_the_docs_is_executed_small_and_without_an_error() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert NOTEBOOK.stat().st_size < 100_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "all cells, in order"
    assert not [output for output in outputs(notebook) if output.output_type == "error"]


def test_the_notebook_of_the_docs_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    client = NotebookClient(notebook, timeout=850, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    tables = olmorl.read_run(tmp_path / "runs" / "from-python")
    metrics = tables.metrics.to_pandas()
    assert list(metrics["step"]) == list(range(1, 9))
    assert (metrics["logged_characters_mean"] > 0).all()
    printed = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    assert "step    8/8" in printed and "\x1b" not in printed, "a line a step, and no full screen"
    data = [output.data for output in outputs(notebook) if "data" in output]
    assert any("image/png" in each for each in data), "the curve"
    shown = next(each["text/plain"] for each in data if "logged_characters_mean" in each["text/plain"])
    assert f"{metrics['reward_mean'].iloc[-1]:.3f}" in shown
    scores = next(each["text/plain"] for each in data if each["text/plain"].startswith("[("))
    first, second = eval(scores)
    assert first == (pytest.approx(1.0 + 0.2 * (1 - 36 / 400) + 0.1, abs=0.02), True)
    assert second == (pytest.approx(0.2 * (1 - 19 / 400), abs=0.02), False), "None: shows_work does not apply"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("how", ["interrupt", "exception", "death of the kernel"])
def test_a_cell_that_ends_stops_its_run_with_a_checkpoint(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path, how: str
) -> None:
    manager, client = kernel
    files = RunFiles(tmp_path / "runs" / "test")
    client.execute(TIME_LIMIT)
    client.get_shell_msg(timeout=60)
    cell = client.execute(RUN)
    until(lambda: files.metrics.exists() and files.metrics.read_bytes().count(b"\n") >= 3)
    (launcher,) = [each for each in psutil.Process(manager.provisioner.pid).children() if _is_launcher(each)]
    started = [launcher, *launcher.children(recursive=True)]
    ends: dict[str, Callable[[], object]] = {
        "interrupt": manager.interrupt_kernel,
        "exception": lambda: manager.signal_kernel(10),
        "death of the kernel": lambda: psutil.Process(manager.provisioner.pid).kill(),
    }
    ends[how]()
    if how != "death of the kernel":
        reply = _reply(client, cell)
        assert (reply["status"], reply.get("ename")) == (
            ("ok", None) if how == "interrupt" else ("error", "TimeoutError")
        )
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []
    assert "with a checkpoint" in files.ended.read_text()
    assert checkpoint_dir.steps(files.checkpoints)[-1] >= 3


def _is_launcher(process: psutil.Process) -> bool:
    return "olmorl.deploy.launch" in process.cmdline()


def _reply(client: BlockingKernelClient, message: str) -> dict[str, Any]:
    """The answer of the kernel to a cell."""
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"].get("msg_id") == message:
            content: dict[str, Any] = reply["content"]
            return content
