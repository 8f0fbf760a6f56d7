"""The error of an engine's process, found in its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from olmorl.actors.vllm_engine.root_cause import ErrorOutput, death_cause, root_cause


def logged(process: str, source: str, *lines: str) -> str:
    """Lines as vLLM's logger in a process of an engine writes them."""
    return "".join(f"({process} pid=4711) ERROR 11-22 23:08:15 [{source}] {line}\n" for line in lines)


def failed(process: str, *errors: str) -> str:
    """A start of `process` that ended with the last of a chain of errors."""
    source = "core.py:1510" if process == "EngineCore" else "multiproc_executor.py:953"
    lines = [f"{'WorkerProc' if process == 'Worker' else process} failed to start."]
    for number, error in enumerate(errors):
        if number:
            lines += ["", "The above exception was the direct cause of the following exception:", ""]
        lines += ["Traceback (most recent call last):", '  File "/vllm/a.py", line 9, in load', "    assert a == b"]
        lines += ["           ^^^^^^", *error.split("\n")]
    return logged(process, source, *lines)


ELSEWHERE = failed(
    "EngineCore",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root "
    "cause.",
)
HALF = "safetensors._safetensors_rust.SafetensorError: Error while deserializing header"
NOISE = (
    "(Worker pid=4711) WARNING 11-22 23:08:12 [cpu_worker.py:114] libiomp is not found in LD_PRELOAD: Error: no\n"
    "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]\n"
)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (NOISE + failed("Worker", HALF) + ELSEWHERE, HALF),
        (failed("EngineCore", "ValueError: 2 GiB KV cache is needed"), "ValueError: 2 GiB KV cache is needed"),
        (failed("EngineCore", "KeyError: 'a'", "ValueError: no layer a"), "ValueError: no layer a"),
        (failed("Worker", "AssertionError") + ELSEWHERE, "AssertionError: assert a == b"),
        (
            failed("Worker", "RuntimeError: Error(s) in loading:\n\tsize mismatch for x") + ELSEWHERE,
            "RuntimeError: Error(s) in loading: size mismatch for x",
        ),
        *(
            (failed("Worker", "KeyError: 'a'", f"{name}: why\nHint: do this") + ELSEWHERE, f"{name}: why Hint: do this")
            for name in (
                "triton.runtime.errors.OutOfResources",
                "torch._dynamo.exc.BackendCompilerFailed",
                "subprocess.TimeoutExpired",
                "StopIteration",
            )
        ),
        (NOISE, ""),
        ("", ""),
        (ELSEWHERE, ""),
    ],
)
def test_the_cause_is_the_error_of_the_first_process_that_did_not_start(log: str, cause: str) -> None:
    assert root_cause(log) == cause


def died(*errors: str) -> str:
    """An engine core that ended with the last of a chain of errors."""
    return failed("EngineCore", *errors).replace("EngineCore failed to start.", "EngineCore encountered a fatal error.")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (NOISE + died("RuntimeError: Unsupported head_dim=16"), "RuntimeError: Unsupported head_dim=16"),
        (died("KeyError: 'a'", "ValueError: no layer a"), "ValueError: no layer a"),
        (failed("EngineCore", "ValueError: of an earlier start") + NOISE, ""),
        (NOISE, ""),
    ],
)
def test_the_cause_of_a_death_is_the_error_of_the_engine_core(log: str, cause: str) -> None:
    assert death_cause(log) == cause


def test_a_log_is_read_from_where_a_start_began(tmp_path: Path) -> None:
    before, path = os.dup(2), tmp_path / "actor-0.log"
    with path.open("w") as log:
        log.write("an earlier start\n")
        log.flush()
        os.dup2(log.fileno(), 2)
        try:
            output = ErrorOutput()
            os.write(2, b"this start\n")
            read = output.read()
        finally:
            os.dup2(before, 2)
            os.close(before)
    assert read == "this start\n"
