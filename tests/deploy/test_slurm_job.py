"""The Slurm script with programs in the place of Slurm, Ray and the launcher: what it asks of them, and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SBATCH = Path(__file__).parents[2] / "deploy" / "slurm" / "olmorl.sbatch"
LAUNCHER = """#!/usr/bin/env bash
echo "launch $*" >> "$SLURM_SUBMIT_DIR/said"
case "$*" in *--dry-run*) exit 0 ;; esac
trap 'echo TERM >> "$SLURM_SUBMIT_DIR/said"; left=10' TERM
left=600
while [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
echo "the checkpoint is written" >> "$SLURM_SUBMIT_DIR/said"
exit 7
"""
PYTHON = """#!/usr/bin/env bash
if [ -f "$SLURM_SUBMIT_DIR/served" ]; then cat "$SLURM_SUBMIT_DIR/served"; fi
"""
SRUN = """#!/usr/bin/env bash
echo "$*" | tr '\\n' ' ' >> "$SLURM_SUBMIT_DIR/sruns"; echo >> "$SLURM_SUBMIT_DIR/sruns"
case "$*" in *hostname*) echo "127.0.1.1 169.254.3.1 10.0.0.5 fe80::1" ;; esac
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
    hostnames | show) printf 'one\\ntwo\\nthree\\n' ;;
    *) echo "scontrol $*" >> "$SLURM_SUBMIT_DIR/said" ;;
esac
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the job with these options. It was requeued once."""
    programs = {".venv/bin/olmorl-launch": LAUNCHER, ".venv/bin/python": PYTHON, "bin/srun": SRUN}
    for name, text in {**programs, "bin/scontrol": SCONTROL}.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    started = []

    def begin(*options: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_NODELIST": "one,two,three",
            "SLURM_JOB_ID": "17",
            "SLURM_RESTART_COUNT": "1",
        }
        started.append(subprocess.Popen(["bash", str(SBATCH), "recipe.toml", *options], env=environment))
        return started[-1]

    yield begin
    for job in started:
        job.kill()
        job.wait()


def said(folder: Path) -> list[str]:
    path = folder / "said"
    return path.read_text().splitlines() if path.exists() else []


def sruns(folder: Path) -> list[str]:
    path = folder / "sruns"
    return path.read_text().splitlines() if path.exists() else []


def until(ready: Callable[[], object]) -> None:
    give_up = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_a_requeued_job_goes_on_and_does_not_go_back_again(start: Start, tmp_path: Path) -> None:
    job = start("--from-step", "40", "--learner-nodes=1", "--from-step=40")
    until(lambda: len(said(tmp_path)) == 2)
    asked, launched = said(tmp_path)
    assert asked == "launch recipe.toml --ray-address auto --learner-nodes=1 --dry-run --resume"
    assert launched == "launch recipe.toml --ray-address 10.0.0.5:6379 --learner-nodes=1 --resume"
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 7


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGUSR1])
def test_the_warning_of_slurm_does_not_spoil_a_checkpoint(start: Start, tmp_path: Path, first: signal.Signals) -> None:
    job = start("--learner-nodes", "1")
    until(lambda: len(said(tmp_path)) == 2)
    job.send_signal(first)
    until(lambda: "TERM" in said(tmp_path))
    job.send_signal(signal.SIGUSR1)
    assert job.wait(20) == 7, "the exit code of the launcher"
    end = ["TERM", "the checkpoint is written"] + (["scontrol requeue 17"] if first == signal.SIGUSR1 else [])
    assert said(tmp_path)[2:] == end


def test_the_last_node_serves_the_judge_outside_of_ray(start: Start, tmp_path: Path) -> None:
    (tmp_path / "served").write_text("verifiers.judge vllm serve owner/judge --port 8000\n")
    job = start("--learner-nodes", "1")
    until(lambda: len(said(tmp_path)) == 2 and len(sruns(tmp_path)) == 4)
    judge = "--verifiers.judge.url http://three:8000/v1 --verifiers.judge.api_key_env VLLM_API_KEY"
    assert f"--learner-nodes 1 {judge} --dry-run --resume" in said(tmp_path)[0], "a requeued run knows its judge"
    assert said(tmp_path)[1].endswith(f"--learner-nodes 1 {judge} --resume")
    (serving,) = (line for line in sruns(tmp_path) if "serve owner/judge --port 8000" in line)
    assert "--nodelist=three" in serving
    (workers,) = (line for line in sruns(tmp_path) if "--exclude" in line)
    assert "--nodes=1 --ntasks=1 --exclude=one,three" in workers, "Ray has the first two nodes"
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 7


def test_each_model_has_a_node_and_starts_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "served").write_text(
        "verifiers.judge vllm serve owner/judge --port 8000\n"
        "distillation.teachers.math vllm serve 'owner/the teacher' --port 8000\n"
    )
    job = start("--learner-nodes", "1")
    until(lambda: len(said(tmp_path)) == 2 and len(sruns(tmp_path)) == 4)
    places = [
        f"--{key}.url http://{host}:8000/v1 --{key}.api_key_env VLLM_API_KEY"
        for key, host in (("verifiers.judge", "three"), ("distillation.teachers.math", "two"))
    ]
    assert said(tmp_path)[1].endswith(f"--learner-nodes 1 {' '.join(places)} --resume")
    teacher = next(line for line in sruns(tmp_path) if "--nodelist=two" in line)
    assert f"while :; do '{tmp_path}/.venv/bin'/vllm serve 'owner/the teacher' --port 8000; echo" in teacher
    assert "distillation.teachers.math.model ended with $?: it starts again" in teacher
    assert not any("--exclude" in line for line in sruns(tmp_path)), "Ray has one node"
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 7


def test_models_for_more_nodes_than_there_are_are_named(start: Start, tmp_path: Path) -> None:
    names = ("verifiers.judge", "verifiers.reward_model", "distillation.teachers.math")
    (tmp_path / "served").write_text("".join(f"{name} vllm serve owner/model\n" for name in names))
    assert start("--learner-nodes", "1").wait(20) == 2
    assert not (tmp_path / "said").exists()


def test_without_a_judge_ray_has_all_nodes(start: Start, tmp_path: Path) -> None:
    job = start("--learner-nodes", "1")
    until(lambda: len(said(tmp_path)) == 2 and len(sruns(tmp_path)) == 3)
    (workers,) = (line for line in sruns(tmp_path) if "--exclude" in line)
    assert "--nodes=2 --ntasks=2 --exclude=one " in workers
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 7
