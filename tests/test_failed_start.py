"""Which errors of a library would be raised again at the next start."""

from __future__ import annotations

import pytest
from safetensors import SafetensorError

from olmorl.errors import ModelError, StartError
from olmorl.failed_start import building, describe, same, would_repeat

FOR_GOOD = (
    "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
    "ValueError: To serve at least one request with the model's max seq len (4096), 2.0 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (0.5 GiB).",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "AssertionError: len(cpu_ids) > 0",
    "OSError: Error no file named model.safetensors found in directory /m",
    "KeyError: 'model.layers.7.mlp.down_proj.weight'",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "FileNotFoundError: [Errno 2] No such file or directory: '/m/tokenizer.json'",
)
FOR_NOW = (
    "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "OSError: [Errno 98] Address already in use",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "OSError: [Errno 28] No space left on device",
    "OSError: [Errno 116] Stale file handle",
    "TimeoutError: the engine was not up after 600 s",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: NCCL error: unhandled system error",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}",
    "died: Worker unexpectedly exits with a connection error",
)


@pytest.mark.parametrize("cause", FOR_GOOD)
def test_an_error_about_what_a_process_was_given_would_be_raised_again(cause: str) -> None:
    assert would_repeat(cause)


@pytest.mark.parametrize("cause", FOR_NOW)
def test_an_error_about_the_surroundings_may_pass(cause: str) -> None:
    assert not would_repeat(cause)
    assert not same(f"actor-0 failed: {cause}", f"actor-0 failed: {cause}") or cause.startswith("RuntimeError: Engine")


def test_the_same_error_at_two_starts_is_told_by_its_words() -> None:
    first = "the engine of m did not start: RuntimeError: size mismatch at 0x7f00 in process 123"
    assert same(first, first.replace("0x7f00", "0x7e11").replace("123", "987"))
    assert not same(first, first.replace("size", "type"))
    assert not same(first, "")


@pytest.mark.parametrize(
    "cause",
    [
        "learner-0 died: its host is gone",
        "learner-0 gave no sign of life for 60 s",
        "learner-0 is lost: NodeDiedError: Error 7",
        "learner-0 failed: ConnectionResetError(104, 'Connection reset by peer')",
        "actor-0 has not started within 600 s",
        "",
    ],
)
def test_what_died_or_was_cut_off_twice_may_live_the_third_time(cause: str) -> None:
    assert not same(cause, cause)


def test_building_names_what_would_be_raised_again_and_passes_on_the_rest() -> None:
    expected = pytest.raises(StartError, match="the policy cannot be built: SafetensorError: half a header")
    with expected as refused, building("the policy"):
        raise SafetensorError("half a\n header")
    assert refused.value.exit_code == 2
    with pytest.raises(RuntimeError, match="hardware"), building("the policy"):
        raise RuntimeError("hardware")
    with pytest.raises(ModelError, match="no model"), building("the policy"):
        raise ModelError("no model")
    assert describe(AssertionError()) == "AssertionError"
