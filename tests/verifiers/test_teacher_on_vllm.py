"""A real vLLM server as teacher: its numbers are those of transformers, and its vocabulary is checked."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from olmorl.config import Config, Distillation, HttpService
from olmorl.errors import ConfigError
from olmorl.messages import Completion, Prompt, Span, Version
from olmorl.verifiers.teacher_check import check_token_scorers
from olmorl.verifiers.teachers import Teachers

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.doors]
WORDS, LONGEST, START_S = 40, 63, 240.0


def words(*changed: str) -> PreTrainedTokenizerFast:
    vocabulary = {**{str(i): i for i in range(WORDS)}}
    for word in changed:
        vocabulary[f"other {word}"] = vocabulary.pop(word)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="0")), eos_token="1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, whose log-probabilities differ much from token to token."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {
        "head_dim": 32,
        "vocab_size": WORDS,
        "max_position_embeddings": 128,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    AutoModelForCausalLM.from_config(LlamaConfig(initializer_range=0.3, **shape)).save_pretrained(folder)
    words().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        str(LONGEST + 1),
    ]
    log = folder.parent / "server.log"
    with log.open("w") as file:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    address, give_up = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < give_up, log.read_text()
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def taught_by(url: str) -> Distillation:
    return Distillation.model_validate({"teachers": {"big": {"url": url}}})


def served(url: str) -> dict[str, HttpService]:
    return Config(distillation=taught_by(url)).token_scorers


def test_the_log_probabilities_are_those_of_the_model(url: str, folder: Path) -> None:
    rng = np.random.default_rng(0)
    prompt_ids, answer_ids = (rng.integers(0, WORDS, size).astype(np.int32) for size in (5, 20))
    prompt = Prompt(
        draw_id=0, row="a.jsonl:1", messages="?", token_ids=prompt_ids, datasets=(), ground_truths=(),
        group_size=2, min_version=Version(0, 0),
    )  # fmt: skip
    answer = Completion(
        index=0, token_ids=answer_ids, logprobs=np.zeros(20, np.float32), spans=(Span(Version(1, 0), 0, 20),),
        finish_reason="stop", text="",
    )  # fmt: skip

    async def ask() -> np.ndarray:
        teachers = Teachers(taught_by(url))
        verdicts = [await teachers.verify_row(prompt, answer, "", None) for _ in range(2)]
        await teachers.close()
        assert not verdicts[0].error_kind, verdicts[0].detail
        assert np.array_equal(verdicts[0].token_logprobs, verdicts[1].token_logprobs), "with the prefix in its cache"
        return np.asarray(verdicts[0].token_logprobs)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([*prompt_ids, *answer_ids]).long()
    with torch.no_grad():
        logprobs = model(tokens[None]).logits[0, 4:-1].log_softmax(-1)
    expected = logprobs.gather(1, tokens[5:, None])[:, 0].clamp(min=-20).numpy()
    assert expected.std() > 1
    np.testing.assert_allclose(asyncio.run(ask()), expected, atol=1e-4)


def test_its_vocabulary_and_its_context_are_checked(url: str) -> None:
    check_token_scorers(served(f"{url}/v1"), words(), LONGEST)
    with pytest.raises(ConfigError, match="token 33 is '33' there and 'other 33' here"):
        check_token_scorers(served(url), words("33", "37"), LONGEST)
    with pytest.raises(ConfigError, match=f"refuses a sample of {LONGEST + 1} tokens"):
        check_token_scorers(served(url), words(), LONGEST + 1)
