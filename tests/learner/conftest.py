from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmorl.messages import Completion, Group, Prompt, Span, Verdict, Version

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows to a fresh file; None is an empty line."""

    def write(*rows: dict[str, Any] | None) -> Path:
        folder = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "rows.jsonl"
        path.write_text("".join(("" if row is None else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of random models: `olmo3` with sliding windows shorter than the samples, `qwen2` tied, `llama`."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    shape = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    special = {"olmo3": {"sliding_window": 6}, "qwen2": {"tie_word_embeddings": True}, "llama": {}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({str(i): i for i in range(40)}, unk_token="0"))
    )
    folders = {}
    for name, more in special.items():
        folder = tmp_path_factory.mktemp("models") / name
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **shape, **more)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[name] = str(folder)
    return folders


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """Runs jobs on that many ranks, each a process (see `ranks_process.py`); returns what each rank returned."""

    def run(world: int, jobs: Jobs, folder: Path | None = None) -> Results:
        import torch

        folder = folder or tmp_path_factory.mktemp("ranks")
        folder.mkdir(exist_ok=True)
        (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        script = Path(__file__).with_name("ranks_process.py")
        address = f"127.0.0.1:{_free_port()}"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, script, folder / "jobs.json", str(rank), str(world), address],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            for process in processes:
                output, _ = process.communicate(timeout=480)
                assert process.returncode == 0, output[-4000:]
        finally:
            for process in processes:
                process.kill()
        return {
            name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=False) for rank in range(world)]
            for name in jobs
        }

    return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def make_group() -> Callable[..., Group]:
    """Builds a scored group; every completion is split evenly among `versions`."""

    def make(
        draw_id: int,
        *,
        rewards: Sequence[float] = (1.0, 0.0),
        lengths: Sequence[int] | None = None,
        tokens: int = 4,
        versions: Sequence[Version] = (Version(1, 0),),
    ) -> Group:
        sizes = lengths or [tokens] * len(rewards)
        prompt = Prompt(
            draw_id=draw_id,
            row=f"a.jsonl:{draw_id + 1}",
            messages="?",
            token_ids=np.array([1, 2], np.int32),
            datasets=("math",),
            ground_truths=("1",),
            group_size=len(rewards),
            min_version=versions[0],
        )
        completions = tuple(
            Completion(
                index=index,
                token_ids=np.arange(size, dtype=np.int32),
                logprobs=np.full(size, -0.5, np.float32),
                spans=_spans(versions, size),
                finish_reason="stop",
                text="",
                verdicts={"math": Verdict(reward=reward)},
                reward=reward,
                solved=reward >= 1,
            )
            for index, (reward, size) in enumerate(zip(rewards, sizes, strict=True))
        )
        return Group(prompt=prompt, completions=completions, actor="a0", started_at=0.0, finished_at=1.0)

    return make


def _spans(versions: Sequence[Version], size: int) -> tuple[Span, ...]:
    edges = [size * i // len(versions) for i in range(len(versions) + 1)]
    return tuple(Span(version, edges[i], edges[i + 1]) for i, version in enumerate(versions))
